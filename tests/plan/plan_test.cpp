// Whole plans: backends, forced cuts, tilings, workspace, lengths that come at execution.
#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "length_mixes.h"
#include "plan/describe/schedule.h"
#include "plan/describe/segments.h"
#include "plan/modes.h"
#include "plan/table.h"
#include "plan_cases.h"
#include "problem/status.h"
#include "table_rules.h"

namespace deltarelay {
namespace {

using test::Family;
using test::Random;
using ::testing::HasSubstr;

// The status and message of a plan that must be refused.
std::pair<dr_status, std::string> refusal(const Problem& problem, const Options& options) {
  try {
    make_plan(problem, options);
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
  return {DR_SUCCESS, ""};
}

Options forced(const test::Machine& device, int32_t segments, int64_t value) {
  Options options = test::options_on(device);
  options.segments = segments;
  options.segment_value = value;
  return options;
}

std::vector<std::string> cuts_of(const Plan& plan) {
  std::vector<std::string> cuts;
  const SegmentLists segments(plan.table, plan.problem.num_seqs);
  for (size_t n = 0; n < segments.size(); ++n) cuts.push_back(cut_text(segments[n]));
  return cuts;
}

// Steps that not every call takes end in "?".
std::vector<std::string> step_names(const Plan& plan) {
  std::vector<std::string> names;
  for (const Step& step : plan.steps)
    names.push_back(name_of(step) + std::string(step.when == When::kAlways ? "" : "?"));
  return names;
}

TEST(Plan, ForcedCountGivesThatManyOrWhole) {
  const Problem problem = test::problem_of(Rule::kGdn, {640, 64 * 3, 64, 0, 65}, 4);
  const auto plan = make_plan(problem, forced(test::prepared_on("h200"), DR_SEGMENTS_COUNT, 3));
  EXPECT_EQ(cuts_of(*plan), (std::vector<std::string>{"2x3+4", "3x1", "1", "", "2"}));
  test::TableRules(test::chunks_of(problem, 64)).check(plan->table, plan->costs);
  EXPECT_EQ(plan->table.num_slots, 4);
  EXPECT_GT(plan->predicted_ns, 0);
}

// An engine that forces a count makes steps of short sequences too: they are planned, not refused.
TEST(Plan, ForcedCountLeavesSequencesOfFewerChunksWhole) {
  const Problem problem = test::problem_of(Rule::kGdn, {640, 100}, 4);
  auto cuts_with = [&](int64_t segments) {
    return cuts_of(*make_plan(problem, forced(test::prepared_on("h200"), DR_SEGMENTS_COUNT, segments)));
  };
  EXPECT_EQ(cuts_with(10), (std::vector<std::string>{"10x1", "2"}));
  for (const int64_t segments : {int64_t{11}, int64_t{1} << 31, INT64_MAX}) {
    EXPECT_EQ(cuts_with(segments), (std::vector<std::string>{"10", "2"})) << segments;
  }
  const auto late = make_plan(test::problem_with_bounds(Rule::kGdn, 640, 2, 4),
                              forced(test::prepared_on("h200"), DR_SEGMENTS_COUNT, 11));
  EXPECT_GT(late->capacity.rows1, 0);
}

TEST(Plan, CutsIntoMoreSegmentsThanAPlanMayHaveAreRefused) {
  const Problem known = test::problem_of(Rule::kGdn, {64 * (kMostSegments + 1)}, 1);
  auto status_of = [&](const Problem& problem, int32_t rule, int64_t value) {
    return refusal(problem, forced(test::prepared_on("h200"), rule, value));
  };
  EXPECT_EQ(status_of(known, DR_SEGMENTS_LENGTH, 128).first, DR_SUCCESS);
  EXPECT_EQ(status_of(known, DR_SEGMENTS_COUNT, kMostSegments + 1).first, DR_SUCCESS);
  const Problem longer = test::problem_of(Rule::kGdn, {64 * (kMostSegments + 2)}, 1);
  for (const auto& [rule, value] :
       {std::pair{DR_SEGMENTS_LENGTH, int64_t{64}}, {DR_SEGMENTS_COUNT, kMostSegments + 2}}) {
    const auto [status, message] = status_of(longer, rule, value);
    EXPECT_EQ(status, DR_UNSUPPORTED) << rule;
    EXPECT_THAT(message, HasSubstr("segments: expected cuts into at most 262144 segments"));
    EXPECT_THAT(message, HasSubstr("found 262145"));
  }
  const Problem late = test::problem_with_bounds(Rule::kGdn, int64_t{1} << 30, 4, 1);
  EXPECT_THAT(status_of(late, DR_SEGMENTS_LENGTH, 64).second, HasSubstr("found 16777217"));
  EXPECT_THAT(status_of(late, DR_SEGMENTS_COUNT, int64_t{1} << 40).second, HasSubstr("found 16777220"));
  EXPECT_EQ(status_of(late, DR_SEGMENTS_COUNT, 8).first, DR_SUCCESS);
}

TEST(Plan, ForcedLengthIsAMultipleOfTheChunk) {
  const Problem problem = test::problem_of(Rule::kGdn, {1000, 256, 255, 257}, 2);
  const auto plan = make_plan(problem, forced(test::prepared_on("h200"), DR_SEGMENTS_LENGTH, 256));
  EXPECT_EQ(cuts_of(*plan), (std::vector<std::string>{"4x4", "4", "4", "4+1"}));
  test::TableRules(test::chunks_of(problem, 64)).check(plan->table, plan->costs);
  const auto [status, message] = refusal(problem, forced(test::device_of("h200"), DR_SEGMENTS_LENGTH, 100));
  EXPECT_EQ(status, DR_INVALID);
  EXPECT_THAT(message, HasSubstr("chunk of 32"));
  EXPECT_THAT(message, HasSubstr("100"));
  const auto whole = make_plan(problem, forced(test::prepared_on("h200"), DR_SEGMENTS_LENGTH, 64000));
  EXPECT_EQ(whole->table.num_slots, 0);
  EXPECT_TRUE(whole->table.rows3.empty());
}

// Ways of a backend: the one that is predicted to be faster; the first where bits or workspace may not depend on the
// batch.
TEST(Plan, TakesTheFasterWay) {
  const test::Machine h200 = test::device_of("h200");
  const auto chunk_of = [](const Problem& problem, const Options& options) {
    return make_plan(problem, options)->chunk();
  };
  const Problem full = test::problem_of(Rule::kGdn, {8192, 8192, 8192, 8192}, 64);
  Problem lone = test::problem_of(Rule::kGdn, {1024}, 8);
  lone.heads_qk = 1;  // `prepare` makes scores once a key head
  EXPECT_EQ(chunk_of(full, test::options_on(h200)), 32) << "fused: nothing to prepare";
  EXPECT_EQ(chunk_of(lone, test::options_on(h200)), 64) << "prepared: of a short call chunks of 64 shorten the chains";
  for (const Problem& problem : {full, lone}) {
    const auto plan = make_plan(problem, test::options_on(h200));
    const auto prepared = make_plan(problem, test::options_on(test::prepared_on("h200")));
    EXPECT_LE(plan->predicted_ns, prepared->predicted_ns);
    EXPECT_GE(predict_other_variant(*plan), plan->predicted_ns);
    EXPECT_EQ(predict_other_variant(*prepared), 0);
    EXPECT_EQ(prepared->chunk(), 64);
    Options invariant = test::options_on(h200);
    invariant.invariant = true;
    EXPECT_EQ(chunk_of(problem, invariant), 32);
  }
  EXPECT_EQ(chunk_of(test::problem_with_bounds(Rule::kGdn, 131072, 1, 8), test::options_on(h200)), 32);
  EXPECT_EQ(chunk_of(lone, forced(h200, DR_SEGMENTS_LENGTH, 32 * 33)), 32) << "33 chunks of 32 are no chunks of 64";
}

TEST(Plan, OffCutsNothing) {
  const Problem problem = test::problem_of(Rule::kKda, {131072}, 4);
  const auto plan = make_plan(problem, forced(test::device_of("h200"), DR_SEGMENTS_OFF, 0));
  EXPECT_EQ(cuts_of(*plan), std::vector<std::string>{"4096"}) << "chunks of 32 tokens";
  EXPECT_EQ(plan->predicted_ns, plan->unsplit_ns);
  EXPECT_EQ(step_names(*plan), (std::vector<std::string>{"segment table?", "prepare", "emit"}));
  EXPECT_EQ(plan->steps[2].items, 4 * plan->tiling.value_tiles);
}

TEST(Plan, PreparingIsTheFirstStepAndInEveryPrediction) {
  const test::Machine h200 = test::prepared_on("h200");
  for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
    Problem problem = test::problem_of(rule, {65536, 100, 0}, 4);
    if (rule == Rule::kGdn)
      problem.heads_qk = 1;  // alone, the q and k of every head would be more than memory can give
    const auto plan = make_plan(problem, test::options_on(h200));
    const int64_t chunks = rule == Rule::kKda ? 2048 + 4 : 1024 + 2, chunk = rule == Rule::kKda ? 32 : 64;
    const int64_t each = h200.costs.at(test::kSm90PreparedCosts, rule).prepare_ns * chunk / 64;
    ASSERT_EQ(step_names(*plan),
              (std::vector<std::string>{"segment table?", "prepare", "summarize + emit", "carry", "emit"}));
    EXPECT_EQ(plan->steps[1].items, chunks * 4);
    EXPECT_EQ(plan->steps[1].predicted_ns, plan::ceil_div(chunks * 4 * each, h200.device.units));
    EXPECT_EQ(plan->prepare_ns, plan->steps[1].predicted_ns);
    int64_t total = 0;
    for (const Step& step : plan->steps) total += step.predicted_ns;
    EXPECT_EQ(plan->predicted_ns, total);

    Options unaware = test::options_on(h200);
    unaware.costs.at(test::kSm90PreparedCosts, rule).prepare_ns = 0;
    const auto other = make_plan(problem, unaware);
    EXPECT_GT(other->steps[1].predicted_ns, 0) << "records are written all the same";
    EXPECT_LT(other->steps[1].predicted_ns, plan->steps[1].predicted_ns) << "on an H200 memory is not the limit";
    EXPECT_EQ(plan->predicted_ns - plan->prepare_ns, other->predicted_ns - other->prepare_ns);
    EXPECT_EQ(plan->unsplit_ns - plan->prepare_ns, other->unsplit_ns - other->prepare_ns);
    unaware.device.bytes_per_ns = 0;
    EXPECT_EQ(make_plan(problem, unaware)->prepare_ns, 0);
  }
  const auto late = make_plan(test::problem_with_bounds(Rule::kGdn, 1000, 3, 4), test::options_on(h200));
  ASSERT_EQ(step_names(*late),
            (std::vector<std::string>{"segment table", "prepare", "summarize + emit", "carry", "emit", "finish"}));
  EXPECT_EQ(late->steps[1].items, (16 + 3) * 4) << "as many as there may be";
  EXPECT_EQ(late->steps[1].predicted_ns, 0);
  EXPECT_EQ(step_names(*make_plan(test::problem_of(Rule::kKda, {0, 0}, 4), test::options_on(h200))),
            std::vector<std::string>{"segment table?"});
  const auto fused = make_plan(test::problem_of(Rule::kKda, {512}, 2), test::options_on(test::cpu_with(4)));
  EXPECT_EQ(fused->prepare_ns, 0);
  EXPECT_EQ(step_names(*fused), std::vector<std::string>{"emit"});
}

// What every plan has to do alike is no reason to do less about the rest.
TEST(Plan, PreparingChangesNoDecision) {
  Random random(23);
  int32_t cut = 0;
  for (int32_t round = 0; round < 300; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const Problem problem =
        test::problem_of(round % 2 ? Rule::kKda : Rule::kGdn, lengths, static_cast<int32_t>(random.magnitude(1, 64)));
    Options options = test::options_on(test::prepared_on("h200"));
    options.costs.at(test::kSm90PreparedCosts, problem.rule).prepare_ns = 0;
    const auto cheap = make_plan(problem, options);
    options.costs.at(test::kSm90PreparedCosts, problem.rule).prepare_ns = 100000;
    const auto dear = make_plan(problem, options);
    SCOPED_TRACE(round);
    ASSERT_EQ(cheap->table.rows1, dear->table.rows1);
    ASSERT_EQ(cheap->table.rows3, dear->table.rows3);
    ASSERT_EQ(cheap->tiling.value_tiles, dear->tiling.value_tiles);
    ASSERT_EQ(dear->predicted_ns - cheap->predicted_ns, dear->prepare_ns - cheap->prepare_ns);
    ASSERT_EQ(dear->unsplit_ns - cheap->unsplit_ns, dear->prepare_ns - cheap->prepare_ns);
    const auto a = candidates_of(*cheap), b = candidates_of(*dear);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].verdict, b[i].verdict) << a[i].what;
      ASSERT_EQ(b[i].predicted_ns - a[i].predicted_ns, dear->prepare_ns - cheap->prepare_ns) << a[i].what;
    }
    cut += cheap->table.num_slots > 0;
  }
  EXPECT_GT(cut, 50);
}

