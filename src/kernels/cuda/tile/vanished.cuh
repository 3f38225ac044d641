// Transitions that have vanished.
//
// If the gates forget the beginning of a segment, M becomes all 0 within a few chunks: a decay of e^-80 a chunk leaves
// the range of fp32 after two. Every later chunk only multiplies M, so it stays 0. The walk of M then stops, and the
// carry leaves B as it is.
//
// With a truncated carry M vanishes earlier: once no number of it exceeds e^carry_log_decay / DK. The Frobenius norm of
// M, and with it the spectral norm, is then at most e^carry_log_decay. Such plans exist only where a token cannot grow
// the state (docs/numerics.md), so M stays below the bound. It is stored as 0.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda {

// log2 of a decay that leaves no number of M: M begins with 1 and fp32 ends at 2^-149; the other 7 bits cover
// round-off.
constexpr float kVanishedLog2 = -156.0f;
// Largest suffix, as a fraction of a row: 1 / kSuffixShare (suffix.cuh of either backend).
constexpr int kSuffixShare = 4;

// Estimates how many last chunks of a row make M vanish. The last chunk decays by log2 `decay`. Others may decay less,
// so the estimate is `slack` times what this decay needs. Returns 0 if the estimate exceeds `most`.
__device__ __forceinline__ int suffix_chunks(float decay, float slack, int most) {
  const float enough = kVanishedLog2 * slack;
  if (!(decay * static_cast<float>(most) <= enough)) return 0;  // also for NaN
  const int needed = static_cast<int>(enough / decay) + 2;
  return needed <= most ? needed : 0;
}

// Do these numbers keep M alive? A NaN does. `bound` is 0 for an exact carry and the same in all threads: the second
// pass then costs one branch.
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

// Sets a vanished M to 0 under a truncated carry. Reports DR_REPORT_DROPPED if a number was not 0.
template <int kCount>
__device__ __forceinline__ void drop(float (&m)[kCount], uint32_t* report) {
  if (report != nullptr && keeps_alive(m, 0.0f)) atomicOr(report, static_cast<uint32_t>(DR_REPORT_DROPPED));
#pragma unroll
  for (int i = 0; i < kCount; ++i) m[i] = 0.0f;
}

}  // namespace deltarelay::cuda
