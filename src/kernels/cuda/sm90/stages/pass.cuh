// The state pass of one segment (or whole sequence) of one strip, by a CTA or a pair of CTAs: from w, u, keys and gates
// to the state at the start of each chunk and V_new; or the segment's transition.
#pragma once
#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/rows/early_start.cuh"
#include "kernels/cuda/sm90/rows/suffix.cuh"
#include "kernels/cuda/sm90/rows/transition.cuh"
#include "kernels/cuda/sm90/stages/pass_gates.cuh"
#include "kernels/cuda/sm90/stages/pass_move.cuh"
#include "kernels/cuda/sm90/stages/pass_stage.cuh"
#include "kernels/cuda/sm90/stages/pass_state.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda::sm90::pass {

template <Form kForm, bool kScalar>
__device__ __forceinline__ void init_barriers(Shared<kForm, kScalar>& shared) {
  const bool summary = shared.item.row.work == Work::kSummarize;
  const int warps = (kForm == Form::kSingle || summary ? 2 : 1) * 4;  // of the state groups at work
  for (int i = 0; i < Shared<kForm, kScalar>::kStages; ++i) {
    ptx::mbarrier_init(&shared.full[i], 1);
    ptx::mbarrier_init(&shared.done[i], warps);
    ptx::mbarrier_init(&shared.free[i], ctas(kForm));  // the storing warps
  }
  for (int i = 0; i < kTiles; ++i) {
    ptx::mbarrier_init(&shared.states_full[i], warps);
    ptx::mbarrier_init(&shared.values_full[i], warps);
    ptx::mbarrier_init(&shared.tiles_free[i], 1);
  }
  for (int i = 0; i < kDecayStages; ++i) {
    ptx::mbarrier_init(&shared.decays_full[i], 1);
    ptx::mbarrier_init(&shared.decays_free[i], warps);
  }
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
}
template <Form kForm, bool kScalar>
__device__ __forceinline__ void init_again(Shared<kForm, kScalar>& shared) {
  for (int i = 0; i < Shared<kForm, kScalar>::kStages; ++i) {
    for (uint64_t* barriers : {shared.full, shared.done, shared.free}) invalidate_barrier(&barriers[i]);
  }
  for (int i = 0; i < kTiles; ++i) {
    for (uint64_t* barriers : {shared.states_full, shared.values_full, shared.tiles_free})
      invalidate_barrier(&barriers[i]);
  }
  for (int i = 0; i < kDecayStages; ++i) {
    for (uint64_t* barriers : {shared.decays_full, shared.decays_free}) invalidate_barrier(&barriers[i]);
  }
  init_barriers(shared);
}

// Emits a row: state group `group`, which holds one half of the values.
template <Form kForm, bool kScalar, class Element>
__device__ __forceinline__ void emit_row(const StatePassArgs& args, Shared<kForm, kScalar>& shared, int group) {
  const Item& item = shared.item;
  const Row& row = item.row;
  const WalkArgs& walk = args.walk;
  const StatePlace at(item.value_half + group);
  auto slot_at = [&](int slot) {
    return walk.slot_state + (static_cast<int64_t>(slot) * walk.strips.all + item.strip) * kStateFloats;
  };
  float state[64];
  if (row.slot_in >= 0) {
    load_slot(state, slot_at(row.slot_in), at.value_row, at.lane_row, at.lane_column);
  } else {
    const int64_t slot = initial_slot(walk.initial, walk.has_initial, row.sequence, walk.report);
    load_state(state, walk.initial, slot, item.head, item.first_value + at.value_row, at.lane_row, at.lane_column);
  }
  StateGroup<kForm, kScalar, Element, true> group_of(shared, group, true, args.wants_states, walk.o.data != nullptr,
                                                     args.key_major);
  group_of.walk(state, 0, row.chunks);
  if (row.slot_out >= 0) store_slot(state, slot_at(row.slot_out), at.value_row, at.lane_row, at.lane_column);
  if (!item.ends_sequence) return;
  if (row.slot_folded >= 0) load_slot(state, slot_at(row.slot_folded), at.value_row, at.lane_row, at.lane_column);
  store_state(state, walk.final, slot_of(walk.final, row.sequence, walk.report), item.head,
              item.first_value + at.value_row, at.lane_row, at.lane_column);
}