TEST(Plan, ForcedCutsOfRandomMixesAreValid) {
  Random random(21);
  for (int32_t round = 0; round < 600; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const Problem problem = test::problem_of(Rule::kKda, lengths, static_cast<int32_t>(random.in(1, 40)));
    const test::Machine device =
        round % 2 ? test::device_of("h200") : test::cpu_with(static_cast<int32_t>(random.in(1, 96)));
    const int32_t usual_chunk = make_plan(problem, test::options_on(device))->chunk();
    const bool by_count = random.in(0, 1) != 0;
    // No more segments than a call may have: 65,536 beyond the first of each sequence.
    const int64_t most = 60000, least = problem.num_tokens / (most * usual_chunk) + 1;
    const int64_t value = by_count ? std::min(random.magnitude(2, 300), most / problem.num_seqs + 2)
                                   : usual_chunk * std::max(least, random.magnitude(1, 200));
    SCOPED_TRACE(round);
    const Options options = forced(device, by_count ? DR_SEGMENTS_COUNT : DR_SEGMENTS_LENGTH, value);
    const auto plan = make_plan(problem, options);
    const int32_t chunk = plan->chunk();  // of two ways the other may be taken
    test::TableRules(test::chunks_of(problem, chunk)).check(plan->table, plan->costs);
    ASSERT_FALSE(::testing::Test::HasFailure());
    const SegmentLists segments(plan->table, problem.num_seqs);
    for (size_t n = 0; n < lengths.size(); ++n) {
      const int64_t chunks = (lengths[n] + chunk - 1) / chunk, found = static_cast<int64_t>(segments[n].size());
      ASSERT_EQ(found,
                by_count ? (chunks >= value ? value : std::min<int64_t>(chunks, 1)) : (lengths[n] + value - 1) / value);
    }
  }
}

