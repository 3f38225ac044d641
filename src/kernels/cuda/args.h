// What every CUDA kernel is told: plain structures that travel as kernel parameters. No CUDA header is needed to read this file.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/relay.h"
#include "kernels/stages.h"
#include "problem/host_device.h"

namespace deltarelay::cuda {

// A tensor of the call. Strides are in elements; the feature stride is 1. Packed problems have sequence stride 0 and count
// tokens from the first row of the tensor; batched ones count them from the first row of their sequence.
struct TensorView {
  void* data;
  int64_t token, head, sequence;
  DType dtype;
};

// A pool of states of the caller (StatePool with its pointers).
struct StateView {
  void* data;         // nullptr: the pool is not used
  const void* index;  // slots: one index per row; nullptr: row n is slot n
  int64_t stride_slot, stride_head, num_slots, null_index;
  StateLayout layout;
  DType dtype, index_dtype;
  bool has_null_index;
  int32_t columns;  // DV: numbers of a row of a key-major matrix
};

// States inside sequences, and where they go.
struct CheckpointView {
  StateView pool;
  Checkpoints kind;
  int64_t every;             // kEvery
  const int32_t* offsets;    // kList: [num_seqs + 1]
  const int32_t* positions;  // kList
};

// Which tokens and chunks belong to which sequence, and who walks them. Chunks are numbered through the call: sequence n owns chunks
// [chunk_begin[n], chunk_begin[n + 1]).
//
// The table of most calls is small: it travels with every kernel, in its parameters, so that none has to wait for one that writes it. A large one,
// or one that the device planner fills, lies in the workspace.
struct Tables {
  // Parameters of a kernel, maps and all, then stay within the 4 KB that every driver takes.
  static constexpr size_t kImageBytes = 2560;

  const uint8_t* memory;                                                             // device memory; nullptr: `image`
  uint32_t at_token_begin, at_chunk_begin, at_rows1, at_folds, at_rows3, at_counts;  // bytes
  int64_t num_seqs;
  bool batched;
  alignas(16) uint8_t image[kImageBytes];

  // [num_seqs + 1] packed: first token of each sequence; batched: n * seq_len, lengths only
  DR_HD const int64_t* token_begin() const { return array<int64_t>(at_token_begin); }
  DR_HD const int32_t* chunk_begin() const { return array<int32_t>(at_chunk_begin); }  // [num_seqs + 1]
  DR_HD const Row* rows1() const { return array<Row>(at_rows1); }
  DR_HD const Fold* folds() const { return array<Fold>(at_folds); }
  DR_HD const Row* rows3() const { return array<Row>(at_rows3); }
  // rows1, folds, rows3 in use; grids may be larger
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

// Scores of KDA in the frame of a chunk's middle are safe down to this log-decay per token: 16 x 5 = 80 < 88, where e^x leaves fp32.
constexpr float kMidFrameGate = -5.0f;

struct PrepareArgs {
  Tables tables;
  Activation activation;
  TensorView q, k;
  uint8_t* prepared;  // [chunks, HV] records
  int32_t heads_qk, heads_v;
  int32_t chunks;  // an upper bound: chunk_begin[num_seqs] says how many there are
};

// Rows that are handed on from one CTA to another (kernels/relay.h).
struct RelayView {
  RelayLine line;    // no share: no row is
  float* states;     // [place, 128 value rows, 128 key columns]
  RelayMark* marks;  // [place, 2]: of either half of the value rows
};

// A strip is 128 value columns of one head. cuda-sm90 walks each strip as if it were a head of DV = 128. The strips of a head read the same gates,
// betas and records; each has its own state and transition. Strip s belongs to head s / a_head. With DV = 128, and on cuda-sm80, a strip is a head.
struct Strips {
  int32_t all;     // HV * a_head
  int32_t a_head;  // strips in one head: DV / 128

  DR_HD int32_t head_of(int32_t strip) const { return a_head == 1 ? strip : strip / a_head; }
};

struct WalkArgs {
  Tables tables;
  int32_t phase;      // 1 or 3: which rows
  int32_t row_bound;  // rows the grid covers
  const uint8_t* prepared;
  StateView initial, final;
  const uint8_t* has_initial;  // [num_seqs] or nullptr
  TensorView o;                // ragged chunks are stored without TMA
  float* slot_state;           // [slot, strip, 128 value rows, 128 key columns]
  float* slot_transition;      // [slot, strip, 128, 128]: row c holds M e_c, that is, M transposed
  uint32_t* slot_lives;        // [slot, strip, 2]: of either half of M's rows, 0 when it has vanished
  uint32_t* report;            // or nullptr: DR_REPORT_SLOTS when an index is outside its pool, DR_REPORT_DROPPED
  int32_t heads_qk, heads_v;
  Strips strips;
  float vanish_bound;  // of a transition that has vanished no number is above it (vanished.cuh); 0: all are 0
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
  const uint32_t* slot_lives;  // as the summaries left it
  int32_t heads_v;
  Strips strips;
};

}  // namespace deltarelay::cuda
