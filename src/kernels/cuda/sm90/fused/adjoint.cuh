// A summary (M, B) of a row from its last chunk backwards, of both rules. X is the transition of the chunks walked so
// far: it begins as the identity and ends as M. What a chunk writes reaches the row's end through X and is added to B.
// So once X is all 0, B is complete and M is 0, whatever the chunks before hold: the walk ends there
// (docs/numerics.md).
//
// CTA r of a pair has rows 64 r to 64 r + 63 of X, B and M (key channels of the state that leaves the row). State group
// 0 walks X, group 1 adds to B. The roles that make chunks serve both CTAs, so they end when both have vanished. Copies
// that are then still under way are waited for before the CTAs end. In GDN each role reads the marks of both where it
// would wait for a stage or begin a chunk, and ends on its own; in KDA those that load agree on a last chunk.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/sm90/rows/transition.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda::sm90 {

// How a summary ends, in the shared memory of either CTA.
struct SummaryEnd {
  alignas(8) uint32_t vanished[2];  // per CTA: X is 0
  int walked;                       // chunks after which X of this CTA was found to be 0; else all

  __device__ __forceinline__ void begin(int chunks) {
    vanished[0] = vanished[1] = 0;
    walked = chunks;
  }
  // Have both CTAs vanished? Nothing is left to do for anybody.
  __device__ __forceinline__ bool reached() const {
    const uint2 marks = load_two(shared_address(vanished));
    return (marks.x & marks.y) != 0;
  }
};

// Chunks until the first look at X. Gates that forget within a chunk leave nothing after two.
constexpr int kFirstLook = 2;

// Has a phase passed within some 400 ns? For waiters that may be left alone: between two calls they look around.
__device__ __forceinline__ bool wait_a_while(uint64_t* barrier, uint32_t parity) {
  const uint32_t suspended = 400;
  return ptx::mbarrier_try_wait_parity(barrier, parity, suspended);
}

// Waits for a phase. Returns false if the summary has ended before.
__device__ __forceinline__ bool wait_unless_ended(uint64_t* barrier, uint32_t parity, const SummaryEnd& end) {
  while (!wait_a_while(barrier, parity)) {
    if (end.reached()) return false;
  }
  return true;
}

// X has vanished after `chunk` chunks, at `position`. Called by the group of X. Marks that in both CTAs and tells the
// group of B, which waits for chunk after chunk.
template <class Shared, class Position>
__device__ __forceinline__ void mark_vanished(Shared& shared, const Position& position, int chunk, int rank,
                                              int thread) {
  if (thread == 0) {
    shared.end.walked = chunk;
    store_in_block(&shared.end.vanished[rank], 1, rank);
    store_in_block(&shared.end.vanished[rank], 1, 1 - rank);
  }
  // The stage is loaded: the group of B has seen its previous use.
  wait_parity(&shared.loaded[position.stage], position.parity);
  warp_arrive(&shared.done[position.stage]);
}

// Called by one thread of a group that has finished its row after `chunk` chunks: releases the stages of the others as
// they are filled, for the other CTA, until that one has vanished too.
template <Form kForm, int kStages, class Shared>
__device__ __forceinline__ void release_until_ended(Shared& shared, int chunk, int chunks, int rank, uint64_t* loaded,
                                                    uint64_t* made) {
#pragma unroll 1
  for (; chunk < chunks; ++chunk) {
    const int stage = chunk % kStages;
    const uint32_t parity = chunk / kStages % 2;
    if (!wait_unless_ended(&loaded[stage], parity, shared.end)) return;
    if (!wait_unless_ended(&made[stage], parity, shared.end)) return;
    release_stage<kForm>(shared, stage, rank);
  }
}

// Stores 64 rows of M or B in a slot that holds the transposed matrix, [column][row].
__device__ __forceinline__ void store_columns(const float (&state)[64], float* base, const StatePlace& at) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int row = at.value_row + at.lane_row + 4 * (i & 2), column = 8 * (i / 4) + at.lane_column + (i & 1);
    base[column * kStateWidth + row] = state[i];
  }
}

// X by state group 0 of CTA `rank`, from the identity. walk(x) returns the number of chunks walked, and so do these.
template <class Walk>
__device__ __forceinline__ int summarize_transition(const WalkArgs& args, const Item& item, int rank, Walk&& walk) {
  const StatePlace at(rank);
  float x[64];
#pragma unroll
  for (int i = 0; i < 64; ++i)
    x[i] = at.value_row + at.lane_row + 4 * (i & 2) == 8 * (i / 4) + at.lane_column + (i & 1) ? 1.0f : 0.0f;
  const int walked = walk(x);
  const int64_t place = static_cast<int64_t>(item.row.slot_out) * args.strips.all + item.strip;
  const bool lives = transition_lives(x, args.vanish_bound, 0);
  if (threadIdx.x % kWarpgroup == 0) args.slot_lives[2 * place + rank] = lives ? 1 : 0;
  if (args.vanish_bound > 0.0f && !lives) drop(x, args.report);
  store_columns(x, args.slot_transition + place * (kWidth * kWidth), at);
  return walked;
}

// B by state group 1, from zero. It holds no -0: the carry may skip it or add 0 to it, with the same bits.
template <class Walk>
__device__ __forceinline__ int summarize_values(const WalkArgs& args, const Item& item, int rank, Walk&& walk) {
  const StatePlace at(rank);
  float b[64];
#pragma unroll
  for (float& number : b) number = 0.0f;
  const int walked = walk(b);
#pragma unroll
  for (float& number : b) number += 0.0f;
  store_columns(b, slot_at(args, item, item.row.slot_out), at);
  return walked;
}

}  // namespace deltarelay::cuda::sm90
