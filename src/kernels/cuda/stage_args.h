// Arguments of the kernels of the stages (deltarelay/stages.h). This file needs no CUDA header.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

// The intermediates of a stage and what is said of them (dr_intermediates, dr_chunks).
struct Intermediates {
  void *aqk, *inverse;                    // [T, HV, C]
  void *w, *u, *k_to_end, *q_from_start;  // [T, HV, DK], u [T, HV, DV]
  float* gate_sums;                       // [T, HV, DK] (KDA), [T, HV] (GDN)
  void* v_new;                            // [T, HV, DV]
  void* states;                           // [R, HV, matrix]; row chunk_begin[n] + i is the i-th of sequence n
  float *summaries, *composed;            // [N, HV, DV + DK, DK]
  int32_t given, wanted;                  // DR_AQK, ...
  int32_t chunk;                          // tokens; DR_CARRY: 1 summary
  DType dtype, dtype_states;
  StateLayout states_layout;
  bool sums_base_2;

  DR_HD bool gives(int32_t bits) const { return (given & bits) == bits; }
  DR_HD bool wants(int32_t bits) const { return (wanted & bits) != 0; }
};

// A stage whose chunks run at once: DR_CHUNK_LOCAL, DR_OUTPUTS. What the call neither reads nor writes is nullptr.
struct ChunkArgs {
  Tables tables;
  Rule rule;
  Activation activation;
  TensorView q, k, v, o;
  Intermediates stage;
  int32_t heads_qk, heads_v, dk, dv;
  int32_t chunks;  // upper bound; the actual number is chunk_begin[num_seqs]
};

// A stage that hands a state on: DR_STATE_PASS, whose walks emit and summarize rows of a phase, and DR_SUMMARY, whose
// rows are all summarized, into the caller's summaries. Also DR_CARRY, which goes by sequences.
struct PassArgs {
  Tables tables;
  Rule rule;
  int32_t phase;      // 1 or 3: selects the rows
  int32_t row_bound;  // rows that the grid covers; DR_CARRY: sequences
  Activation activation;
  TensorView k;
  Intermediates stage;
  StateView initial, final;
  const uint8_t* has_initial;  // [num_seqs] or nullptr
  float* slot_state;           // [slot, HV, state_floats]
  float* slot_transition;      // [slot, HV, transition_floats]
  uint32_t* slot_lives;        // [slot, HV, 2]
  uint32_t* report;            // or nullptr
  int32_t heads_qk, heads_v, dk, dv;
  float vanish_bound;  // as in WalkArgs
};

}  // namespace deltarelay::cuda
