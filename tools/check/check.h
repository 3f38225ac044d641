// A case, from its line to a verdict: build the tensors, run the plan in hostile memory, run the reference, compare.
#pragma once
#include <string>
#include <vector>

#include "case/case.h"
#include "check/measure.h"

namespace deltarelay::check {

enum class Verdict {
  kPassed,
  kFailed,    // ran, and is wrong; or an error that no caller could expect
  kDeclined,  // DR_UNSUPPORTED: a valid case that the chosen backend does not serve
  kInvalid    // DR_INVALID: the case itself contradicts the contract
};

struct Outcome {
  Verdict verdict = Verdict::kFailed;
  std::string message;  // why, when not passed
  std::vector<TensorError> errors;
  bool sampled = false;   // only some value columns were measured
  std::string plan;       // signature of the plan, one line
  std::string plan_text;  // in words
  double run_seconds = 0.0;
  double reference_seconds = 0.0;

  bool passed() const { return verdict == Verdict::kPassed; }
};

Outcome check_case(const cases::Case& c);

// Several lines: the case, the plan, each tensor with error and tolerance, the message.
std::string report(const cases::Case& c, const Outcome& outcome);

}  // namespace deltarelay::check
