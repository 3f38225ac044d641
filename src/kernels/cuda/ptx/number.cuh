// 16-bit operands and fast functions, one instruction each.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace deltarelay::cuda {

// Two numbers in one register, as matrix instructions take them. `low` has the lower address.
template <class Element>
struct Pair;

template <>
struct Pair<__nv_bfloat16> {
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }
  static __device__ __forceinline__ float low(uint32_t packed) { return __uint_as_float(packed << 16); }
  static __device__ __forceinline__ float high(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }
};

template <>
struct Pair<__half> {
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  }
  static __device__ __forceinline__ float low(uint32_t packed) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(packed & 0xffffu)));
  }
  static __device__ __forceinline__ float high(uint32_t packed) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(packed >> 16)));
  }
};

// Two numbers of bf16 by two others.
__device__ __forceinline__ uint32_t times_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// 2^x with a relative error of 2^-22. Results below 2^-126 are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2 x with an absolute error of 2^-22 near 1.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / sqrt(x) with a relative error of 2^-22. x must not be denormal.
__device__ __forceinline__ float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x = power * rest, |rest| in [1, 2). `power` is a power of two with the sign of x: multiplying by it rounds nothing.
struct PowerAndRest {
  float power, rest;
};
__device__ __forceinline__ PowerAndRest power_and_rest(float x) {
  const uint32_t bits = __float_as_uint(x);
  return {__uint_as_float(bits & 0xff800000u), __uint_as_float((bits & 0x007fffffu) | 0x3f800000u)};
}

// The larger number, or NaN if either is NaN. fmaxf would drop the NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

constexpr float kLog2e = 1.4426950408889634f;

// Hides the origin of a value from the compiler. The compiler otherwise keeps every address that follows from a
// loop-invariant offset alive across the loop, and runs out of registers.
__device__ __forceinline__ uint32_t opaque(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Stores two numbers at a multiple of 8 bytes of global memory. Unlike an assignment it takes them from the registers
// where they are: the compiler may move what it only stores as integers.
__device__ __forceinline__ void store_two(float* to, float first, float second) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory");
}

}  // namespace deltarelay::cuda
