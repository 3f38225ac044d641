// The walk of one segment (or whole sequence) by one CTA: `summarize` and `emit` from the records that `prepare` left.
//
// Per chunk, with S the state that enters it, in the terms of record.h (K: k+ or k, Q: q+ or q, K^: k^ or k):
//     R = beta V - read K S      U = R + T R      O = query Q S + P U + diagonal U      S <- decay S + K^^T (update U)
// Three products depend on each other (K S, T R, K^T U); Q S and P U fill the gaps. A summary has no Q S, P U and O: it walks B from
// zero with the values, and M from the identity without them.
//
// The state is held transposed, S^T [values x keys], in fp32 accumulators, 64 value rows a warpgroup. An accumulator has the register
// layout of an A operand, so S^T, R^T and U^T become operands by a conversion alone and nothing on the chain passes through shared
// memory. All B operands lie in shared memory, in a ring of stages that one producer warp fills by bulk copies.
//
// The output of a chunk is written over its V tile: each warp overwrites exactly what it has read.
#pragma once
#include <cuda.h>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/emit.cuh"
#include "kernels/cuda/sm90/produce.cuh"
#include "kernels/cuda/sm90/stage.cuh"
#include "kernels/cuda/sm90/summarize.cuh"
#include "kernels/cuda/sm90/walk_maps.h"
#include "kernels/cuda/state_io.cuh"

namespace deltarelay::cuda::sm90 {

template <class Stage, class Element, int kGroups>
__device__ __forceinline__ void walk_state(const WalkArgs& args, const Item& item, uint8_t* ring, uint64_t* full,
                                           uint64_t* done, int group) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = thread / 32;
  const int lane_row = 16 * warp + lane / 4, lane_column = 2 * (lane % 4);
  const int value_row = (item.value_half + group) * kGroupRows;
  const Row& row = item.row;
  constexpr int64_t kState = kWidth * kWidth;
  auto slot_at = [&](float* pool, int slot) {
    return pool + (static_cast<int64_t>(slot) * args.heads_v + item.head) * kState;
  };

  float state[64];
  if (row.work == Work::kSummarize) {
    float transition[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      state[i] = 0.0f;
      transition[i] = value_row + lane_row + 4 * (i & 2) == 8 * (i / 4) + lane_column + (i & 1) ? 1.0f : 0.0f;
    }
    summarize_chunks<Stage, Element, kGroups>(item, ring, full, done, group, state, transition);
    store_slot(state, slot_at(args.slot_state, row.slot_out), value_row, lane_row, lane_column);
    store_slot(transition, slot_at(args.slot_transition, row.slot_out), value_row, lane_row, lane_column);
    return;
  }
  if (row.slot_in >= 0) {
    load_slot(state, slot_at(args.slot_state, row.slot_in), value_row, lane_row, lane_column);
  } else {
    const int64_t slot = initial_slot(args.initial, args.has_initial, row.sequence, args.report);
    load_state(state, args.initial, slot, item.head, value_row, lane_row, lane_column);
  }
  emit_chunks<Stage, Element, kGroups>(item, ring, full, done, group, state);
  if (row.slot_out >= 0) store_slot(state, slot_at(args.slot_state, row.slot_out), value_row, lane_row, lane_column);
  if (item.ends_sequence) {
    if (row.slot_folded >= 0)
      load_slot(state, slot_at(args.slot_state, row.slot_folded), value_row, lane_row, lane_column);
    store_state(state, args.final, slot_of(args.final, row.sequence, args.report), item.head, value_row, lane_row,
                lane_column);
  }
}

// Registers a thread. Two state groups and the producer share what the CTA was launched with, 3 x 168 (a raise beyond it waits for ever);
// with one state group all have enough.
constexpr int kStateRegisters = 232;
constexpr int kProducerRegisters = 40;
static_assert(2 * kStateRegisters + kProducerRegisters <= 3 * 168);

template <class Stage, class Element, int kGroups>
__global__ void __launch_bounds__((kGroups + 1) * kWarpgroup, 1)
    walk_kernel(const __grid_constant__ WalkMaps maps, const __grid_constant__ WalkArgs args) {
  extern __shared__ uint8_t shared[];
  uint8_t* ring = shared + (-shared_address(shared) & (kSwizzleGroupBytes - 1));
  uint64_t* full = reinterpret_cast<uint64_t*>(ring + Stage::kStages * Stage::kBytes);
  uint64_t* done = full + Stage::kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Stage::kStages; ++i) {
      ptx::mbarrier_init(&full[i], 1);
      ptx::mbarrier_init(&done[i], kGroups * 4);  // the warps of the state groups
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  wait_for_previous_grid();
  allow_next_grid();
  // In shared memory, for it would cost the state groups a dozen registers.
  __shared__ Item item;
  __shared__ bool found;
  if (threadIdx.x == 0) found = find_item<kGroups>(args, Stage::Record::kChunk, item);
  __syncthreads();
  if (!found) return;
  const int group = threadIdx.x / kWarpgroup;
  if (group < kGroups) {
    if constexpr (kGroups > 1) raise_registers<kStateRegisters>();
    walk_state<Stage, Element, kGroups>(args, item, ring, full, done, group);
  } else {
    if constexpr (kGroups > 1) lower_registers<kProducerRegisters>();
    if (threadIdx.x / 32 % 4 != 0) return;
    if (item.row.work == Work::kEmit)
      produce<Stage, Element, kGroups, true>(maps, args, item, ring, full, done);
    else
      produce<Stage, Element, kGroups, false>(maps, args, item, ring, full, done);
  }
}

}  // namespace deltarelay::cuda::sm90
