// A case, from its line to a verdict: build the tensors, run the plan in hostile memory, run the reference, compare. A case on
// a GPU is the same, with the tensors copied there and the results copied back.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "case/case.h"
#include "check/measure.h"
#include "check/run.h"

namespace deltarelay::check {

enum class Verdict {
  kPassed,
  kFailed,    // ran, and is wrong; or an error that no caller could expect
  kDeclined,  // DR_UNSUPPORTED: a valid case that the chosen backend does not serve, or that this machine cannot run
  kInvalid    // DR_INVALID: the case itself contradicts the contract
};

struct Outcome {
  Verdict verdict = Verdict::kFailed;
  std::string message;  // why, when not passed
  std::vector<TensorError> errors;
  uint64_t hash = 0;      // of the outputs: equal for equal bits; 0: the case did not run to its end
  int32_t sampled = 0;    // value columns that were measured; 0: all
  std::string plan;       // signature of the plan, one line
  std::string plan_text;  // in words
  double run_seconds = 0.0;
  double reference_seconds = 0.0;

  bool passed() const { return verdict == Verdict::kPassed; }
  double worst_error() const;
};

Outcome check_case(const cases::Case& c, const CheckOptions& options = {});

// A case with its inputs and its reference, for judging several ways of doing it.
class Trial {
 public:
  explicit Trial(const cases::Case& c,
                 const CheckOptions& options = {});  // throws cases::CaseError, RunError, bad_alloc

  // `way` is the case with other words on how it is to be done: backend, segments, threads.
  Outcome judge(const cases::Case& way);

  TensorSet& tensors() { return tensors_; }
  bool drawn() const { return !options_.fill; }                      // its inputs are those of its line
  gpu::DeviceTensors& device_tensors() { return *device_tensors_; }  // of a case on a GPU

 private:
  void run(const cases::Case& way, Outcome& outcome);
  CheckOptions options_;
  TensorSet tensors_;
  std::unique_ptr<gpu::DeviceTensors> device_tensors_;
  std::unique_ptr<const Reference> reference_;  // made when first needed
};

// Several lines: the case, the plan, each tensor with error and tolerance, the message.
std::string report(const cases::Case& c, const Outcome& outcome);

}  // namespace deltarelay::check
