// Checkpoints of the fused walks. Between two chunks the accumulators of a state group hold the state, so the group
// stores it there and walks on. For a checkpoint inside a chunk it stores the state before that chunk
// (launch/checkpoint.cuh).
//
// The state groups have no registers left for their place among the checkpoints. It lies in shared memory, once for
// each warp, so that no warp waits for another; what else is needed is computed again at every store. Kernels of calls
// without checkpoints are compiled without all of this.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/checkpoint.cuh"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/sm90/fused/items.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda::sm90 {

// Place of a warp among the checkpoints of its item's sequence. Numbers of checkpoints fit: there are no more than
// tokens.
struct CheckpointPlace {
  int first, count;  // of the sequence
  int next;          // the next one to be stored, counted from `first`
  int tokens;        // of the item before the state that it needs, in whole chunks; kNoCheckpoint if none is left
};
constexpr int kNoCheckpoint = 0x7fffffff;  // an item has fewer tokens (kMapCoordinates)

// Shared memory of a walk that stores checkpoints.
template <class Walk>
struct CheckpointShared : Walk {
  CheckpointPlace places[2 * kWarpgroup / 32];  // of the warps of the state groups
  int first[Walk::kItems];                      // per item: the first checkpoint of its sequence
  unsigned long long sum;                       // of find_checkpoints
};
template <class Walk, bool kCheckpoints>
using SharedOf = std::conditional_t<kCheckpoints, CheckpointShared<Walk>, Walk>;

// Finds the first checkpoint of every item of a CTA, by all its threads.
template <class Walk>
__device__ __forceinline__ void find_first_checkpoints(const WalkArgs& args, CheckpointShared<Walk>& shared) {
  const int items = shared.items;
#pragma unroll 1
  for (int index = 0; index < items; ++index) {
    const int sequence = item_at(shared, index).row.sequence;
    const int64_t first = find_checkpoints<kFusedThreads>(args.tables, args.checkpoints, sequence, shared.sum).first;
    if (threadIdx.x == 0) shared.first[index] = static_cast<int>(first);
    __syncthreads();  // all threads have read the sum
  }
}

// The checkpoints of the item that a state group walks.
template <class Walk>
class DueCheckpoints {
 public:
  static constexpr bool kStores = true;
  __device__ __forceinline__ DueCheckpoints(const WalkArgs& args, CheckpointShared<Walk>& shared)
      : args_(args), shared_(shared) {}

  // Begins item `index`.
  __device__ __forceinline__ void begin(const Item& item, int index) {
    const SequenceCheckpoints sequence =
        checkpoints_of(args_.tables, args_.checkpoints, item.row.sequence, shared_.first[index]);
    const RowCheckpoints due(args_.checkpoints, sequence, row_of(item), kFusedChunk);
    keep({static_cast<int>(sequence.first), static_cast<int>(sequence.end - sequence.first),
          static_cast<int>(due.row() - sequence.first), tokens_before(due)});
  }
  // Tokens of the item before the next state to be stored.
  __device__ __forceinline__ int next() const { return place().tokens; }
  // Stores the state that is due now.
  __device__ __forceinline__ void store(const float (&state)[64], const Item& item, int half) {
    CheckpointPlace here = place();
    const StateView& pool = args_.checkpoints.pool;
    const int tokens = here.tokens;
#pragma unroll 1
    do {
      const StatePlace at = opaque_place(half);
      const int64_t slot = slot_of(pool, here.first + here.next, args_.report);
      if (slot >= 0) {
        const StateMatrix matrix = state_matrix(pool, slot, item.head);
        if (matrix.dtype == DType::kFp32 && has_aligned(matrix, 2))
          store_pairs(state, matrix, item.first_value + at.value_row + at.lane_row, at.lane_column);
        else
          store_copy(state, slot, item, at);
      }
      advance(here, item);
    } while (here.tokens == tokens);
    keep(here);
  }
  // The same at the end of the item.
  __device__ __forceinline__ void store_last(const float (&state)[64], const Item& item, int half) {
    if (next() <= chunks_of(item) * kFusedChunk) store(state, item, half);
  }

