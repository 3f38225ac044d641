// Seeded random cases for a while. DELTARELAY_RANDOM_SECONDS and DELTARELAY_RANDOM_SEED set how long and from where; a
// failure prints the line, which repeats it alone.
#include <chrono>
#include <cstdlib>

#include "forward_case.h"

namespace deltarelay::forward {
namespace {

double number_from(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtod(text, nullptr) : otherwise;
}

TEST(Random, CasesAgreeWithTheReference) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  const double seconds = number_from("DELTARELAY_RANDOM_SECONDS", 20.0);
  auto seed = static_cast<uint64_t>(number_from("DELTARELAY_RANDOM_SEED", 1.0));
  constexpr int64_t kCost = 20'000'000;  // token-heads x DK x DV: some milliseconds of the reference
  constexpr int kLeast = 20;             // whatever the budget: a run that checks nothing is no test
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  int passed = 0;
  int declined = 0;
  for (; passed < kLeast || elapsed() < seconds; ++seed) {
    const cases::Case c = on_backend(cases::random_case(seed, kCost));
    const check::Outcome outcome = check::check_case(c);
    if (outcome.verdict == check::Verdict::kDeclined) {
      ++declined;
    } else {
      ASSERT_TRUE(outcome.passed()) << "random seed " << seed << "\n" << check::report(c, outcome);
      ++passed;
    }
    ASSERT_LE(declined, passed + kLeast) << "the backend declines most of what is asked: " << outcome.message;
  }
  RecordProperty("cases", passed);
  RecordProperty("declined", declined);
}

}  // namespace
}  // namespace deltarelay::forward
