// The scale group of the fused walk of KDA: gates, then q_from_mid, k_from_mid and k_to_mid in place of q, k and g, and
// the state's factors. Elementwise work only.
//
// A thread owns two channels of one side of the chunk's middle (16 tokens) and walks outwards from the middle. So sums
// of log-decays need no scan across threads: the later side sums inclusively, the earlier side exclusively and with the
// opposite sign.
#pragma once
#include "kernels/cuda/sm90/fused/kda/memory.cuh"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm90 {

// Rows past the end of a sequence hold anything. They become q = k = 0 with a gate that does not decay, so that no
// later code needs a mask.
template <GateForm kGate>
__device__ __forceinline__ void clear_tail(uint8_t* stage, int valid, int thread) {
  constexpr uint32_t kNoDecay = kGate == GateForm::kLog ? 0u : 0xff80ff80u;  // raw: -inf twice
  constexpr int kWords = kRowBytes / 4;
  for (int i = valid * kWords + thread; i < kFusedChunk * kWords; i += kWarpgroup) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint8_t* at = stage + half * FusedStage::kHalfBytes + i * 4;
      word_at(at + FusedStage::kQ) = 0;
      word_at(at + FusedStage::kK) = 0;
      word_at(at + FusedStage::kGate) = kNoDecay;
    }
  }
}

// Gate constants of a thread's two channels.
struct PairGate {
  float slope, offset[2];  // raw: 2^(slope x + offset) = e^-x'
  float bound;             // raw: lower_bound; log: the floor; base 2
};

template <GateForm kGate>
__device__ __forceinline__ PairGate pair_gate(const Activation& activation, int head, int channel) {
  const GateParams first = gate_params(activation, head, channel, kWidth);
  if constexpr (kGate == GateForm::kLog) return {kLog2e, {0.0f, 0.0f}, first.lowest};
  // A slope of 0 would turn the -inf in rows past the end into NaN.
  const float slope = first.slope > -1e-37f ? -1e-37f : first.slope;
  return {slope, {slope * first.bias, slope * gate_bias(activation, head, channel + 1, kWidth)}, first.bound};
}

// Rows per loop iteration. Unrolled further, the code of all roles no longer fits the instruction cache.
constexpr int kFusedRun = 4;

// Applies the gates of this thread's channels on its side of the middle, outwards: overwrites q, k and g by q_from_mid,
// k_from_mid and k_to_mid. `column` is the byte of channel pair and stage. Returns log2 of the decay over this side.
template <GateForm kGate, bool kQueries, bool kLater>
__device__ __forceinline__ float2 scale_rows(uint8_t* ring, uint32_t column, const PairGate& gate) {
  using Two = Pair<__nv_bfloat16>;
  float sum[2] = {0.0f, 0.0f};
  // Rows of a run differ only in the low bits of their number, which the swizzle uses. The next run is the same in the
  // other half of the swizzle's eight rows.
  constexpr int kFirst = kLater ? kFusedSide : kFusedSide - kFusedRun;
  uint32_t run_at = (column ^ ((kFirst & 7) << 4)) + kFirst * kRowBytes;
#pragma unroll 1
  for (int run = 0; run < kFusedSide / kFusedRun; ++run) {
    uint8_t* at[kFusedRun];
    uint32_t q[kFusedRun], k[kFusedRun], raw[kFusedRun];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      const int row = kLater ? i : kFusedRun - 1 - i;
      at[i] = ring + ((run_at ^ (row << 4)) + row * kRowBytes);
      raw[i] = word_at(at[i] + FusedStage::kGate);
    }
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      if constexpr (kQueries) q[i] = word_at(at[i] + FusedStage::kQ);
      k[i] = word_at(at[i] + FusedStage::kK);
    }
    float factor[kFusedRun][2];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      const float x[2] = {Two::low(raw[i]), Two::high(raw[i])};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if constexpr (!kLater) factor[i][c] = sum[c];
        if constexpr (kGate == GateForm::kLog) {
          const float decay = x[c] * gate.slope, clamped = decay < gate.bound ? gate.bound : decay;
          sum[c] = kLater ? sum[c] + clamped : sum[c] - clamped;
        } else {
          const float sigmoid = reciprocal_approx(1.0f + exp2_approx(fmaf(x[c], gate.slope, gate.offset[c])));
          sum[c] = fmaf(sigmoid, kLater ? gate.bound : -gate.bound, sum[c]);
        }
        if constexpr (kLater) factor[i][c] = sum[c];
      }
    }
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      float grow[2], shrink[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) grow[c] = exp2_approx(factor[i][c]), shrink[c] = exp2_approx(-factor[i][c]);
      const float k0 = Two::low(k[i]), k1 = Two::high(k[i]);
      if constexpr (kQueries)
        word_at(at[i] + FusedStage::kQ) = Two::pack(Two::low(q[i]) * grow[0], Two::high(q[i]) * grow[1]);
      word_at(at[i] + FusedStage::kK) = Two::pack(k0 * grow[0], k1 * grow[1]);
      word_at(at[i] + FusedStage::kGate) = Two::pack(k0 * shrink[0], k1 * shrink[1]);
    }
    run_at = (run_at ^ ((kFusedRun & 7) << 4)) + static_cast<uint32_t>((kLater ? kFusedRun : -kFusedRun) * kRowBytes);
  }
  return kLater ? make_float2(sum[0], sum[1]) : make_float2(-sum[0], -sum[1]);
}

