// bf16 and fp16 against their definition, for every bit pattern and around every rounding boundary.
#include "problem/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deltarelay {
namespace {

struct Format {
  const char* name;
  int mantissa_bits;
  int bias;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
  uint16_t (*from_double)(double);
};

const Format kFormats[] = {{"bf16", 7, 127, bf16_to_float, float_to_bf16, double_to_bf16},
                           {"fp16", 10, 15, fp16_to_float, float_to_fp16, double_to_fp16}};

// The value of a bit pattern by definition; NaN and infinity included.
double value_of(const Format& f, uint32_t bits) {
  const uint32_t exponent_mask = (1u << (15 - f.mantissa_bits)) - 1;
  const uint32_t exponent = (bits >> f.mantissa_bits) & exponent_mask;
  const uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
  double magnitude = 0.0;
  if (exponent == exponent_mask) {
    magnitude = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
  } else {
    magnitude = std::ldexp(mantissa + (1u << f.mantissa_bits), static_cast<int>(exponent) - f.bias - f.mantissa_bits);
  }
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

TEST(Number, EveryPatternHasItsValueAndComesBack) {
  for (const Format& f : kFormats) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float value = f.to_float(static_cast<uint16_t>(bits));
      const double expected = value_of(f, bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << f.name << " pattern " << bits;
        ASSERT_TRUE(std::isnan(f.to_float(f.from_float(value)))) << f.name << " pattern " << bits;
        ASSERT_TRUE(std::isnan(f.to_float(f.from_double(static_cast<double>(value))))) << f.name << " pattern " << bits;
        continue;
      }
      ASSERT_EQ(static_cast<double>(value), expected) << f.name << " pattern " << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000u) != 0) << f.name << " pattern " << bits;
      ASSERT_EQ(f.from_float(value), bits) << f.name;
      ASSERT_EQ(f.from_double(expected), bits) << f.name;
    }
  }
}

// Between two neighbours: below the middle rounds down, above rounds up, the middle rounds to even. The upper neighbour
// of the largest finite number is infinity, at the value of the next power of two.
TEST(Number, RoundsToNearestTiesToEven) {
  for (const Format& f : kFormats) {
    const uint32_t infinity = ((1u << (15 - f.mantissa_bits)) - 1) << f.mantissa_bits;
    for (uint32_t low = 0; low < infinity; ++low) {
      const double below = value_of(f, low);
      const double above = low + 1 < infinity ? value_of(f, low + 1) : std::ldexp(1.0, f.bias + 1);
      const double middle = below + (above - below) / 2;
      const uint32_t even = low % 2 == 0 ? low : low + 1;
      const double inf = std::numeric_limits<double>::infinity();
      ASSERT_EQ(f.from_double(middle), even) << f.name << " after " << low;
      ASSERT_EQ(f.from_double(std::nextafter(middle, 0.0)), low) << f.name << " after " << low;
      ASSERT_EQ(f.from_double(std::nextafter(middle, inf)), low + 1) << f.name << " after " << low;
      ASSERT_EQ(f.from_double(-middle), even | 0x8000u) << f.name << " after " << low;
      const auto narrow = static_cast<float>(middle);
      if (static_cast<double>(narrow) != middle) continue;  // bf16's smallest halves lie below fp32's subnormals
      ASSERT_EQ(f.from_float(narrow), even) << f.name << " after " << low;
      ASSERT_EQ(f.from_float(std::nextafterf(narrow, 0.0f)), low) << f.name << " after " << low;
      ASSERT_EQ(f.from_float(std::nextafterf(narrow, std::numeric_limits<float>::infinity())), low + 1)
          << f.name << " after " << low;
    }
  }
}

TEST(Number, LargeValuesBecomeInfinite) {
  EXPECT_EQ(double_to_fp16(1e300), 0x7c00);
  EXPECT_EQ(double_to_fp16(-1e300), 0xfc00);
  EXPECT_EQ(double_to_bf16(1e300), 0x7f80);
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::max()), 0xff80);
  EXPECT_EQ(float_to_fp16(std::numeric_limits<float>::infinity()), 0x7c00);
}

TEST(Number, LoadAndStoreAgreeForEveryType) {
  for (const DType type : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    alignas(8) unsigned char memory[4 * 4] = {};
    const double values[4] = {0.5, -3.0, 0.0, 96.0};  // exact in all three
    for (int64_t i = 0; i < 4; ++i) store_double(memory, type, i, values[i]);
    double loaded[4];
    load_as_double(memory, type, 0, 4, loaded);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(load_as_double(memory, type, i), values[i]);
      EXPECT_EQ(loaded[i], values[i]);
    }
  }
}

TEST(Number, IndicesOfBothWidths) {
  const int32_t narrow[2] = {7, -1};
  const int64_t wide[2] = {int64_t{1} << 40, -1};
  EXPECT_EQ(load_index(narrow, DType::kInt32, 0), 7);
  EXPECT_EQ(load_index(narrow, DType::kInt32, 1), -1);
  EXPECT_EQ(load_index(wide, DType::kInt64, 0), int64_t{1} << 40);
  EXPECT_EQ(load_index(wide, DType::kInt64, 1), -1);
}

}  // namespace
}  // namespace deltarelay
