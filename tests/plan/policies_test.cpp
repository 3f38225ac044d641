// The presets against the tables that their authors and our study give.
#include "plan/search/policies.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan_cases.h"
#include "table_rules.h"

namespace deltarelay {
namespace {

constexpr int64_t kKilo = 1024;  // tokens

// Pieces of all sequences together, 0 when the policy leaves the call alone.
int64_t pieces(const std::string& policy, const std::vector<int64_t>& lengths, int64_t heads, int64_t units,
               int32_t capability = 90) {
  PolicyRequest request;
  request.lengths = lengths;
  request.heads = heads;
  request.units = units;
  request.compute_capability = capability;
  int64_t total = 0;
  for (const PolicyCut& cut : policy_cuts(policy_find(policy), request)) total += cut.pieces;
  return total;
}

// cuLA's published table for its SM100 state pass on 152 multiprocessors: 18 mixes for 4 and for 8 heads, 13 of them
// cut.
TEST(Policies, CulaSm100CutsThirteenOfThirtySixCases) {
  struct Case {
    std::vector<int64_t> lengths;
    int64_t with_4_heads, with_8_heads;
  };
  auto with_tail = [](int64_t first, int64_t count) {
    std::vector<int64_t> lengths(static_cast<size_t>(count + 1), kKilo);
    lengths[0] = first;
    return lengths;
  };
  const Case cases[] = {
      {{4 * kKilo}, 0, 0},
      {{8 * kKilo}, 0, 0},
      {{32 * kKilo}, 0, 0},
      {{64 * kKilo}, 19, 9},
      {{128 * kKilo}, 19, 9},
      {std::vector<int64_t>(8, 4 * kKilo), 0, 0},
      {std::vector<int64_t>(4, 8 * kKilo), 0, 0},
      {std::vector<int64_t>(2, 16 * kKilo), 0, 0},
      {{16 * kKilo, 16 * kKilo}, 0, 0},
      {{24 * kKilo, 8 * kKilo}, 0, 0},
      {{28 * kKilo, 4 * kKilo}, 0, 0},
      {{32 * kKilo, 256, 256}, 0, 0},
      {{40 * kKilo, kKilo, 8 * kKilo}, 0, 0},
      {{64 * kKilo, 512, 256, 128}, 19, 9},
      {with_tail(128 * kKilo, 1), 19, 9},
      {with_tail(128 * kKilo, 2), 19, 9},
      {with_tail(128 * kKilo, 5), 19, 9},
      {with_tail(128 * kKilo, 10), 19, 0},
  };
  int32_t cut = 0;
  for (const Case& c : cases) {
    EXPECT_EQ(pieces("cula-sm100", c.lengths, 4, 152, 100), c.with_4_heads)
        << c.lengths[0] << " x " << c.lengths.size();
    EXPECT_EQ(pieces("cula-sm100", c.lengths, 8, 152, 100), c.with_8_heads)
        << c.lengths[0] << " x " << c.lengths.size();
    cut += (c.with_4_heads > 0) + (c.with_8_heads > 0);
  }
  EXPECT_EQ(cut, 13);
}

TEST(Policies, SingleSequenceOn132Units) {
  struct Row {
    int64_t heads;
    std::vector<int64_t> fla, cula100, cula90, flashqla, flashkda;
  };
  const Row rows[] = {
      {1, {4, 8, 16, 32}, {16, 32, 32, 32}, {16, 32, 64, 128}, {16, 64, 128, 256}, {64, 128, 256}},
      {4, {4, 8, 16, 16}, {0, 0, 16, 16}, {16, 32, 32, 32}, {16, 32, 64, 128}, {32, 64, 128}},
      {8, {4, 8, 8, 8}, {0, 0, 8, 8}, {16, 16, 16, 16}, {8, 16, 32, 64}, {16, 32, 64}},
      {16, {4, 4, 4, 4}, {0, 0, 0, 0}, {8, 8, 8, 8}, {8, 16, 32, 64}, {16, 32, 64}},
      {32, {4, 4, 4, 4}, {0, 0, 0, 0}, {0, 0, 4, 4}, {4, 8, 16, 32}, {8, 16, 32}},
      {64, {4, 4, 4, 4}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0}},
  };
  auto expect = [](const char* policy, int64_t heads, const std::vector<int64_t>& kilo_tokens,
                   const std::vector<int64_t>& want) {
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(pieces(policy, {kilo_tokens[i] * 1024}, heads, 132), want[i])
          << policy << " heads " << heads << " length " << kilo_tokens[i] << "K";
    }
  };
  for (const Row& row : rows) {
    expect("fla", row.heads, {32, 64, 128, 256}, row.fla);
    expect("cula-sm100", row.heads, {16, 32, 64, 128}, row.cula100);
    expect("cula-sm90", row.heads, {4, 8, 16, 64}, row.cula90);
    expect("flashqla", row.heads, {4, 16, 64, 256}, row.flashqla);
    expect("flashkda-pr9", row.heads, {4, 16, 64}, row.flashkda);
  }
}

