// Making a plan is cheap: serving engines make one for every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "length_mixes.h"
#include "plan/plan.h"
#include "plan_cases.h"
#include "problem/types.h"

namespace deltarelay {
namespace {

// Goals on one core: 20 us at one sequence, 60 us at 64. The best of many repeats is compared with five times that,
// since the machine that runs the tests may be slow or busy; sanitizers and unoptimised builds only run the code.
#if defined(NDEBUG) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kTimed = true;
#else
constexpr bool kTimed = false;
#endif
constexpr double kAllowance = 5.0;

// Time of the thread: other work of the machine counts as far as it shares the core.
double thread_microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

double best_microseconds(const Problem& problem, const Options& options, int32_t repeats) {
  double best = 1e9;
  for (int32_t i = 0; i < repeats; ++i) {
    Problem p = problem;
    Options o = options;
    const double start = thread_microseconds();
    const auto plan = make_plan(std::move(p), std::move(o));
    const double stop = thread_microseconds();
    EXPECT_NE(plan, nullptr);
    best = std::min(best, stop - start);
  }
  return best;
}

struct Timing {
  double median, worst;
};

// Every mix that the families give with `num_seqs` sequences, on GPUs and CPUs of several sizes.
Timing timing_at(size_t num_seqs, int32_t mixes) {
  test::Random random(51 + num_seqs);
  std::vector<double> times;
  for (int32_t i = 0; i < mixes; ++i) {
    const auto family = static_cast<test::Family>(i % test::kFamilies);
    auto lengths = test::random_lengths(random, family);
    while (lengths.size() < num_seqs) {
      const auto more = test::random_lengths(random, family);
      lengths.insert(lengths.end(), more.begin(), more.end());
    }
    lengths.resize(num_seqs);
    const Problem problem =
        test::problem_of(i % 2 ? Rule::kKda : Rule::kGdn, lengths, static_cast<int32_t>(random.magnitude(1, 64)));
    const test::Machine device = i % 3 ? test::device_of(i % 4 ? "h200" : "rtx5090")
                                       : test::cpu_with(static_cast<int32_t>(random.magnitude(1, 128)));
    times.push_back(best_microseconds(problem, test::options_on(device), kTimed ? 15 : 1));
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.back()};
}

TEST(Speed, OneSequence) {
  const Timing t = timing_at(1, 240);
  std::printf("plan at 1 sequence: median %.1f us, worst %.1f us\n", t.median, t.worst);
  EXPECT_TRUE(!kTimed || t.worst <= 20 * kAllowance) << t.worst;
}

TEST(Speed, SixtyFourSequences) {
  const Timing t = timing_at(64, 240);
  std::printf("plan at 64 sequences: median %.1f us, worst %.1f us\n", t.median, t.worst);
  EXPECT_TRUE(!kTimed || t.worst <= 60 * kAllowance) << t.worst;
}

// Steps of an engine: one prefill among 32 sequences that decode, all of several hundred tokens, or any up to 4,096.
enum class Step { kDecodeAndPrefill, kAlike, kMixed };

std::vector<int64_t> step_lengths(Step step, int64_t num_seqs) {
  test::Random random(7 + static_cast<uint64_t>(num_seqs));
  std::vector<int64_t> lengths;
  for (int64_t n = 0; n < num_seqs; ++n) {
    const int64_t prefill = random.in(256, 8192);
    lengths.push_back(step == Step::kAlike   ? 512
                      : step == Step::kMixed ? random.in(1, 4096)
                      : n % 32 == 5          ? prefill
                                             : 1);
  }
  return lengths;
}

// Goals are 100 us for 256 sequences and 300 us for 1,024. On cores that other work shares 83 and 131 us were measured.
//
// The slowest of these steps with 8 to 64 heads, on GPUs and CPUs.
double slowest_step(int64_t num_seqs) {
  double worst = 0;
  for (const Step step : {Step::kDecodeAndPrefill, Step::kAlike, Step::kMixed}) {
    for (const test::Machine& machine :
         {test::device_of("h200"), test::device_of("a100"), test::cpu_with(2), test::cpu_with(64)}) {
      for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
        for (const int32_t heads : {8, 32, 64}) {
          const Problem problem = test::problem_of(rule, step_lengths(step, num_seqs), heads);
          const Options options = test::options_on(machine);
          double best = 1e9;
          for (int32_t i = 0; i < (kTimed ? 60 : 1); ++i) {
            Problem p = problem;
            Options o = options;
            const double start = thread_microseconds();
            auto plan = make_plan(std::move(p), std::move(o));
            EXPECT_GT(plan->predicted_ns, 0);
            plan.reset();
            best = std::min(best, thread_microseconds() - start);
          }
          worst = std::max(worst, best);
        }
      }
    }
  }
  return worst;
}

TEST(Speed, EngineStepsOf256Sequences) {
  const double worst = slowest_step(256);
  std::printf("plan of a step of 256 sequences: at most %.1f us\n", worst);
  EXPECT_TRUE(!kTimed || worst <= 250) << worst;
}

TEST(Speed, EngineStepsOf1024Sequences) {
  const double worst = slowest_step(1024);
  std::printf("plan of a step of 1,024 sequences: at most %.1f us\n", worst);
  EXPECT_TRUE(!kTimed || worst <= 600) << worst;
}

// Heads cost nothing to plan: rounds of equal items are one step.
TEST(Speed, HeadsByTheThousand) {
  const Options options = test::options_on(test::cpu_with(1));
  const Problem problem = test::problem_of(Rule::kKda, {4096, 100, 17}, kMaxHeads);
  double best = 1e9;
  for (int32_t i = 0; i < 20; ++i) {
    const double start = thread_microseconds();
    const auto plan = make_plan(problem, options);
    best = std::min(best, thread_microseconds() - start);
    EXPECT_GT(plan->predicted_ns, 0);
  }
  EXPECT_TRUE(!kTimed || best <= 20 * kAllowance) << best;
}

}  // namespace
}  // namespace deltarelay
