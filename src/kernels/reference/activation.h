// Log-decays and write strengths from the caller's gates and betas, in double (docs/math.md, "Gates and write
// strengths").
#pragma once
#include <cmath>
#include <limits>

#include "problem/types.h"

namespace deltarelay::reference {

// No overflow: the argument of exp is never above 0.
inline double sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return x >= 0.0 ? 1.0 / (1.0 + e) : e / (1.0 + e);
}

inline double softplus(double x) { return (x > 0.0 ? x : 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// Parameters of the gate that are constant over the tokens of one value head.
struct Gate {
  GateForm form = GateForm::kLog;
  double a = 1.0;                                           // exp(a_log)
  double lower_bound = 0.0;                                 // raw bounded form
  double floor = -std::numeric_limits<double>::infinity();  // log and linear forms: lower log-decays are raised to it
};

// Returns the log-decay, natural logarithm; -infinity forgets exactly. NaN stays NaN. A decay below 0 is outside the
// contract; it reads as 0, as in the cpu backend.
inline double log_decay(const Gate& gate, double g, double bias) {
  switch (gate.form) {
    case GateForm::kLog:
      return g < gate.floor ? gate.floor : g;
    case GateForm::kLinear: {
      const double logarithm = g < 0.0 ? -std::numeric_limits<double>::infinity() : std::log(g);
      return logarithm < gate.floor ? gate.floor : logarithm;
    }
    case GateForm::kRawSoftplus:
      return -gate.a * softplus(g + bias);
    case GateForm::kRawBounded:
      return gate.lower_bound * sigmoid(gate.a * (g + bias));
  }
  return 0.0;
}

inline double write_strength(BetaForm form, double beta) {
  switch (form) {
    case BetaForm::kValue:
      return beta;
    case BetaForm::kLogit:
      return sigmoid(beta);
    case BetaForm::kTwiceLogit:
      return 2.0 * sigmoid(beta);
  }
  return 0.0;
}

}  // namespace deltarelay::reference
