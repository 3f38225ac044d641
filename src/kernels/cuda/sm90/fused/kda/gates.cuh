// Gates of a thread's two channels, and the sums of their log-decays, in the fused walk of KDA.
#pragma once
#include <type_traits>

#include "kernels/cuda/sm90/fused/kda/memory.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm90 {

// Rows past the end of a sequence hold anything. They become q = k = 0 with a gate that does not decay, so that no
// later code needs a mask. `second`: the second quarters of gates in fp32.
template <GateForm kGate, GateSource kSource, bool kQueries>
__device__ __forceinline__ void clear_tail(uint8_t* stage, uint8_t* second, int valid, int thread) {
  constexpr bool kWide = is_wide(kSource);
  constexpr uint32_t kOne = kGate == GateForm::kLog      ? 0u
                            : kGate == GateForm::kLinear ? 0x3f800000u   // 1
                                                         : 0xff800000u;  // raw: -inf
  constexpr bool kHalf = kSource == GateSource::kHalfTiles;
  static_assert(!kHalf || kGate != GateForm::kLinear);
  constexpr uint32_t kTwo = kHalf && kOne != 0 ? 0xfc00fc00u : kOne | kOne >> 16;  // in fp16 or bf16 twice
  constexpr uint32_t kNoDecay = kWide ? kOne : kTwo;
  constexpr int kWords = kRowBytes / 4;
  for (int i = valid * kWords + thread; i < kFusedChunk * kWords; i += kWarpgroup) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint8_t* at = stage + half * FusedStage::kHalfBytes + i * 4;
      if constexpr (kQueries) word_at(at + FusedStage::kQ) = 0;
      word_at(at + FusedStage::kK) = 0;
      word_at(at + FusedStage::kGate) = kNoDecay;
      if constexpr (kWide) word_at(second + half * FusedStage::kTileBytes + i * 4) = kNoDecay;
    }
  }
}

// Gate constants of a thread's two channels. A raw gate x decays by bound f(slope x + offset) in base 2, where f is
// log2(1 + 2^y) (softplus) or 1 / (1 + 2^y) (bounded).
struct PairGate {
  float slope, offset[2];
  float bound;  // log, linear: the floor, base 2
  float most;   // raw: f that decays by kLeastLog2Decay
};

template <GateForm kGate>
__device__ __forceinline__ PairGate pair_gate(const Activation& activation, int head, int channel) {
  const GateParams first = gate_params(activation, head, channel, kWidth);
  if constexpr (kGate == GateForm::kLog || kGate == GateForm::kLinear)
    return {kLog2e, {0.0f, 0.0f}, first.lowest, 0.0f};
  if constexpr (kGate == GateForm::kRawSoftplus) {
    // Not infinite: times the 0 of rows past the end it would be NaN.
    const float rate = first.slope / kLog2e, bound = rate < -1e30f ? -1e30f : rate;
    return {kLog2e,
            {kLog2e * first.bias, kLog2e * gate_bias(activation, head, channel + 1, kWidth)},
            bound,
            kLeastLog2Decay / bound};
  }
  // A slope of 0 would turn the -inf in rows past the end into NaN.
  const float slope = first.slope > -1e-37f ? -1e-37f : first.slope;
  return {slope,
          {slope * first.bias, slope * gate_bias(activation, head, channel + 1, kWidth)},
          first.bound,
          kLeastLog2Decay / first.bound};
}

// log2(1 + 2^y) with a relative error below 1e-5 at both ends, by one special function: with e = 2^-|y| <= 1 it is
// max(y, 0) + log2(1 + e), and log2(1 + e) is e times a polynomial (Remez, relative error 8.5e-6 on [0, 1]).
__device__ __forceinline__ float softplus_base2(float y) {
  const float e = exp2_approx(-fabsf(y));  // keeps a NaN, which fmaxf below may drop
  float series = fmaf(e, -0.034435902f, 0.14603287f);
  series = fmaf(e, series, -0.30303618f);
  series = fmaf(e, series, 0.46917406f);
  series = fmaf(e, series, -0.72042614f);
  series = fmaf(e, series, 1.4426829f);
  return fmaf(e, series, fmaxf(y, 0.0f));
}

// Signs that are known when the kernel is compiled.
using Plus = std::integral_constant<int, 1>;
using Minus = std::integral_constant<int, -1>;

