// The table that a GPU writes for itself: the text of its planner, run here by one member and by many in any order,
// against the table of the host.
#include "plan/search/team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "length_mixes.h"
#include "plan/search/search.h"
#include "plan/search/team_table.h"
#include "plan/table.h"
#include "plan_cases.h"
#include "problem/number.h"

namespace deltarelay {
namespace {

using test::Family;
using test::Random;

// Members come to their work in any order, and a sum goes through a tree: what a thread block may do.
class ShuffledTeam {
 public:
  explicit ShuffledTeam(uint64_t seed) : random_(seed) {}

  template <class Body>
  void each(int64_t n, const Body& body) {
    for (const int32_t i : shuffled(n)) body(i);
  }
  template <class Body>
  void once(const Body& body) {
    body();
  }
  template <class Test>
  bool any(int32_t n, const Test& test) {
    bool found = false;
    for (const int32_t i : shuffled(n)) found |= test(i);
    return found;
  }
  template <class T, class Value, class Put>
  T scan(int32_t n, const Value& value, const Put& put) {
    std::vector<T> values(static_cast<size_t>(n));
    for (const int32_t i : shuffled(n)) values[static_cast<size_t>(i)] = value(i);
    std::vector<T> before(static_cast<size_t>(n) + 1);
    for (size_t i = 0; i < values.size(); ++i) before[i + 1] = before[i].joined(values[i]);
    for (const int32_t i : shuffled(n)) put(i, before[static_cast<size_t>(i)]);
    return before.back();
  }
  template <class T, class Before>
  void sort(T* items, int32_t n, const Before& before) {
    for (plan::SortStep step(n); step.more(); step.advance()) {
      for (const int32_t i : shuffled(step.pairs())) {
        const plan::SortPair at = step.pair(i);
        if (at.later < n && before(items[at.later], items[at.earlier])) std::swap(items[at.later], items[at.earlier]);
      }
    }
  }
  template <class Try, class Take>
  void least(int32_t n, plan::ns bar, const Try& trial, const Take& take) {
    auto best = trial(n - 1);
    int32_t at = n - 1;
    for (const int32_t i : shuffled(n)) {
      const auto next = trial(i);
      if (next.time() > best.time() || (next.time() == best.time() && i > at)) continue;
      best = next;
      at = i;
    }
    if (best.time() < bar) take(best);
  }

 private:
  std::vector<int32_t> shuffled(int64_t n) {
    std::vector<int32_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<size_t>(random_.in(0, static_cast<int64_t>(i) - 1))]);
    }
    return order;
  }
  Random random_;
};

// A table with the memory it lies in: exactly what the plan books, with guards around it.
struct Filled {
  static constexpr size_t kGuard = 256;
  std::vector<std::byte> memory;
  plan::TeamTable table;
  bool moved = false;

  template <class Team>
  Filled(Team team, const Plan& plan, const std::vector<int64_t>& offsets)
      : memory(plan.device_table.bytes + 2 * kGuard, std::byte{0xa5}) {
    std::byte* base = memory.data() + kGuard;
    table = device_tables_in(base, plan.device_table);
    moved = plan::fill_by(
        team, table_request(plan), [&](int32_t n) { return offsets[static_cast<size_t>(n)]; },
        plan::team_space(base + plan.device_table.scratch, plan.problem.num_seqs), table);
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(memory[i], std::byte{0xa5});
      EXPECT_EQ(memory[memory.size() - 1 - i], std::byte{0xa5});
    }
  }
  std::vector<Row> rows1() const { return {table.rows.rows1, table.rows.rows1 + table.counts[0]}; }
  std::vector<Fold> folds() const { return {table.rows.folds, table.rows.folds + table.counts[1]}; }
  std::vector<Row> rows3() const { return {table.rows.rows3, table.rows.rows3 + table.counts[2]}; }
};

