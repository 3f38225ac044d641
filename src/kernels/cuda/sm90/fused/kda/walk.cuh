// The fused walk of KDA, from raw q, k, g, v to o, or to a summary. A CTA or a pair of CTAs (a cluster) walks one row
// (a whole sequence or a segment) of one strip; a single CTA may walk several, one after the other (fused/items.cuh).
// For bf16. Chunk: 32 tokens.
//
// G is the inclusive sum of log-decays of the chunk, G_mid its value after the first 16 tokens, G_last its last value;
// rk and rq are the inverse norms (1 without l2norm). A tilde marks a quantity times a factor per token: R~ = rk R,
// V_new~ = rk V_new.
//     q_from_mid = q e^{G-G_mid}    k_from_mid = k e^{G-G_mid}    k_to_mid = k e^{G_mid-G}    S_mid = e^{G_mid} S
//     R~_i = beta_i rk_i v_i - beta_i rk_i^2 (k_from_mid S_mid)_i      V_new~ = R~ + (inverse - I) R~
//     inverse = (I + Akk~)^-1,  Akk~_ij = beta_i rk_i^2 k_from_mid_i.k_to_mid_j for j < i
//     Aqk~_ij = q_from_mid_i.k_to_mid_j for j < i
//     O_i = scale rq_i ((q_from_mid S_mid)_i + (Aqk~ V_new~)_i + q_i.k_i V_new~_i)
//     S <- e^{G_last-G_mid} (S_mid + k_to_mid^T V_new~)
// Everything is in the frame of the chunk's middle, so three tiles serve all products. With gates of at least -5 per
// token |G-G_mid| <= 16 x 5 = 80 < 88: every factor is finite in fp32 and bf16, and so is S_mid while |V_new| < 6000.
// Other gates move channels into frames of their own (frames.cuh); the state does not notice.
//
// A single CTA holds both halves of S^T. CTA r of a pair holds rows 64 r to 64 r + 63 of S^T. What depends on the chunk
// alone (gates, norms, tiles, scores, the inverse) is the same for both and most of the work. So CTA c % 2 makes chunk
// c and copies it to the other CTA through the shared memory of the cluster.
//
// Groups of 128 threads: 0 and 1 hold the state (state.cuh): one for each half that the CTA emits, or B and M of a
// summary. 2 scales (scale.cuh), 3 scores (score.cuh). They hand chunks on through a ring of stages with mbarriers;
// after the start no barrier spans the CTA. The code of all groups together must stay within the 32 KB of the
// instruction cache (docs/kernels/sm90-fused.md). Hence there are loops where unrolling would save a few instructions.
#pragma once
#include "kernels/cuda/sm90/fused/kda/scale.cuh"
#include "kernels/cuda/sm90/fused/kda/score.cuh"
#include "kernels/cuda/sm90/fused/kda/state.cuh"
#include "kernels/cuda/sm90/rows/suffix.cuh"
#include "kernels/cuda/tile/warp_sum.cuh"

namespace deltarelay::cuda::sm90 {

// `again`: replaces barriers that were in use.
template <Form kForm>
__device__ __forceinline__ void init_barriers(FusedShared<kForm>& shared, int rank, bool again = false) {
  if (!again) shared.suffix.skipped = 0;
  const uint32_t readers =
      shared.item.row.work == Work::kEmit ? FusedRing<kForm>::kHalves : 2;  // state groups of a CTA
  for (int i = 0; i < FusedRing<kForm>::kStages; ++i) {
    const bool own = i % ctas(kForm) == rank;
    if (again) {
      for (uint64_t* barriers : {shared.loaded, shared.summed, shared.scaled, shared.solved, shared.done, shared.free})
        invalidate_barrier(&barriers[i]);
    }
    ptx::mbarrier_init(&shared.loaded[i], 2);            // the two lanes that load
    ptx::mbarrier_init(&shared.summed[i], 4);            // warps of the score group
    ptx::mbarrier_init(&shared.scaled[i], own ? 5 : 1);  // warps of the scale group; the lane that loads v
    ptx::mbarrier_init(&shared.solved[i], own ? 4 : 1);  // warps of the score group; the lane that loads v
    ptx::mbarrier_init(&shared.done[i], 4);              // warps of the state
    ptx::mbarrier_init(&shared.free[i], own ? ctas(kForm) * readers : readers);
  }
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
}

// log2 of the weakest decay over the last chunk of a row: that of the channel which keeps most. Called by all threads;
// a warp has 8 channels, a lane one token.
template <GateForm kGate>
__device__ __forceinline__ float weakest_decay(const Activation& activation, const Item& item,
                                               float (&of_warps)[kFusedThreads / 32]) {
  using Two = Pair<__nv_bfloat16>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const TensorView& g = activation.g;
  const int64_t at = item.sequence_at * g.sequence + (item.token + item.tokens - kFusedChunk + lane) * g.token +
                     item.head * g.head + 8 * warp;
  const uint4 raw = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(g.data) + at);
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  float decay[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const GateParams gate = gate_params(activation, item.head, 8 * warp + i, kWidth);
    const float number = i % 2 == 0 ? Two::low(words[i / 2]) : Two::high(words[i / 2]);
    decay[i] = clamp_decay(log2_decay<kGate>(number, gate), gate);
  }
  float sum = sum_over_lanes<8>(decay, lane);
#pragma unroll
  for (int step = 1; step < 8; step *= 2) sum = fmaxf(sum, __shfl_xor_sync(~0u, sum, step));
  if (lane == 0) of_warps[warp] = sum;
  __syncthreads();
  float weakest = of_warps[0];
#pragma unroll
  for (int i = 1; i < kFusedThreads / 32; ++i) weakest = fmaxf(weakest, of_warps[i]);
  return weakest;
}