TEST(Policies, Edges) {
  EXPECT_EQ(pieces("fla", {24575}, 4, 132), 0) << "below 24K tokens FLA never cuts";
  EXPECT_EQ(pieces("fla", {24576}, 4, 132), 3);
  EXPECT_EQ(pieces("cula-sm90", {8192, 8192 + 1}, 1, 132), 0) << "several sequences must be whole chunks";
  EXPECT_EQ(pieces("cula-sm90", {8192 + 1}, 4, 132), 32) << "a rest of one token joins the last piece";
  EXPECT_EQ(pieces("flashqla", {128 * 64}, 32, 132, 100), 0) << "SM100 asks for longer sequences";
  EXPECT_GT(pieces("flashqla", {128 * 64}, 32, 132, 90), 0);
  for (const char* policy : {"fla", "cula-sm100", "cula-sm90", "flashqla", "flashkda-pr9"}) {
    EXPECT_EQ(pieces(policy, {}, 4, 132), 0);
    EXPECT_EQ(pieces(policy, {0, 0}, 4, 132), 0);
  }
  EXPECT_EQ(policy_find("unheard-of"), -1);
}

// 32 pieces at most, rounded up to whole chunks: for some lengths the last of them would be empty.
TEST(Policies, NoEmptyPieces) {
  for (int64_t chunks = 500; chunks < 1000; ++chunks) {
    PolicyRequest request;
    request.lengths = {chunks * 64};
    request.units = 152;
    for (const PolicyCut& cut : policy_cuts(policy_find("cula-sm100"), request)) {
      EXPECT_LT((cut.pieces - 1) * cut.tokens, chunks * 64) << chunks;
    }
  }
}

TEST(Policies, PlansInOurForm) {
  const std::vector<int64_t> lengths{65536, 512, 0, 32768, 100};
  for (const char* device : {"h200", "gb200"}) {
    for (int32_t i = 0; i < policy_count(); ++i) {
      Options options = test::options_on(test::device_of(device));
      options.policy = policy_name(i);
      const Problem problem = test::problem_of(Rule::kKda, lengths, 2);
      const auto plan = make_plan(problem, options);
      SCOPED_TRACE(options.policy + std::string(" on ") + device);
      test::TableRules(test::chunks_of(problem, plan->chunk())).check(plan->table, plan->costs);
      EXPECT_EQ(plan->rule, CutRule::kPolicy);
      EXPECT_EQ(plan->predicted_ns > 0, true);
    }
  }
  // On a CPU the same token lengths, in its own chunks.
  Options options = test::options_on(test::cpu_with(64));
  options.policy = "flashqla";
  const Problem problem = test::problem_of(Rule::kGdn, lengths, 2);
  const auto plan = make_plan(problem, options);
  test::TableRules(test::chunks_of(problem, plan->chunk())).check(plan->table, plan->costs);
  EXPECT_GT(plan->table.num_slots, 0);
}

TEST(Policies, CulaSm100AsAPlanOn152Units) {
  Options options = test::options_on(test::device_of("gb200"));
  options.policy = "cula-sm100";
  auto segments = [&](const std::vector<int64_t>& lengths, int32_t heads) {
    const auto plan = make_plan(test::problem_of(Rule::kKda, lengths, heads), options);
    int64_t emitted = 0;
    for (const auto* rows : {&plan->table.rows1, &plan->table.rows3}) {
      for (const Row& row : *rows) emitted += row.work == Work::kEmit;
    }
    return emitted;
  };
  EXPECT_EQ(segments({65536}, 4), 19);
  EXPECT_EQ(segments({65536}, 8), 9);
  EXPECT_EQ(segments({65536, 512, 256, 128}, 4), 19);
  EXPECT_EQ(segments({32768}, 4), 1);
}

}  // namespace
}  // namespace deltarelay
