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
  // Of a CTA: X is 0. And in KDA, X was not 0 at the first look: other bits in either CTA.
  static constexpr uint32_t kVanished = 1;
  static __device__ __forceinline__ uint32_t keeps(int rank) { return 2u << rank; }
  alignas(8) uint32_t marks[2];  // per CTA
  int walked;                    // chunks after which X of this CTA was found to be 0; else all

  __device__ __forceinline__ void begin(int chunks) {
    marks[0] = marks[1] = 0;
    walked = chunks;
  }
  // Have both CTAs vanished? Nothing is left to do for anybody.
  __device__ __forceinline__ bool reached() const {
    const uint2 of = load_two(shared_address(marks));
    return (of.x & of.y) != 0;
  }
  // Sets the marks of this CTA in both, by one thread.
  __device__ __forceinline__ void mark(uint32_t what, int rank) {
    store_in_block(&marks[rank], what, rank);
    store_in_block(&marks[rank], what, 1 - rank);
  }
};

// Chunks until the first look at X. Gates that forget within a chunk leave nothing after two.
constexpr int kFirstLook = 2;

// Waits for a phase. Returns false if the summary has ended before. Polls: a wait that is suspended comes back after
// 4 us if nothing happens, and a short summary takes hardly longer.
__device__ __forceinline__ bool wait_unless_ended(uint64_t* barrier, uint32_t parity, const SummaryEnd& end) {
  while (!ptx::mbarrier_test_wait_parity(barrier, parity)) {
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
    shared.end.mark(SummaryEnd::kVanished, rank);
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

// Where a thread's fragments of Z lie in a stage: 16 tokens each. The thread of group 1 with its number reads them.
template <class Stage>
__device__ __forceinline__ uint4& fragment_of_z(uint8_t* stage, int block, int thread) {
  return *reinterpret_cast<uint4*>(stage + Stage::kZ + (block * kWarpgroup + thread) * 16);
}
template <class Stage>
__device__ __forceinline__ void leave_z(uint8_t* stage, const Fragment (&z)[2], int thread) {
#pragma unroll
  for (int b = 0; b < 2; ++b)
    fragment_of_z<Stage>(stage, b, thread) = make_uint4(z[b].reg[0], z[b].reg[1], z[b].reg[2], z[b].reg[3]);
}

// B <- B + Z v of a chunk in its stage, by group 1. Of the values the first `valid` rows count.
template <class Element, class Stage>
__device__ __forceinline__ void add_chunk(float (&b)[64], uint8_t* stage, int valid, int thread) {
  if (valid < kFusedChunk) clear_rows(stage, Stage::kV, Stage::kOtherValues, valid, 1, thread);
  Fragment z[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint4 four = fragment_of_z<Stage>(stage, k, thread);
    z[k] = Fragment{{four.x, four.y, four.z, four.w}};
  }
  const uint32_t place = operand_place(shared_address(stage));
  wgmma_fence();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint64_t values = swizzled_operand_at(place, half == 0 ? Stage::kV : Stage::kOtherValues);
#pragma unroll
    for (int k = 0; k < 2; ++k)
      Wgmma<Element>::times_transposed(half_of(b, half), z[k], values + operand_step(k * 16 * kRowBytes), true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(b);
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
