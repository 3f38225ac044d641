// Arguments of the CUDA kernels: plain structures that travel as kernel parameters. This file needs no CUDA header.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/relay.h"
#include "kernels/rows.h"
#include "problem/host_device.h"
#include "problem/problem.h"

namespace deltarelay::cuda {

// A tensor of the call. Strides are in elements; the feature stride is 1. Packed problems have sequence stride 0 and
// count tokens from the first row of the tensor; batched ones count them from the first row of their sequence.
struct TensorView {
  void* data;
  int64_t token, head, sequence;
  DType dtype;
};

// A pool of the caller's states (StatePool with its pointers).
struct StateView {
  void* data;         // nullptr: the pool is not used
  const void* index;  // slots: one index per row; nullptr: row n is slot n
  int64_t stride_slot, stride_head, num_slots, null_index;
  StateLayout layout;
  DType dtype, index_dtype;
  bool has_null_index;
  int32_t columns;  // DV: numbers in a row of a key-major matrix
};

// Checkpoints, and the pool they are stored in.
struct CheckpointView {
  StateView pool;
  Checkpoints kind;
  int64_t every;             // kEvery
  const int32_t* offsets;    // kList: [num_seqs + 1]
  const int32_t* positions;  // kList
};

// Tokens and chunks of each sequence, and the rows and folds of the plan. Chunks are numbered through the call:
// sequence n owns chunks [chunk_begin[n], chunk_begin[n + 1]).
//
// Most tables are small. A small one travels in the parameters of every kernel, so no kernel waits for another one that
// writes it. A large table, or one that the device planner fills, lies in the workspace.
struct Tables {
  static constexpr size_t kImageBytes = kTableInParameters;

  const uint8_t* memory;                                                             // device memory; nullptr: `image`
  uint32_t at_token_begin, at_chunk_begin, at_rows1, at_folds, at_rows3, at_counts;  // byte offsets
  int64_t num_seqs;
  bool batched;
  alignas(16) uint8_t image[kImageBytes];

  // [num_seqs + 1]. Packed: first token of each sequence. Batched: n * seq_len; only differences count.
  DR_HD const int64_t* token_begin() const { return array<int64_t>(at_token_begin); }
  DR_HD const int32_t* chunk_begin() const { return array<int32_t>(at_chunk_begin); }  // [num_seqs + 1]
  DR_HD const Row* rows1() const { return array<Row>(at_rows1); }
  DR_HD const Fold* folds() const { return array<Fold>(at_folds); }
  DR_HD const Row* rows3() const { return array<Row>(at_rows3); }
  // Used entries of rows1, folds and rows3. Grids may be larger.
  DR_HD const int32_t* counts() const { return array<int32_t>(at_counts); }

 private:
  template <class T>
  DR_HD const T* array(uint32_t at) const {
    return reinterpret_cast<const T*>((memory != nullptr ? memory : image) + at);
  }
};

// Gates, betas and norms, as `prepare` reads them.
struct Activation {
  TensorView g, beta;
  const void* a_log;    // [HV] or nullptr
  const void* dt_bias;  // [HV, DK] (KDA), [HV] (GDN) or nullptr
  DType dtype_a_log, dtype_dt_bias;
  GateForm gate_form;
  BetaForm beta_form;
  float lower_bound;  // raw bounded
  float gate_floor;   // log and linear gates; 0: none
  float scale;
  bool l2norm;
};

// Lowest log-decay of a token for which KDA forms scores in the frame of a chunk's middle: over 16 tokens the exponent
// reaches 16 x 5 = 80, and e^x leaves fp32 at 88.
constexpr float kMidFrameGate = -5.0f;

struct PrepareArgs {
  Tables tables;
  Activation activation;
  TensorView q, k;
  uint8_t* prepared;  // [chunks, HV] records
  int32_t heads_qk, heads_v;
  int32_t chunks;  // upper bound; the actual number is chunk_begin[num_seqs]
};

// States that one CTA hands on to another inside a row (kernels/relay.h).
struct RelayView {
  RelayLine line;    // shares == 0: no row is handed on
  float* states;     // [place, 128 value rows, 128 key columns]
  RelayMark* marks;  // [place, 2]: one for each half of the value rows
};

// A strip is 128 value columns of one head. cuda-sm90 walks each strip as if it were a head of DV = 128. The strips of
// a head read the same gates, betas and records; each has its own state and transition. Strip s belongs to head
// s / a_head. With DV = 128, and on cuda-sm80, a strip is a head.
struct Strips {
  int32_t all;     // HV * a_head
  int32_t a_head;  // strips in one head: DV / 128

  DR_HD int32_t head_of(int32_t strip) const { return a_head == 1 ? strip : strip / a_head; }
};

struct WalkArgs {
  Tables tables;
  int32_t phase;      // 1 or 3: selects the rows
  int32_t row_bound;  // rows that the grid covers
  const uint8_t* prepared;
  StateView initial, final;
  const uint8_t* has_initial;  // [num_seqs] or nullptr
  TensorView o;                // chunks that are not whole are stored without TMA
  float* slot_state;           // [slot, strip, 128 value rows, 128 key columns]
  float* slot_transition;      // [slot, strip, 128, 128]: M^T; row c holds M e_c
  uint32_t* slot_lives;        // [slot, strip, 2]: per half of M's rows, 0 if it has vanished
  uint32_t* report;            // nullptr: none. DR_REPORT_SLOTS: an index is outside its pool; DR_REPORT_DROPPED
  int32_t heads_qk, heads_v;
  Strips strips;
  float vanish_bound;  // no number of a vanished transition exceeds it (vanished.cuh); 0: all are 0
  CheckpointView checkpoints;
  RelayView relay;
};

struct CarryArgs {
  Tables tables;
  int32_t fold_bound;
  StateView initial;           // folds that start from the caller's state
  const uint8_t* has_initial;  // [num_seqs] or nullptr
  float* slot_state;
  const float* slot_transition;
  const uint32_t* slot_lives;  // written by the summaries
  int32_t heads_v;
  Strips strips;
};

}  // namespace deltarelay::cuda
