#include "check/generate.h"

#include <cmath>

#include "check/value_rules.h"

namespace deltarelay::check {

ValueRules rules_of(const cases::Case& c) {
  ValueRules rules;
  rules.seed = c.seed;
  rules.key_divisor = c.l2norm ? 1.0 : std::sqrt(static_cast<double>(c.dk));
  rules.raw_gate = c.raw_gate();
  rules.keys = c.keys;
  rules.gate_profile = c.gate_profile;
  rules.beta_profile = c.beta;
  rules.gate_low = c.gate_low;
  rules.gate_high = c.gate_high;
  rules.gate_spread = c.gate_spread;
  rules.a_low = c.rule == DR_KDA ? 1.0 : 0.0;
  rules.heads_v = c.heads_v;
  rules.gate_width = c.rule == DR_KDA ? c.dk : 1;
  return rules;
}

Values::Values(const cases::Case& c)
    : rules_(std::make_unique<ValueRules>(rules_of(c))), gate_form_(c.gate_form), dk_(c.dk) {}

Values::~Values() = default;

double Values::q(int64_t index) const { return rules_->q(index); }

double Values::k(int64_t index) const { return rules_->k(index); }

double Values::key_length(int64_t row) const {
  if (rules_->keys == cases::KeyProfile::kNormal) return rules_->key_divisor;
  if (rules_->keys == cases::KeyProfile::kUneven) {
    constexpr int kMostBits = 10;
    const double exponent = uniform(rules_->bits(Stream::kK, -1 - row)) * (2 * kMostBits + 1);
    return std::ldexp(1.0, static_cast<int>(exponent) - kMostBits);
  }
  double sum = 0.0;
  for (int64_t i = 0; i < dk_; ++i) {
    const double x = k(row * dk_ + i);
    sum += x * x;
  }
  return sum > 0.0 ? std::sqrt(sum) : 1.0;
}

double Values::v(int64_t index) const { return rules_->v(index); }

double Values::gate(int64_t index) const {
  if (rules_->raw_gate) return rules_->gate(index);
  double g = 0.0;
  if (rules_->gate_profile != cases::GateProfile::kMean) {
    g = rules_->gate(index);
  } else if (rules_->gate_low != 0.0) {
    g = rules_->gate_low * -std::log(1.0 - uniform(rules_->bits(Stream::kGate, index)));
  }
  return gate_form_ == DR_GATE_LINEAR ? std::exp(g) : g;
}

double Values::beta(int64_t index) const { return rules_->beta(index); }

// From slow heads (exp(-3) = 0.05) to fast heads (exp(2) = 7.4), all different, so that reading the wrong head shows.
double Values::a_log(int64_t head) const {
  if (rules_->gate_profile == cases::GateProfile::kInit)
    return gate_form_ == DR_GATE_RAW_BOUNDED ? 0.0 : portable_log(rules_->init_a(head));
  return -3.0 + 5.0 * uniform(rules_->bits(Stream::kALog, head));
}

double Values::dt_bias(int64_t index) const {
  if (rules_->gate_profile == cases::GateProfile::kInit) return rules_->init_bias(index);
  return normal(rules_->bits(Stream::kDtBias, index));
}

double Values::initial(int64_t index) const { return normal(rules_->bits(Stream::kInitial, index)); }

}  // namespace deltarelay::check