// `kSuffix`: summaries of pairs walk their suffix first (suffix.cuh). kMidFrame: the caller promises gates of at least
// kMidFrameGate. Otherwise every channel of a chunk has a frame that holds it (frames.cuh).
template <Form kForm, GateForm kGate, GateSource kSource, bool kSuffix, bool kMidFrame>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_kda_kernel(const __grid_constant__ FusedMaps maps, const __grid_constant__ WalkArgs args,
                     const __grid_constant__ Activation activation) {
  auto& shared = *reinterpret_cast<FusedShared<kForm>*>(dynamic_shared_memory());
  const int rank = kForm == Form::kSingle ? 0 : cluster_rank();
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.g, &maps.v, &maps.o}) prefetch_tensor_map(map);
  }
  // Two pairs for every row. The later pair walks rows that are sure to end early, the earlier pair all others: no row
  // that is walked whole starts behind a short one. Only the kernel can tell which rows these are.
  const bool later = kSuffix && blockIdx.x >= gridDim.x / 2;
  if (!begin_items<kForm>(args, shared, blockIdx.x - (later ? gridDim.x / 2 : 0), rank)) return;
  const Item& item = shared.item;
  if constexpr (kSuffix) {
    int chunks = 0;  // of the suffix to try first; 0: none
    if (item.row.work == Work::kSummarize)
      chunks = suffix_of(item, weakest_decay<kGate>(activation, item, shared.weakest));
    if (is_sure(chunks, item.row.chunks) != later) return;  // the other pair walks this row
    __syncthreads();                                        // all threads have read how many chunks the row has
    if (threadIdx.x == 0) begin_suffix<kFusedChunk>(shared.suffix, shared.item, chunks);
    __syncthreads();  // cluster_begin passes no data
  }
  if constexpr (ctas(kForm) > 1) cluster_begin();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const bool emits = kForm == Form::kSingle || item.row.work == Work::kEmit;
  auto summarize = [&](auto&& walk) {
    walk_by_suffix<kSuffix, kFusedChunk>(
        shared, [](auto& here, int own_rank) { init_barriers(here, own_rank, true); }, walk);
  };
  if (group < 2) {
    raise_registers<KdaRegisters::kStates>();
    wait_for_state(args);
    if (emits) {
      if (kForm == Form::kSingle || group == 0)
        emit_items<kForm, FusedRing<kForm>::kStages, kForm == Form::kSingle>(
            args, shared, group, rank, [&](const Item& own, auto& position, float(&state)[64]) {
              emit_fused(maps, args, own, shared, group, rank, position, state);
            });
      else if (threadIdx.x % kWarpgroup < 32)
        send_outputs<__nv_bfloat16, FusedRing<kForm>::kStages>(maps, args, item, shared, FusedStage::kV, rank);
    } else if constexpr (kForm == Form::kPair) {
      auto walk = [&](auto& here, int own_rank, auto&& stands) {
        return summarize_row(
            args, here.item, own_rank, group == 0,
            [&](float(&state)[64]) { summarize_fused(args, here.item, here, own_rank, group == 0, state); }, stands);
      };
      summarize(walk);
    }
  } else {
    lower_registers<KdaRegisters::kOthers>();
    if (emits) {
      if (group == 2)
        scale_chunks<kForm, kGate, kSource, true, kMidFrame>(maps, activation, shared, rank);
      else
        score_chunks<kForm, kSource, true, kMidFrame>(maps, activation, shared, rank);
    } else if constexpr (kForm == Form::kPair) {
      auto walk = [&](auto& here, int own_rank, auto&& stands) {
        if (group == 2)
          scale_chunks<kForm, kGate, kSource, false, kMidFrame>(maps, activation, here, own_rank);
        else
          score_chunks<kForm, kSource, false, kMidFrame>(maps, activation, here, own_rank);
        return stands([] { return false; });
      };
      summarize(walk);
    }
  }
  if constexpr (ctas(kForm) > 1)
    cluster_end();  // the other CTA copies into this one's memory and arrives at its barriers
}

}  // namespace deltarelay::cuda::sm90
