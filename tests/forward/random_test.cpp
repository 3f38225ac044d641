// Seeded random cases. DELTARELAY_RANDOM_SECONDS and DELTARELAY_RANDOM_SEED set the duration and the first seed. A
// failure prints the line that reproduces it.
#include "check/random.h"

#include <cstdlib>
#include <set>

#include "forward_case.h"

namespace deltarelay::forward {
namespace {

double number_from(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtod(text, nullptr) : otherwise;
}

void expect_passed(const cases::Case& c, const check::Outcome& outcome) {
  if (outcome.verdict != check::Verdict::kDeclined) EXPECT_TRUE(outcome.passed()) << check::report(c, outcome);
}

TEST(Random, CasesAgreeWithTheReference) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  check::RandomOptions options;
  options.cases = 20;  // at least, for any time limit: a run without cases is no test
  options.seconds = number_from("DELTARELAY_RANDOM_SECONDS", 20.0);
  options.seed = static_cast<uint64_t>(number_from("DELTARELAY_RANDOM_SEED", 1.0));
  options.cost = 20'000'000;  // a few milliseconds of the reference
  options.backends = {backend_under_test()};
  const check::RandomTally tally = check::check_random(options, {}, expect_passed);
  EXPECT_GE(tally.passed, options.cases);
  EXPECT_EQ(tally.given_up, "");
  RecordProperty("cases", static_cast<int>(tally.passed));
  RecordProperty("declined", static_cast<int>(tally.declined));
}

TEST(Random, SeveralAtATimeAreTheSameCases) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  check::RandomOptions options;
  options.cases = 30;
  options.cost = 500'000;
  options.jobs = 4;
  options.backends = {backend_under_test(), "reference"};
  options.words = "threads=1";
  std::set<std::string> begun, ended;
  const check::RandomTally tally = check::check_random(
      options, [&](const cases::Case& c) { begun.insert(cases::print(c)); },
      [&](const cases::Case& c, const check::Outcome& outcome) {
        ended.insert(cases::print(c));
        expect_passed(c, outcome);
      });
  EXPECT_EQ(begun, ended);
  EXPECT_GE(tally.passed, options.cases);
  EXPECT_EQ(ended.size(), static_cast<size_t>(tally.passed + tally.failed + tally.declined));
  for (int64_t i = 0; i < static_cast<int64_t>(ended.size()); ++i) {
    const cases::Case c = check::drawn_case(options, i);
    EXPECT_EQ(ended.count(cases::print(c)), 1u) << cases::print(c);
  }
}

// Seeds that were written down keep their forwards, whether stages are drawn between them or not.
TEST(Random, ForwardsKeepTheirSeeds) {
  check::RandomOptions options;
  options.seed = 77;
  options.cost = 500'000;
  options.backends = {"cpu", "reference"};
  uint64_t forwards = 0, stages = 0;
  for (int64_t i = 0; i < 50; ++i) {
    const cases::Case c = check::drawn_case(options, i);
    uint64_t& number = c.is_stage() ? stages : forwards;
    auto* const draw = c.is_stage() ? cases::random_stage : cases::random_case;
    EXPECT_EQ(c, draw(options.seed + number, options.cost, options.backends[number % 2])) << i;
    ++number;
  }
  EXPECT_EQ(stages, check::draws_stages() ? 10u : 0u);
}

TEST(Random, IsGivenUpWhereMostIsDeclined) {
  check::RandomOptions options;
  options.cases = 1000;
  options.cost = 100'000;
  options.jobs = 2;
  options.words = "backend=reference math=tf32";
  const check::RandomTally tally = check::check_random(options, {}, expect_passed);
  EXPECT_EQ(tally.given_up, "most were declined");
  EXPECT_EQ(tally.passed + tally.failed, 0);
  ASSERT_FALSE(tally.reasons.empty());
  EXPECT_LT(tally.declined, 100);
}

TEST(Random, WordsHoldForForwardsAndStages) {
  check::RandomOptions options;
  options.cost = 500'000;
  options.words = "kda bf16 gate=init:2";
  for (int64_t i = 0; i < 50; ++i) {
    const cases::Case c = check::drawn_case(options, i);
    EXPECT_EQ(cases::with_words(c, options.words), c) << cases::print(c);
    EXPECT_EQ(c, check::drawn_case(options, i));
  }
}

TEST(Random, ARunInWhichNoneRanIsNone) {
  check::RandomOptions options;
  options.cases = 10;
  options.most_seconds = 1e-9;
  const check::RandomTally tally = check::check_random(options, {}, expect_passed);
  EXPECT_EQ(tally.passed + tally.failed + tally.declined, 0);
  EXPECT_EQ(tally.given_up, "none ran in the time given");
}

TEST(Random, WordsThatDoNotReadAreAnError) {
  check::RandomOptions options;
  options.cases = 10;
  options.jobs = 3;
  options.words = "no-such-word";
  EXPECT_THROW(check::check_random(options, {}, expect_passed), cases::CaseError);
}

}  // namespace
}  // namespace deltarelay::forward
