// The search on random mixes of lengths: valid cuts, kept limits, and never a prediction above the unsplit plan.
#include "plan/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "length_mixes.h"
#include "plan/describe/schedule.h"
#include "plan/table.h"
#include "problem/footprint.h"
#include "table_rules.h"

namespace deltarelay {
namespace {

using test::Family;
using test::Random;

constexpr int32_t kChunk = 64;

plan::Costs gpu(bool kda, int32_t units, int32_t heads) {
  plan::Costs c;
  c.units = units;
  c.copies = heads;
  c.emit = kda ? 1900 : 1650;
  c.summarize = kda ? 2200 : 1650;
  c.carry = 500;
  c.carry_unit = 2000;
  c.barrier = 6000;
  c.item = 500;
  c.emit_bytes = (kda ? 1282 : 648) * kChunk;
  c.summarize_bytes = (kda ? 770 : 328) * kChunk;
  c.transition_bytes = 128 << 10;
  c.state_bytes = 64 << 10;
  c.bytes_per_ns = 4300;
  return c;
}

// Lengths with the memory that a table needs, and the table of one decision.
struct Mix {
  std::vector<int64_t> offsets{0};
  std::vector<std::byte> memory;
  TableInput input;

  explicit Mix(const std::vector<int64_t>& lengths) {
    for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
    const int64_t n = static_cast<int64_t>(lengths.size());
    memory.resize(space_bytes(n));
    input = order_sequences({offsets.data(), 0, n}, offsets.back(), kChunk, space_in(memory.data(), n));
    input.rule = CutRule::kSearch;
  }
  std::vector<int32_t> chunks() const {
    std::vector<int32_t> chunks;
    for (size_t i = 1; i < offsets.size(); ++i) {
      chunks.push_back(static_cast<int32_t>((offsets[i] - offsets[i - 1] + kChunk - 1) / kChunk));
    }
    return chunks;
  }
  SegmentTable table(const plan::Decision& decision, const plan::Costs& costs) {
    input.decision = decision;
    const int32_t riders = riders_of(input, costs);
    const plan::TableSize size = table_size_of(input, riders);
    SegmentTable table;
    table.rows1.resize(static_cast<size_t>(size.rows1));
    table.folds.resize(static_cast<size_t>(size.folds));
    table.rows3.resize(static_cast<size_t>(size.rows3));
    table.num_slots = size.slots;
    const plan::TableSize written =
        write_table_of(input, riders, costs, {table.rows1.data(), table.folds.data(), table.rows3.data()});
    EXPECT_EQ(written.rows1, size.rows1);
    EXPECT_EQ(written.folds, size.folds);
    EXPECT_EQ(written.rows3, size.rows3);
    EXPECT_EQ(written.slots, size.slots);
    return table;
  }
};

int32_t random_heads(Random& random) {
  static const std::vector<int32_t> common{1, 2, 4, 8, 16, 32, 64, 96};
  return random.in(0, 1) ? random.one_of(common) : static_cast<int32_t>(random.in(1, 128));
}

TEST(Search, RandomMixesGiveValidTablesThatNeverLose) {
  const std::vector<int32_t> units{132, 132, 132, 108, 148, 152, 170, 2, 8, 64};
  Random random(1);
  int32_t cut = 0;
  for (int32_t round = 0; round < 6000; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const plan::Costs costs = gpu(round % 2 == 0, random.one_of(units), random_heads(random));
    SCOPED_TRACE("round " + std::to_string(round) + ", units " + std::to_string(costs.units) + ", heads " +
                 std::to_string(costs.copies));
    Mix mix(lengths);
    const plan::Limits limits;
    const plan::Decision d = plan::decide(mix.input.lengths, &costs, 1, limits);
    const SegmentTable table = mix.table(d, costs);
    test::TableRules(mix.chunks()).check(table, costs);
    ASSERT_FALSE(::testing::Test::HasFailure());

    ASSERT_LE(d.predicted, d.unsplit);
    ASSERT_EQ(d.predicted, d.phase1 + d.carry + d.phase3);
    const plan::ns played = time_table(table, costs).total();
    const plan::ns whole =
        time_table(mix.table(plan::decide_whole(mix.input.lengths, &costs, 1), costs), costs).total();
    ASSERT_LE(played, whole + whole / 50 + 3000) << "the table itself, played out";
    if (d.segment == 0) continue;
    ++cut;
    ASSERT_LE(d.predicted + limits.margin_ns, d.unsplit);
    ASSERT_LE(d.predicted, d.unsplit - d.unsplit * limits.margin_permille / 1000);
    ASSERT_LE(int64_t{d.pieces} * costs.copies, int64_t{limits.max_waves} * costs.units + costs.copies - 1);
    for (const Fold& fold : table.folds) ASSERT_LT(fold.count, limits.max_segments - 1);
    ASSERT_LE(std::abs(played - d.predicted), d.predicted / 2 + 3000) << "the estimate is near the schedule";
  }
  EXPECT_GT(cut, 1000) << "the mixes must exercise the search";
}

TEST(Search, OrderOfTheInputDoesNotMatter) {
  Random random(2);
  for (int32_t round = 0; round < 500; ++round) {
    auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const plan::Costs costs = gpu(true, 132, random_heads(random));
    Mix forward(lengths);
    std::reverse(lengths.begin(), lengths.end());
    Mix backward(lengths);
    const plan::Decision a = plan::decide(forward.input.lengths, &costs, 1, {});
    const plan::Decision b = plan::decide(backward.input.lengths, &costs, 1, {});
    ASSERT_EQ(a.segment, b.segment);
    ASSERT_EQ(a.first, b.first);
    ASSERT_EQ(a.cut_seqs, b.cut_seqs);
    ASSERT_EQ(a.in_phase1, b.in_phase1);
    ASSERT_EQ(a.predicted, b.predicted);
  }
}

TEST(Search, HugeAndManySequences) {
  const plan::Costs costs = gpu(true, 132, 4);
  {
    Mix mix({int64_t{kChunk} << 24, 5, 0, 1});
    const plan::Decision d = plan::decide(mix.input.lengths, &costs, 1, {});
    EXPECT_GT(d.segment, 0);
    test::TableRules(mix.chunks()).check(mix.table(d, costs), costs);
  }
  {
    Random random(3);
    std::vector<int64_t> lengths(5000);
    for (int64_t& length : lengths) length = random.in(0, 300);
    lengths[1234] = 1 << 20;
    Mix mix(lengths);
    const plan::Decision d = plan::decide(mix.input.lengths, &costs, 1, {});
    test::TableRules(mix.chunks()).check(mix.table(d, costs), costs);
  }
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, std::vector<int64_t>{0, 0}}) {
    Mix mix(lengths);
    const plan::Decision d = plan::decide(mix.input.lengths, &costs, 1, {});
    EXPECT_EQ(d.segment, 0);
    EXPECT_EQ(d.predicted, 0);
    test::TableRules(mix.chunks()).check(mix.table(d, costs), costs);
  }
}

