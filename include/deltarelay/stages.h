/* The stages of the forward as operations of their own: dr_problem.op from DR_CHUNK_LOCAL to DR_CARRY. deltarelay.h
 * includes this header. */
#ifndef DELTARELAY_STAGES_H_
#define DELTARELAY_STAGES_H_

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- stages ---------------------------------------------------------------------------------------------------- */

/* dr_chunks.given and dr_chunks.wanted: tensors of dr_intermediates, as bits. */
enum {
  DR_AQK = 1,           /* scores of q and k, with scale */
  DR_INVERSE = 2,       /* (I + Akk)^-1 */
  DR_W = 4,             /* keys as the solve leaves them */
  DR_U = 8,             /* values as the solve leaves them */
  DR_K_TO_END = 16,     /* k, decayed to the end of the chunk */
  DR_Q_FROM_START = 32, /* q, decayed from the start of the chunk */
  DR_GATE_SUMS = 64,    /* sums of log-decays inside the chunk */
  DR_V_NEW = 128,       /* what the chunk writes into the state */
  DR_STATES = 256,      /* the state at the start of each chunk */
  DR_SUMMARIES = 512,   /* transitions (M, B) */
  DR_COMPOSED = 1024    /* the transition of a whole chain */
};

/* A stage: problem.chunks is required for DR_CHUNK_LOCAL to DR_CARRY. `given` names the intermediates that the call
 * reads, `wanted` those that it writes. What a stage reads beside them are the tensors of dr_tensors; a tensor that
 * follows from what is given is not read and must be NULL. l2norm, the gate and beta forms and the gate floor apply to
 * the tensors that a stage reads. Chunks start anew with every sequence; the last one may be shorter.
 *
 * DR_CHUNK_LOCAL  given: may INVERSE, GATE_SUMS. wanted: any of AQK, INVERSE, W, U, K_TO_END, Q_FROM_START, GATE_SUMS.
 *                 Reads k, g, beta; q for AQK and Q_FROM_START; v for U.
 *
 * DR_STATE_PASS   given: W, U; may K_TO_END, GATE_SUMS. wanted: may STATES, V_NEW. Reads k, g, initial; writes final.
 *
 * DR_OUTPUTS      given: V_NEW, STATES; may AQK, Q_FROM_START, GATE_SUMS. Reads q, k, g; writes o.
 *
 * DR_SUMMARY      given: nothing; or W, U and may K_TO_END, GATE_SUMS. wanted: SUMMARIES. Reads k, g; without W and U
 *                 also v and beta.
 *
 * DR_CARRY        given: SUMMARIES. wanted: may STATES, COMPOSED. Reads initial; writes final.
 *
 * DR_SUMMARY takes every sequence as one segment, so the caller cuts by seq_offsets, at multiples of the chunk. In
 * DR_CARRY a "token" is one summary and a sequence is a chain of them in order: num_tokens counts summaries, and
 * seq_offsets says which belong to which chain. */
typedef struct dr_chunks {
  uint32_t size;         /* sizeof(dr_chunks) */
  int32_t chunk;         /* C, tokens per chunk: 16, 32 or 64; 0: 64. DR_CARRY: 0 */
  int32_t given;         /* bits: intermediates that the call reads */
  int32_t wanted;        /* bits: intermediates that the call writes */
  int32_t dtype;         /* of aqk, inverse, w, u, k_to_end, q_from_start and v_new; default: problem.dtype */
  int32_t dtype_states;  /* of states; default: dtype, or DR_FP32 for DR_CARRY */
  int32_t states_layout; /* DR_STATE_VALUE_MAJOR or _KEY_MAJOR; required if states are given or wanted, else 0 */
  int32_t sums_base_2;   /* nonzero: gate_sums are logarithms of base 2; zero: natural ones */
} dr_chunks;

/* Sets every field to zero and then the size. */
static inline void dr_chunks_init(dr_chunks* chunks) {
  memset(chunks, 0, sizeof *chunks);
  chunks->size = (uint32_t)sizeof *chunks;
}

/* Tensors of the stages. A pointer that is neither given nor wanted must be NULL. All are contiguous, 16-byte aligned
 * and in value heads. R is the number of chunks of all sequences, in order; a sequence of L tokens has ceil(L / C).
 *
 * Symbols, for tokens i and j of one chunk: G is the sum of the log-decays from the start of the chunk up to and
 * including a token, G_last that of the last token of the chunk, E_ij = exp(G_i - G_j), S the state at its start.
 *
 * Akk_ij = beta_i sum(k_i k_j E_ij) for j < i, and T = (I + Akk)^-1.
 *
 * Aqk_ij = scale sum(q_i k_j E_ij) for j <= i.
 *
 * W = T (beta exp(G) k), U = T (beta v), V_new = U - W S.
 *
 * o = scale q_from_start S + Aqk V_new; the next state is exp(G_last) S + k_to_end' V_new.
 *
 * Above the diagonal, and in columns past the end of a short chunk, aqk and inverse are written as zero and not read.
 * Rows of a call's outputs that belong to no sequence are set to zero. */
typedef struct dr_intermediates {
  uint32_t size;      /* sizeof(dr_intermediates) */
  uint32_t reserved;  /* zero */
  void* aqk;          /* [T, HV, C]: row i of Aqk for token i of a chunk */
  void* inverse;      /* [T, HV, C]: row i of T */
  void* w;            /* [T, HV, DK] */
  void* u;            /* [T, HV, DV] */
  void* k_to_end;     /* [T, HV, DK]: k_i exp(G_last - G_i) */
  void* q_from_start; /* [T, HV, DK]: q_i exp(G_i), without scale */
  void* gate_sums;    /* [T, HV, DK] (KDA) or [T, HV] (GDN): G, fp32. Given ones are finite */
  void* v_new;        /* [T, HV, DV] */
  void* states;       /* [R, HV, matrix]: S at the start of each chunk. DR_CARRY: [T, HV, matrix], the state that enters
                         the segment of each summary */
  void* summaries;    /* [N, HV, DV + DK, DK], fp32: the columns of B, then the columns of M, each with DK numbers.
                         S_out = M S_in + B. DR_CARRY: [T, HV, DV + DK, DK] */
  void* composed;     /* DR_CARRY: [N, HV, DV + DK, DK], fp32: the summary of a whole chain */
} dr_intermediates;

/* Sets every field to zero and then the size. */
static inline void dr_intermediates_init(dr_intermediates* intermediates) {
  memset(intermediates, 0, sizeof *intermediates);
  intermediates->size = (uint32_t)sizeof *intermediates;
}

#ifdef __cplusplus
}
#endif
#endif /* DELTARELAY_STAGES_H_ */
