// The steps of a plan: what an execution launches, with which form, grid, buffers and conditions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "length_mixes.h"
#include "plan/plan.h"
#include "plan_cases.h"

namespace deltarelay {
namespace {

// Steps that not every call takes end in "?".
std::vector<std::string> names_of(const Steps& steps) {
  std::vector<std::string> names;
  for (const Step& step : steps) names.push_back(name_of(step) + std::string(step.when == When::kAlways ? "" : "?"));
  return names;
}
using Names = std::vector<std::string>;

// GDN with two value heads a key head, whose log gates the fused walk takes.
Problem twins_of(const std::vector<int64_t>& lengths) {
  Problem problem = test::problem_of(Rule::kGdn, lengths, 64);
  problem.heads_qk = 32;
  return problem;
}

TEST(Steps, OfACpuAreWalksCarryAndWhatIsLeft) {
  Problem problem = test::problem_of(Rule::kKda, {8192, 0}, 1);
  const Options options = test::options_on(test::cpu_with(32));
  EXPECT_EQ(names_of(make_plan(problem, options)->steps), (Names{"summarize + emit", "carry", "emit"}));
  problem.final.use = StateUse::kRows;  // of the empty sequence too
  EXPECT_EQ(names_of(make_plan(problem, options)->steps), (Names{"summarize + emit", "carry", "emit", "finish"}));
  problem.offsets = {0, 8192, 8192};
  problem.final = {};
  problem.num_tokens = 8200;  // rows past the last offset
  EXPECT_EQ(names_of(make_plan(problem, options)->steps).back(), "finish");
}

TEST(Steps, ReportsAndCheckpointsOfAGpu) {
  Problem problem = test::with_checkpoints(test::problem_of(Rule::kKda, {512}, 64), 48, 100);
  Options options = test::options_on(test::device_of("h200"));
  options.variant = "prepared";
  EXPECT_EQ(names_of(make_plan(problem, options)->steps),
            (Names{"segment table?", "prepare", "emit", "checkpoints", "aliases?"}));
  problem.checkpoint_every = 64;  // none inside a chunk
  EXPECT_EQ(names_of(make_plan(problem, options)->steps), (Names{"segment table?", "prepare", "emit", "aliases?"}));
  const Problem many = test::problem_of(Rule::kKda, std::vector<int64_t>(200, 64), 64);
  EXPECT_EQ(names_of(make_plan(many, options)->steps)[0], "segment table")
      << "too large for the parameters of a kernel";
}

TEST(Steps, SayHowRowsAreWalked) {
  const Options options = test::options_on(test::device_of("h200"));
  const auto twins = make_plan(twins_of(std::vector<int64_t>(8, 8192)), options);
  const Step& walk = twins->steps[1];
  EXPECT_EQ(walk.form, Form::kTwins);
  EXPECT_TRUE(walks_twins(*twins));
  EXPECT_EQ(walk.ctas, twins->relay.shares > 0 ? twins->relay.places() : 132);

  // Rows of different lengths, and few waves: a CTA for each. Rows of one length share the multiprocessors, unless a
  // report is wanted, for which the table is stored.
  Options whole = options;
  whole.segments = DR_SEGMENTS_OFF;
  const Step alike = make_plan(test::problem_of(Rule::kGdn, std::vector<int64_t>(8, 2048), 64), whole)->steps[1];
  EXPECT_EQ(alike.form, Form::kSingle);
  EXPECT_EQ(alike.ctas, 132);
  EXPECT_EQ(alike.ctas_stored, 512);
  const Step mixed =
      make_plan(test::problem_of(Rule::kGdn, {2048, 2048, 2048, 2048, 2048, 2048, 2048, 2016}, 64), whole)->steps[1];
  EXPECT_EQ(mixed.ctas, 512);

  const auto cut = make_plan(test::problem_of(Rule::kGdn, {32768}, 8), options);
  ASSERT_EQ(names_of(cut->steps), (Names{"segment table?", "summarize + emit", "carry", "emit"}));
  EXPECT_EQ(cut->steps[1].form, Form::kPair) << "the only form of a summary";
  EXPECT_FALSE(cut->steps[1].suffix);
  EXPECT_TRUE(cut->steps[1].backwards);
  EXPECT_TRUE(cut->steps[1].ordered) << "summaries in two waves";
  EXPECT_FALSE(cut->steps[3].backwards);
  EXPECT_EQ(cut->steps[1].rows, cut->capacity.rows1);
  EXPECT_EQ(cut->steps[2].rows, 1);
  EXPECT_EQ(cut->steps[2].ctas, 8 * 2 * (128 / 16)) << "pairs with slices of 16 rows fit into one wave";
}

// Whatever a GPU launches has its grid in the plan; only the kernels of the table have their own.
TEST(Steps, SayTheGridOfEveryLaunch) {
  for (const char* device : {"h200", "a100"}) {
    const Options options = test::options_on(test::device_of(device));
    const Problem late = test::with_checkpoints(test::problem_with_bounds(Rule::kKda, 65536, 16, 8), 48, 100);
    const auto plan = make_plan(late, options);
    ASSERT_EQ(names_of(plan->steps).back(), "finish");
    for (const Step& step : plan->steps) {
      if (step.stage == Stage::kTable) continue;
      EXPECT_GT(step.ctas, 0) << device << ": " << name_of(step);
      EXPECT_GT(step.ctas_stored, 0) << device << ": " << name_of(step);
    }
    const int32_t units = options.device.units;
    EXPECT_EQ(plan->steps[plan->steps.size() - 1].ctas, 2 * units);

    // 100 checkpoints of at most 16 sequences: 6 CTAs share those of a sequence, head and tile of 32 columns.
    const auto found = std::find_if(plan->steps.begin(), plan->steps.end(),
                                    [](const Step& step) { return step.stage == Stage::kCheckpoints; });
    ASSERT_NE(found, plan->steps.end());
    EXPECT_EQ(found->each, 6);
    EXPECT_EQ(found->ctas, 16 * 8 * (128 / 32) * 6);
  }
}

// Both fused walks summarize backwards: no row has a second pair of CTAs for its suffix.
TEST(Steps, FusedKdaSummarizesBackwards) {
  Problem problem = test::problem_of(Rule::kKda, {131072}, 4);
  problem.gate_floor = -5.0f;
  const Step walk = make_plan(problem, test::options_on(test::device_of("h200")))->steps[1];
  EXPECT_TRUE(walk.backwards);
  EXPECT_TRUE(walk.ordered) << "summaries in two waves";
  EXPECT_FALSE(walk.suffix);
  EXPECT_EQ(walk.ctas, walk.rows * 4 * 2);
}

// Summaries that all run at once need no order.
TEST(Steps, OneWaveOfSummariesIsNotOrdered) {
  const Options options = test::options_on(test::device_of("h200"));
  const Step walk = make_plan(test::problem_of(Rule::kGdn, {8192}, 8), options)->steps[1];
  EXPECT_LE(walk.ctas, 132);
  EXPECT_TRUE(walk.backwards);
  EXPECT_FALSE(walk.ordered);
}

// A walk that stores checkpoints is compiled without suffixes.
TEST(Steps, SummariesBesideCheckpointsAreWalkedWhole) {
  Options options = test::options_on(test::prepared_on("h200"));
  const Problem problem = test::problem_of(Rule::kGdn, {32768}, 8);
  EXPECT_TRUE(make_plan(problem, options)->steps[2].suffix);
  EXPECT_FALSE(make_plan(test::with_checkpoints(problem, 64, 600), options)->steps[2].suffix);
}

TEST(Steps, ACallWithFewerTokensHasItsOwn) {
  for (const char* device : {"h200", "a100"}) {
    const auto plan =
        make_plan(test::problem_with_bounds(Rule::kGdn, 65536, 16, 8), test::options_on(test::device_of(device)));
    const Steps same = steps_of(*plan, {65536, 16}), fewer = steps_of(*plan, {640, 1}), none = steps_of(*plan, {0, 1});
    EXPECT_EQ(names_of(same), names_of(plan->steps));
    ASSERT_EQ(names_of(fewer), names_of(plan->steps));
    for (int32_t i = 0; i < fewer.size(); ++i) {
      EXPECT_EQ(same[i].ctas, plan->steps[i].ctas) << i;
      EXPECT_LE(fewer[i].rows, plan->steps[i].rows) << i;
      EXPECT_LE(fewer[i].ctas, plan->steps[i].ctas) << i;
    }
    EXPECT_EQ(names_of(none), (Names{"segment table", "finish"})) << "nothing to walk";
  }
}

// Every buffer that is booked is used by a step, and steps use booked ones only.
TEST(Steps, UseTheWorkspaceThatIsBooked) {
  test::Random random(31);
  for (int32_t round = 0; round < 400; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<test::Family>(round % test::kFamilies));
    const Rule rule = round % 2 ? Rule::kKda : Rule::kGdn;
    const auto heads = static_cast<int32_t>(random.magnitude(1, 64));
    Problem problem = test::problem_of(rule, lengths, heads);
    if (round % 3 == 0) problem = test::problem_with_bounds(rule, 20000, 20, heads);
    if (round % 5 == 0) problem = test::with_checkpoints(problem, 48, 100);
    const auto plan = make_plan(
        problem, test::options_on(round % 4 ? test::device_of(device_at(1 + round % 9).name) : test::cpu_with(32)));
    for (int32_t id = 0; id < kNumBuffers; ++id) {
      const auto buffer = static_cast<BufferId>(id);
      const bool used = std::any_of(plan->steps.begin(), plan->steps.end(),
                                    [&](const Step& step) { return step.buffers.holds(buffer); });
      ASSERT_EQ(used, plan->ledger.find(buffer) != nullptr) << round << ": " << name_of(buffer);
    }
  }
}

}  // namespace
}  // namespace deltarelay
