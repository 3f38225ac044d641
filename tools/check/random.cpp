#include "check/random.h"

#include <chrono>

#include "check/jobs.h"

namespace deltarelay::check {
namespace {

using Clock = std::chrono::steady_clock;

// After an error of a GPU every case fails, first those that ran beside the faulty one.
constexpr int64_t kMostFailures = 40;
constexpr int64_t kMostDeclined = 40;  // more than the number of cases that have run

// Removes what was found: "variant: expected fused or prepared, found x" is one reason for every x.
std::string reason_of(const std::string& message) { return message.substr(0, message.find(", found")); }

class RandomRun {
 public:
  RandomRun(const RandomOptions& options, const std::function<void(const cases::Case&)>& before,
            const std::function<void(const cases::Case&, const Outcome&)>& after)
      : options_(options), before_(before), after_(after) {}

  RandomTally run() {
    check_cases(
        options_.jobs, options_.check,
        {[this](cases::Case& c) { return next(c); }, [this](const Outcome& outcome) { count(outcome); }, after_});
    if (tally_.given_up.empty() && tally_.passed + tally_.failed == 0) tally_.given_up = "none ran in the time given";
    return tally_;
  }

 private:
  bool next(cases::Case& c) {
    if (done()) return false;
    c = drawn_case(options_, drawn_++);
    if (before_) before_(c);
    return true;
  }

  bool done() const {
    if (!tally_.given_up.empty()) return true;
    const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
    if (elapsed >= options_.most_seconds) return true;
    return tally_.passed + tally_.failed >= options_.cases && elapsed >= options_.seconds;
  }

  void count(const Outcome& outcome) {
    if (outcome.passed()) {
      ++tally_.passed;
    } else if (outcome.verdict == Verdict::kDeclined) {
      ++tally_.declined;
      ++tally_.reasons[reason_of(outcome.message)];
    } else {
      ++tally_.failed;
    }
    if (tally_.failed >= kMostFailures) tally_.given_up = "too many failed";
    if (tally_.declined > tally_.passed + tally_.failed + kMostDeclined) tally_.given_up = "most were declined";
  }

  RandomOptions options_;
  const std::function<void(const cases::Case&)>& before_;
  const std::function<void(const cases::Case&, const Outcome&)>& after_;
  Clock::time_point start_ = Clock::now();
  RandomTally tally_;
  int64_t drawn_ = 0;
};

constexpr int64_t kStageEvery = 5;  // draws

}  // namespace

bool draws_stages() {
  const cases::Request request(cases::parse("gdn carry dk=1 seqs=1"));
  const int32_t reference = dr_backend_count() - 1;
  return dr_backend_check(reference, &request.problem, &request.options) == DR_SUCCESS;
}

cases::Case drawn_case(const RandomOptions& options, int64_t i) {
  static const bool stages = draws_stages();
  const bool stage = stages && i % kStageEvery == kStageEvery - 1;
  const int64_t number = !stages ? i : stage ? i / kStageEvery : i - i / kStageEvery;
  const std::string& backend = options.backends[static_cast<size_t>(number) % options.backends.size()];
  const uint64_t seed = options.seed + static_cast<uint64_t>(number);
  const auto draw = [&](uint64_t of) {
    return stage ? cases::random_stage(of, options.cost, backend) : cases::random_case(of, options.cost, backend);
  };
  return options.words.empty() ? draw(seed) : cases::drawn_with_words(draw, seed, options.words);
}

RandomTally check_random(const RandomOptions& options, const std::function<void(const cases::Case&)>& before,
                         const std::function<void(const cases::Case&, const Outcome&)>& after) {
  return RandomRun(options, before, after).run();
}

}  // namespace deltarelay::check
