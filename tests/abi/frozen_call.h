/* A whole call, made by a program that was compiled with the header of 0.2.0. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct frozen_call {
  int64_t num_seqs, num_tokens;
  int32_t heads, dk, dv;
  const int32_t* seq_offsets;
  const float *q, *k, *v, *g, *beta;
  float *o, *final;
  char backend[32];    /* by the summary */
  char signature[512]; /* by the description */
} frozen_call;

/* NULL, or the step that failed; dr_last_error has more where a function of the library did. */
const char* frozen_call_run(frozen_call* call);

#ifdef __cplusplus
}
#endif
