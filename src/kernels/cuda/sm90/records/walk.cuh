// The walk of one segment (or whole sequence) of one strip by a CTA or a pair of CTAs: `summarize` and `emit` from the
// records of `prepare`.
//
// Per chunk, with S the state that enters it. K and Q are the tiles of the stage: k_from_start and q_from_start (KDA)
// or raw k and q (GDN). K_end is k_to_end (KDA) or raw k (GDN). The factors read, query, diagonal and update are
// vectors of the record (record.h).
//     R = beta V - read K S                V_new = R + (inverse - I) R
//     O = query Q S + Aqk V_new + diagonal V_new        S <- decay_chunk S + K_end^T (update V_new)
// K S, (inverse - I) R and the update depend on each other; Q S and Aqk V_new fill the gaps. A summary has no Q S, Aqk
// V_new and O: it walks B from zero with the values, and M from the identity without them.
//
// The state is held transposed, S^T [values x keys], in fp32 accumulators, 64 value rows per warpgroup. An accumulator
// has the register layout of an A operand. So S^T, R^T and V_new^T become operands by a conversion, and nothing on the
// chain passes through shared memory. All B operands lie in shared memory, in a ring of stages that one producer warp
// loads by bulk copies.
//
// A CTA has two state groups. In an emit each has one half of the values; in a pair each CTA has one half, and its
// second group is idle. A summary always takes a pair: each CTA has one half of the rows, of B in group 0 and of M in
// group 1.
//
// The output of a chunk overwrites its V tile: each warp overwrites exactly what it has read.
#pragma once
#include <cuda.h>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/checkpoint.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/records/emit.cuh"
#include "kernels/cuda/sm90/records/produce.cuh"
#include "kernels/cuda/sm90/records/summarize.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/sm90/rows/suffix.cuh"
#include "kernels/cuda/sm90/rows/transition.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/tile/state_io.cuh"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90 {

// An emit. `kCheckpoints`: also stores checkpoints inside the row.
template <class Stage, class Element, Form kForm, bool kCheckpoints>
__device__ __forceinline__ void emit_state(const WalkArgs& args, WalkShared<Stage>& shared, int group) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = thread / 32;
  const int lane_row = 16 * warp + lane / 4, lane_column = 2 * (lane % 4);
  const Item& item = shared.item;
  const Row& row = item.row;
  constexpr int64_t kState = kWidth * kWidth;
  auto slot_at = [&](float* pool, int slot) {
    return pool + (static_cast<int64_t>(slot) * args.strips.all + item.strip) * kState;
  };

  float state[64];
  const int value_row = (item.value_half + group) * kGroupRows;  // in the strip
  if (row.slot_in >= 0) {
    load_slot(state, slot_at(args.slot_state, row.slot_in), value_row, lane_row, lane_column);
  } else {
    const int64_t slot = initial_slot(args.initial, args.has_initial, row.sequence, args.report);
    load_state(state, args.initial, slot, item.head, item.first_value + value_row, lane_row, lane_column);
  }
  RowCheckpoints due(args.checkpoints, shared.checkpoints, row, Stage::Record::kChunk);
  auto store_due = [&](int chunk) {
#pragma unroll 1
    for (; due.chunk() == chunk; due.advance()) {
      const StateView& pool = args.checkpoints.pool;
      store_state(state, pool, slot_of(pool, due.row(), args.report), item.head, item.first_value + value_row, lane_row,
                  lane_column);
    }
  };
  RingPosition<Stage::kStages> position;
  if constexpr (!kCheckpoints) {
    emit_chunks<Stage, Element>(shared, group, state, position, 0, row.chunks);
  } else {  // pauses at every checkpoint
    for (int done = 0;;) {
      const int next = min(due.chunk(), row.chunks);
      if (next > done) emit_chunks<Stage, Element>(shared, group, state, position, done, next);
      done = next;
      if (done == row.chunks) break;
      store_due(done);
    }
  }
  if (row.slot_out >= 0) store_slot(state, slot_at(args.slot_state, row.slot_out), value_row, lane_row, lane_column);
  if (row.slot_folded >= 0 && (kCheckpoints || item.ends_sequence))
    load_slot(state, slot_at(args.slot_state, row.slot_folded), value_row, lane_row, lane_column);
  if constexpr (kCheckpoints) store_due(row.chunks);
  if (item.ends_sequence) {
    store_state(state, args.final, slot_of(args.final, row.sequence, args.report), item.head,
                item.first_value + value_row, lane_row, lane_column);
  }
}

// log2 of the weakest decay over the last chunk of a row, from the record; valid in thread 0. GDN: computed by thread
// 0; KDA: one thread per channel.
template <class Stage>
__device__ __forceinline__ float weakest_decay(const WalkArgs& args, const Item& item, float (&of_warps)[4]) {
  using Record = typename Stage::Record;
  if (Stage::kRawTiles && threadIdx.x > 0) return 0.0f;  // thread 0 changes the item: no other thread may read it
  const auto* decay = reinterpret_cast<const float*>(
      args.prepared + ((item.chunk + item.row.chunks - 1) * args.heads_v + item.head) * Record::kBytes +
      Record::kDecay);
  if constexpr (Stage::kRawTiles) return log2f(decay[0]);
  if (threadIdx.x < kWidth) {
    float own = log2f(decay[threadIdx.x]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, step));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
  }
  __syncthreads();
  return fmaxf(fmaxf(of_warps[0], of_warps[1]), fmaxf(of_warps[2], of_warps[3]));
}

