// Making a plan is cheap: serving engines make one for every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "length_mixes.h"
#include "plan/plan.h"
#include "plan_cases.h"

namespace deltarelay {
namespace {

// Goals on one core: 20 us at one sequence, 60 us at 64. The best of many repeats is compared with three times that, since the
// machine that runs the tests may be slow or busy; sanitizers and unoptimised builds only run the code.
#if defined(NDEBUG) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool kTimed = true;
#else
constexpr bool kTimed = false;
#endif
constexpr double kAllowance = 3.0;

double best_microseconds(const Problem& problem, const Options& options, int32_t repeats) {
  double best = 1e9;
  for (int32_t i = 0; i < repeats; ++i) {
    Problem p = problem;
    Options o = options;
    const auto start = std::chrono::steady_clock::now();
    const auto plan = make_plan(std::move(p), std::move(o));
    const auto stop = std::chrono::steady_clock::now();
    EXPECT_NE(plan, nullptr);
    best = std::min(best, std::chrono::duration<double, std::micro>(stop - start).count());
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

}  // namespace
}  // namespace deltarelay
