// Checkpoints. The walk stores states between two chunks. For a checkpoint inside a chunk the walk stores the state
// before that chunk, and `checkpoint` advances it token by token. For a pool of 16 bits the walk stores all checkpoints
// in fp32 in the workspace, and `checkpoint` copies them to the pool: each is rounded once.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/step.h"

namespace deltarelay::cuda {

struct CheckpointArgs {
  Tables tables;
  CheckpointView checkpoints;
  StateView walked;  // where the walk stored the states: the pool, or the workspace
  Activation activation;
  TensorView k, v;
  int32_t heads_qk, heads_v, dk, dv;
  int32_t chunk;     // tokens of a chunk: the walk stores at multiples of it
  uint32_t* report;  // or nullptr
};

// `rows`: upper bound on the checkpoints of all sequences. It sizes the grid.
cudaError_t launch_checkpoint(const CheckpointArgs& args, bool kda, const Step& step, cudaStream_t stream);
cudaError_t load_checkpoint();

#ifdef __CUDACC__

// The checkpoints of one sequence: rows [first, end) of the pool, or of its index.
struct SequenceCheckpoints {
  int64_t first, end;
  int64_t length;  // tokens of the sequence

  // Number of tokens before checkpoint `row`; 0 is the start of the sequence. Returns -1 if a list breaks its rules
  // (increasing multiples of 16 within the sequence). Such a row is not stored.
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

// Checkpoints of a sequence of this length, for the regular kinds.
__device__ __forceinline__ int64_t regular_rows(const CheckpointView& checkpoints, int64_t length) {
  return checkpoints.kind == Checkpoints::kEvery ? length / checkpoints.every
                                                 : (length + kCheckpointChunk - 1) / kCheckpointChunk;
}

// The checkpoints of a sequence whose first one is known.
__device__ __forceinline__ SequenceCheckpoints checkpoints_of(const Tables& tables, const CheckpointView& checkpoints,
                                                              int sequence, int64_t first) {
  const int64_t* begin = tables.token_begin();
  const int64_t length = begin[sequence + 1] - begin[sequence];
  const bool listed = checkpoints.kind == Checkpoints::kList;
  return {first, listed ? checkpoints.offsets[sequence + 1] : first + regular_rows(checkpoints, length), length};
}

// Called by all threads of a CTA, which synchronise here; `sum` is shared scratch.
template <int kThreads>
__device__ __forceinline__ SequenceCheckpoints find_checkpoints(const Tables& tables, const CheckpointView& checkpoints,
                                                                int sequence, unsigned long long& sum) {
  const int64_t* begin = tables.token_begin();
  if (checkpoints.kind == Checkpoints::kList)
    return checkpoints_of(tables, checkpoints, sequence, checkpoints.offsets[sequence]);
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  int64_t rows = 0;
  for (int n = static_cast<int>(threadIdx.x); n < sequence; n += kThreads)
    rows += regular_rows(checkpoints, begin[n + 1] - begin[n]);
  if (rows > 0) atomicAdd(&sum, static_cast<unsigned long long>(rows));
  __syncthreads();
  return checkpoints_of(tables, checkpoints, sequence, static_cast<int64_t>(sum));
}

// The checkpoints of one row of the plan, in order: those after its first token, and the start of the sequence.
class RowCheckpoints {
 public:
  RowCheckpoints() = default;  // value-initialised ({}): no checkpoints
  __device__ __forceinline__ RowCheckpoints(const CheckpointView& checkpoints, const SequenceCheckpoints& sequence,
                                            const Row& row, int chunk_tokens)
      : RowCheckpoints(checkpoints, sequence, row, chunk_tokens, first_row(checkpoints, sequence, row, chunk_tokens)) {}
  // From checkpoint `from` on: goes on where another object has stopped, before it stored that one.
  __device__ __forceinline__ RowCheckpoints(const CheckpointView& checkpoints, const SequenceCheckpoints& sequence,
                                            const Row& row, int chunk_tokens, int64_t from)
      : checkpoints_(&checkpoints),
        sequence_(&sequence),
        begin_(static_cast<int64_t>(row.begin) * chunk_tokens),
        end_(begin_ + static_cast<int64_t>(row.chunks) * chunk_tokens),
        chunk_(chunk_tokens),
        row_(from) {
    settle();
  }

  // Chunks of the row before the state that the next checkpoint needs. More than the row has if no checkpoint is left.
  __device__ __forceinline__ int chunk() const { return due_; }
  __device__ __forceinline__ int64_t row() const { return row_; }
  __device__ __forceinline__ void advance() {
    ++row_;
    settle();
  }

 private:
  static __device__ __forceinline__ int64_t first_row(const CheckpointView& checkpoints,
                                                      const SequenceCheckpoints& sequence, const Row& row,
                                                      int chunk_tokens) {
    const int64_t begin = static_cast<int64_t>(row.begin) * chunk_tokens;
    if (checkpoints.kind == Checkpoints::kEvery) return sequence.first + begin / checkpoints.every;
    const bool later = checkpoints.kind == Checkpoints::kChunks && begin > 0;
    return sequence.first + (later ? begin / kCheckpointChunk + 1 : 0);
  }
  // Advances to the next checkpoint that is due in this row.
  __device__ __forceinline__ void settle() {
    due_ = kNever;
    for (; row_ < sequence_->end; ++row_) {
      const int64_t at = sequence_->position(*checkpoints_, row_);
      if (at < 0 || (at <= begin_ && begin_ > 0)) continue;
      // Never goes back. After an entry that breaks the rules, a valid entry may lie before states already stored.
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
  int stored_ = 0;  // chunks before the last stored state
  int64_t row_ = 0;
};

#endif

}  // namespace deltarelay::cuda