void expect_equal(const Filled& filled, const Plan& plan, const std::vector<int64_t>& offsets) {
  const int64_t num_seqs = plan.problem.num_seqs;
  std::vector<std::byte> memory(plan.device_table.bytes + table_bytes(num_seqs, plan.capacity));
  const TableView host = fill_table(plan, {offsets.data(), 0, num_seqs}, memory.data(), memory.size());
  EXPECT_EQ(filled.rows1(), std::vector<Row>(host.rows1, host.rows1 + host.num_rows1));
  EXPECT_EQ(filled.folds(), std::vector<Fold>(host.folds, host.folds + host.num_folds));
  EXPECT_EQ(filled.rows3(), std::vector<Row>(host.rows3, host.rows3 + host.num_rows3));
  int64_t chunks = 0;
  for (int64_t n = 0; n <= num_seqs; ++n) {
    ASSERT_EQ(filled.table.token_begin[n], offsets[static_cast<size_t>(n)]);
    ASSERT_EQ(filled.table.chunk_begin[n], chunks);
    if (n < num_seqs) {
      chunks += plan::ceil_div(offsets[static_cast<size_t>(n) + 1] - offsets[static_cast<size_t>(n)], plan.chunk());
    }
  }
  EXPECT_LE(chunks, plan.num_chunks);
}

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

Options random_rule(Random& random, const test::Machine& device, int64_t tokens, int32_t way) {
  Options options = test::options_on(device);
  options.invariant = way == 1;
  if (way == 2) {
    options.segments = DR_SEGMENTS_COUNT;
    options.segment_value = random.in(2, std::max<int64_t>(2, std::min<int64_t>(12, tokens / 64)));
  } else if (way == 3) {
    options.segments = DR_SEGMENTS_LENGTH;
    options.segment_value = 64 * random.in(1, 40);
  } else if (way == 4) {
    options.segments = DR_SEGMENTS_OFF;
  }
  return options;
}

TEST(Team, SortsAnyNumberOfItems) {
  Random random(70);
  ShuffledTeam team(70);
  for (int32_t n = 0; n < 300; ++n) {
    std::vector<int64_t> items;
    for (int32_t i = 0; i < n; ++i) items.push_back(random.in(0, 1 + n / 2));
    std::vector<int64_t> expected = items;
    std::sort(expected.begin(), expected.end());
    team.sort(items.data(), n, [](int64_t a, int64_t b) { return a < b; });
    ASSERT_EQ(items, expected) << n;
  }
}

TEST(Team, TableOfManyEqualsThatOfTheHost) {
  Random random(71);
  int32_t cut = 0, folded = 0, riding = 0;
  for (int32_t round = 0; round < 6000; ++round) {
    auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) + random.in(0, 500);
    for (int64_t more = random.in(0, 3); more > 0; --more) lengths.push_back(0);
    const Problem problem =
        test::problem_with_bounds(round % 2 ? Rule::kKda : Rule::kGdn, std::max<int64_t>(tokens, 128),
                                  static_cast<int64_t>(lengths.size()), static_cast<int32_t>(random.magnitude(1, 64)));
    test::Machine device = test::device_of(round % 3 ? "h200" : "rtx5090");
    for (const int32_t row : {test::kSm90PreparedCosts, test::kSm90FusedCosts, test::kSm80Costs})
      device.costs.at(row, problem.rule).measured = round % 5 == 0;  // with and without the rule of risk
    SCOPED_TRACE(round);
    const auto plan = make_plan(problem, random_rule(random, device, problem.num_tokens, round / 6 % 6));
    const auto offsets = offsets_of(lengths);
    const Filled filled = round % 4 ? Filled(ShuffledTeam(static_cast<uint64_t>(round)), *plan, offsets)
                                    : Filled(plan::SerialTeam(), *plan, offsets);
    expect_equal(filled, *plan, offsets);
    EXPECT_FALSE(filled.moved);
    ASSERT_FALSE(::testing::Test::HasFailure());
    cut += filled.table.counts[3] > 0;
    folded += filled.table.counts[1] > 0;
    riding += filled.table.counts[2] > 0 && filled.rows3().back().slot_in < 0;
  }
  EXPECT_GT(cut, 1500);
  EXPECT_GT(folded, 1000);
  EXPECT_GT(riding, 200);
}

