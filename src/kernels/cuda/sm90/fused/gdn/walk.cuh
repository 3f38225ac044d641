// The fused walk of GDN, from raw q, k, g, v to o, or to a summary: a CTA, or a pair of CTAs (a cluster), walks one row (a whole sequence, or
// a segment) of one head. Twins, a cluster too, walk a row of two heads of one key, each CTA one of them: what follows from q and k alone they make
// once. A CTA with a whole head walks perhaps several rows, one after the other (fused/items.cuh). Chunk: 32 tokens.
//
// With G the inclusive sum of log-decays of the chunk, r = 1 / |k| (1 without l2norm), w = beta r:
//     R_i = v_i - r_i e^{Gi} (k S)_i      U = R + T R
//     T = (I + L)^-1 - I,  L_ij = r_i e^{Gi-Gj} k_i.k_j w_j for j < i      P_ij = scale / |q_i| e^{Gi-Gj} q_i.k_j w_j for j <= i
//     O_i = scale / |q_i| e^{Gi} (q S)_i + (P U)_i       S <- e^{Glast} S + k^T (w e^{Glast-G} U)
// Strengths of writing stand with who reads what was written (w), not in R as in docs/math.md: values need no factor then. Tiles of q and k
// are operands as they come, all exponents are <= 0, and any gate is exact, but that e^{Glast} S is left out where it is nothing (kForgotten).
//
// Groups of 128 threads: 0 and 1 the state (state.cuh): halves of the values, or with two CTAs one half in each, or B and M of a
// summary. 2 and 3 make what belongs to a chunk alone (make.cuh), in turns; of a cluster CTA c % 2 makes chunk c and sends it to the
// other, of twins what is the other's. The code of all groups together has to stay within the 32 KB of the instruction cache (docs/kernels/sm90-fused.md).
#pragma once
#include "kernels/cuda/sm90/fused/gdn/make.cuh"
#include "kernels/cuda/sm90/fused/gdn/state.cuh"
#include "kernels/cuda/sm90/rows/suffix.cuh"

namespace deltarelay::cuda::sm90 {
namespace fused_gdn {

// `again`: in place of others.
template <Form kForm>
__device__ __forceinline__ void init_barriers(Shared<kForm>& shared, int rank, bool again) {
  const uint32_t readers = shared.item.row.work == Work::kEmit ? Ring<kForm>::kHalves : 2;  // state groups of a CTA
  for (int i = 0; i < Ring<kForm>::kStages; ++i) {
    const bool own = i % ctas(kForm) == rank;
    if (again) {
      for (uint64_t* barriers : {shared.loaded, shared.made, shared.done, shared.free})
        invalidate_barrier(&barriers[i]);
    }
    ptx::mbarrier_init(&shared.loaded[i], 1);              // the lane that loads
    ptx::mbarrier_init(&shared.made[i], 1);                // a thread of the making group, or the lane that loads
    ptx::mbarrier_init(&shared.done[i], kWarpgroup / 32);  // the warps of the state
    ptx::mbarrier_init(&shared.free[i], own ? ctas(kForm) * readers : readers);
  }
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
}

// log2 of the decay over the last chunk of a row, by one warp, a lane a token.
__device__ __forceinline__ float last_decay(const Activation& activation, const Item& item) {
  const TensorView& g = activation.g;
  const int64_t token = item.token + item.tokens - kFusedChunk + static_cast<int>(threadIdx.x % 32);
  const float raw = load_number(g.data, g.dtype, item.sequence_at * g.sequence + token * g.token + item.head * g.head);
  float sum = log2_decay(raw, gate_params(activation, item.head, 0, 1));
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

}  // namespace fused_gdn

// `kSuffix`: summaries by their suffix, where that is enough; of pairs.
template <class Element, Form kForm, bool kSuffix>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_gdn_kernel(const __grid_constant__ FusedMaps maps, const __grid_constant__ WalkArgs args,
                     const __grid_constant__ Activation activation) {
  using namespace fused_gdn;
  auto& shared = *reinterpret_cast<Shared<kForm>*>(dynamic_shared_memory());
  const int rank = kForm == Form::kSingle ? 0 : cluster_rank();
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.v, &maps.o}) prefetch_tensor_map(map);
  }
  if (!begin_items<kForm>(args, shared, blockIdx.x, rank)) return;
  const Item& item = shared.item;
  if constexpr (kSuffix) {
    if (item.row.work == Work::kSummarize && threadIdx.x < 32) {
      const float decay = last_decay(activation, item);
      __syncwarp();  // all have read the item
      if (threadIdx.x == 0) begin_suffix<kFusedChunk>(shared.suffix, shared.item, suffix_of(item, decay));
    }
    __syncthreads();  // cluster_begin hands on no data
  }
  if constexpr (ctas(kForm) > 1) cluster_begin();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  constexpr bool kWhole = has_whole_strip(kForm);
  const bool emits = kWhole || item.row.work == Work::kEmit;
  auto summarize = [&](auto&& walk) {
    walk_by_suffix<kSuffix, kFusedChunk>(
        shared, [](auto& here, int own_rank) { init_barriers(here, own_rank, true); }, walk);
  };
  if (group < 2) {
    raise_registers<Registers::kStates>();
    wait_for_state(args);
    if (emits) {
      if (kWhole || group == 0)
        emit_items<kForm, Ring<kForm>::kStages, kWhole>(
            args, shared, group, rank, [&](const Item& own, auto& position, float(&state)[64]) {
              emit_chunks<Element>(maps, args, own, shared, group, rank, position, state);
            });
      else if (threadIdx.x % kWarpgroup < 32)
        send_outputs<Element, Ring<kForm>::kStages>(maps, args, item, shared, Stage::kV, rank);
    } else if constexpr (!kWhole) {
      auto walk = [&](auto& here, int own_rank, auto&& stands) {
        return summarize_row(
            args, here.item, own_rank, group == 0,
            [&](float(&state)[64]) { summarize_chunks<Element>(args, here.item, here, own_rank, group == 0, state); },
            stands);
      };
      summarize(walk);
    }
  } else {
    lower_registers<Registers::kOthers>();
    if (emits) {
      make_all<Element, kForm, true>(maps, args, activation, shared, group - 2, rank);
    } else if constexpr (!kWhole) {
      auto walk = [&](auto& here, int own_rank, auto&& stands) {
        make_all<Element, kForm, false>(maps, args, activation, here, group - 2, own_rank);
        return stands([] { return false; });
      };
      summarize(walk);
    }
  }
  if constexpr (ctas(kForm) > 1)
    cluster_end();  // the other CTA copies into this one's memory and arrives at its barriers
}

}  // namespace deltarelay::cuda::sm90
