// Converts rows of fp32, bf16 or fp16 numbers to and from fp32, rounding to nearest even.
#if defined(DELTARELAY_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_CONVERT_INL_H_
#undef DELTARELAY_CPU_CONVERT_INL_H_
#else
#define DELTARELAY_CPU_CONVERT_INL_H_
#endif

#include <cstring>

#include "kernels/cpu/micro_kernel-inl.h"
#include "problem/number.h"
#include "problem/types.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;

HWY_INLINE Vec load_bf16(const uint16_t* from) {
  const F32 d;
  const U32 du;
  const U16 dh;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from))));
}

// Load one vector of fp32 or bf16 numbers.
HWY_INLINE Vec load_lanes(const float* from) { return hn::LoadU(F32(), from); }
HWY_INLINE Vec load_lanes(const uint16_t* from) { return load_bf16(from); }

// Highway emulates fp16 where a target has no instructions for it: truncated, without infinities and NaN. There these
// conversions are used instead. They give the numbers of the instructions, whatever the setting for subnormal numbers.
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
inline constexpr bool kHasFp16 = true;
#else
inline constexpr bool kHasFp16 = false;
#endif

HWY_INLINE Vec widen_fp16(hn::Vec<U32> half) {
  const F32 d;
  const U32 du;
  const hn::RebindToSigned<F32> di;
  const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000)));
  const auto magnitude = hn::And(half, hn::Set(du, 0x7FFF));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto rebias = hn::Set(du, 112u << 23);
  const auto finite = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
  // Infinity and NaN: the largest exponent stays the largest.
  const auto not_finite = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7BFF)));
  const auto large = hn::IfThenElse(not_finite, hn::Add(finite, rebias), finite);
  // Below 2^-14 numbers are multiples of 2^-24, which is the last bit of 0.5.
  const Vec half_more = hn::BitCast(d, hn::Or(magnitude, hn::Set(du, 0x3F000000)));
  const auto small = hn::BitCast(du, hn::Sub(half_more, hn::Set(d, 0.5f)));
  const auto is_small = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x0400)));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_small, small, large)));
}

// As float_to_fp16 (problem/number.h), which explains the constants.
HWY_INLINE hn::Vec<U32> narrow_fp16(Vec v) {
  const F32 d;
  const U32 du;
  const hn::RebindToSigned<F32> di;
  const auto bits = hn::BitCast(du, v);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto even = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  // Adds 0xFFF to round, and subtracts 112 << 23 from the exponent.
  const auto rounded = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, even), hn::Set(du, 0xC8000FFF)));
  const auto shifted = hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f)));
  const auto small = hn::Sub(shifted, hn::Set(du, 0x3F000000));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FF));
  const auto is_small = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x38800000)));
  const auto is_large = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x477FEFFF)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7F800000)));
  auto half = hn::IfThenElse(is_small, small, rounded);
  half = hn::IfThenElse(is_large, hn::Set(du, 0x7C00), half);
  half = hn::IfThenElse(is_nan, hn::Or(payload, hn::Set(du, 0x7E00)), half);
  return hn::Or(sign, half);
}

HWY_INLINE Vec load_fp16(const uint16_t* from) {
  if constexpr (kHasFp16) {
    const F32 d;
    const F16 dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    const U32 du;
    const U16 dh;
    return widen_fp16(hn::PromoteTo(du, hn::LoadU(dh, from)));
  }
}

// Highway's conversion truncates; this one rounds.
HWY_INLINE void store_bf16(Vec v, uint16_t* to) {
#if HWY_TARGET == HWY_NEON && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  vst1_u16(to, vreinterpret_u16_bf16(vcvt_bf16_f32(v.raw)));
#else
  const U32 du;
  const U16 dh;
  const hn::RebindToSigned<F32> di;
  const auto bits = hn::BitCast(du, v);
  const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(even, hn::Set(du, 0x7FFF)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  // Not Ne(v, v): on AVX2 and AVX-512 Highway's comparison is false for a NaN.
  const auto kept = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, hn::ShiftRight<16>(kept))), dh, to);
