// Slots of the caller's pools for sequences and checkpoints. A slot of -1 means: read zero, write nothing.
#pragma once
#include <cstdint>

#include "kernels/stages.h"
#include "problem/slots.h"

namespace deltarelay::cpu {

inline int64_t initial_slot(const StageArgs& args, int64_t sequence) {
  if (args.problem.initial_mask && args.tensors.has_initial[sequence] == 0) return -1;
  return slot_of(args.problem.initial, args.tensors.initial_index, sequence);
}

inline int64_t final_slot(const StageArgs& args, int64_t sequence) {
  return slot_of(args.problem.final, args.tensors.final_index, sequence);
}

// The checkpoints of one sequence, in the order of their positions.
class CheckpointCursor {
 public:
  // `base` is the first checkpoint row of the sequence (see first_checkpoint). Positions before `position` are skipped.
  CheckpointCursor(const StageArgs& args, int64_t sequence, int64_t base, int64_t position)
      : args_(args), row_(base), end_(base), step_(0) {
    const Problem& problem = args.problem;
    switch (problem.checkpoints) {
      case Checkpoints::kNone:
        break;
      case Checkpoints::kEvery:
        step_ = problem.checkpoint_every;
        next_ = step_;
        break;
      case Checkpoints::kChunks:
        step_ = kCheckpointChunk;
        next_ = 0;
        break;
      case Checkpoints::kList:
        end_ = args.tensors.checkpoint_offsets[sequence + 1];
        break;
    }
    if (step_ > 0) {
      end_ = base + problem.checkpoint_rows(args.sequences.length(sequence));
      const int64_t skip = position > next_ ? (position - next_ + step_ - 1) / step_ : 0;
      row_ += skip;
      next_ += skip * step_;
    } else {
      while (row_ < end_ && args.tensors.checkpoint_positions[row_] < position) ++row_;
    }
  }

  // If a checkpoint lies exactly at `position`, writes its pool slot (-1: none) to `slot`, moves on and returns true.
  bool take(int64_t position, int64_t& slot) {
    if (row_ >= end_) return false;
    const int64_t due = step_ > 0 ? next_ : args_.tensors.checkpoint_positions[row_];
    if (due != position) return false;
    slot = slot_of(args_.problem.checkpoint, args_.tensors.checkpoint_index, row_);
    ++row_;
    next_ += step_;
    return true;
  }

 private:
  const StageArgs& args_;
  int64_t row_;
  int64_t end_;
  int64_t step_;  // 0: positions are listed
  int64_t next_ = 0;
};

// First checkpoint row of a sequence. Remembers the last answer, because rows of one sequence are neighbours.
class CheckpointRows {
 public:
  int64_t first(const StageArgs& args, int64_t sequence) {
    if (args.problem.checkpoints == Checkpoints::kNone) return 0;
    if (args.problem.checkpoints == Checkpoints::kList) return args.tensors.checkpoint_offsets[sequence];
    if (sequence < sequence_) sequence_ = base_ = 0;
    for (; sequence_ < sequence; ++sequence_) base_ += args.problem.checkpoint_rows(args.sequences.length(sequence_));
    return base_;
  }

 private:
  int64_t sequence_ = 0;
  int64_t base_ = 0;
};

}  // namespace deltarelay::cpu
