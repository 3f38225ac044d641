// States of the caller: the slot of a sequence or checkpoint, and columns of a state to and from double.
#pragma once
#include <cstdint>

#include "problem/number.h"
#include "problem/problem.h"
#include "problem/slots.h"

namespace deltarelay::reference {

// Element offset of S[i, column] in a contiguous matrix of this layout.
inline int64_t element_of(StateLayout layout, int32_t dk, int32_t dv, int32_t i, int32_t column) {
  return layout == StateLayout::kValueMajor ? static_cast<int64_t>(column) * dk + i
                                            : static_cast<int64_t>(i) * dv + column;
}

// Element offset of S[i, column] in the state of (slot, head).
inline int64_t element_of(const StatePool& pool, int64_t slot, int64_t head, int32_t dk, int32_t dv, int32_t i,
                          int32_t column) {
  return slot * pool.stride_slot + head * pool.stride_head + element_of(pool.layout, dk, dv, i, column);
}

// Checkpoint rows of one sequence. Rows lie in sequence order, so the first row of a sequence follows from the lengths
// of the sequences before it. A cursor that moves forward needs no table.
class CheckpointRows {
 public:
  CheckpointRows(const Problem& problem, const dr_tensors& tensors, const Sequences& sequences)
      : problem_(problem), tensors_(tensors), sequences_(sequences) {}

  void seek(int64_t sequence) {
    if (problem_.checkpoints == Checkpoints::kList) {
      first_ = tensors_.checkpoint_offsets[sequence];
      count_ = tensors_.checkpoint_offsets[sequence + 1] - first_;
      return;
    }
    if (sequence < sequence_) sequence_ = first_ = 0;
    for (; sequence_ < sequence; ++sequence_) first_ += problem_.checkpoint_rows(sequences_.length(sequence_));
    count_ = problem_.checkpoint_rows(sequences_.length(sequence));
  }

  int64_t first() const { return first_; }
  int64_t count() const { return count_; }
  // Tokens of the sequence that the state in row first() + j includes.
  int64_t position(int64_t j) const {
    switch (problem_.checkpoints) {
      case Checkpoints::kEvery:
        return (j + 1) * problem_.checkpoint_every;
      case Checkpoints::kList:
        return tensors_.checkpoint_positions[first_ + j];
      case Checkpoints::kChunks:
        return j * kCheckpointChunk;
      case Checkpoints::kNone:
        break;
    }
    return -1;
  }

 private:
  const Problem& problem_;
  const dr_tensors& tensors_;
  const Sequences& sequences_;
  int64_t sequence_ = 0;
  int64_t first_ = 0;
  int64_t count_ = 0;
};

}  // namespace deltarelay::reference
