// The end of a summary, and a transition that has vanished (vanished.cuh).
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/stage.cuh"
#include "kernels/cuda/state_io.cuh"
#include "kernels/cuda/vanished.cuh"

namespace deltarelay::cuda::sm90 {

// Chunks between looks at all numbers of M: 32 instructions and a vote each, 96 with a truncated carry.
constexpr int kLookEvery = 4;

// A barrier of the state group of M, which is group 1; false when it has vanished.
__device__ __forceinline__ bool transition_lives(const float (&state)[64], float vanish_bound) {
  return named_barrier_any(kStateBarrier + 1, kWarpgroup, keeps_alive(state, vanish_bound));
}

// Calls walk(chunk) for the chunks of a summary; between chunks of M vanished(chunk) looks, from `first_look` on, and may end it. Looks are not
// in the loop over chunks: a way out of its middle has the compiler move the state from registers to registers in every chunk.
template <class Walk, class Vanished>
__device__ __forceinline__ void for_each_chunk(int chunks, int first_look, bool values, Walk walk, Vanished vanished) {
  int chunk = 0, until = values || first_look > chunks ? chunks : first_look;
#pragma unroll 1
  while (true) {
#pragma unroll 1
    for (; chunk < until; ++chunk) walk(chunk);
    if (chunk == chunks || vanished(chunk)) return;
    until = until + kLookEvery < chunks ? until + kLookEvery : chunks;
  }
}

// Leaves 64 rows of B^T or M^T in a slot. B holds no -0: the carry may leave it alone or add 0 to it, with the same bits.
__device__ __forceinline__ void store_summary(const WalkArgs& args, int slot, int head, int half, bool is_b,
                                              float (&state)[64], int value_row, int lane_row, int lane_column) {
  const int64_t at = static_cast<int64_t>(slot) * args.heads_v + head;
  if (is_b) {
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] += 0.0f;
  } else {
    const bool lives = transition_lives(state, args.vanish_bound);
    if (threadIdx.x % kWarpgroup == 0) args.slot_lives[2 * at + half] = lives ? 1 : 0;
    if (args.vanish_bound > 0.0f && !lives) drop(state, args.report);
  }
  store_slot(state, (is_b ? args.slot_state : args.slot_transition) + at * (kWidth * kWidth), value_row, lane_row,
             lane_column);
}

}  // namespace deltarelay::cuda::sm90