#endif
}

// For outputs. The x86 instruction flushes values below 2^-126 to 0. A state that is handed on must keep them.
HWY_INLINE void store_bf16_output(Vec v, uint16_t* to) {
#if HWY_TARGET <= HWY_AVX3 && defined(__AVX512BF16__)
  const __m256bh rounded = _mm512_cvtneps_pbh(v.raw);
  std::memcpy(to, &rounded, sizeof(rounded));
#else
  store_bf16(v, to);
#endif
}

// Two neighbouring vectors.
HWY_INLINE void store_bf16_output(Vec lo, Vec hi, uint16_t* to) {
#if HWY_TARGET <= HWY_AVX3 && defined(__AVX512BF16__)
  const __m512bh rounded = _mm512_cvtne2ps_pbh(hi.raw, lo.raw);
  std::memcpy(to, &rounded, sizeof(rounded));
#else
  store_bf16_output(lo, to);
  store_bf16_output(hi, to + kLanes);
#endif
}

HWY_INLINE void store_fp16(Vec v, uint16_t* to) {
  if constexpr (kHasFp16) {
    const F16 dh;
    hn::StoreU(hn::DemoteTo(dh, v), dh, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    const U16 dh;
    const hn::RebindToSigned<F32> di;
    hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, narrow_fp16(v))), dh, to);
  }
}

// The last numbers of a row go through the portable conversions.
HWY_NOINLINE inline void load_row(const void* from, DType type, int64_t count, float* HWY_RESTRICT to) {
  const F32 d;
  int64_t i = 0;
  if (type == DType::kFp32) {
    const auto* full = static_cast<const float*>(from);
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::LoadU(d, full + i), d, to + i);
    for (; i < count; ++i) to[i] = full[i];
    return;
  }
  const auto* half = static_cast<const uint16_t*>(from);
  if (type == DType::kBf16) {
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(load_bf16(half + i), d, to + i);
    for (; i < count; ++i) to[i] = bf16_to_float(half[i]);
  } else {
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(load_fp16(half + i), d, to + i);
    for (; i < count; ++i) to[i] = fp16_to_float(half[i]);
  }
}

// Copies bf16 numbers unchanged.
inline void load_row(const void* from, DType, int64_t count, uint16_t* HWY_RESTRICT to) {
  std::memcpy(to, from, sizeof(uint16_t) * static_cast<size_t>(count));
}

template <bool kOutput = false>
HWY_NOINLINE inline void store_row(const float* HWY_RESTRICT from, int64_t count, void* to, DType type) {
  const F32 d;
  int64_t i = 0;
  if (type == DType::kFp32) {
    auto* full = static_cast<float*>(to);
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::LoadU(d, from + i), d, full + i);
    for (; i < count; ++i) full[i] = from[i];
    return;
  }
  auto* half = static_cast<uint16_t*>(to);
  if (type == DType::kBf16) {
    for (; i + kLanes <= count; i += kLanes) {
      const Vec v = hn::LoadU(d, from + i);
      kOutput ? store_bf16_output(v, half + i) : store_bf16(v, half + i);
    }
    for (; i < count; ++i) half[i] = float_to_bf16(from[i]);
  } else {
    for (; i + kLanes <= count; i += kLanes) store_fp16(hn::LoadU(d, from + i), half + i);
    for (; i < count; ++i) half[i] = float_to_fp16(from[i]);
  }
}

inline float load_one(const void* from, DType type, int64_t i) {
  if (type == DType::kFp32) return static_cast<const float*>(from)[i];
  const uint16_t half = static_cast<const uint16_t*>(from)[i];
  return type == DType::kBf16 ? bf16_to_float(half) : fp16_to_float(half);
}

// Address of element `i` of a typed array.
inline const void* at(const void* base, DType type, int64_t i) {
  return static_cast<const std::byte*>(base) + i * static_cast<int64_t>(size_of(type));
}
inline void* at(void* base, DType type, int64_t i) {
  return static_cast<std::byte*>(base) + i * static_cast<int64_t>(size_of(type));
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