TEST(Plan, AutoNeverPredictsALoss) {
  Random random(22);
  int32_t cut = 0, tiled = 0;
  for (int32_t round = 0; round < 1500; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    const Rule rule = random.in(0, 1) ? Rule::kKda : Rule::kGdn;
    const std::vector<int32_t> widths{16, 60, 64, 100, 128, 256}, value_widths{16, 60, 64, 128, 256, 384, 500, 512};
    const Problem problem = test::problem_of(rule, lengths, static_cast<int32_t>(random.magnitude(1, 64)),
                                             random.one_of(widths), random.one_of(value_widths));
    const test::Machine device = round % 2 ? test::device_of(device_at(1 + round % (device_count() - 1)).name)
                                           : test::cpu_with(static_cast<int32_t>(random.magnitude(1, 128)));
    const auto plan = make_plan(problem, test::options_on(device));
    SCOPED_TRACE(round);
    test::TableRules(test::chunks_of(problem, plan->chunk())).check(plan->table, plan->costs);
    ASSERT_FALSE(::testing::Test::HasFailure());
    ASSERT_LE(plan->predicted_ns, plan->unsplit_ns);
    const int64_t panels = plan::ceil_div(problem.dv, plan->variant.panel_columns);
    ASSERT_LE(plan->tiling.value_tiles, panels);
    if (std::string(plan->backend->name) == "cuda-sm90") {
      const int32_t strips = problem.dv / 128;
      ASSERT_TRUE(plan->tiling.value_tiles == strips || plan->tiling.value_tiles == 2 * strips);
    }
    int64_t total = 0;
    for (const Step& step : plan->steps) total += step.predicted_ns;
    if (!plan->table.folds.empty()) {
      ASSERT_EQ(total, plan->predicted_ns);
    }
    cut += plan->table.num_slots > 0;
    tiled += plan->tiling.value_tiles > 1;
  }
  EXPECT_GT(cut, 200);
  EXPECT_GT(tiled, 100);
}

