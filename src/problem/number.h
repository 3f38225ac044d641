// Elements of tensors as numbers: bf16 and fp16 in portable C++. Rounds to nearest, ties to even.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "problem/host_device.h"
#include "problem/types.h"

namespace deltarelay {

// Of internal linkage: some files are compiled for instruction sets that other processors lack, and of an inline
// function the linker keeps one copy, of any file.
static inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

static inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value))
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN; a truncated payload could read as inf
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float fp16_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

static inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));  // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to inf
  if (magnitude < 0x38800000u) {  // below 2^-14 results are multiples of 2^-24; adding 0.5 makes that the last bit
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// Rounds to odd: an inexact result has its last bit set. A second rounding to a narrower type then gives the same
// result as a single rounding.
static inline float double_to_float_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // towards zero
  return std::bit_cast<float>(bits | 1u);
}

static inline uint16_t double_to_bf16(double value) { return float_to_bf16(double_to_float_odd(value)); }
static inline uint16_t double_to_fp16(double value) { return float_to_fp16(double_to_float_odd(value)); }

// Floating-point element `index` of a tensor.
static inline double load_as_double(const void* data, DType type, int64_t index) {
  switch (type) {
    case DType::kFp32:
      return static_cast<const float*>(data)[index];
    case DType::kBf16:
      return bf16_to_float(static_cast<const uint16_t*>(data)[index]);
    case DType::kFp16:
      return fp16_to_float(static_cast<const uint16_t*>(data)[index]);
    case DType::kInt32:
    case DType::kInt64:
      break;
  }
  return 0.0;
}

// Loads `count` neighbouring elements, the first at `index`.
static inline void load_as_double(const void* data, DType type, int64_t index, int32_t count, double* out) {
  for (int32_t i = 0; i < count; ++i) out[i] = load_as_double(data, type, index + i);
}

static inline void store_double(void* data, DType type, int64_t index, double value) {
  switch (type) {
    case DType::kFp32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      break;
    case DType::kBf16:
      static_cast<uint16_t*>(data)[index] = double_to_bf16(value);
      break;
    case DType::kFp16:
      static_cast<uint16_t*>(data)[index] = double_to_fp16(value);
      break;
    case DType::kInt32:
    case DType::kInt64:
      break;
  }
}

// Element of an index array (slots, offsets).
DR_HD static inline int64_t load_index(const void* data, DType type, int64_t index) {
  return type == DType::kInt64 ? static_cast<const int64_t*>(data)[index] : static_cast<const int32_t*>(data)[index];
}

}  // namespace deltarelay
