// Elements of tensors as doubles, for the data types of deltarelay.h. The check library sees only the public header. It
// reads and rounds with its own code, so a defect in the library's conversions cannot hide here.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "deltarelay/deltarelay.h"

namespace deltarelay::check {

inline int64_t bytes_of(int32_t dtype) { return dtype == DR_FP32 || dtype == DR_INT32 ? 4 : dtype == DR_INT64 ? 8 : 2; }

inline double fp16_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  double magnitude = std::ldexp(exponent == 0 ? mantissa : mantissa + 0x400, exponent == 0 ? -24 : exponent - 25);
  if (exponent == 0x1f) magnitude = mantissa != 0 ? std::nan("") : HUGE_VAL;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even, in integers. The GPU's generator uses the same code and gets the same bits.
constexpr uint16_t double_to_fp16(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const uint64_t magnitude = bits & 0x7fff'ffff'ffff'ffffu;
  const auto sign = static_cast<int>(bits >> 63) << 15;
  if (magnitude > 0x7ff0'0000'0000'0000u) return 0x7e00;
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent > 15) return static_cast<uint16_t>(sign | 0x7c00);
  if (exponent < -25) return static_cast<uint16_t>(sign);  // less than half of the smallest number
  // In units of the last place of the result, which stops shrinking below 2^-14.
  const uint64_t mantissa = (magnitude & 0xf'ffff'ffff'ffffu) | 0x10'0000'0000'0000u;
  const int shift = 42 + (exponent < -14 ? -14 - exponent : 0);
  const uint64_t rest = mantissa & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  auto units = static_cast<int>(mantissa >> shift);
  if (rest > half || (rest == half && units % 2 != 0)) ++units;
  // From 2^10 on, units contain the leading bit, which the exponent field absorbs; 2^11 carries again.
  return static_cast<uint16_t>(sign | (((exponent < -14 ? 0 : exponent + 14) << 10) + units));
}

// Goes through fp32, because there are many inputs. That rounds twice, but the reference reads the stored value.
constexpr uint16_t double_to_bf16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  const bool nan = value != value;
  return static_cast<uint16_t>(nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline double load(const void* data, int32_t dtype, int64_t index) {
  if (dtype == DR_FP32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  if (dtype == DR_BF16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  return fp16_to_double(bits);
}

inline void store(void* data, int32_t dtype, int64_t index, double value) {
  if (dtype == DR_FP32) {
    static_cast<float*>(data)[index] = static_cast<float>(value);
  } else {
    static_cast<uint16_t*>(data)[index] = dtype == DR_FP16 ? double_to_fp16(value) : double_to_bf16(value);
  }
}

// The value that a stored number keeps.
inline double rounded_to(int32_t dtype, double value) {
  if (dtype == DR_FP32) return static_cast<float>(value);
  uint16_t bits = 0;
  store(&bits, dtype, 0, value);
  return load(&bits, dtype, 0);
}

}  // namespace deltarelay::check
