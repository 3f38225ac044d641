// A transition that has vanished.
//
// Gates that forget a segment's beginning altogether make M all 0 within a few chunks (an e^-80 a chunk is below fp32's range after two). Then
// it stays 0, for every later chunk only multiplies it: who walks it stops, and the carry, which would add 0 to B, leaves B alone.
//
// A truncated carry lets M vanish earlier, once no number of it is above a bound: e^carry_log_decay over the number of channels, so that the root
// of the sum of all squares, and with it the norm, is at most e^carry_log_decay. Such plans are made only where a token can but shrink a state
// (docs/numerics.md), so it stays there. What is stored of it is 0.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda {

// log2 of a decay after which no number of M is left: 2^-149 is the least of fp32, and M begins with 1. The rest is for rounding.
constexpr float kVanishedLog2 = -156.0f;
// A summary by its suffix (suffix.cuh of either backend): that may be this part of a row.
constexpr int kSuffixShare = 4;

// Chunks that a row has to end with so that M vanishes, by a guess: some of the last ones decay by log2 `decay` each, and others may decay less,
// so it is `slack` times as many. 0: more than `most`.
__device__ __forceinline__ int suffix_chunks(float decay, float slack, int most) {
  const float enough = kVanishedLog2 * slack;
  if (!(decay * static_cast<float>(most) <= enough)) return 0;  // also NaN
  const int needed = static_cast<int>(enough / decay) + 2;
  return needed <= most ? needed : 0;
}

// Do these numbers of M keep it alive? NaN does. `bound` is 0 for an exact carry, the same in all threads: the second pass then costs a branch.
template <int kCount>
__device__ __forceinline__ bool keeps_alive(const float (&m)[kCount], float bound) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) bits |= __float_as_uint(m[i]);
  bool alive = (bits & 0x7fffffffu) != 0;
  if (bound > 0.0f) {
    float most[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kCount; ++i) most[i % 4] = max_or_nan(most[i % 4], fabsf(m[i]));
    alive = !(max_or_nan(max_or_nan(most[0], most[1]), max_or_nan(most[2], most[3])) <= bound);
  }
  return alive;
}

// M has vanished under the bound of a truncated carry: its numbers are dropped, and where some were not 0 the report says so.
template <int kCount>
__device__ __forceinline__ void drop(float (&m)[kCount], uint32_t* report) {
  if (report != nullptr && keeps_alive(m, 0.0f)) atomicOr(report, static_cast<uint32_t>(DR_REPORT_DROPPED));
#pragma unroll
  for (int i = 0; i < kCount; ++i) m[i] = 0.0f;
}

}  // namespace deltarelay::cuda
