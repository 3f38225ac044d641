// G: sums of log-decays over the tokens of a chunk.
//
// Kernels use differences of two sums, which may be small while the sums are large. With 90 % of the gates at -1000
// (clamped to -128 in base 2), sums in fp32 have an error of up to 2^-12, and so has a decay between neighbours. That
// is enough for 16-bit data. For fp32 data, ExactSum also keeps the round-off of every addition.
#pragma once

namespace deltarelay::cuda::sm80 {

struct PlainSum {
  float value = 0.0f;
  static __device__ __forceinline__ PlainSum of(float x) { return {x}; }
  friend __device__ __forceinline__ PlainSum operator+(PlainSum a, PlainSum b) { return {a.value + b.value}; }
  friend __device__ __forceinline__ float operator-(PlainSum a, PlainSum b) { return a.value - b.value; }
  __device__ __forceinline__ float rounded() const { return value; }
};

struct ExactSum {
  float high = 0.0f, low = 0.0f;
  static __device__ __forceinline__ ExactSum of(float x) { return {x, 0.0f}; }
  friend __device__ __forceinline__ ExactSum operator+(ExactSum a, ExactSum b) {
    const float sum = a.high + b.high, from_b = sum - a.high;
    const float lost = (a.high - (sum - from_b)) + (b.high - from_b);
    return {sum, a.low + b.low + lost};
  }
  friend __device__ __forceinline__ float operator-(ExactSum a, ExactSum b) {
    return (a.high - b.high) + (a.low - b.low);
  }
  __device__ __forceinline__ float rounded() const { return high + low; }
};

// The sum of lane - `step`, and the sum of lane `lane`.
__device__ __forceinline__ PlainSum shift_up(PlainSum sum, int step) { return {__shfl_up_sync(~0u, sum.value, step)}; }
__device__ __forceinline__ ExactSum shift_up(ExactSum sum, int step) {
  return {__shfl_up_sync(~0u, sum.high, step), __shfl_up_sync(~0u, sum.low, step)};
}
__device__ __forceinline__ PlainSum broadcast(PlainSum sum, int lane) { return {__shfl_sync(~0u, sum.value, lane)}; }
__device__ __forceinline__ ExactSum broadcast(ExactSum sum, int lane) {
  return {__shfl_sync(~0u, sum.high, lane), __shfl_sync(~0u, sum.low, lane)};
}

template <bool kExact>
struct GateSumOf {
  using Type = PlainSum;
};
template <>
struct GateSumOf<true> {
  using Type = ExactSum;
};
template <bool kExact>
using GateSum = typename GateSumOf<kExact>::Type;

}  // namespace deltarelay::cuda::sm80
