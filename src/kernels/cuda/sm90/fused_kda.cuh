// The fused walk of KDA, from raw q, k, g, v to o, or to a summary: a CTA, or a pair of CTAs (a cluster), walks one row (a whole sequence, or
// a segment) of one head. For bf16 and gates of at least -5 a token. Chunk: 32 tokens.
//
// With G the inclusive sum of log-decays of the chunk, Gmid the one after its first 16 tokens, r = 1 / |k| (1 without l2norm):
//     q+ = q e^{G-Gmid}    k+ = k e^{G-Gmid}    k- = k e^{Gmid-G}    S+ = e^{Gmid} S       (q and k as they come, without their norms)
//     R~_i = beta_i r_i v_i - beta_i r_i^2 (k+ S+)_i      U~ = R~ + T R~ = r U
//     T = (I + L)^-1 - I,  L_ij = beta_i r_i^2 k+_i.k-_j for j < i      P_ij = q+_i.k-_j for j < i
//     O_i = scale / |q_i| ((q+ S+)_i + (P U~)_i + q_i.k_i U~_i)       S <- e^{Glast-Gmid} (S+ + k-^T U~)
// All of it in the frame of the chunk's middle: three tiles serve all products. |G-Gmid| <= 16 x 5 = 80 < 88, so every factor is finite in
// fp32 and bf16, and so is S+ while |U| < 6000.
//
// A single CTA holds both halves of S^T. CTA r of a pair holds rows 64 r to 64 r + 63 of S^T. What belongs to a chunk alone (gates, norms, tiles, scores, the inverse) is the same
// for both and most of the work: CTA c % 2 makes chunk c, and sends it to the other through shared memory of the cluster.
//
// Groups of 128 threads: 0 and 1 the state (fused_kda_state.cuh; one for each half that the CTA emits, of a summary one for B and one for M), 2 scale
// (fused_kda_scale.cuh), 3 score (fused_kda_score.cuh). They hand chunks on through a ring of stages with mbarriers; no barrier spans the CTA after
// the start. The code of all groups together has to stay within the 32 KB of the instruction cache (docs/kernels/sm90-fused.md). Hence
// loops, where unrolling would save a few instructions.
#pragma once
#include "kernels/cuda/sm90/fused_kda_scale.cuh"
#include "kernels/cuda/sm90/fused_kda_score.cuh"
#include "kernels/cuda/sm90/fused_kda_state.cuh"

namespace deltarelay::cuda::sm90 {

template <int kCtas>
__device__ __forceinline__ void init_barriers(FusedShared<kCtas>& shared, int rank) {
  const uint32_t readers =
      shared.item.row.work == Work::kEmit ? FusedRing<kCtas>::kHalves : 2;  // state groups of a CTA
  for (int i = 0; i < FusedRing<kCtas>::kStages; ++i) {
    const bool own = i % kCtas == rank;
    ptx::mbarrier_init(&shared.loaded[i], 2);            // the two lanes that load
    ptx::mbarrier_init(&shared.summed[i], 4);            // warps of the score group
    ptx::mbarrier_init(&shared.scaled[i], own ? 5 : 1);  // warps of the scale group; the lane that loads v
    ptx::mbarrier_init(&shared.solved[i], own ? 4 : 1);  // warps of the score group; the lane that loads v
    ptx::mbarrier_init(&shared.done[i], 4);              // warps of the state
    ptx::mbarrier_init(&shared.free[i], own ? kCtas * readers : readers);
  }
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
}

template <int kCtas, GateForm kForm>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_kda_kernel(const __grid_constant__ FusedMaps maps, const __grid_constant__ WalkArgs args,
                     const __grid_constant__ Activation activation) {
  auto& shared = *reinterpret_cast<FusedShared<kCtas>*>(dynamic_shared_memory());
  const int rank = kCtas == 1 ? 0 : cluster_rank();
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.g, &maps.v, &maps.o}) prefetch_tensor_map(map);
  }
  wait_to_find(args);
  if (threadIdx.x == 0) {
    shared.found = find_item<FusedRing<kCtas>::kHalves>(args, kFusedChunk, shared.item);
    if (shared.found) init_barriers(shared, rank);
  }
  __syncthreads();
  wait_when_found(args, shared.found);
  if (!shared.found) return;
  if constexpr (kCtas > 1) cluster_begin();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const bool emits = shared.item.row.work == Work::kEmit;
  if (group < 2) {
    raise_registers<kFusedStateRegisters>();
    wait_for_state(args);
    if (kCtas == 1 || group == 0 || !emits)
      walk_fused(maps, args, shared.item, shared, group, rank);
    else if (threadIdx.x % kWarpgroup < 32)
      send_outputs<__nv_bfloat16, FusedRing<kCtas>::kStages>(maps, args, shared.item, shared, FusedStage::kV, rank);
  } else {
    lower_registers<kFusedOtherRegisters>();
    if (group == 2) {
      if (kCtas == 1 || emits)
        scale_chunks<kCtas, kForm, true>(activation, shared.item, shared, rank);
      else
        scale_chunks<kCtas, kForm, false>(activation, shared.item, shared, rank);
    } else {
      if (kCtas == 1 || emits)
        score_chunks<kCtas, true>(maps, args, activation, shared.item, shared, rank);
      else
        score_chunks<kCtas, false>(maps, args, activation, shared.item, shared, rank);
    }
  }
  if constexpr (kCtas > 1) cluster_end();  // the other CTA copies into this one's memory and arrives at its barriers
}

}  // namespace deltarelay::cuda::sm90
