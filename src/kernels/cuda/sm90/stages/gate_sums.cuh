// Sums of gates inside a chunk, by one warp: as they are given, or from the gates themselves.
#pragma once
#include <cstdint>

#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/stages/gates.h"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm90 {

constexpr int kStageChunk = 64;

// The gates of one row of the call.
struct GateRow {
  int64_t sequence_at, token;  // as in Item
  int64_t token_of_call;       // of the first token
  int head;
  int tokens;
};

// GDN: the sums G of the lane's tokens 2 l and 2 l + 1, of a chunk that begins `first` tokens behind the row. Tokens
// past the end have the sum of the last one. Times sums_scale, here and below, they are in base 2: the product is left
// to whoever needs it, so that the loads may still be in flight.
__device__ __forceinline__ float2 scalar_sums(const StageGates& gates, const GateRow& row, int first, int lane) {
  const int valid = min(row.tokens - first, kStageChunk);
  const int own[2] = {min(2 * lane, valid - 1), min(2 * lane + 1, valid - 1)};
  if (gates.sums != nullptr) {
    const float* sums = gates.sums + (row.token_of_call + first) * gates.heads + row.head;
    return {sums[static_cast<int64_t>(own[0]) * gates.heads], sums[static_cast<int64_t>(own[1]) * gates.heads]};
  }
  const TensorView& g = gates.activation.g;
  const int64_t at = row.sequence_at * g.sequence + (row.token + first) * g.token + row.head * g.head;
  uint32_t raw[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) raw[e] = load_bits(g.data, g.dtype, at + own[e] * g.token);
  const GateParams gate = gate_params(gates.activation, row.head, 0, 1);
  float decay[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) decay[e] = 2 * lane + e < valid ? log2_decay(number_of(raw[e], g.dtype), gate) : 0.0f;
  float through = decay[0] + decay[1];  // inclusive sum over lanes
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(~0u, through, step);
    if (lane >= step) through += below;
  }
  return {through - decay[1], through};
}

// KDA: G_last of the lane's channels lane + 32 j.
__device__ __forceinline__ float4 channel_sums(const StageGates& gates, const GateRow& row, int first, int lane) {
  const int valid = min(row.tokens - first, kStageChunk);
  if (gates.sums != nullptr) {
    const float* sums = gates.sums + ((row.token_of_call + first + valid - 1) * gates.heads + row.head) * kWidth + lane;
    return {sums[0], sums[32], sums[64], sums[96]};
  }
  const TensorView& g = gates.activation.g;
  const float slope = gate_slope(gates.activation, row.head);
  float4 sum{};
#pragma unroll 1
  for (int j = 0; j < 4; ++j) {
    const int channel = lane + 32 * j;
    const GateParams gate =
        gate_params(gates.activation, slope, gate_bias(gates.activation, row.head, channel, kWidth));
    int64_t at = row.sequence_at * g.sequence + (row.token + first) * g.token + row.head * g.head + channel;
    float total = 0.0f;
    constexpr int kAtOnce = 8;
#pragma unroll 1
    for (int i = 0; i < valid; i += kAtOnce, at += kAtOnce * g.token) {
      uint32_t raw[kAtOnce];
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) raw[e] = i + e < valid ? load_bits(g.data, g.dtype, at + e * g.token) : 0;
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) total += i + e < valid ? log2_decay(number_of(raw[e], g.dtype), gate) : 0.0f;
    }
    sum = {j == 0 ? total : sum.x, j == 1 ? total : sum.y, j == 2 ? total : sum.z, total};
  }
  return sum;
}

template <bool kScalar>
__device__ __forceinline__ auto read_sums(const StageGates& gates, const GateRow& row, int first, int lane) {
  if constexpr (kScalar)
    return scalar_sums(gates, row, first, lane);
  else
    return channel_sums(gates, row, first, lane);
}

// log2 of the weakest decay over a chunk, by one warp; the same in all lanes.
template <bool kScalar>
__device__ __forceinline__ float weakest_decay(const StageGates& gates, const GateRow& row, int first, int lane) {
  const auto sums = read_sums<kScalar>(gates, row, first, lane);
  if constexpr (kScalar) {
    return __shfl_sync(~0u, sums.y, 31) * gates.sums_scale;
  } else {
    float most = fmaxf(fmaxf(sums.x, sums.y), fmaxf(sums.z, sums.w));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    return most * gates.sums_scale;
  }
}

}  // namespace deltarelay::cuda::sm90
