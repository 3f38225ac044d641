// States inside a sequence. The walk stores them between two chunks; one that is due inside a chunk gets the state before that chunk
// from the walk, and `checkpoint` takes it on from there, token by token. Where the pool has 16 bits, the walk stores them all in fp32 in the
// workspace, and `checkpoint` brings them to the pool: each is rounded once.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

struct CheckpointArgs {
  Tables tables;
  CheckpointView checkpoints;
  StateView walked;  // where the walk has stored them: the pool itself, or places in the workspace
  Activation activation;
  TensorView k, v;
  int32_t heads_qk, heads_v, dk, dv;
  int32_t chunk;     // tokens between which the walk could store
  uint32_t* report;  // or nullptr
};

// `rows`: of all sequences, as an upper bound that spreads the work.
cudaError_t launch_checkpoint(const CheckpointArgs& args, bool kda, int64_t rows, cudaStream_t stream);
cudaError_t load_checkpoint();

#ifdef __CUDACC__

// The checkpoints of one sequence: rows [first, end) of the pool, or of its index.
struct SequenceCheckpoints {
  int64_t first, end;
  int64_t length;  // tokens of the sequence

  // Token count after which row `row` is due; 0 for the start of the sequence, -1 where a list breaks its rules (multiples of 16 that
  // increase, within the sequence): such a row is not stored.
  __device__ __forceinline__ int64_t position(const CheckpointView& checkpoints, int64_t row) const {
    switch (checkpoints.kind) {
      case Checkpoints::kEvery:
        return (row - first + 1) * checkpoints.every;
      case Checkpoints::kChunks:
        return (row - first) * kCheckpointChunk;
      default:
        break;
    }
    const int64_t at = checkpoints.positions[row];
    const bool increases = at > (row > first ? checkpoints.positions[row - 1] : 0);
    return increases && at <= length && at % kCheckpointAlignment == 0 ? at : -1;
  }
};

// Rows that a sequence of this length has where they are regular.
__device__ __forceinline__ int64_t regular_rows(const CheckpointView& checkpoints, int64_t length) {
  return checkpoints.kind == Checkpoints::kEvery ? length / checkpoints.every
                                                 : (length + kCheckpointChunk - 1) / kCheckpointChunk;
}

// By all threads of a block, which wait for each other; `sum` is theirs.
template <int kThreads>
__device__ __forceinline__ SequenceCheckpoints find_checkpoints(const Tables& tables, const CheckpointView& checkpoints,
                                                                int sequence, unsigned long long& sum) {
  const int64_t* begin = tables.token_begin();
  const int64_t length = begin[sequence + 1] - begin[sequence];
  if (checkpoints.kind == Checkpoints::kList)
    return {checkpoints.offsets[sequence], checkpoints.offsets[sequence + 1], length};
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  int64_t rows = 0;
  for (int n = static_cast<int>(threadIdx.x); n < sequence; n += kThreads)
    rows += regular_rows(checkpoints, begin[n + 1] - begin[n]);
  if (rows > 0) atomicAdd(&sum, static_cast<unsigned long long>(rows));
  __syncthreads();
  const auto first = static_cast<int64_t>(sum);
  return {first, first + regular_rows(checkpoints, length), length};
}

// The checkpoints of one row of the plan, in order: those behind its first token, and the start of the sequence.
class RowCheckpoints {
 public:
  RowCheckpoints() = default;  // none, if it is set to {}
  __device__ __forceinline__ RowCheckpoints(const CheckpointView& checkpoints, const SequenceCheckpoints& sequence,
                                            const Row& row, int chunk_tokens)
      : checkpoints_(&checkpoints),
        sequence_(&sequence),
        begin_(static_cast<int64_t>(row.begin) * chunk_tokens),
        end_(begin_ + static_cast<int64_t>(row.chunks) * chunk_tokens),
        chunk_(chunk_tokens),
        row_(sequence.first) {
    if (checkpoints.kind == Checkpoints::kEvery)
      row_ += begin_ / checkpoints.every;
    else if (checkpoints.kind == Checkpoints::kChunks && begin_ > 0)
      row_ += begin_ / kCheckpointChunk + 1;
    settle();
  }

  // Chunks of the row that come before the state which the next checkpoint wants stored; none is left: more than the row has.
  __device__ __forceinline__ int chunk() const { return due_; }
  __device__ __forceinline__ int64_t row() const { return row_; }
  __device__ __forceinline__ void advance() {
    ++row_;
    settle();
  }

 private:
  // Moves on to a row that is due in this one.
  __device__ __forceinline__ void settle() {
    due_ = kNever;
    for (; row_ < sequence_->end; ++row_) {
      const int64_t at = sequence_->position(*checkpoints_, row_);
      if (at < 0 || (at <= begin_ && begin_ > 0)) continue;
      // Never back: behind an entry that breaks the rules one may follow that keeps them and lies before those that were stored.
      if (at <= end_) due_ = static_cast<int>((at - begin_) / chunk_);
      if (due_ < stored_) {
        due_ = kNever;
        continue;
      }
      stored_ = due_;
      return;
    }
  }

  static constexpr int kNever = 0x7fffffff;
  const CheckpointView* checkpoints_ = nullptr;
  const SequenceCheckpoints* sequence_ = nullptr;
  int64_t begin_ = 0, end_ = 0;  // tokens of the sequence
  int chunk_ = 0;
  int due_ = kNever;
  int stored_ = 0;  // of the row before
  int64_t row_ = 0;
};

#endif

}  // namespace deltarelay::cuda