TEST(Search, RowsCanBeLimited) {
  plan::Limits limits;
  limits.max_rows = 5;
  const plan::Costs costs = gpu(true, 132, 4);
  Mix mix({131072});
  const plan::Decision d = plan::decide(mix.input.lengths, &costs, 1, limits);
  EXPECT_GT(d.segment, 0);
  EXPECT_LE(d.pieces, 5);
}

// The study's own cases, as predictions of the model on 132 units: milliseconds within 2 %.
TEST(Search, PredictsTheStudiedCases) {
  struct Case {
    bool kda;
    std::vector<int64_t> lengths;
    int32_t heads;
    double milliseconds;
    int64_t segments;
  };
  const std::vector<int64_t> tail10 = [] {
    std::vector<int64_t> lengths(11, 1024);
    lengths[0] = 131072;
    return lengths;
  }();
  const Case cases[] = {
      {true, {8192}, 16, 0.079, 9},   {true, {65536}, 16, 0.533, 9},   {true, {8192}, 8, 0.052, 16},
      {true, {131072}, 8, 0.572, 17}, {true, {131072}, 4, 0.308, 34},  {true, tail10, 8, 0.585, 16},
      {false, {8192}, 8, 0.041, 16},  {false, {131072}, 8, 0.414, 17}, {false, {8192}, 32, 0.097, 5},
      {true, {8192}, 96, 0.244, 1},
  };
  for (const Case& c : cases) {
    const plan::Costs costs = gpu(c.kda, 132, c.heads);
    Mix mix(c.lengths);
    const plan::Decision d = plan::decide(mix.input.lengths, &costs, 1, {});
    EXPECT_NEAR(static_cast<double>(d.predicted) / 1e6, c.milliseconds, 0.02 * c.milliseconds + 0.0005)
        << (c.kda ? "kda " : "gdn ") << c.lengths[0] << " heads " << c.heads;
    const SegmentTable table = mix.table(d, costs);
    int64_t segments = 0;
    for (const auto* rows : {&table.rows1, &table.rows3}) {
      for (const Row& row : *rows) segments += row.sequence == 0 && row.work == Work::kEmit;
    }
    EXPECT_EQ(segments, c.segments) << (c.kda ? "kda " : "gdn ") << c.lengths[0] << " heads " << c.heads;
  }
}

