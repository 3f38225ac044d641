// The arithmetic of generate.h as one text for the CPU and the GPU: constexpr, which nvcc compiles for both
// (--expt-relaxed-constexpr). Only generate.cpp and device_generate.cu include it, and both are compiled without fused
// multiply-add: a test holds every bit of one against the other. Values that need exp or log stay with the CPU.
#pragma once
#include <cstdint>
#include <limits>

#include "case/case.h"
#include "check/generate.h"

namespace deltarelay::check {

struct ValueRules {
  uint64_t seed = 0;
  double key_divisor = 1.0;  // of normal q and k: sqrt(DK), or 1 when l2norm normalises in the call
  bool raw_gate = false;
  cases::KeyProfile keys = cases::KeyProfile::kNormal;
  cases::GateProfile gate_profile = cases::GateProfile::kRange;
  cases::BetaProfile beta_profile = cases::BetaProfile::kValue;
  double gate_low = 0.0;
  double gate_high = 0.0;

  constexpr uint64_t bits(Stream stream, int64_t index) const {
    return random_bits(seed, stream, static_cast<uint64_t>(index));
  }
  constexpr double q(int64_t index) const { return normal(bits(Stream::kQ, index)) / key_divisor; }
  constexpr double k(int64_t index) const {  // not yet divided
    const uint64_t random = bits(Stream::kK, index);
    return keys == cases::KeyProfile::kCorrelated ? uniform(random) : normal(random);
  }
  constexpr double v(int64_t index) const { return normal(bits(Stream::kV, index)); }

  // Every profile but kMean, which needs a logarithm.
  constexpr double log_decay(uint64_t random) const {
    // Which kind of value it is comes from the low half of the bits, the value from the high half.
    const double choice = static_cast<double>(random & 0xffffffffu) * 0x1p-32;
    if (gate_profile == cases::GateProfile::kZero) return 0.0;
    if (gate_profile == cases::GateProfile::kExtreme) return choice < 0.9 ? -1000.0 : -uniform(random);
    if (gate_profile == cases::GateProfile::kInf)
      return choice < 0.1 ? -std::numeric_limits<double>::infinity() : -uniform(random);
    return gate_low + (gate_high - gate_low) * uniform(random);
  }
  constexpr double raw_gate_value(uint64_t random) const {
    constexpr double kSaturated = 1000.0;  // times the least exp(a_log), sigmoid of it is 1
    return gate_profile == cases::GateProfile::kAtBound ? kSaturated : normal(random);
  }
  // As stored, in the log and the raw forms.
  constexpr double gate(int64_t index) const {
    const uint64_t random = bits(Stream::kGate, index);
    return raw_gate ? raw_gate_value(random) : log_decay(random);
  }
  constexpr double beta(int64_t index) const {
    const uint64_t random = bits(Stream::kBeta, index);
    switch (beta_profile) {
      case cases::BetaProfile::kOne:
        return 1.0;
      case cases::BetaProfile::kZero:
        return 0.0;
      case cases::BetaProfile::kNear2:
        return 1.9 + 0.1 * uniform(random);
      case cases::BetaProfile::kLogit:
      case cases::BetaProfile::kTwice:
        return normal(random);
      case cases::BetaProfile::kValue:
        break;
    }
    return uniform(random);
  }
};

ValueRules rules_of(const cases::Case& c);

}  // namespace deltarelay::check
