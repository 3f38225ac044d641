// Inputs of a case, counter-based: every element is a pure function of (seed, tensor, index). So every element can be
// generated alone, in any order, on any machine.
//
//   stream  key = mix(seed + 2^56 * tensor)               mix of case/mix.h
//   element bits = mix(key + index * 0x9e3779b97f4a7c15)  64 bits; index counts the contiguous tensor, for all strides
//   uniform = (bits >> 40) * 2^-24                        in [0, 1), exact in fp32
//   normal  = (sum of the four 16-bit fields - 131070) / (65536 / sqrt(3))   mean 0, variance 1, within +-3.47
//
// Then the number is rounded once to the data type. No step depends on a math library, except exp and log of linear
// gates and of the profile "mean"; the GPU generates the same bits for all other profiles (device_generate.h). The
// profile "init" uses its own exp and log (portable_math.h).
#pragma once
#include <cstdint>
#include <memory>

#include "case/case.h"
#include "case/mix.h"

namespace deltarelay::check {

enum class Stream : uint64_t { kQ = 1, kK, kV, kGate, kBeta, kALog, kDtBias, kInitial, kColumns };

constexpr uint64_t random_bits(uint64_t seed, Stream stream, uint64_t index) {
  const uint64_t key = cases::mix(seed + (static_cast<uint64_t>(stream) << 56));
  return cases::mix(key + index * 0x9e3779b97f4a7c15u);
}

constexpr double uniform(uint64_t bits) { return static_cast<double>(bits >> 40) * 0x1p-24; }

constexpr double normal(uint64_t bits) {
  const auto sum = static_cast<int64_t>((bits & 0xffffu) + ((bits >> 16) & 0xffffu) + ((bits >> 32) & 0xffffu) +
                                        ((bits >> 48) & 0xffffu));
  return static_cast<double>(sum - 131070) / 37837.22724161132;  // 65536 / sqrt(3)
}

struct ValueRules;

// Values before rounding, by profile of the case. `index` counts elements of the contiguous tensor.
class Values {
 public:
  explicit Values(const cases::Case& c);
  ~Values();
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  double q(int64_t index) const;
  double k(int64_t index) const;  // correlated, uneven: not yet divided by key_length
  double v(int64_t index) const;
  double gate(int64_t index) const;
  double beta(int64_t index) const;
  double a_log(int64_t head) const;
  double dt_bias(int64_t index) const;
  double initial(int64_t index) const;  // [N, HV, DK, DV]
  // Divisor of the elements of key row `row` (t * HQK + head).
  double key_length(int64_t row) const;

 private:
  std::unique_ptr<const ValueRules> rules_;
  int32_t gate_form_;
  int64_t dk_;
};

}  // namespace deltarelay::check