TEST(Search, RiskRefusesWhatOnlyJustPays) {
  plan::Limits careful;
  careful.risk_permille = 150;
  const plan::Costs costs = gpu(true, 132, 64);  // two slots: the least gain
  Mix mix({8192});
  EXPECT_GT(plan::decide(mix.input.lengths, &costs, 1, {}).segment, 0);
  EXPECT_EQ(plan::decide(mix.input.lengths, &costs, 1, careful).segment, 0);
  const plan::Costs roomy = gpu(true, 132, 4);
  EXPECT_GT(plan::decide(mix.input.lengths, &roomy, 1, careful).segment, 0);
}

TEST(Search, AnotherModeMustWinClearly) {
  plan::Costs modes[2] = {gpu(true, 132, 64), gpu(true, 132, 64)};
  modes[1].copies = 128;
  modes[0].bytes_per_ns = modes[1].bytes_per_ns = 0;
  modes[1].emit = modes[0].emit * 99 / 100;
  modes[1].summarize = modes[0].summarize * 99 / 100;
  Mix mix({8192});
  EXPECT_EQ(plan::decide(mix.input.lengths, modes, 2, {}).mode, 0);
  modes[1].emit = modes[0].emit / 2;
  modes[1].summarize = modes[0].summarize / 2;
  EXPECT_EQ(plan::decide(mix.input.lengths, modes, 2, {}).mode, 1);
}

TEST(Search, AnotherModeMayLoseALittleBesideShortSegments) {
  plan::Costs modes[2] = {gpu(true, 132, 8), gpu(true, 132, 8)};
  modes[0].bytes_per_ns = modes[1].bytes_per_ns = 0;
  modes[1].emit = modes[0].emit * 103 / 100;
  modes[1].summarize = modes[0].summarize * 103 / 100;
  Mix mix({32768});
  const int32_t segment = plan::decide(mix.input.lengths, modes, 1, {}).segment;
  ASSERT_GT(segment, 0);
  plan::Limits limits;
  auto mode = [&] { return plan::decide(mix.input.lengths, modes, 2, limits).mode; };
  EXPECT_EQ(mode(), 0);
  limits.tiles_up_to = segment - 1;
  EXPECT_EQ(mode(), 0) << "the segments are longer";
  limits.tiles_up_to = segment;
  EXPECT_EQ(mode(), 1);
  modes[1].emit = modes[0].emit * 112 / 100;
  modes[1].summarize = modes[0].summarize * 112 / 100;
  EXPECT_EQ(mode(), 0) << "loses more than a sixteenth";
  modes[1].emit = modes[0].emit;
  modes[1].summarize = modes[0].summarize;
  modes[0].emit *= 40;  // the first mode finds no cut below the whole sequence of the second
  limits.tiles_up_to = 1 << 20;
  EXPECT_EQ(mode(), 1);
}

// The test that saves a search in vain must never save a good one.
TEST(Search, BoundNeverHidesABetterCut) {
  Random random(5);
  int32_t hopeless = 0;
  for (int32_t round = 0; round < 2000; ++round) {
    Mix mix(test::random_lengths(random, static_cast<Family>(round % test::kFamilies)));
    if (mix.input.lengths.count == 0) continue;
    plan::Costs costs = gpu(round % 2 == 0, static_cast<int32_t>(random.magnitude(2, 170)), random_heads(random));
    if (round % 3 == 0) costs.bytes_per_ns = 0;
    const plan::ns bar = plan::whole_time(mix.input.lengths, costs) * random.in(20, 100) / 100;
    if (plan::can_beat(mix.input.lengths, costs, bar)) continue;
    ++hopeless;
    plan::Decision best;
    best.predicted = bar;
    plan::search_mode(mix.input.lengths, costs, {}, 0, best);
    ASSERT_EQ(best.segment, 0) << "round " << round << ": " << best.predicted << " below " << bar;
  }
  EXPECT_GT(hopeless, 500);
}

// Lengths of up to 2^30 chunks are ordered digit by digit.
TEST(Search, LengthsOfEveryMagnitudeAreOrdered) {
  Random random(57);
  for (int32_t bits = 0; bits <= 30; ++bits) {
    std::vector<int64_t> lengths;
    for (int32_t i = 0; i < 300; ++i)
      lengths.push_back(kChunk * random.in(0, (int64_t{1} << bits) / (i > 0 ? 300 : 1)));
    lengths[77] = kChunk * (int64_t{1} << bits) / 2;
    const Mix mix(lengths);
    std::vector<int32_t> expected = mix.chunks();
    std::sort(expected.begin(), expected.end(), std::greater<>());
    const plan::Key* keys = mix.input.space.keys;
    for (size_t i = 0; i < lengths.size(); ++i) {
      ASSERT_EQ(keys[i].chunks, expected[i]) << bits;
      ASSERT_TRUE(i == 0 || plan::KeyOrder()(keys[i - 1], keys[i])) << "equals keep the order of the caller";
    }
  }
}

