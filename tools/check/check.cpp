#include "check/check.h"

#include <chrono>
#include <cstdio>
#include <new>

#include "check/run.h"
#include "check/tensors.h"

namespace deltarelay::check {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string line_of(const TensorError& error) {
  char text[256];
  std::snprintf(text, sizeof text, "%s: worst %.3g at sequence %lld, head %lld (tolerance %.3g), whole %.3g",
                error.tensor.c_str(), error.worst, static_cast<long long>(error.worst_sequence),
                static_cast<long long>(error.worst_head), error.tolerance, error.whole);
  std::string line = text;
  if (error.not_finite > 0) {
    line += ", " + std::to_string(error.not_finite) + " elements not finite or never written";
  }
  return line;
}

void judge(const cases::Case& c, Outcome& outcome) {
  TensorSet tensors(c);
  PlannedRun run(c);
  outcome.plan = run.describe(DR_DESCRIBE_SIGNATURE);
  outcome.plan_text = run.describe(DR_DESCRIBE_TEXT);
  auto start = std::chrono::steady_clock::now();
  run.execute(tensors.tensors());
  outcome.run_seconds = seconds_since(start);
  outcome.message = tensors.damage();
  if (outcome.message.empty() && !run.workspace_intact()) outcome.message = "workspace: written outside its memory";
  if (!outcome.message.empty()) return;

  start = std::chrono::steady_clock::now();
  const Reference reference = run_reference(tensors);
  outcome.reference_seconds = seconds_since(start);
  outcome.sampled = !reference.columns.empty();
  outcome.errors = compare(tensors, reference);
  for (const TensorError& error : outcome.errors) {
    if (error.passes()) continue;
    outcome.message = line_of(error);
    return;
  }
  outcome.verdict = Verdict::kPassed;
}

}  // namespace

Outcome check_case(const cases::Case& c) {
  Outcome outcome;
  try {
    judge(c, outcome);
  } catch (const RunError& error) {
    outcome.message = error.what();
    if (error.status() == DR_UNSUPPORTED) outcome.verdict = Verdict::kDeclined;
    if (error.status() == DR_INVALID) outcome.verdict = Verdict::kInvalid;
  } catch (const cases::CaseError& error) {
    outcome.message = error.what();
    outcome.verdict = Verdict::kInvalid;
  } catch (const std::bad_alloc&) {
    outcome.message = "memory: the tensors of this case do not fit";
  }
  return outcome;
}

std::string report(const cases::Case& c, const Outcome& outcome) {
  static constexpr const char* kWords[] = {"passed", "FAILED", "declined", "invalid"};
  std::string text = std::string(kWords[static_cast<int>(outcome.verdict)]) + "  " + cases::print(c) + "\n";
  if (!outcome.plan.empty()) text += "  plan: " + outcome.plan + "\n";
  for (const TensorError& error : outcome.errors) text += "  " + line_of(error) + "\n";
  if (outcome.sampled) text += "  (measured on " + std::to_string(kSampledColumns) + " value columns, every token)\n";
  if (!outcome.message.empty()) text += "  why: " + outcome.message + "\n";
  return text;
}

}  // namespace deltarelay::check