TEST(Team, DecisionEqualsThatOfTheWalk) {
  Random random(72);
  int32_t cut = 0;
  for (int32_t round = 0; round < 4000; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const int32_t n = static_cast<int32_t>(lengths.size());
    std::vector<plan::Key> keys;
    for (int32_t i = 0; i < n; ++i) {
      keys.push_back({static_cast<int32_t>(plan::ceil_div(lengths[static_cast<size_t>(i)], 64)), i});
    }
    std::vector<int32_t> sorted(lengths.size());
    std::vector<int64_t> tail(lengths.size() + 1);
    const plan::Lengths ordered = plan::order_lengths(keys.data(), n, sorted.data(), tail.data());
    plan::Costs c;
    c.units = static_cast<int32_t>(random.magnitude(2, 200));
    c.copies = static_cast<int32_t>(random.magnitude(1, 64));
    c.emit = static_cast<int32_t>(random.in(200, 4000));
    c.summarize = static_cast<int32_t>(random.in(200, 6000));
    c.first_extra = round % 2 ? 0 : c.emit / 4;
    c.carry = static_cast<int32_t>(random.in(0, 3000));
    c.carry_unit = static_cast<int32_t>(random.in(0, 5000));
    c.barrier = static_cast<int32_t>(random.in(0, 10000));
    c.item = static_cast<int32_t>(random.in(0, 2000));
    c.emit_bytes = 82048;
    c.summarize_bytes = 49280;
    c.transition_bytes = c.state_bytes = 65536;
    c.bytes_per_ns = static_cast<int32_t>(random.in(0, 5000));
    plan::Limits limits;
    limits.risk_permille = round % 3 ? 0 : 150;
    const plan::Decision host = plan::decide(ordered, &c, 1, limits);
    ShuffledTeam team(static_cast<uint64_t>(round));
    plan::TeamDecision agreed;
    plan::decide_by(team, ordered, c, limits, agreed);
    SCOPED_TRACE(round);
    ASSERT_EQ(agreed.best.segment, host.segment);
    ASSERT_EQ(agreed.best.first, host.first);
    ASSERT_EQ(agreed.best.ratio, host.ratio);
    ASSERT_EQ(agreed.best.cut_seqs, host.cut_seqs);
    ASSERT_EQ(agreed.best.pieces, host.pieces);
    ASSERT_EQ(agreed.best.in_phase1, host.in_phase1);
    ASSERT_EQ(agreed.best.predicted, host.predicted);
    ASSERT_EQ(agreed.best.unsplit, host.unsplit);
    cut += host.segment > 0;
  }
  EXPECT_GT(cut, 500);
}

TEST(Team, BadOffsetsAreBroughtIntoRangeAndReported) {
  const Problem problem = test::problem_with_bounds(Rule::kGdn, 1000, 4, 2);
  const auto plan = make_plan(problem, test::options_on(test::device_of("h200")));
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> cases{
      {{0, 300, 200, 700, 1000}, {0, 300, 300, 700, 1000}},
      {{5, 300, 400, 700, 1000}, {0, 300, 400, 700, 1000}},
      {{0, -300, 400, 5000, 1000}, {0, 0, 400, 1000, 1000}},
      {{0, INT64_MAX, INT64_MIN, 3, 2}, {0, 1000, 1000, 1000, 1000}},
  };
  for (const auto& [given, expected] : cases) {
    const Filled filled(ShuffledTeam(1), *plan, given);
    EXPECT_TRUE(filled.moved);
    expect_equal(filled, *plan, expected);
  }
}

TEST(Team, RandomOffsetsStayInsideWhatWasBooked) {
  Random random(73);
  for (int32_t round = 0; round < 1000; ++round) {
    const int64_t tokens = random.magnitude(1, 100000), num_seqs = random.in(0, 40);
    const Problem problem = test::problem_with_bounds(round % 2 ? Rule::kKda : Rule::kGdn, tokens, num_seqs,
                                                      static_cast<int32_t>(random.magnitude(1, 16)));
    Options options = test::options_on(test::device_of("h200"));
    options.invariant = round % 5 == 0;
    const auto plan = make_plan(problem, options);
    std::vector<int64_t> offsets{0};
    for (int64_t n = 0; n < num_seqs; ++n) offsets.push_back(random.in(-10, tokens + 10));
    const Filled filled(ShuffledTeam(static_cast<uint64_t>(round)), *plan, offsets);
    std::vector<int64_t> moved(filled.table.token_begin, filled.table.token_begin + num_seqs + 1);
    EXPECT_EQ(filled.moved, moved != offsets);
    expect_equal(filled, *plan, moved);
    EXPECT_LE(filled.table.counts[0], plan->capacity.rows1);
    EXPECT_LE(filled.table.counts[1], plan->capacity.folds);
    EXPECT_LE(filled.table.counts[2], plan->capacity.rows3);
    EXPECT_LE(filled.table.counts[3], plan->capacity.slots);
    ASSERT_FALSE(::testing::Test::HasFailure()) << round;
  }
}

}  // namespace
}  // namespace deltarelay