TEST(Search, TrialsCutAsTheTableDoes) {
  Random random(58);
  for (int32_t round = 0; round < 3000; ++round) {
    const auto segment = static_cast<int32_t>(random.magnitude(1, 1 << 29));
    const auto ratio = static_cast<int32_t>(random.magnitude(1, 1 << 20));
    const plan::Shape shape = plan::shape_of(segment, ratio);
    plan::Cutter cutter(shape);
    auto n = static_cast<int32_t>(random.magnitude(1, 1 << 30));
    for (int32_t i = 0; i < 40 && n > 0; ++i, n -= static_cast<int32_t>(random.magnitude(1, 1 + n / 4))) {
      const plan::Pieces fast = cutter.pieces(n), slow = plan::balanced_pieces(n, shape);
      ASSERT_EQ(std::tie(fast.first, fast.rest, fast.count), std::tie(slow.first, slow.rest, slow.count))
          << n << " chunks, segment " << segment << ", ratio " << ratio;
      if (fast.count > 0) ASSERT_EQ(cutter.longest(fast), (slow.rest + slow.count - 1) / slow.count);
    }
  }
}

TEST(Search, DividersAreExact) {
  Random random(59);
  for (int32_t round = 0; round < 200000; ++round) {
    const auto by = static_cast<uint32_t>(random.magnitude(1, UINT32_MAX - 1));
    const auto number = static_cast<uint32_t>(random.in(0, 3) == 0 ? int64_t{by} * random.in(0, UINT32_MAX / by)
                                                                   : random.in(0, UINT32_MAX));
    ASSERT_EQ(plan::Divider(by)(number), number / by) << number << " / " << by;
    ASSERT_EQ(plan::Divider(by)(number - 1), (number - 1) / by) << number - 1 << " / " << by;
  }
}

// Rounds of equal items are one step: the end is that of items which are placed one by one.
TEST(Search, RoundsAtOnceEndAsItemsOneByOne) {
  Random random(60);
  for (int32_t round = 0; round < 2000; ++round) {
    const auto units = static_cast<int32_t>(random.magnitude(1, 200));
    plan::LoadLevels levels(units);
    std::vector<int64_t> idle(static_cast<size_t>(units));  // a heap, the earliest first
    for (int64_t each = random.magnitude(1, 1 << 20), groups = random.in(1, 12); groups > 0 && each > 0; --groups) {
      const int64_t items = random.magnitude(1, 20 * units);
      levels.place(each, items);
      for (int64_t i = 0; i < items; ++i) {
        std::pop_heap(idle.begin(), idle.end(), std::greater<>());
        idle.back() += each;
        std::push_heap(idle.begin(), idle.end(), std::greater<>());
      }
      ASSERT_EQ(levels.last(), *std::max_element(idle.begin(), idle.end())) << units << " units, " << each << " ns";
      each -= random.magnitude(1, each);
    }
  }
}

// Heads by the million are no more steps than a few.
TEST(Search, AMillionRoundsAreOneStep) {
  plan::LoadLevels levels(3);
  levels.place(1000, 2);
  levels.place(7, int64_t{1} << 50);
  const int64_t work = 2 * 1000 + 7 * (int64_t{1} << 50);
  EXPECT_GE(levels.last(), work / 3);
  EXPECT_LE(levels.last(), work / 3 + 7);
}

TEST(Search, PreparingTakesAllUnitsOrMemory) {
  plan::Costs c = gpu(true, 132, 8);
  c.heads = 8;
  EXPECT_EQ(plan::prepare_time(c, 1000), 0) << "no such step";
  c.prepare = 2200;
  EXPECT_EQ(plan::prepare_time(c, 1000), (8000 * 2200 + 131) / 132);
  EXPECT_EQ(plan::prepare_time(c, 1), 2200) << "one item is not spread";
  EXPECT_EQ(plan::prepare_time(c, 0), 0);
  c.prepare_bytes = 1 << 20;
  EXPECT_EQ(plan::prepare_time(c, 1000), (int64_t{8000} << 20) / c.bytes_per_ns);
  c.copies *= 2;
  EXPECT_EQ(plan::prepare_time(c, 1000), (int64_t{8000} << 20) / c.bytes_per_ns) << "tiles share what is prepared";
}

