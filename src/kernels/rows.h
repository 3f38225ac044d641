// What a plan hands to kernels: rows of work, and the folds between them.
//
// A plan runs in up to three phases:
// 1  rows: whole sequences and first segments are emitted (they start from the true state), middle segments summarized
//   2  folds: carry gives the state that enters every later segment
//   3  rows: middle and last segments are emitted
// Between phases the state that enters or leaves a segment lives in numbered slots of the workspace.
#pragma once
#include <cstdint>

namespace deltarelay {

enum class Work : int32_t { kEmit = 0, kSummarize = 1 };

// One segment (or whole sequence) of every head: `chunks` chunks from chunk `begin` of sequence `sequence`.
struct Row {
  int32_t sequence;
  int32_t begin;
  int32_t chunks;
  Work work;
  int32_t slot_in;      // emit: slot of the entering state; -1: the caller's initial state (zero if none)
  int32_t slot_out;     // emit: slot that receives the exit state, -1: none; summarize: slot that receives (M, B)
  int32_t slot_folded;  // emit: slot whose state replaces the exit state in final state and checkpoints; -1: none
  // A row that ends its sequence writes the final state, if one is wanted.
  bool operator==(const Row&) const = default;
};

// The carry of one sequence. State of slot `slot` is given (or, when from_initial, first copied from the caller's
// initial state); then for j = 1..count:  state[slot + j] = M[slot + j] * state[slot + j - 1] + B[slot + j]. B and the
// state that replaces it share storage.
struct Fold {
  int32_t sequence;
  int32_t slot;
  int32_t count;
  bool from_initial;
  bool operator==(const Fold&) const = default;
};

// Rows of both phases and the folds between them, in memory that someone else owns.
struct TableView {
  const Row* rows1;
  int64_t num_rows1;
  const Fold* folds;
  int64_t num_folds;
  const Row* rows3;
  int64_t num_rows3;
};

// A table for a GPU of at most this size travels in the parameters of every kernel. The limit keeps parameters, tensor
// maps included, within the 4 KB that every driver accepts.
inline constexpr int64_t kTableInParameters = 2560;

}  // namespace deltarelay