TEST(Plan, ValueTilesComeBeforeSegmentsOnAFewCores) {
  const Problem one_head = test::problem_of(Rule::kGdn, {8192}, 1);
  const auto two = make_plan(one_head, test::options_on(test::cpu_with(2)));
  EXPECT_EQ(two->tiling.value_tiles, 2);
  EXPECT_EQ(two->table.num_slots, 0);
  const auto many = make_plan(one_head, test::options_on(test::cpu_with(64)));
  EXPECT_GT(many->table.num_slots, 0) << "tiles repeat the local work; segments take over";
  EXPECT_LT(many->predicted_ns, two->predicted_ns / 4);
  const auto busy = make_plan(test::problem_of(Rule::kGdn, {8192}, 4), test::options_on(test::cpu_with(2)));
  EXPECT_EQ(busy->tiling.value_tiles, 1);
  EXPECT_EQ(busy->table.num_slots, 0);
  const Problem narrow = test::problem_of(Rule::kGdn, {8192}, 1, 64, 4);
  EXPECT_EQ(make_plan(narrow, test::options_on(test::cpu_with(2)))->tiling.value_tiles, 1) << "a single panel";
}

TEST(Plan, OneThreadCutsNothing) {
  Options options = test::options_on(test::cpu_with(64));
  options.threads = 1;
  const auto plan = make_plan(test::problem_of(Rule::kKda, {65536, 300}, 2), options);
  EXPECT_EQ(plan->table.num_slots, 0);
  EXPECT_EQ(plan->tiling.value_tiles, 1);
  EXPECT_EQ(plan->tiling.threads, 1);
}

