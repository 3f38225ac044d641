#include "check/generate.h"

#include <cmath>
#include <limits>

#include "case/mix.h"

namespace deltarelay::check {
namespace {

uint64_t bits_of(const cases::Case& c, Stream stream, int64_t index) {
  return random_bits(c.seed, stream, static_cast<uint64_t>(index));
}

}  // namespace

uint64_t random_bits(uint64_t seed, Stream stream, uint64_t index) {
  const uint64_t key = cases::mix(seed + (static_cast<uint64_t>(stream) << 56));
  return cases::mix(key + index * 0x9e3779b97f4a7c15u);
}

double uniform(uint64_t bits) { return static_cast<double>(bits >> 40) * 0x1p-24; }

double normal(uint64_t bits) {
  const auto sum = static_cast<int64_t>((bits & 0xffffu) + ((bits >> 16) & 0xffffu) + ((bits >> 32) & 0xffffu) +
                                        ((bits >> 48) & 0xffffu));
  return static_cast<double>(sum - 131070) / 37837.22724161132;  // 65536 / sqrt(3)
}

double Values::q(int64_t index) const {
  const double value = normal(bits_of(case_, Stream::kQ, index));
  return case_.l2norm ? value : value / std::sqrt(static_cast<double>(case_.dk));
}

double Values::k(int64_t index) const {
  const uint64_t bits = bits_of(case_, Stream::kK, index);
  return case_.keys == cases::KeyProfile::kCorrelated ? uniform(bits) : normal(bits);
}

double Values::key_length(int64_t row) const {
  if (case_.keys == cases::KeyProfile::kNormal) return case_.l2norm ? 1.0 : std::sqrt(static_cast<double>(case_.dk));
  double sum = 0.0;
  for (int64_t i = 0; i < case_.dk; ++i) {
    const double x = k(row * case_.dk + i);
    sum += x * x;
  }
  return sum > 0.0 ? std::sqrt(sum) : 1.0;
}

double Values::v(int64_t index) const { return normal(bits_of(case_, Stream::kV, index)); }

double Values::log_decay(uint64_t bits) const {
  // Which kind of value it is comes from the low half of the bits, the value from the high half.
  const double choice = static_cast<double>(bits & 0xffffffffu) * 0x1p-32;
  switch (case_.gate_profile) {
    case cases::GateProfile::kZero:
      return 0.0;
    case cases::GateProfile::kExtreme:
      return choice < 0.9 ? -1000.0 : -uniform(bits);
    case cases::GateProfile::kInf:
      return choice < 0.1 ? -std::numeric_limits<double>::infinity() : -uniform(bits);
    case cases::GateProfile::kMean:
      return case_.gate_low == 0.0 ? 0.0 : case_.gate_low * -std::log(1.0 - uniform(bits));
    case cases::GateProfile::kRange:
    case cases::GateProfile::kAtBound:
      break;
  }
  return case_.gate_low + (case_.gate_high - case_.gate_low) * uniform(bits);
}

double Values::gate(int64_t index) const {
  const uint64_t bits = bits_of(case_, Stream::kGate, index);
  if (case_.raw_gate()) {
    constexpr double kSaturated = 1000.0;  // times the least exp(a_log) below, sigmoid of it is 1
    return case_.gate_profile == cases::GateProfile::kAtBound ? kSaturated : normal(bits);
  }
  const double g = log_decay(bits);
  return case_.gate_form == DR_GATE_LINEAR ? std::exp(g) : g;
}

double Values::beta(int64_t index) const {
  const uint64_t bits = bits_of(case_, Stream::kBeta, index);
  switch (case_.beta) {
    case cases::BetaProfile::kOne:
      return 1.0;
    case cases::BetaProfile::kZero:
      return 0.0;
    case cases::BetaProfile::kNear2:
      return 1.9 + 0.1 * uniform(bits);
    case cases::BetaProfile::kLogit:
    case cases::BetaProfile::kTwice:
      return normal(bits);
    case cases::BetaProfile::kValue:
      break;
  }
  return uniform(bits);
}

// From slow heads (exp(-3) = 0.05) to fast ones (exp(2) = 7.4), no two alike: a read of the wrong head shows.
double Values::a_log(int64_t head) const { return -3.0 + 5.0 * uniform(bits_of(case_, Stream::kALog, head)); }

double Values::dt_bias(int64_t index) const { return normal(bits_of(case_, Stream::kDtBias, index)); }

double Values::initial(int64_t index) const { return normal(bits_of(case_, Stream::kInitial, index)); }

}  // namespace deltarelay::check
