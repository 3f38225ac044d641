// Invariant mode: the cuts and folds of a sequence are its own affair.
#include "plan/search/grain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "length_mixes.h"
#include "plan/plan.h"
#include "plan_cases.h"
#include "table_rules.h"

namespace deltarelay {
namespace {

using test::Family;
using test::Random;

Options invariant_on(const test::Machine& device) {
  Options options = test::options_on(device);
  options.invariant = true;
  return options;
}

TEST(Grain, RuleOnGpus) {
  const std::vector<std::pair<int64_t, int64_t>> on_132{{1, 8},   {2, 12},  {4, 16},  {8, 24},  {12, 32},
                                                        {16, 48}, {24, 64}, {28, 64}, {29, -1}, {64, -1}};
  for (const auto& [heads, grain] : on_132) EXPECT_EQ(plan::gpu_grain(heads, 132, 64), grain) << heads;
  EXPECT_EQ(plan::gpu_grain(32, 170, 64), 64) << "more units, finer grain";
  EXPECT_EQ(plan::gpu_grain(32, 108, 64), -1);
  EXPECT_EQ(plan::gpu_grain(2, 132, 32), 24) << "as many tokens in smaller chunks";
}

TEST(Grain, RuleOnCpus) {
  EXPECT_EQ(plan::cpu_grain(1, 16, 2, 16), -1) << "two tiles keep two units busy";
  EXPECT_EQ(plan::cpu_grain(1, 16, 4, 16), -1);
  EXPECT_EQ(plan::cpu_grain(1, 16, 64, 16), 32);
  EXPECT_EQ(plan::cpu_grain(4, 16, 64, 16), 64);
  EXPECT_EQ(plan::cpu_grain(12, 16, 64, 16), 128);
  EXPECT_EQ(plan::cpu_grain(16, 16, 64, 16), -1);
  EXPECT_EQ(plan::cpu_grain(1, 1, 2, 64), 16) << "no tiles to spread: 1024 tokens";
}

TEST(Grain, TablesAreValidAndFoldEveryFullGrain) {
  Random random(11);
  const std::vector<std::string> devices{"h200", "b200", "a100"};
  int64_t folded = 0;
  for (int32_t round = 0; round < 600; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const Problem problem =
        test::problem_of(round % 2 ? Rule::kKda : Rule::kGdn, lengths, static_cast<int32_t>(random.in(1, 24)));
    const test::Machine device = round % 3 ? test::device_of(random.one_of(devices)) : test::cpu_with(96);
    const auto plan = make_plan(problem, invariant_on(device));
    SCOPED_TRACE(round);
    test::TableRules(test::chunks_of(problem, plan->chunk())).check(plan->table, plan->costs);
    ASSERT_NE(plan->grain, 0);
    if (plan->grain < 0) {
      EXPECT_TRUE(plan->table.folds.empty());
      EXPECT_TRUE(plan->table.rows3.empty());
      continue;
    }
    const int64_t grain_tokens = plan->grain * plan->chunk();
    std::vector<int64_t> folds(lengths.size());
    for (const Fold& fold : plan->table.folds) {
      EXPECT_TRUE(fold.from_initial);
      folds[static_cast<size_t>(fold.sequence)] = fold.count;
      folded += fold.count;
    }
    for (size_t n = 0; n < lengths.size(); ++n)
      EXPECT_EQ(folds[n], lengths[n] / grain_tokens) << "full grains of " << n;
    for (const auto* rows : {&plan->table.rows1, &plan->table.rows3}) {
      for (const Row& row : *rows) {
        EXPECT_EQ(row.begin % plan->grain, 0);
        EXPECT_LE(row.chunks, plan->grain);
        const int64_t end = (int64_t{row.begin} + row.chunks) * plan->chunk();
        const bool full = end <= lengths[static_cast<size_t>(row.sequence)] && row.chunks == plan->grain;
        if (row.work == Work::kEmit) {
          EXPECT_EQ(row.slot_folded >= 0, full) << "the state at a boundary is the folded one";
        } else {
          EXPECT_TRUE(full);
        }
      }
    }
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_GT(folded, 1000);
}

// The rows of one sequence with slots renumbered from its own first one.
std::vector<Row> rows_of(const Plan& plan, int32_t sequence) {
  int32_t base = 0;
  for (const Fold& fold : plan.table.folds) {
    if (fold.sequence == sequence) base = fold.slot;
  }
  std::vector<Row> rows;
  for (const auto* phase : {&plan.table.rows1, &plan.table.rows3}) {
    for (Row row : *phase) {
      if (row.sequence != sequence) continue;
      row.sequence = 0;
      for (int32_t* slot : {&row.slot_in, &row.slot_out, &row.slot_folded}) *slot = *slot < 0 ? -1 : *slot - base;
      rows.push_back(row);
    }
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::make_pair(a.begin, static_cast<int32_t>(a.work)) <
           std::make_pair(b.begin, static_cast<int32_t>(b.work));
  });
  return rows;
}

TEST(Grain, CutsDependOnTheSequenceAlone) {
  Random random(12);
  const Options options = invariant_on(test::device_of("h200"));
  for (int32_t round = 0; round < 200; ++round) {
    const int64_t length = random.magnitude(1, 100000);
    auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const size_t at = static_cast<size_t>(random.in(0, static_cast<int64_t>(lengths.size())));
    lengths.insert(lengths.begin() + static_cast<std::ptrdiff_t>(at), length);
    const auto alone = make_plan(test::problem_of(Rule::kKda, {length}, 4), options);
    const auto among = make_plan(test::problem_of(Rule::kKda, lengths, 4), options);
    ASSERT_EQ(alone->grain, among->grain);
    ASSERT_EQ(rows_of(*alone, 0), rows_of(*among, static_cast<int32_t>(at)))
        << "round " << round << ", length " << length;
  }
}

TEST(Grain, DoesNotDependOnThreads) {
  Options options = invariant_on(test::cpu_with(64));
  const Problem problem = test::problem_of(Rule::kKda, {100000, 3000}, 2);
  const auto all = make_plan(problem, options);
  options.threads = 1;
  const auto one = make_plan(problem, options);
  EXPECT_GT(all->grain, 0);
  EXPECT_EQ(all->grain, one->grain);
  EXPECT_EQ(describe_signature(*all), describe_signature(*one));
}

TEST(Grain, ForcedLengthIsTheGrain) {
  Options options = invariant_on(test::cpu_with(2));
  options.segments = DR_SEGMENTS_LENGTH;
  options.segment_value = 64;
  const Problem problem = test::problem_of(Rule::kGdn, {200, 64, 63, 0, 128}, 3);
  const auto plan = make_plan(problem, options);
  EXPECT_EQ(plan->grain * plan->chunk(), 64);
  test::TableRules(test::chunks_of(problem, plan->chunk())).check(plan->table, plan->costs);
  EXPECT_EQ(plan->table.folds.size(), 3u);
  EXPECT_EQ(plan->table.num_slots, (3 + 1) + (1 + 1) + (2 + 1));
  options.segments = DR_SEGMENTS_OFF;
  EXPECT_EQ(make_plan(problem, options)->grain, -1);
}

}  // namespace
}  // namespace deltarelay