// Summarizes a row: group 0 walks B, group 1 M, each the half of the rows of this CTA. `stands`: see suffix.cuh.
template <bool kScalar, class Element, class Stands>
__device__ __forceinline__ bool summarize(const StatePassArgs& args, Shared<Form::kPair, kScalar>& shared, int group,
                                          Stands&& stands) {
  const Item& item = shared.item;
  const bool values = group == 0;
  auto walk = [&](float(&state)[64]) {
    StateGroup<Form::kPair, kScalar, Element, false> group_of(shared, 0, values, false, false, false);
    // Uniform, as the result of a look: ptxas would otherwise serialise products beside branches that may diverge.
    const int chunks = uniform(item.row.chunks);
    for_each_run(
        chunks, kLookEvery - 1, values, [&](int first, int until) { group_of.walk(state, first, until); },
        [&](int chunk) {
          const bool vanished = uniform(!transition_lives(state, args.walk.vanish_bound));
          if (vanished) group_of.skip(chunks - chunk);
          return vanished;
        });
  };
  const StatePlace at(item.value_half);
  float state[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const bool diagonal = at.value_row + at.lane_row + 4 * (i & 2) == 8 * (i / 4) + at.lane_column + (i & 1);
    state[i] = !values && diagonal ? 1.0f : 0.0f;
  }
  walk(state);
  if (!stands([&] { return !values && transition_lives(state, args.walk.vanish_bound); })) return false;
  if (args.summaries == nullptr) {
    store_summary(args.walk, item.row.slot_out, item.strip, item.value_half, values, state, at.value_row, at.lane_row,
                  at.lane_column);
    return true;
  }
  // The caller's own layout: the columns of B of all strips of a head, then those of M, which its strips share.
  const int columns = args.walk.strips.a_head * kWidth;
  const int64_t matrix = static_cast<int64_t>(item.row.sequence) * args.walk.heads_v + item.head;
  float* const to = args.summaries + matrix * (columns + kWidth) * kWidth;
  if (values || item.first_value == 0)
    store_slot(state, to + (values ? item.first_value : columns) * kWidth, at.value_row, at.lane_row, at.lane_column);
  return true;
}

constexpr int kThreads = 3 * kWarpgroup;
constexpr int kStateRegisters = 216;
constexpr int kMoveRegisters = 72;
static_assert(2 * kStateRegisters + kMoveRegisters <= 3 * 168);

template <Form kForm, bool kScalar, class Element>
__global__ void __launch_bounds__(kThreads, 1)
    state_pass_kernel(const __grid_constant__ StatePassMaps maps, const __grid_constant__ StatePassArgs args) {
  using Memory = Shared<kForm, kScalar>;
  auto& shared = *reinterpret_cast<Memory*>(dynamic_shared_memory());
  wait_to_find(args.walk);
  if (threadIdx.x == 0) {
    shared.found = find_item<halves_a_cta(kForm)>(args.walk, kChunk, shared.item);
    shared.suffix.skipped = 0;
    if (args.summaries != nullptr) shared.item.row.work = Work::kSummarize;
    if (shared.found) init_barriers(shared);
  }
  __syncthreads();
  if (kForm == Form::kPair) cluster_begin();  // the other CTA copies into this one and arrives at its barriers
  wait_when_found(args.walk, shared.found);
  if (!shared.found) return;  // the same for both CTAs of a pair
  const int group = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const bool emits = kForm == Form::kSingle || shared.item.row.work == Work::kEmit;
  if (!emits) {
    if (threadIdx.x < 32) {
      const Item& item = shared.item;
      const GateRow row = {item.sequence_at, item.token, token_of_call(args.walk.tables, item), item.head, item.tokens};
      const float decay =
          weakest_decay<kScalar>(args.gates, row, (item.row.chunks - 1) * kChunk, static_cast<int>(threadIdx.x));
      __syncwarp();
      if (threadIdx.x == 0) begin_suffix<kChunk>(shared.suffix, shared.item, suffix_of(shared.item, decay));
    }
    __syncthreads();
  }
  auto twice = [&](auto&& walk) {
    walk_by_suffix<true, kChunk>(
        shared, [](auto& here, int) { init_again(here); }, walk);
  };
  if (group < 2) {
    raise_registers<kStateRegisters>();
    wait_for_state(args.walk);
    if (emits) {
      if (kForm == Form::kSingle || group == 0) emit_row<kForm, kScalar, Element>(args, shared, group);
    } else if constexpr (kForm == Form::kPair) {
      twice([&](auto& here, int, auto&& stands) { return summarize<kScalar, Element>(args, here, group, stands); });
    }
  } else {
    lower_registers<kMoveRegisters>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32 % 4);
    auto move = [&](auto& here, auto emit) {
      if (warp == 0) {
        if (elect_lane()) load_chunks(maps, args, here);
        __syncwarp();
      } else if (warp == 1) {
        store_chunks<kForm, kScalar, decltype(emit)::value>(maps, args, here);
      } else {
        make_decays(args, here, warp - 2);
      }
    };
    if (emits) {
      move(shared, std::true_type{});
    } else if constexpr (kForm == Form::kPair) {
      twice([&](auto& here, int, auto&& stands) {
        move(here, std::false_type{});
        return stands([] { return false; });
      });
    }
  }
  if (kForm == Form::kPair) cluster_end();
}

}  // namespace deltarelay::cuda::sm90::pass
