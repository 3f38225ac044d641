// Log-decays of a block of tokens, in base 2: from the caller's gates, or as differences of given sums.
//
// All exponents are sums of log-decays over tokens that lie side by side. They are never differences of two sums of
// gates, so nothing cancels, -inf needs no bound, and no exponent is above 0. Differences of given sums are finite
// numbers; one may be above 0 by the rounding of those sums.
#pragma once
#include <cstdint>

#include "kernels/cuda/sm80/stages/rows.cuh"

namespace deltarelay::cuda::sm80 {

// Where the log-decays of a chunk come from.
struct GateSource {
  const Activation& activation;
  Rows rows;  // gates, or sums
  int head, dk;
  bool per_channel;  // KDA
  bool given;        // sums of log-decays are given
  float unit;        // of given sums, in base 2

  __device__ __forceinline__ GateSource(const Activation& of, const Intermediates& stage, const StageChunk& chunk,
                                        int heads, int key_width, bool is_kda)
      : activation(of),
        rows(stage.gives(DR_GATE_SUMS) ? rows_of(stage.gate_sums, DType::kFp32, chunk, heads, is_kda ? key_width : 1)
                                       : rows_of(of.g, chunk, chunk.head)),
        head(chunk.head),
        dk(key_width),
        per_channel(is_kda),
        given(stage.gives(DR_GATE_SUMS)),
        unit(stage.sums_base_2 ? 1.0f : kLog2e) {}

  __device__ __forceinline__ int column(int channel) const { return per_channel ? channel : 0; }
};

template <GateForm kForm, int kCount>
__device__ __forceinline__ void activate(float (&x)[kCount], const GateParams& gate) {
#pragma unroll
  for (float& g : x) g = clamp_decay(log2_decay<kForm>(g, gate), gate);
}

// The caller's gates at one channel as log-decays.
template <int kCount>
__device__ __forceinline__ void activate_gates(float (&x)[kCount], const GateSource& from, int channel, bool exists) {
  const Activation& a = from.activation;
  GateParams gate =
      exists ? gate_params(a, from.head, from.column(channel), from.per_channel ? from.dk : 1) : GateParams{};
  gate.lowest = !is_raw(a.gate_form) && a.gate_floor != 0.0f ? a.gate_floor * kLog2e : -INFINITY;
  switch (a.gate_form) {
    case GateForm::kLog:
      return activate<GateForm::kLog>(x, gate);
    case GateForm::kLinear:
      return activate<GateForm::kLinear>(x, gate);
    case GateForm::kRawSoftplus:
      return activate<GateForm::kRawSoftplus>(x, gate);
    case GateForm::kRawBounded:
      return activate<GateForm::kRawBounded>(x, gate);
  }
}

// Log-decays of tokens [first, first + 16) at one channel. Tokens that do not exist, and channels, have 0.
__device__ __forceinline__ void load_steps(float (&step)[kBlock], const GateSource& from, int channel, int first,
                                           int tokens) {
  const bool exists = channel < from.dk;
  const int column = from.column(channel);
  load_column(step, from.rows, column, exists, first, tokens);
  if (from.given) {
    float before[1] = {0.0f};
    if (first > 0) load_column(before, from.rows, column, exists, first - 1, tokens);
#pragma unroll
    for (int i = kBlock - 1; i >= 0; --i) step[i] = (step[i] - (i > 0 ? step[i - 1] : before[0])) * from.unit;
  } else {
    activate_gates(step, from, channel, exists);
  }
#pragma unroll
  for (int i = 0; i < kBlock; ++i) step[i] = exists && first + i < tokens ? step[i] : 0.0f;
}

__device__ __forceinline__ float sum_of(const float (&step)[kBlock]) {
  float sum = 0.0f;
#pragma unroll
  for (const float x : step) sum += x;
  return sum;
}

// Sums of the blocks of a chunk at the 32 channels of a slab.
struct BlockSums {
  static constexpr int kBlocks = kStageTokens / kBlock;
  float sum[kBlocks][kSlab];

  // Of the blocks before `block` and behind it.
  __device__ __forceinline__ float before(int block, int channel) const {
    float all = 0.0f;
#pragma unroll
    for (int b = 0; b < kBlocks - 1; ++b) all += b < block ? sum[b][channel] : 0.0f;
    return all;
  }
  __device__ __forceinline__ float behind(int block, int blocks, int channel) const {
    float all = 0.0f;
#pragma unroll
    for (int b = 1; b < kBlocks; ++b) all += b > block && b < blocks ? sum[b][channel] : 0.0f;
    return all;
  }
};

}  // namespace deltarelay::cuda::sm80