TEST(Plan, CostsScaleWithTheShape) {
  const test::Machine h200 = test::device_of("h200");
  const dr_costs& kda = h200.costs.at(test::kSm90PreparedCosts, Rule::kKda);  // per 64 tokens
  const Options options = test::options_on(h200);
  auto costs = [&](Rule rule, int32_t dk, int32_t dv, DType dtype = DType::kBf16, int32_t heads_qk = 8) {
    Problem problem = test::problem_of(rule, {8192}, 8, dk, dv);
    problem.heads_qk = heads_qk;
    problem.dtype = problem.dtype_o = problem.dtype_gate = problem.dtype_beta = dtype;
    return test::costs_of("cuda-sm90", problem, options, "prepared", std::max(1, dv / 128));
  };
  const plan::Costs full = costs(Rule::kKda, 128, 128);  // chunks of 32 tokens
  EXPECT_NEAR(full.emit, kda.emit_ns / 2, 1);
  EXPECT_NEAR(full.summarize, kda.summarize_ns / 2, 1);
  EXPECT_EQ(full.emit_bytes, kda.emit_bytes / 2);
  EXPECT_EQ(full.summarize_bytes, kda.summarize_bytes / 2);
  EXPECT_EQ(full.prepare, kda.prepare_ns / 2);
  EXPECT_EQ(full.prepare_bytes, 29696 + 32 * (3 * 128 + 1) * 2) << "the record; q, k, gates and beta";
  EXPECT_EQ(costs(Rule::kKda, 128, 128, DType::kBf16, 4).prepare_bytes, 29696 + 32 * (2 * 128 + 1) * 2)
      << "q, k shared";
  EXPECT_EQ(full.heads, 8);
  EXPECT_EQ(full.transition_bytes, 128 << 10);
  EXPECT_EQ(full.state_bytes, 64 << 10);
  // The local part goes with DK, the rest with the state it touches.
  EXPECT_NEAR(costs(Rule::kKda, 64, 64).emit, kda.local_ns / 4 + (kda.emit_ns - kda.local_ns) / 8, 1);
  EXPECT_NEAR(costs(Rule::kKda, 256, 128).emit, kda.emit_ns, 1);
  EXPECT_EQ(costs(Rule::kKda, 64, 128).prepare, kda.prepare_ns / 4);
  EXPECT_EQ(costs(Rule::kKda, 128, 256).summarize, full.summarize) << "a strip of 128 columns is a head of 128";
  EXPECT_EQ(costs(Rule::kKda, 128, 128, DType::kFp32).emit_bytes, kda.emit_bytes);
  EXPECT_EQ(full.item, kda.item_ns);
  EXPECT_NEAR(full.first_extra, kda.local_ns / 2, 1) << "a first segment is walked by a pair, as summaries are";
  Problem gdn = test::problem_of(Rule::kGdn, {8192}, 8);
  gdn.heads_qk = 2;
  gdn.dtype_gate = gdn.dtype_beta = DType::kFp32;
  EXPECT_EQ(test::costs_of("cuda-sm90", gdn, options, "prepared", 1).emit_bytes,
            h200.costs.at(test::kSm90PreparedCosts, Rule::kGdn).emit_bytes);

  const Options cpu = test::options_on(test::cpu_with(8));
  const Problem problem = test::problem_of(Rule::kKda, {8192}, 1);
  const plan::Costs one = test::costs_of("cpu", problem, cpu, "", 1), four = test::costs_of("cpu", problem, cpu, "", 4);
  EXPECT_EQ(one.emit, 26000);
  EXPECT_EQ(four.emit, 6000 + 20000 / 4) << "the local part is repeated";
  EXPECT_EQ(four.copies, 4);
  EXPECT_EQ(four.prepare + four.prepare_bytes, 0) << "inside emit";
}

Problem fused_problem(const std::vector<int64_t>& lengths, int32_t heads) {
  Problem problem = test::problem_of(Rule::kKda, lengths, heads);
  problem.gate_form = GateForm::kRawBounded;
  problem.lower_bound = -5.0f;
  return problem;
}

// Twenty of 70 tokens, 16 heads: with a CTA each 32 us (GDN) and 43 us (KDA) were measured on an H200, with pairs 45
// and 53.
TEST(Plan, ShortSequencesAreNotWalkedInPairs) {
  const Options options = test::options_on(test::device_of("h200"));
  const std::vector<int64_t> lengths(20, 70);
  EXPECT_EQ(make_plan(fused_problem(lengths, 16), options)->tiling.value_tiles, 1);
  EXPECT_EQ(make_plan(test::problem_of(Rule::kGdn, lengths, 16), options)->tiling.value_tiles, 1);
}

