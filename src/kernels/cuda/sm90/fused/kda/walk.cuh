// The fused walk of KDA, from raw q, k, g, v to o, or to a summary. A CTA or a pair of CTAs (a cluster) walks one row
// (a whole sequence or a segment) of one strip; a single CTA may walk several, one after the other (fused/items.cuh).
// Chunk: 32 tokens. What follows is for bf16 data; fp16 data has tiles in other frames (ends.cuh).
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
// Groups of 128 threads: 0 and 1 hold the state (state.cuh): one for each half that the CTA emits, or X and B of a
// summary. 2 scales (scale.cuh), 3 scores (score.cuh). They hand chunks on through a ring of stages with mbarriers;
// after the start no barrier spans the CTA. The code of all groups together must stay within the 32 KB of the
// instruction cache (docs/kernels/sm90-fused.md). Hence there are loops where unrolling would save a few instructions.
#pragma once
#include <type_traits>

#include "kernels/cuda/sm90/fused/checkpoints.cuh"
#include "kernels/cuda/sm90/fused/kda/pair_emit.cuh"
#include "kernels/cuda/sm90/fused/kda/scale.cuh"
#include "kernels/cuda/sm90/fused/kda/score.cuh"
#include "kernels/cuda/sm90/fused/kda/state.cuh"
#include "kernels/cuda/sm90/fused/kda/summary.cuh"
#include "kernels/cuda/sm90/fused/order.cuh"

namespace deltarelay::cuda::sm90 {

template <Form kForm, class Element>
__device__ __forceinline__ void init_barriers(FusedShared<kForm, Element>& shared, int rank) {
  shared.end.begin(shared.item.row.chunks);
  constexpr bool kPair = kForm == Form::kPair;
  // In a pair's emit the state group without rows loads, and takes the sums of raw rows (pair_emit.cuh).
  const bool relieved = kPair && shared.item.row.work == Work::kEmit;
  // Of a CTA: warps of the state, of a summary those of X and of B; of a single CTA the state groups.
  const uint32_t readers = relieved ? 4 : kPair ? 8 : 2;
  for (int i = 0; i < FusedRing<kForm, Element>::kStages; ++i) {
    const bool own = i % ctas(kForm) == rank;
    ptx::mbarrier_init(&shared.loaded[i], kPair ? 1 : 2);     // the lanes that load
    ptx::mbarrier_init(&shared.summed[i], relieved ? 2 : 4);  // the warps that sum
    // Warps of the scale group, of a single CTA also the lane that loads v; or the lane that announces the bytes.
    ptx::mbarrier_init(&shared.scaled[i], own ? (kPair ? 4 : 5) : 1);
    ptx::mbarrier_init(&shared.solved[i], own ? 4 : 1);  // warps of the score group; or that lane
    ptx::mbarrier_init(&shared.brought[i], 1);           // the lane that loads v
    ptx::mbarrier_init(&shared.done[i], 4);              // warps of the state
    ptx::mbarrier_init(&shared.free[i], own ? ctas(kForm) * readers : readers);
  }
  if constexpr (kEndFrames<Element>) shared.words.init_barriers();
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
}

// log2 of the decay of head `head` over some tokens of the sampled chunk, of the channel that keeps most: by one warp,
// four channels a lane. NaN counts as none.
template <GateForm kGate, GateSource kSource>
__device__ __forceinline__ float sampled_decay(const Activation& activation, const RowOrder& order, int head) {
  using Narrow = std::conditional_t<kSource == GateSource::kHalfTiles, __half, __nv_bfloat16>;
  using Two = Pair<Narrow>;
  constexpr int kTokens = 4, kApart = kFusedChunk / kTokens, kChannels = kWidth / 32;
  constexpr bool kWide = is_wide(kSource);
  using Number = std::conditional_t<kWide, float, Narrow>;
  using Four = std::conditional_t<kWide, float4, uint2>;
  const TensorView& g = activation.g;
  const int channel = static_cast<int>(threadIdx.x % 32) * kChannels;
  const auto* at = static_cast<const Number*>(g.data) + order.sequence_at * g.sequence + order.token * g.token +
                   head * g.head + channel;
  Four raw[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) raw[i] = *reinterpret_cast<const Four*>(at + i * kApart * g.token);
  const auto number = [&](int i, int c) {
    if constexpr (kWide) {
      return c == 0 ? raw[i].x : c == 1 ? raw[i].y : c == 2 ? raw[i].z : raw[i].w;
    } else {
      const uint32_t two = c < 2 ? raw[i].x : raw[i].y;
      return c % 2 == 0 ? Two::low(two) : Two::high(two);
    }
  };
  float most = -INFINITY;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const GateParams gate = gate_params(activation, head, channel + c, kWidth);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) sum += clamp_decay(log2_decay<kGate>(number(i, c), gate), gate);
    most = sum > most || !(sum <= 0.0f) ? sum : most;
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_xor_sync(~0u, most, step);
    most = other > most || !(other <= 0.0f) ? other : most;
  }
  return most <= 0.0f ? most : 0.0f;
}

