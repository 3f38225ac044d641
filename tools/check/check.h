// Checks a case: builds the tensors, runs the plan in guarded memory, runs the reference, compares. For a case on a GPU
// the tensors are copied there and the results copied back.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "case/case.h"
#include "check/measure.h"
#include "check/run.h"
#include "check/tolerance.h"

namespace deltarelay::check {

enum class Verdict {
  kPassed,
  kFailed,    // ran with a wrong result, or an error that no caller could expect
  kDeclined,  // DR_UNSUPPORTED: a valid case that the backend does not serve or this machine cannot run
  kInvalid    // DR_INVALID: the case contradicts the contract
};

struct Outcome {
  Verdict verdict = Verdict::kFailed;
  std::string message;  // the reason, unless passed
  std::vector<TensorError> errors;
  uint64_t hash = 0;      // of the outputs: equal for equal bits; 0: the case did not finish
  int32_t sampled = 0;    // value columns that were measured; 0: all
  int32_t repeated = 0;   // heads that were measured, and whose bits the others repeated; 0: all were measured
  std::string plan;       // signature of the plan, one line
  std::string plan_text;  // description of the plan
  Spoiled spoiled;        // of given inputs: where they are not finite, which leaves results open
  double run_seconds = 0.0;
  double reference_seconds = 0.0;

  bool passed() const { return verdict == Verdict::kPassed; }
  double worst_error() const;
};

Outcome check_case(const cases::Case& c, const CheckOptions& options = {});

// A case with its inputs and its reference, to judge several ways to compute it.
class Trial {
 public:
  explicit Trial(const cases::Case& c,
                 const CheckOptions& options = {});  // throws cases::CaseError, RunError, bad_alloc

  // `way` is the same case with other options: backend, segments, threads.
  Outcome judge(const cases::Case& way);

  TensorSet& tensors() { return tensors_; }                          // of fewer_heads(c), if the case repeats them
  bool drawn() const { return !options_.fill; }                      // were the inputs drawn from the case's line?
  gpu::DeviceTensors& device_tensors() { return *device_tensors_; }  // for a case on a GPU

 private:
  void run(const cases::Case& way, Outcome& outcome);
  std::string fetch();  // brings the outputs from the GPU; returns what a run must not have done
  CheckOptions options_;
  TensorSet tensors_;
  std::unique_ptr<gpu::DeviceTensors> few_;  // of tensors_, whose heads device_tensors_ repeats
  std::unique_ptr<gpu::DeviceTensors> device_tensors_;
  std::unique_ptr<const Reference> reference_;  // computed at first use
  std::unique_ptr<const Spoiled> spoiled_;      // of given inputs: the same
};

// Returns several lines: the case, the plan, each tensor with error and tolerance, the message.
std::string report(const cases::Case& c, const Outcome& outcome);

}  // namespace deltarelay::check