TEST(Plan, SummariesAreWalkedInPairs) {
  const test::Machine h200 = test::device_of("h200");
  const Options options = test::options_on(h200);
  const Problem problem = fused_problem({8192}, 16);
  for (const int32_t way : {0, 1}) {
    const char* name = way == 0 ? "fused" : "prepared";
    const int32_t row = way == 0 ? test::kSm90FusedCosts : test::kSm90PreparedCosts;
    const dr_costs& stated = h200.costs.at(row, Rule::kKda);  // per 64 tokens
    const plan::Costs one = test::costs_of("cuda-sm90", problem, options, name, 1);
    const plan::Costs two = test::costs_of("cuda-sm90", problem, options, name, 2);
    EXPECT_NEAR(two.summarize * 2, one.summarize, 1) << way;
    EXPECT_EQ(two.item * 10, one.item * (way == 0 ? 6 : 5)) << way;
    EXPECT_NEAR(two.emit, (stated.local_ns + (stated.emit_ns - stated.local_ns) / 2) / 2, 1) << way;
    EXPECT_NEAR(one.emit + one.first_extra, 2 * two.emit, 2) << way << ": the pair's time";
    EXPECT_EQ(two.first_extra, 0) << way;
    EXPECT_EQ(one.item + one.piece_extra, 2 * two.item) << way << ": both CTAs of the pair start";
    EXPECT_EQ(two.piece_extra, 0) << way;
  }

  // Short sequences: all pairs of a phase at once. Long ones: what two tiles repeat costs more than one more start.
  const auto near = make_plan(problem, options), far = make_plan(fused_problem({65536}, 16), options);
  EXPECT_EQ(near->tiling.value_tiles, 2);
  EXPECT_EQ(near->table.num_slots, 4);
  EXPECT_EQ(far->tiling.value_tiles, 1);
  EXPECT_EQ(far->table.num_slots, 8);
  for (const Plan* plan : {near.get(), far.get()}) {
    const plan::Costs costs = test::costs_of("cuda-sm90", plan->problem, options, "fused", plan->tiling.value_tiles);
    const PhaseTimes played = time_table(plan->table, costs);
    // The prediction reckons with the longest segment, which may be the last: that one is not summarized.
    EXPECT_GE(plan->predicted_ns, played.total());
    EXPECT_LE(plan->predicted_ns, played.total() + costs.summarize);
    const auto& rows = plan->table.rows1;
    const auto first = std::ranges::find(rows, Work::kEmit, &Row::work);
    ASSERT_NE(first, rows.end());
    EXPECT_LT(first->chunks, plan->table.rows3[0].chunks) << "a pair emits more slowly than it summarizes";
  }
}

TEST(Plan, BackendsInOrderAndByName) {
  const Problem problem = test::problem_of(Rule::kKda, {512}, 2);
  EXPECT_EQ(std::string(make_plan(problem, test::options_on(test::cpu_with(2)))->backend->name), "cpu");
  EXPECT_EQ(std::string(make_plan(problem, test::options_on(test::device_of("h200")))->backend->name), "cuda-sm90");
  EXPECT_EQ(std::string(make_plan(problem, test::options_on(test::device_of("rtx5090")))->backend->name), "cuda-sm80");
  EXPECT_EQ(std::string(backend_at(backend_count() - 1)->name), "reference");

  Options named = test::options_on(test::cpu_with(2));
  named.backend = "reference";
  const auto reference = make_plan(problem, named);
  EXPECT_EQ(std::string(reference->backend->name), "reference");
  EXPECT_EQ(reference->table.num_slots, 0);
  named.segments = DR_SEGMENTS_COUNT;
  named.segment_value = 2;
  EXPECT_EQ(refusal(problem, named).first, DR_UNSUPPORTED);
  EXPECT_THAT(refusal(problem, named).second, HasSubstr("whole"));
  named = test::options_on(test::cpu_with(2));
  named.backend = "reference";
  named.invariant = true;
  EXPECT_EQ(make_plan(problem, named)->grain, -1);

  named.backend = "cuda-sm90";
  EXPECT_EQ(refusal(problem, named).first, DR_UNSUPPORTED);
  EXPECT_THAT(refusal(problem, named).second, HasSubstr("cuda-sm90: device"));
  Options absent = test::options_on(test::device_of("b200"));
  absent.backend = "cuda-sm90";
  EXPECT_THAT(refusal(problem, absent).second, HasSubstr("expected 9.0, found 10.0"));

  Options columns = test::options_on(test::cpu_with(2));
  columns.columns = {0, 5};
  EXPECT_EQ(std::string(make_plan(problem, columns)->backend->name), "reference")
      << "the cpu backend computes all columns";
}