 private:
  // Numbers that are neighbours in memory, two by two as they lie in the accumulators. The walk waits for this, and its
  // code has left the instruction cache since the last checkpoint: 32 stores, no copy and no exchange.
  static __device__ __forceinline__ void store_pairs(const float (&state)[64], const StateMatrix& matrix, int row,
                                                     int column) {
    float* data = reinterpret_cast<float*>(matrix.data);
    for_each_pair(row, column,
                  [&](int i, int v, int k) { store_two(data + v * kStateWidth + k, state[2 * i], state[2 * i + 1]); });
  }
  // In any layout and type: a copy whose origin is hidden. The compiler would otherwise move the state as integers, as
  // stores may, and then hold it as integers in the loop over chunks, where products need it as it is.
  __device__ __forceinline__ void store_copy(const float (&state)[64], int64_t slot, const Item& item,
                                             const StatePlace& at) const {
    float stored[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      float number = state[i];
      asm volatile("" : "+f"(number));
      stored[i] = number;
    }
    store_state<true>(stored, args_.checkpoints.pool, slot, item.head, item.first_value + at.value_row, at.lane_row,
                      at.lane_column);
  }
  __device__ __forceinline__ CheckpointPlace& place() const { return shared_.places[opaque(threadIdx.x) / 32]; }
  // The compiler would otherwise compute the addresses in front of all loops, and spill them.
  static __device__ __forceinline__ StatePlace opaque_place(int half) {
    StatePlace at(half);
    for (int* number : {&at.value_row, &at.lane_row, &at.lane_column})
      *number = static_cast<int>(opaque(static_cast<uint32_t>(*number)));
    return at;
  }
  // Of the item's own tokens: twins may have added a chunk.
  static __device__ __forceinline__ int chunks_of(const Item& item) {
    return (item.tokens + kFusedChunk - 1) / kFusedChunk;
  }
  static __device__ __forceinline__ Row row_of(const Item& item) {
    Row row = item.row;
    row.chunks = chunks_of(item);
    return row;
  }
  static __device__ __forceinline__ int tokens_before(const RowCheckpoints& due) {
    return due.chunk() < kNoCheckpoint / kFusedChunk ? due.chunk() * kFusedChunk : kNoCheckpoint;
  }
  // Goes on to the next checkpoint. The walk waits for this, so checkpoints between whole chunks, a fixed number of
  // tokens apart, have a short way.
  __device__ __forceinline__ void advance(CheckpointPlace& here, const Item& item) const {
    const CheckpointView& checkpoints = args_.checkpoints;
    if (checkpoints.kind == Checkpoints::kEvery && checkpoints.every % kFusedChunk == 0) {
      ++here.next;
      const int64_t tokens = here.tokens + checkpoints.every;
      here.tokens =
          here.next < here.count && tokens <= chunks_of(item) * kFusedChunk ? static_cast<int>(tokens) : kNoCheckpoint;
      return;
    }
    const int64_t* begin = args_.tables.token_begin() + item.row.sequence;
    const SequenceCheckpoints sequence{here.first, here.first + here.count, begin[1] - begin[0]};
    RowCheckpoints due(checkpoints, sequence, row_of(item), kFusedChunk, here.first + here.next);
    due.advance();
    here.next = static_cast<int>(due.row() - sequence.first);
    here.tokens = tokens_before(due);
  }
  __device__ __forceinline__ void keep(const CheckpointPlace& here) {
    __syncwarp();  // all lanes have read the place
    if (threadIdx.x % 32 == 0) place() = here;
    __syncwarp();
  }

  const WalkArgs& args_;
  CheckpointShared<Walk>& shared_;
};
template <class Walk, bool kCheckpoints>
using DueOf = std::conditional_t<kCheckpoints, DueCheckpoints<Walk>, NoCheckpoints>;

}  // namespace deltarelay::cuda::sm90
