// The frame of a summary, for both walks: its start, its loop over chunks, its result, and the test for a vanished
// transition (vanished.cuh).
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/tile/state_io.cuh"
#include "kernels/cuda/tile/vanished.cuh"

namespace deltarelay::cuda::sm90 {

// Chunks between two tests of M: a test takes 32 instructions and a vote, with a truncated carry 96.
constexpr int kLookEvery = 4;

// Barrier of the state group of M. Returns false if M has vanished.
__device__ __forceinline__ bool transition_lives(const float (&state)[64], float vanish_bound, int group = 1) {
  return named_barrier_any(kStateBarrier + group, kWarpgroup, keeps_alive(state, vanish_bound));
}

// Calls walk(chunk) for the chunks of a summary. In the group of M, vanished(chunk) tests between chunks, from
// `first_look` on, up to `each_until` behind every chunk, and may end the walk. The test is outside the loop over
// chunks: with an exit from its middle the compiler would copy the state between registers in every chunk.
template <class Walk, class Vanished>
__device__ __forceinline__ void for_each_chunk(int chunks, int first_look, bool values, Walk walk, Vanished vanished,
                                               int each_until = 0) {
  int chunk = 0, until = values || first_look > chunks ? chunks : first_look;
#pragma unroll 1
  while (true) {
#pragma unroll 1
    for (; chunk < until; ++chunk) walk(chunk);
    if (chunk == chunks || vanished(chunk)) return;
    const int next = until + (until < each_until ? 1 : kLookEvery);
    until = next < chunks ? next : chunks;
  }
}
// The same for a walk that takes all chunks between two tests at once: walk(first, until). The function above by this
// one would be other machine code of the fused walks.
template <class Walk, class Vanished>
__device__ __forceinline__ void for_each_run(int chunks, int first_look, bool values, Walk walk, Vanished vanished,
                                             int each_until = 0) {
  int chunk = 0, until = values || first_look > chunks ? chunks : first_look;
#pragma unroll 1
  while (true) {
    walk(chunk, until);
    chunk = until;
    if (chunk == chunks || vanished(chunk)) return;
    const int next = until + (until < each_until ? 1 : kLookEvery);
    until = next < chunks ? next : chunks;
  }
}

// Stores 64 rows of B^T or M^T in a slot. B holds no -0: the carry may skip it or add 0 to it, with the same bits.
__device__ __forceinline__ void store_summary(const WalkArgs& args, int slot, int strip, int half, bool is_b,
                                              float (&state)[64], int value_row, int lane_row, int lane_column) {
  const int64_t at = static_cast<int64_t>(slot) * args.strips.all + strip;
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

// A thread's place in a state group: the 64 rows of S^T, B^T or M^T that its group holds, and its rows and columns of
// them.
struct StatePlace {
  int value_row, lane_row, lane_column;
  __device__ __forceinline__ explicit StatePlace(int half) {
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
    value_row = half * kGroupRows, lane_row = 16 * (thread / 32) + lane / 4, lane_column = 2 * (lane % 4);
  }
};

// A summary by a state group of CTA `rank`: B from zero (`values`), or M from the identity. `summarize` walks the
// chunks. `stands` decides whether the result counts, and may ask whether M lives. If it does not count, nothing is
// stored and the function returns false.
template <class Summarize, class Stands>
__device__ __forceinline__ bool summarize_row(const WalkArgs& args, const Item& item, int rank, bool values,
                                              Summarize&& summarize, Stands&& stands) {
  const StatePlace at(rank);
  float state[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const bool diagonal = at.value_row + at.lane_row + 4 * (i & 2) == 8 * (i / 4) + at.lane_column + (i & 1);
    state[i] = !values && diagonal ? 1.0f : 0.0f;
  }
  summarize(state);
  if (!stands([&] { return !values && transition_lives(state, args.vanish_bound); })) return false;
  store_summary(args, item.row.slot_out, item.strip, rank, values, state, at.value_row, at.lane_row, at.lane_column);
  return true;
}

}  // namespace deltarelay::cuda::sm90