TEST(Plan, NamesAllReasonsWhenNoBackendServes) {
  Options options = test::options_on(test::cpu_with(2));
  options.math = DR_MATH_TF32;
  const auto [status, message] = refusal(test::problem_of(Rule::kKda, {512}, 2), options);
  EXPECT_EQ(status, DR_UNSUPPORTED);
  for (const char* name : {"cpu: ", "cuda-sm90: ", "cuda-sm80: ", "reference: "}) EXPECT_THAT(message, HasSubstr(name));
}

TEST(Plan, TooManyChunksAreDeclined) {
  Problem problem = test::problem_of(Rule::kKda, {int64_t{1} << 37}, 1);
  EXPECT_EQ(refusal(problem, test::options_on(test::cpu_with(2))).first, DR_UNSUPPORTED);
}

TEST(Plan, LedgerHoldsScratchSlotsAndTransitions) {
  const Problem problem = test::problem_of(Rule::kKda, {1024}, 3, 64, 32);
  const auto plan = make_plan(problem, forced(test::cpu_with(4), DR_SEGMENTS_COUNT, 4));
  const auto bytes = [&](BufferId name) { return plan->ledger.find(name) ? plan->ledger.find(name)->bytes : 0; };
  EXPECT_EQ(bytes(BufferId::kScratch), 4 * plan->scratch_bytes);
  EXPECT_EQ(bytes(BufferId::kSlotState), size_t{3} * 3 * static_cast<size_t>(plan->variant.state_floats) * 4);
  EXPECT_EQ(bytes(BufferId::kTransition), size_t{3} * 3 * static_cast<size_t>(plan->variant.transition_floats) * 4);
  EXPECT_EQ(bytes(BufferId::kTable), 0u);
  size_t end = 0;
  for (const Buffer& buffer : plan->ledger.buffers()) {
    EXPECT_EQ(buffer.offset % kWorkspaceAlignment, 0u);
    EXPECT_GE(buffer.offset, end);
    end = buffer.offset + buffer.bytes;
  }
  EXPECT_GE(plan->ledger.total_bytes(), end);
}

TEST(Plan, BatchedSequencesArePlannedLikePackedOnes) {
  Problem batched = test::problem_of(Rule::kKda, {}, 4);
  batched.num_seqs = 3;
  batched.seq_len = 9000;
  batched.num_tokens = 27000;
  batched.offsets.clear();
  const Options options = test::options_on(test::device_of("h200"));
  const auto a = make_plan(batched, options),
             b = make_plan(test::problem_of(Rule::kKda, {9000, 9000, 9000}, 4), options);
  EXPECT_EQ(a->table.rows1, b->table.rows1);
  EXPECT_EQ(a->table.folds, b->table.folds);
  EXPECT_EQ(a->table.rows3, b->table.rows3);
  EXPECT_GT(a->table.num_slots, 0);
}

// Lengths at execution: the table of a plan with bounds is the one that a plan with these lengths and this tiling has.
class LateLengths : public ::testing::Test {
 protected:
  // Fills exactly the booked memory, with guards on both ends.
  static SegmentTable filled(const Plan& plan, const std::vector<int64_t>& lengths) {
    std::vector<int64_t> offsets{0};
    for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
    const size_t bytes = plan.ledger.find(BufferId::kTable)->bytes, guard = 256;
    std::vector<std::byte> memory(bytes + 2 * guard, std::byte{0xa5});
    const TableView view =
        fill_table(plan, {offsets.data(), 0, static_cast<int64_t>(lengths.size())}, memory.data() + guard, bytes);
    for (size_t i = 0; i < guard; ++i) {
      EXPECT_EQ(memory[i], std::byte{0xa5});
      EXPECT_EQ(memory[bytes + guard + i], std::byte{0xa5});
    }
    SegmentTable table;
    table.rows1.assign(view.rows1, view.rows1 + view.num_rows1);
    table.folds.assign(view.folds, view.folds + view.num_folds);
    table.rows3.assign(view.rows3, view.rows3 + view.num_rows3);
    for (const Row& row : table.rows1) table.num_slots = std::max<int64_t>(table.num_slots, row.slot_out + 1);
    for (const Fold& fold : table.folds)
      table.num_slots = std::max<int64_t>(table.num_slots, fold.slot + fold.count + 1);
    return table;
  }
};