// Adds sign times the log-decay of gate x of channel `c`. kClamps: raw gates too decay by kLeastLog2Decay at most.
// Of gates that stay above that the sum is the same with and without.
template <GateForm kGate, bool kClamps, class Sign>
__device__ __forceinline__ void add_decay(float& sum, float x, const PairGate& gate, int c, Sign sign) {
  if constexpr (kGate == GateForm::kLog || kGate == GateForm::kLinear) {
    const float decay = kGate == GateForm::kLog ? x * gate.slope : log2f(x);
    const float clamped = decay < gate.bound ? gate.bound : decay;
    if constexpr (std::is_same_v<Sign, Plus>)
      sum += clamped;
    else if constexpr (std::is_same_v<Sign, Minus>)
      sum -= clamped;
    else
      sum = fmaf(sign, clamped, sum);
  } else {
    const float y = fmaf(x, gate.slope, gate.offset[c]);
    float part = kGate == GateForm::kRawSoftplus ? softplus_base2(y) : reciprocal_approx(1.0f + exp2_approx(y));
    if constexpr (kClamps) part = -max_or_nan(-part, -gate.most);
    sum = fmaf(part, static_cast<float>(sign) * gate.bound, sum);
  }
}

// Rows per loop iteration. Unrolled further, the code of all roles no longer fits the instruction cache.
constexpr int kFusedRun = 4;

// Which side of the middle a thread has, and where its channels 2 lane and 2 lane + 1 of a half lie, for code that both
// sides share.
struct SidePlace {
  bool later;
  int half, lane;
  uint32_t column;  // byte of channel pair and stage
  // Of a run of four rows, outwards from the middle: row i lies at run ^ i kStep (the swizzle, and the row itself).
  static constexpr uint32_t kStep = 16 + kRowBytes;
  __device__ __forceinline__ uint32_t first_run() const {
    const uint32_t first = later ? kFusedSide : kFusedSide - kFusedRun;
    return ((column ^ ((first & 7) << 4)) + first * kRowBytes) ^ (later ? 0 : (kFusedRun - 1) * kStep);
  }
  __device__ __forceinline__ uint32_t next_run(uint32_t run) const {
    return (run ^ ((kFusedRun & 7) << 4)) + static_cast<uint32_t>((later ? kFusedRun : -kFusedRun) * kRowBytes);
  }
};

// Reads the gates of a thread's two channels in its side of a chunk, run by run outwards from the middle: begin for
// each chunk, take for each run. They come as a Run, which has the two gates of each row.
template <GateSource kSource>
class SideGates;

template <class Number>
class SideGates16 {
 public:
  struct Run {
    uint32_t words[kFusedRun];
    __device__ __forceinline__ float2 row(int i) const {
      using Two = Pair<Number>;
      return {Two::low(words[i]), Two::high(words[i])};
    }
  };

  __device__ __forceinline__ void begin(bool, int, int, uint32_t, uint32_t) const {}
  // Of the next run, whose rows lie at `at` of the stage.
  __device__ __forceinline__ Run take(uint8_t*, uint8_t* const (&at)[kFusedRun]) const {
    Run gates;
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) gates.words[i] = word_at(at[i] + FusedStage::kGate);
    return gates;
  }
};
template <>
class SideGates<GateSource::kTiles> : public SideGates16<__nv_bfloat16> {};
template <>
class SideGates<GateSource::kHalfTiles> : public SideGates16<__half> {};

// In fp32 the gates that lie where a lane will write k_to_mid are those of other lanes of its warp. So a warp reads a
// row before it overwrites it.
template <>
class SideGates<GateSource::kWideTiles> {
 public:
  struct Run {
    float2 rows[kFusedRun];
    __device__ __forceinline__ float2 row(int i) const { return rows[i]; }
  };

  // `stage`, `second`: bytes of the stage and of the second quarters behind the begin of the ring.
  __device__ __forceinline__ void begin(bool later, int half, int lane, uint32_t stage, uint32_t second) {
    const uint32_t first = stage + half * FusedStage::kHalfBytes + FusedStage::kGate;
    place_ = {later, half, lane, (lane < 16 ? first : second + half * FusedStage::kTileBytes) + lane % 16 * 8};
    run_at_ = place_.first_run();
  }
  __device__ __forceinline__ Run take(uint8_t* ring, uint8_t* const (&)[kFusedRun]) {
    Run gates;
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i)
      gates.rows[i] = *reinterpret_cast<const float2*>(ring + (run_at_ ^ (i * SidePlace::kStep)));
    run_at_ = place_.next_run(run_at_);
    __syncwarp();
    return gates;
  }
  // Of one token and channel of a half, whose tiles are raw.
  __device__ __forceinline__ float number(const uint8_t* tiles, const uint8_t* second, int token, int channel) const {
    const uint8_t* tile = channel < 32 ? tiles + FusedStage::kGate : second;
    return *reinterpret_cast<const float*>(tile + token * kRowBytes + ((channel % 32 * 4) ^ ((token & 7) << 4)));
  }

 private:
  SidePlace place_;
  uint32_t run_at_;
};

}  // namespace deltarelay::cuda::sm90
