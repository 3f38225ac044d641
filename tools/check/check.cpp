#include "check/check.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>

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

// Runs `body` and turns exceptions into a verdict.
template <class Body>
void with_verdict(Outcome& outcome, const Body& body) {
  try {
    body();
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
}

// From this size on the GPU generates its own tokens, because copies would take seconds.
constexpr int64_t kWorthMaking = int64_t{1} << 30;  // bytes

// Checked before the tensors are allocated: they may take gigabytes, and a case that contradicts itself may ask for
// addresses that no tensor can have.
const cases::Case& runnable(const cases::Case& c) {
  if (c.on_gpu()) gpu::require();
  const cases::Request request(c);
  const int32_t reference = dr_backend_count() - 1;
  if (dr_backend_check(reference, &request.problem, &request.options) == DR_INVALID)
    throw RunError(DR_INVALID, std::string(dr_status_string(DR_INVALID)) + ": " + dr_last_error());
  return c;
}

}  // namespace

double Outcome::worst_error() const {
  double worst = 0.0;
  for (const TensorError& error : errors) worst = std::max(worst, error.worst);
  return worst;
}

Trial::Trial(const cases::Case& c, const CheckOptions& options)
    : options_(options),
      tensors_(options.fill || options.full_columns ? runnable(c) : fewer_heads(runnable(c)), options.alignment,
               options.fill, options.reference_threads) {
  if (!c.on_gpu()) return;
  int64_t bytes = 0;
  for (const TensorSet::Memory& memory : tensors_.memory()) bytes += memory.bytes;
  const gpu::Tokens tokens = bytes < kWorthMaking || options.fill ? gpu::Tokens::kCopied : gpu::Tokens::kMadeHere;
  device_tensors_ = std::make_unique<gpu::DeviceTensors>(tensors_, tokens);
  if (tensors_.of().heads_v == c.heads_v) return;
  few_ = std::move(device_tensors_);
  device_tensors_ = std::make_unique<gpu::DeviceTensors>(*few_, c);
}

std::string Trial::fetch() {
  std::string found = device_tensors_->damage();
  if (few_ == nullptr) {
    device_tensors_->download(tensors_);
    return found;
  }
  const int64_t heads = few_->of().heads_v, copies = device_tensors_->of().heads_v / heads;
  uint64_t expected = 0;
  for (int64_t copy = copies - 1; copy >= 0; --copy) {  // the first one last: it goes on to the reference
    few_->take_outputs(*device_tensors_, copy);
    const uint64_t hash = few_->output_hash();
    if (copy == copies - 1) expected = hash;
    if (hash != expected && found.empty())
      found = "heads from " + std::to_string(copy * heads) + " on: expected the bits of the heads from " +
              std::to_string((copies - 1) * heads) + " on, which read the same numbers, found others";
  }
  few_->download(tensors_);
  return found;
}

void Trial::run(const cases::Case& way, Outcome& outcome) {
  PlannedRun run(way, options_);
  outcome.plan = run.describe(DR_DESCRIBE_SIGNATURE);
  outcome.plan_text = run.describe(DR_DESCRIBE_TEXT);
  tensors_.poison();
  if (device_tensors_ != nullptr) {
    const gpu::Stream stream;
    device_tensors_->poison();
    const auto start = std::chrono::steady_clock::now();
    run.execute(device_tensors_->tensors(), stream);
    stream.synchronize();
    outcome.run_seconds = seconds_since(start);
    outcome.message = fetch();
    outcome.repeated = few_ != nullptr ? few_->of().heads_v : 0;
  } else {
    const auto start = std::chrono::steady_clock::now();
    run.execute(tensors_.tensors());
    outcome.run_seconds = seconds_since(start);
  }
  if (outcome.message.empty()) outcome.message = tensors_.damage();
  if (outcome.message.empty() && !run.workspace_intact()) outcome.message = "workspace: written outside its memory";
}

Outcome Trial::judge(const cases::Case& way) {
  Outcome outcome;
  with_verdict(outcome, [&] {
    run(way, outcome);
    if (!outcome.message.empty()) return;
    outcome.hash = tensors_.output_hash();
    if (options_.fill) {
      if (spoiled_ == nullptr) spoiled_ = std::make_unique<const Spoiled>(find_spoiled(tensors_));
      outcome.spoiled = *spoiled_;
    }
    if (!options_.compare) {
      outcome.verdict = Verdict::kPassed;
      return;
    }
    if (reference_ == nullptr) {
      const auto start = std::chrono::steady_clock::now();
      reference_ = std::make_unique<const Reference>(run_reference(tensors_, options_));
      outcome.reference_seconds = seconds_since(start);
    }
    outcome.sampled = static_cast<int32_t>(reference_->columns.size());
    outcome.errors = compare(tensors_, *reference_, outcome.spoiled);
    for (const TensorError& error : outcome.errors) {
      if (error.passes()) continue;
      outcome.message = line_of(error);
      return;
    }
    outcome.verdict = Verdict::kPassed;
  });
  return outcome;
}

Outcome check_case(const cases::Case& c, const CheckOptions& options) {
  Outcome outcome;
  with_verdict(outcome, [&] { outcome = Trial(c, options).judge(c); });
  return outcome;
}

std::string report(const cases::Case& c, const Outcome& outcome) {
  static constexpr const char* kWords[] = {"passed", "FAILED", "declined", "invalid"};
  std::string text = std::string(kWords[static_cast<int>(outcome.verdict)]) + "  " + cases::print(c) + "\n";
  if (!outcome.plan.empty()) text += "  plan: " + outcome.plan + "\n";
  for (const TensorError& error : outcome.errors) text += "  " + line_of(error) + "\n";
  if (outcome.sampled > 0) {
    text += "  (measured on " + std::to_string(outcome.sampled) + " value columns, every token)\n";
  }
  if (outcome.repeated > 0) {
    text += "  (measured on " + std::to_string(outcome.repeated) + " heads, which the others repeated bit for bit)\n";
  }
  if (!outcome.message.empty()) text += "  why: " + outcome.message + "\n";
  return text;
}

}  // namespace deltarelay::check