// `kSummaries`: some rows of pairs are summarized. kMidFrame: the caller promises gates of at least kMidFrameGate.
// Otherwise every channel of a chunk has a frame that holds it (frames.cuh). kCheckpoints: states inside rows are
// stored.
template <Form kForm, GateForm kGate, GateSource kSource, bool kSummaries, bool kMidFrame, bool kCheckpoints = false,
          class Element = __nv_bfloat16>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_kda_kernel(const __grid_constant__ FusedMaps maps, const __grid_constant__ WalkArgs args,
                     const __grid_constant__ Activation activation) {
  static_assert(sizeof(SharedOf<FusedShared<kForm, Element>, kCheckpoints>) <= SecondQuarters<kForm, Element>::kBegin,
                "second quarters and kept sums lie behind what checkpoints add");
  auto& shared = *reinterpret_cast<SharedOf<FusedShared<kForm, Element>, kCheckpoints>*>(dynamic_shared_memory());
  const int rank = kForm == Form::kSingle ? 0 : cluster_rank();
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.g, &maps.v, &maps.o}) prefetch_tensor_map(map);
  }
  uint32_t number = blockIdx.x;
  if constexpr (kSummaries) {
    if (maps.order.count > 0)
      number = ordered_number(maps.order, args, shared.negated, shared.items,
                              [&](int head) { return sampled_decay<kGate, kSource>(activation, maps.order, head); });
  }
  if (!begin_items<kForm>(args, shared, number, rank)) return;
  if constexpr (kCheckpoints) find_first_checkpoints(args, shared);
  const Item& item = shared.item;
  if constexpr (ctas(kForm) > 1) cluster_begin();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const bool emits = !kSummaries || item.row.work == Work::kEmit;
  if (group < 2) {
    raise_registers<KdaRegisters::kStates>();
    const bool relieves = kForm == Form::kPair && emits && group == 1;  // has no rows
    if (!relieves) wait_for_state(args);
    if (emits && !relieves) {
      DueOf<FusedShared<kForm, Element>, kCheckpoints> due(args, shared);
      emit_items<kForm, FusedRing<kForm, Element>::kStages, kForm == Form::kSingle>(
          args, shared, group, rank, due, [&](const Item& own, auto& position, float(&state)[64]) {
            if constexpr (kForm == Form::kSingle)
              emit_fused(maps, args, own, shared, group, position, state, due);
            else
              emit_by_pair(own, shared, position, state, due);
          });
    } else if constexpr (kForm == Form::kPair) {
      if (relieves)
        relieve<kSource>(maps, args, activation, item, shared, rank);
      else if constexpr (kSummaries)
        summarize_fused<kSource>(maps, args, item, shared, group, rank);
    }
  } else {
    lower_registers<KdaRegisters::kOthers>();
    // Asked again, as in emit_by_pair: that of all roles is spilled, and read in every chunk.
    const int own_rank = kMidFrame || kForm == Form::kSingle ? rank : cluster_rank();
    if (emits) {
      if (group == 2)
        scale_chunks<kForm, kGate, kSource, true, kMidFrame>(maps, activation, shared, own_rank);
      else
        score_chunks<kForm, kSource, true, kMidFrame>(maps, activation, shared, own_rank);
    } else if constexpr (kSummaries) {
      if (group == 2)
        scale_chunks<kForm, kGate, kSource, false, kMidFrame>(maps, activation, shared, own_rank);
      else
        score_chunks<kForm, kSource, false, kMidFrame>(maps, activation, shared, own_rank);
    }
  }
  if constexpr (ctas(kForm) > 1)
    cluster_end();  // the other CTA copies into this one's memory and arrives at its barriers
}

}  // namespace deltarelay::cuda::sm90