TEST_F(LateLengths, TableEqualsThatOfKnownLengths) {
  Random random(31);
  int32_t cut = 0, compared = 0;
  for (int32_t round = 0; round < 1200; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<Family>(round % test::kFamilies));
    int64_t tokens = random.in(0, 5000);
    for (const int64_t length : lengths) tokens += length;
    const int64_t num_seqs = static_cast<int64_t>(lengths.size()) + random.in(0, 10);
    auto padded = lengths;  // offsets have num_seqs + 1 entries: the sequences that are not there are empty
    padded.resize(static_cast<size_t>(num_seqs));
    const int32_t heads = static_cast<int32_t>(random.magnitude(1, 64));
    Options options = test::options_on(round % 2 ? test::device_of("h200") : test::cpu_with(48));
    const int64_t way = random.in(0, 3);
    if (way == 1) options.invariant = true;
    if (way == 2 || way == 3) {
      options.segments = way == 2 ? DR_SEGMENTS_COUNT : DR_SEGMENTS_LENGTH;
      options.segment_value = way == 2 ? random.in(2, 12) : 64 * random.in(1, 40);
    }
    SCOPED_TRACE(round);
    const auto late = make_plan(test::problem_with_bounds(Rule::kKda, tokens, num_seqs, heads), options);
    const SegmentTable table = filled(*late, padded);
    const Problem known = test::problem_of(Rule::kKda, padded, heads);
    test::TableRules(test::chunks_of(known, late->chunk())).check(table, late->costs);
    ASSERT_LE(table.num_slots, late->table.num_slots) << "inside the booked slots";
    ASSERT_LE(static_cast<int64_t>(table.rows1.size()), late->capacity.rows1);
    ASSERT_LE(static_cast<int64_t>(table.rows3.size()), late->capacity.rows3);
    const CallBounds bounds = bounds_of(*late);
    ASSERT_LE(static_cast<int64_t>(table.rows1.size()), bounds.rows1) << "inside the grids";
    ASSERT_LE(static_cast<int64_t>(table.folds.size()), bounds.folds);
    ASSERT_LE(static_cast<int64_t>(table.rows3.size()), bounds.rows3);
    ASSERT_FALSE(::testing::Test::HasFailure());
    cut += table.num_slots > 0;
    const auto host = make_plan(known, options);
    if (host->variant.number != late->variant.number) continue;  // late lengths keep to the first
    if (host->tiling.value_tiles != late->tiling.value_tiles) continue;
    if (way == 0 && host->decision.segment == 0 && modes_of(known, options, *host->backend, host->variant).count > 1)
      continue;
    ASSERT_EQ(table.rows1, host->table.rows1);
    ASSERT_EQ(table.folds, host->table.folds);
    ASSERT_EQ(table.rows3, host->table.rows3);
    ++compared;
  }
  EXPECT_GT(cut, 300);
  EXPECT_GT(compared, 600);
}

TEST_F(LateLengths, WorkspaceGrowsWithBothBounds) {
  for (const char* device : {"h200", "cpu"}) {
    for (const int32_t segments : {DR_SEGMENTS_AUTO, DR_SEGMENTS_OFF, DR_SEGMENTS_COUNT, DR_SEGMENTS_LENGTH}) {
      for (const bool invariant : {false, true}) {
        if (invariant && segments == DR_SEGMENTS_COUNT) continue;
        Options options = test::options_on(std::string(device) == "cpu" ? test::cpu_with(48) : test::device_of(device));
        options.segments = segments;
        options.segment_value = segments == DR_SEGMENTS_COUNT ? 4 : 256;
        options.invariant = invariant;
        size_t before = 0;
        for (const int64_t tokens : {256, 300, 1000, 1024, 20000, 100000, 1000000}) {
          size_t last = 0;
          for (const int64_t num_seqs : {1, 2, 3, 8, 64, 1000}) {
            const size_t bytes =
                make_plan(test::problem_with_bounds(Rule::kGdn, tokens, num_seqs, 3), options)->ledger.total_bytes();
            EXPECT_GE(bytes, last) << device << " tokens " << tokens << " seqs " << num_seqs;
            last = bytes;
            if (num_seqs == 8) {
              EXPECT_GE(bytes, before);
              before = bytes;
            }
          }
        }
      }
    }
  }
}

TEST_F(LateLengths, LessMemoryThanBookedIsRefused) {
  const auto plan = make_plan(test::problem_with_bounds(Rule::kKda, 1000, 2, 4), test::options_on(test::cpu_with(48)));
  std::vector<std::byte> memory(plan->ledger.find(BufferId::kTable)->bytes);
  const int64_t offsets[] = {0, 10, 20};
  EXPECT_THROW(fill_table(*plan, {offsets, 0, 2}, memory.data(), memory.size() - 1), Error);
}

}  // namespace
}  // namespace deltarelay
