// Sums of several values over the lanes of a warp.
#pragma once

namespace deltarelay::cuda {

// Sums kCount values (a power of two) over the warp, or over each group of kLanes lanes. Lane l gets the sum of value
// l % kCount. Each step keeps half of the values: 16 values take 16 exchanges instead of 16 * 5. `kStep` is kCount of
// the outermost call.
template <int kStep, int kLanes = 32, int kCount>
__device__ __forceinline__ float sum_over_lanes(const float (&values)[kCount], int lane) {
  if constexpr (kCount == 1) {
    float sum = values[0];
#pragma unroll
    for (int step = kStep; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane & kHalf) != 0;
    float kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float keep = upper ? values[i + kHalf] : values[i], give = upper ? values[i] : values[i + kHalf];
      kept[i] = keep + __shfl_xor_sync(~0u, give, kHalf);
    }
    return sum_over_lanes<kStep, kLanes>(kept, lane);
  }
}

}  // namespace deltarelay::cuda