// A first segment is kept short where summaries may turn out short: not where that leaves too few segments, or too
// short ones.
TEST(Search, FirstSegmentsAreShortWhereSummariesMayBe) {
  auto first_of = [](int32_t heads, int64_t chunks, int32_t short_first) {
    plan::Costs c = gpu(false, 132, heads);
    c.short_first = short_first;
    Mix mix({chunks * kChunk});
    const plan::Decision d = plan::decide(mix.input.lengths, &c, 1, plan::Limits{});
    EXPECT_GT(d.segment, 0) << heads << " heads, " << chunks << " chunks";
    return std::pair(d.first, d.segment);
  };
  const auto [balanced, middle] = first_of(8, 2048, 0);
  EXPECT_GT(2 * balanced, middle);
  const auto [first, segment] = first_of(8, 2048, 32);
  EXPECT_EQ(first, segment / 8);
  EXPECT_EQ(first_of(64, 2048, 32), first_of(64, 2048, 0));  // two segments of a head at once
  EXPECT_EQ(first_of(8, 64, 32), first_of(8, 64, 0));        // segments of four chunks
}

// The device walks the trials of a round in parallel and takes the lowest (time, number): emulated here.
TEST(Search, RoundsInParallelFindTheSameDecision) {
  Random random(4);
  for (int32_t round = 0; round < 600; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    plan::Costs c = gpu(round % 2 == 0, 132, random_heads(random));
    if (round % 3 == 0) c.short_first = 32;
    Mix mix(lengths);
    const plan::Lengths& n = mix.input.lengths;
    if (n.count == 0) continue;
    const plan::Limits limits;
    const plan::Decision host = plan::decide(n, &c, 1, limits);
    const plan::Decision whole = plan::decide_whole(n, &c, 1);
    const plan::ns bar = plan::bar_of(whole, limits);
    plan::Decision best = whole;
    best.predicted = bar;
    const int32_t ratio = plan::first_ratio(n, c);
    for (int32_t stage = 0; stage < plan::kRounds && bar > 0 && (stage == 0 || best.segment > 0); ++stage) {
      plan::Decision winner = best;
      for (int32_t i = plan::trials_in(stage); i-- > 0;) {  // any order will do
        plan::Trial trial;
        if (stage == 0) {
          const plan::Seed s = plan::seed(n, c, i / plan::kVariants, ratio);
          if (s.segment == 0 || i % plan::kVariants >= plan::variants_of(i / plan::kVariants, s)) continue;
          trial = {s.segment, s.cut_seqs >= 0 ? s.cut_seqs : plan::cut_count(n, s.segment, ratio, i % plan::kVariants),
                   ratio};
        } else {
          trial = plan::polish(n, c, stage, i, best);
        }
        const plan::Estimate e = plan::trial_time(n, c, limits, trial, best.predicted);
        if (e.total < best.predicted && e.total <= winner.predicted) plan::take(winner, trial, e, 0);
      }
      best = winner;
    }
    if (!(best.predicted < bar)) best = whole;
    ASSERT_EQ(best.segment, host.segment) << "round " << round;
    ASSERT_EQ(best.cut_seqs, host.cut_seqs);
    ASSERT_EQ(best.first, host.first);
    ASSERT_EQ(best.predicted, host.predicted);
  }
}

// Sums may reach 2^61 ns and costs all that an int32_t holds: products and surcharges must not run over.
TEST(Search, TheLargestTimesKeepTheirMarginAndTheirRisk) {
  plan::Limits limits;
  plan::Decision whole;
  for (const plan::ns time : {plan::ns{1'000'001}, plan::ns{999'999'999'999}, (plan::ns{1} << 61) - 1}) {
    whole.predicted = time;
    const auto margin = static_cast<plan::ns>(static_cast<Wide>(time) * limits.margin_permille / 1000);
    EXPECT_EQ(plan::bar_of(whole, limits), time - std::max<plan::ns>(limits.margin_ns, margin)) << time;
  }
  limits.risk_permille = 150;
  plan::Costs c = gpu(true, 132, 1);
  Mix mix({int64_t{4096} * kChunk});
  const plan::Decision cut = plan::decide(mix.input.lengths, &c, 1, limits);
  ASSERT_GT(cut.segment, 0);
  EXPECT_TRUE(plan::holds_up(mix.input.lengths, c, limits, cut));
  c.carry = INT32_MAX;
  EXPECT_FALSE(plan::holds_up(mix.input.lengths, c, limits, cut));
}

}  // namespace
}  // namespace deltarelay
