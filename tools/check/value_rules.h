// The arithmetic of generate.h as one text for the CPU and the GPU: constexpr, which nvcc compiles for both
// (--expt-relaxed-constexpr). Only generate.cpp and device_generate.cu include it, and both are compiled without fused
// multiply-add: a test holds every bit of one against the other. Values that need exp or log stay with the CPU.
#pragma once
#include <cstdint>
#include <limits>

#include "case/case.h"
#include "check/generate.h"
#include "check/portable_math.h"

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
  // Of kInit and kMixed, which differ between heads.
  double gate_spread = 1.0;
  double a_low = 0.0;  // A is uniform from here to kMostA
  int64_t heads_v = 1;
  int64_t gate_width = 1;  // gates of a token and head

  constexpr uint64_t bits(Stream stream, int64_t index) const {
    return random_bits(seed, stream, static_cast<uint64_t>(index));
  }
  constexpr double q(int64_t index) const { return normal(bits(Stream::kQ, index)) / key_divisor; }
  constexpr double k(int64_t index) const {  // not yet divided
    const uint64_t random = bits(Stream::kK, index);
    return keys == cases::KeyProfile::kCorrelated ? uniform(random) : normal(random);
  }
  constexpr double v(int64_t index) const { return normal(bits(Stream::kV, index)); }

  // kInit, as FLA's layers begin: A of a head, and the bias of a channel (KDA) or head (GDN), whose softplus is
  // log-uniform.
  static constexpr double kMostA = 16.0, kLeastStep = 1e-3, kMostStep = 0.1;
  constexpr double init_a(int64_t head) const {
    return kMostA - (kMostA - a_low) * uniform(bits(Stream::kALog, head));  // never 0, which has no logarithm
  }
  constexpr double init_bias(int64_t channel) const {
    constexpr double kLow = portable_log(kLeastStep), kHigh = portable_log(kMostStep);
    return inverse_softplus(kLow + (kHigh - kLow) * uniform(bits(Stream::kDtBias, channel)));
  }
  constexpr double init_log_decay(int64_t index) const {
    const double raw = gate_spread * normal(bits(Stream::kGate, index));
    const int64_t channel = index % (heads_v * gate_width);
    return -init_a(channel / gate_width) * portable_softplus(raw + init_bias(channel));
  }
  constexpr double mixed_log_decay(int64_t index) const {
    return index / gate_width % heads_v % 10 % 3 == 2 ? -1e-4 : -1.0;  // 2, 5 and 8 of ten
  }

  // Every profile but kMean, which needs a logarithm, and those that differ between heads.
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
    if (gate_profile == cases::GateProfile::kInit) return gate_spread * normal(random);
    return gate_profile == cases::GateProfile::kAtBound ? kSaturated : normal(random);
  }
  // As stored, in the log and the raw forms.
  constexpr double gate(int64_t index) const {
    const uint64_t random = bits(Stream::kGate, index);
    if (!raw_gate && gate_profile == cases::GateProfile::kInit) return init_log_decay(index);
    if (gate_profile == cases::GateProfile::kMixed) return mixed_log_decay(index);
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