template <class Stage, Form kForm>
__device__ __forceinline__ void init_done(WalkShared<Stage>& shared) {
  const int groups = kForm == Form::kSingle || shared.item.row.work == Work::kSummarize ? 2 : 1;
  for (uint64_t& done : shared.done) ptx::mbarrier_init(&done, groups * 4);  // their warps
}
template <class Stage>
__device__ __forceinline__ void init_shared(WalkShared<Stage>& shared) {
  for (int i = 0; i < WalkShared<Stage>::kStages; ++i) {
    ptx::mbarrier_init(&shared.full[i], 1);
    ptx::mbarrier_init(&shared.free[i], cluster_size());  // the producers
  }
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
}

// Registers per thread. Two state groups and the producer share the 3 x 168 registers of the launch; raising beyond
// this sum would wait for ever.
constexpr int kWalkThreads = 3 * kWarpgroup;
constexpr int kStateRegisters = 232;
constexpr int kProducerRegisters = 40;
static_assert(2 * kStateRegisters + kProducerRegisters <= 3 * 168);

// `kForm`: single or pair. A pair is its cluster; single CTAs of neighbouring strips of one key head may form a
// cluster, which shares q and k. `kSuffix`: with a pair, summaries walk their suffix first.
template <class Stage, class Element, Form kForm, bool kCheckpoints, bool kSuffix>
__global__ void __launch_bounds__(kWalkThreads, 1)
    walk_kernel(const __grid_constant__ WalkMaps maps, const __grid_constant__ WalkArgs args) {
  auto& shared = *reinterpret_cast<WalkShared<Stage>*>(dynamic_shared_memory());
  if (threadIdx.x == 0) init_shared(shared);
  if (cluster_size() > 1) cluster_begin();  // others copy into this CTA and arrive at its barriers
  wait_to_find(args);
  if (threadIdx.x == 0) {
    shared.found = find_item<halves_a_cta(kForm)>(args, Stage::Record::kChunk, shared.item);
    shared.suffix.skipped = 0;
    if (shared.found) init_done<Stage, kForm>(shared);
  }
  __syncthreads();
  wait_when_found(args, shared.found);
  if (!shared.found) return;  // the same for all CTAs of a cluster
  if constexpr (kCheckpoints) {
    const SequenceCheckpoints own =
        find_checkpoints<kWalkThreads>(args.tables, args.checkpoints, shared.item.row.sequence, shared.checkpoint_rows);
    if (threadIdx.x == 0) shared.checkpoints = own;
    __syncthreads();
  }
  const int group = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const bool emits = kForm == Form::kSingle || shared.item.row.work == Work::kEmit;
  if (kSuffix && !emits) {
    const float decay = weakest_decay<Stage>(args, shared.item, shared.weakest);
    if (threadIdx.x == 0)
      begin_suffix<Stage::Record::kChunk>(shared.suffix, shared.item, suffix_of(shared.item, decay));
    __syncthreads();
  }
  auto summarize = [&](auto&& walk) {
    auto init = [](auto& here, int) {
      for (uint64_t* barriers : {here.full, here.done, here.free}) {
        for (int i = 0; i < WalkShared<Stage>::kStages; ++i) invalidate_barrier(&barriers[i]);
      }
      init_done<Stage, kForm>(here);
      init_shared(here);
    };
    walk_by_suffix<kSuffix, Stage::Record::kChunk>(shared, init, walk);
  };
  if (group < 2) {
    raise_registers<kStateRegisters>();
    wait_for_state(args);
    if (emits) {
      if (kForm == Form::kSingle || group == 0) emit_state<Stage, Element, kForm, kCheckpoints>(args, shared, group);
    } else if constexpr (kForm == Form::kPair) {
      auto walk = [&](auto& here, int, auto&& stands) {
        return summarize_row(
            args, here.item, here.item.value_half, group == 0,
            [&](float(&state)[64]) { summarize_chunks<Stage, Element>(args, here, group == 0, state); }, stands);
      };
      summarize(walk);
    }
  } else {
    lower_registers<kProducerRegisters>();
    const bool active = threadIdx.x / 32 % 4 == 0;
    const Cluster cluster{kForm == Form::kPair ? 2 : cluster_size(), cluster_rank()};
    if (emits) {
      if (active) produce<Stage, Element, kForm, true>(maps, args, shared, cluster);
    } else if constexpr (kForm == Form::kPair) {
      auto walk = [&](auto& here, int, auto&& stands) {
        if (active) produce<Stage, Element, kForm, false>(maps, args, here, cluster);
        return stands([] { return false; });
      };
      summarize(walk);
    }
  }
  if (cluster_size() > 1) cluster_end();
}

}  // namespace deltarelay::cuda::sm90