// Scales all chunks of this CTA, by the two warps of one side.
template <Form kForm, GateForm kGate, bool kQueries, bool kLater>
__device__ __forceinline__ void scale_side(const Activation& activation, FusedShared<kForm>& shared, int rank) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, half = thread / 32 % 2;
  const int pair = half * 32 + lane;
  const int vector_at = (kLater ? FusedStage::kLate : FusedStage::kEarly) + pairs_at(pair) * 4;
  uint8_t* ring = shared.ring[0];

  OwnPosition<kForm> position{rank};
  make_items<kForm>(shared, [&](const Item& item, int) {
    const PairGate gate = pair_gate<kGate>(activation, item.head, 2 * pair);
    const int tokens = uniform(item.tokens), chunks = uniform(item.row.chunks);
#pragma unroll 1
    for (int chunk = rank; chunk < chunks; chunk += ctas(kForm)) {
      const int stage = position.stage;
      wait_parity(&shared.loaded[stage], position.parity);
      wait_parity(&shared.summed[stage], position.parity);
      const int valid = tokens - chunk * kFusedChunk;
      if (valid < kFusedChunk) {
        clear_tail<kGate>(shared.ring[stage], valid, thread);
        split_barrier(kScaleBarrier, kWarpgroup);
      }
      const uint32_t column = opaque(stage * FusedRing<kForm>::kBytes + half * FusedStage::kHalfBytes + lane * 4);
      const float2 side = scale_rows<kGate, kQueries, kLater>(ring, column, gate);
      *reinterpret_cast<float2*>(shared.ring[stage] + vector_at) = {exp2_approx(side.x), exp2_approx(side.y)};
      ptx::fence_proxy_async(ptx::space_shared);
      warp_arrive(&shared.scaled[stage]);
      position.advance();
    }
  });
}

// `kQueries`: also q; a summary has none.
template <Form kForm, GateForm kGate, bool kQueries>
__device__ __forceinline__ void scale_chunks(const Activation& activation, FusedShared<kForm>& shared, int rank) {
  if (uniform(static_cast<int>(threadIdx.x) % kWarpgroup / 64) == 0)
    scale_side<kForm, kGate, kQueries, false>(activation, shared, rank);
  else
    scale_side<kForm, kGate, kQueries, true>(activation, shared, rank);
}

}  // namespace deltarelay::cuda::sm90
