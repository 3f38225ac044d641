// What a plan says about itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "length_mixes.h"
#include "plan/describe/schedule.h"
#include "plan/describe/segments.h"
#include "plan/plan.h"
#include "plan/table.h"
#include "plan_cases.h"

namespace deltarelay {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json parsed(const Plan& plan) { return json::parse(describe_json(plan)); }

TEST(Describe, JsonHoldsTheWholePlan) {
  const Problem problem = test::problem_of(Rule::kKda, {131072, 1024, 0, 1000}, 4);
  Options options = test::options_on(test::device_of("h200"));
  options.variant = "prepared";
  const auto plan = make_plan(problem, options);
  const json j = parsed(*plan);
  EXPECT_EQ(j["backend"], "cuda-sm90");
  EXPECT_EQ(j["chunk"], 32);
  EXPECT_EQ(j["problem"]["rule"], "kda");
  EXPECT_EQ(j["problem"]["lengths"], json({131072, 1024, 0, 1000}));
  EXPECT_EQ(j["device"]["name"], "h200");
  EXPECT_EQ(j["device"]["units"], 132);
  EXPECT_EQ(j["device"]["here"], false);
  ASSERT_EQ(j["costs"].size(), 8u);
  EXPECT_EQ(j["costs"][0]["backend"], "cuda-sm90");
  EXPECT_EQ(j["costs"][0]["variant"], "prepared");
  EXPECT_EQ(j["costs"][0]["rule"], "kda");
  EXPECT_EQ(j["costs"][0]["measured_on"], "h200");
  const dr_costs stated = test::costs_on("h200", test::kSm90PreparedCosts, Rule::kKda);
  EXPECT_EQ(j["costs"][0]["emit_ns"], stated.emit_ns);
  EXPECT_EQ(j["options"]["segments"], "auto");
  EXPECT_EQ(j["predicted_ns"], plan->predicted_ns);
  EXPECT_EQ(j["workspace_bytes"], plan->ledger.total_bytes());
  EXPECT_EQ(j["ledger"].size(), plan->ledger.buffers().size());
  EXPECT_EQ(j["rows1"].size(), plan->table.rows1.size());
  EXPECT_EQ(j["rows3"].size(), plan->table.rows3.size());
  EXPECT_EQ(j["folds"].size(), plan->table.folds.size());
  EXPECT_EQ(j["costs"][0]["prepare_ns"], stated.prepare_ns);
  ASSERT_EQ(j["steps"].size(), plan->steps.size());
  ASSERT_EQ(j["steps"].size(), 5u);
  EXPECT_EQ(j["steps"][0]["condition"], "a report is wanted");
  EXPECT_EQ(j["steps"][1]["stage"], "prepare");
  EXPECT_EQ(j["steps"][1]["buffers"], json({"prepared operands", "segment table"}));
  EXPECT_EQ(j["steps"][2]["stage"], "summarize + emit");
  EXPECT_EQ(j["steps"][2]["phase"], 1);
  EXPECT_EQ(j["steps"][2]["form"], "pair");
  EXPECT_EQ(j["steps"][2]["rows"], plan->table.rows1.size());
  EXPECT_EQ(j["steps"][4]["variant"], "prepared");
  EXPECT_EQ(j["declined"].size(), 3u);
  EXPECT_EQ(j["signature"], describe_signature(*plan));
  EXPECT_EQ(j["segments"].size(), 4u);
  EXPECT_GT(j["segments"][0].size(), 8u);
  EXPECT_EQ(j["segments"][2].size(), 0u);
  int64_t at = 0;
  for (const json& segment : j["segments"][0]) {
    EXPECT_EQ(segment["begin"], at);
    at += segment["chunks"].get<int64_t>();
  }
  EXPECT_EQ(at, 4096);
}

// Both schedules: no unit does two things at once, phases follow each other, every item is there once.
TEST(Describe, ScheduleIsPossible) {
  test::Random random(41);
  for (int32_t round = 0; round < 60; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<test::Family>(round % test::kFamilies));
    const Problem problem = test::problem_of(Rule::kGdn, lengths, static_cast<int32_t>(random.in(1, 12)));
    Options options = test::options_on(round % 2 ? test::device_of("h200") : test::cpu_with(16));
    options.invariant = round % 5 == 0;
    const auto plan = make_plan(problem, options);
    const json j = parsed(*plan);
    SCOPED_TRACE(round);
    if (!j.contains("schedule")) {
      EXPECT_THAT(j["schedule_omitted"].get<std::string>(), HasSubstr("more than 20000"));
      continue;
    }
    EXPECT_EQ(j["schedule"]["units"], plan->costs.units);
    EXPECT_EQ(j["schedule"]["prepare_ns"], plan->prepare_ns);
    for (const char* which : {"split", "unsplit"}) {
      std::vector<int64_t> busy_until(static_cast<size_t>(plan->costs.units), plan->prepare_ns);
      int64_t phase_end[4] = {0, 0, 0, 0}, phase_start[4] = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}, end = 0;
      for (const json& item : j["schedule"][which]) {
        const size_t unit = item["unit"], phase = item["phase"];
        const int64_t start = item["start_ns"], stop = item["end_ns"];
        ASSERT_LT(unit, busy_until.size());
        ASSERT_GE(start, busy_until[unit]);
        ASSERT_GE(stop, start);
        busy_until[unit] = stop;
        phase_end[phase] = std::max(phase_end[phase], stop);
        phase_start[phase] = std::min(phase_start[phase], start);
        end = std::max(end, stop);
      }
      EXPECT_LE(phase_end[1], phase_start[2]);
      EXPECT_LE(phase_end[2], phase_start[3]);
      EXPECT_LE(end, j["schedule"][std::string(which) + "_ns"].get<int64_t>());
    }
    EXPECT_EQ(static_cast<int64_t>(j["schedule"]["split"].size()),
              scheduled_items(plan->table, plan->costs, plan->relay));
  }
}

// A schedule of 36 hours, whose square has more than 63 bits.
TEST(Describe, ScheduleOfALongCallEndsWhereItSays) {
  const Problem problem = test::problem_of(Rule::kKda, {int64_t{1} << 20}, 1);
  Options options = test::options_on(test::cpu_with(1));
  dr_costs& costs = options.costs.at(test::kCpuCosts, Rule::kKda);
  costs.emit_ns = costs.summarize_ns = 2'000'000'000;
  costs.local_ns = costs.summarize_local_ns = 0;
  const auto plan = make_plan(problem, options);
  const json schedule = parsed(*plan)["schedule"];
  ASSERT_EQ(schedule["split"].size(), 1u);
  EXPECT_GT(plan->predicted_ns, int64_t{100'000'000'000'000});
  EXPECT_EQ(schedule["split"][0]["start_ns"], 0);
  EXPECT_EQ(schedule["split"][0]["end_ns"], plan->predicted_ns);
}

TEST(Describe, ScheduleOfAHugeCallIsLeftOut) {
  const auto plan = make_plan(test::problem_of(Rule::kKda, std::vector<int64_t>(1000, 500), 64),
                              test::options_on(test::device_of("h200")));
  const json j = parsed(*plan);
  EXPECT_FALSE(j.contains("schedule"));
  EXPECT_THAT(j["schedule_omitted"].get<std::string>(), HasSubstr("128000 work items"));
}

TEST(Describe, TextNamesChoiceRejectedCandidatesAndDeclines) {
  Options options = test::options_on(test::device_of("h200"));
  options.variant = "prepared";
  const auto plan = make_plan(test::problem_of(Rule::kKda, {131072}, 8), options);
  const std::string text = describe_text(*plan);
  EXPECT_THAT(text, HasSubstr("absent device"));
  EXPECT_THAT(text, HasSubstr("backend cuda-sm90 (prepared): chunks of 32 tokens"));
  EXPECT_THAT(text, HasSubstr("1 of 1 sequence cut, at most 17 segments"));
  EXPECT_THAT(text, HasSubstr("every sequence whole, 1 value tile: "));
  EXPECT_THAT(text, HasSubstr("  prepare: 32768 items, 620.6 us; "));
  EXPECT_THAT(text, HasSubstr("slower"));
  EXPECT_THAT(text, HasSubstr("chosen"));
  EXPECT_THAT(text, HasSubstr("cpu: "));
  EXPECT_THAT(text, HasSubstr("slot transition"));
  EXPECT_THAT(text, HasSubstr(describe_signature(*plan)));
}

TEST(Describe, SaysWhetherSummariesTryTheEndOfASegmentFirst) {
  const Options h200 = test::options_on(test::device_of("h200"));
  Options whole = h200;
  whole.segments = DR_SEGMENTS_OFF;
  struct Tries {
    Rule rule;
    int64_t tokens;
    int32_t heads, width;
    bool cut, tries;
    bool backwards = false;
    float gate_floor = 0.0f;
    const char* variant = "";
  };
  for (const Tries& t :
       {Tries{Rule::kGdn, 32768, 8, 128, true, false, true}, Tries{Rule::kGdn, 32768, 8, 128, false, false},
        Tries{Rule::kGdn, 32768, 8, 96, true, true},
        Tries{Rule::kKda, 131072, 4, 128, true, true, false, 0.0f, "prepared"},
        // Every summary runs at once there, so short ones would gain nothing.
        Tries{Rule::kKda, 16384, 4, 128, true, false, false, 0.0f, "prepared"},
        Tries{Rule::kKda, 131072, 4, 128, true, false, true}, Tries{Rule::kKda, 32768, 8, 96, true, false},
        Tries{Rule::kKda, 131072, 4, 128, true, false, true, -5.0f},
        Tries{Rule::kKda, 16384, 4, 128, true, false, true, -5.0f},
        Tries{Rule::kKda, 131072, 4, 128, false, false, false, -5.0f}, Tries{Rule::kKda, 32768, 8, 64, true, true}}) {
    Problem problem = test::problem_of(t.rule, {t.tokens}, t.heads, t.width, t.width);
    problem.dtype = DType::kBf16;
    problem.gate_floor = t.gate_floor;
    Options options = t.cut ? h200 : whole;
    options.variant = t.variant;
    const auto plan = make_plan(problem, options);
    const std::string text = describe_text(*plan);
    EXPECT_EQ(text.find("summaries try the last chunks") != std::string::npos, t.tries) << text;
    EXPECT_EQ(parsed(*plan)["tries_suffixes"].get<bool>(), t.tries) << text;
    EXPECT_EQ(text.find("summaries walk a segment from its end") != std::string::npos, t.backwards) << text;
  }
}

TEST(Describe, SaysWhetherHeadsWalkAsTwins) {
  struct Twins {
    Rule rule;
    int64_t tokens;
    int32_t heads_qk, heads_v;
    bool twins;
  };
  for (const Twins& t : {Twins{Rule::kGdn, 8192, 16, 32, true}, Twins{Rule::kGdn, 512, 8, 64, true},
                         Twins{Rule::kGdn, 480, 8, 64, false},    // rows are too short
                         Twins{Rule::kGdn, 8192, 12, 36, false},  // three heads a key
                         Twins{Rule::kGdn, 8192, 32, 32, false}, Twins{Rule::kKda, 8192, 16, 32, false},
                         Twins{Rule::kGdn, 8192, 2, 4, false}}) {  // few heads: two CTAs each
    Problem problem = test::problem_of(t.rule, std::vector<int64_t>(4, t.tokens), t.heads_v, 128, 128);
    problem.dtype = DType::kBf16;
    problem.heads_qk = t.heads_qk;
    Options options = test::options_on(test::device_of("h200"));
    options.segments = DR_SEGMENTS_OFF;
    const auto plan = make_plan(problem, options);
    const std::string text = describe_text(*plan);
    EXPECT_EQ(text.find("as twins") != std::string::npos, t.twins) << text;
    EXPECT_EQ(parsed(*plan)["twins"].get<bool>(), t.twins) << text;
  }
}

// Shown beside the same rows in rounds.
TEST(Describe, ShowsWhoWalksWhatOfRowsThatAreHandedOn) {
  Problem problem = test::problem_of(Rule::kGdn, {8192, 8000, 8192, 7000, 6100}, 32, 128, 128);
  problem.dtype = DType::kBf16;
  problem.heads_qk = 16;
  const auto plan = make_plan(problem, test::options_on(test::device_of("h200")));
  const json j = parsed(*plan);
  EXPECT_EQ(j["relay_shares"].get<int64_t>(), plan->relay.places());
  EXPECT_EQ(plan->relay.side, 2) << "twins";
  std::map<std::pair<int64_t, int64_t>, std::vector<json>>
      parts;  // of each sequence and head, in the order of segments
  std::vector<int64_t> busy_until(static_cast<size_t>(j["schedule"]["units"]), 0);
  for (const json& item : j["schedule"]["split"]) {
    parts[{item["sequence"], item["head"]}].push_back(item);
    int64_t& until = busy_until.at(item["unit"].get<size_t>());
    EXPECT_GE(item["start_ns"].get<int64_t>(), until);
    until = item["end_ns"];
  }
  EXPECT_EQ(parts.size(), size_t{5} * 32);
  int64_t handed_on = 0;
  for (auto& [what, of_head] : parts) {
    ASSERT_LE(of_head.size(), 2u);
    if (of_head.size() == 1) continue;
    ++handed_on;
    if (of_head[0]["segment"].get<int64_t>() > 0) std::swap(of_head[0], of_head[1]);
    EXPECT_EQ(of_head[0]["unit"].get<int64_t>() + plan->relay.side, of_head[1]["unit"].get<int64_t>());
    EXPECT_LE(of_head[0]["end_ns"].get<int64_t>(), of_head[1]["start_ns"].get<int64_t>()) << "nobody waits";
  }
  EXPECT_GT(handed_on, 100);
  EXPECT_GT(j["schedule"]["unsplit_ns"].get<int64_t>(), j["schedule"]["split_ns"].get<int64_t>());
}

TEST(Describe, OneCandidateIsChosenAndOthersCostWhatTheySay) {
  test::Random random(42);
  for (int32_t round = 0; round < 100; ++round) {
    const auto lengths = test::random_lengths(random, static_cast<test::Family>(round % test::kFamilies));
    Options options = test::options_on(round % 3 == 0   ? test::device_of("b200")
                                       : round % 3 == 1 ? test::device_of("h200")
                                                        : test::cpu_with(24));
    if (round % 7 == 0) options.segments = DR_SEGMENTS_OFF;
    const auto plan = make_plan(test::problem_of(Rule::kKda, lengths, 2), options);
    if (plan->table.rows1.empty()) continue;
    int32_t chosen = 0;
    for (const Candidate& c : candidates_of(*plan)) {
      if (c.verdict == "chosen") {
        ++chosen;
        EXPECT_EQ(c.predicted_ns, plan->predicted_ns);
      }
      EXPECT_TRUE(c.verdict != "slower" || c.predicted_ns >= plan->predicted_ns) << c.what;
    }
    EXPECT_EQ(chosen, 1) << describe_text(*plan);
  }
}

TEST(Describe, SignatureLeavesOutTilingAndThreads) {
  const Problem problem = test::problem_of(Rule::kGdn, {8192, 64}, 1);
  Options options = test::options_on(test::cpu_with(2));
  const auto two = make_plan(problem, options);
  options.threads = 1;
  const auto one = make_plan(problem, options);
  EXPECT_NE(two->tiling.value_tiles, one->tiling.value_tiles);
  EXPECT_EQ(describe_signature(*two), describe_signature(*one));
  options.segments = DR_SEGMENTS_COUNT;
  options.segment_value = 2;
  const std::string forced = describe_signature(*make_plan(problem, options));
  EXPECT_NE(forced, describe_signature(*one));
  EXPECT_THAT(forced, HasSubstr("cuts=0:2x256"));
  EXPECT_EQ(forced, describe_signature(*make_plan(problem, options))) << "the same every time";
}

TEST(Describe, TruncatedCarrySaysItsBoundAndWhoDrops) {
  const Problem problem = test::problem_of(Rule::kKda, {4096}, 2);
  Options gpu = test::options_on(test::device_of("h200")), cpu = test::options_on(test::cpu_with(2));
  EXPECT_EQ(vanish_bound_of(*make_plan(problem, gpu)), 0.0f);
  EXPECT_THAT(describe_signature(*make_plan(problem, gpu)), HasSubstr(" carry=exact "));
  for (Options* options : {&gpu, &cpu}) options->carry = CarryMode::kTruncated, options->carry_log_decay = -16.0f;
  const auto drops = make_plan(problem, gpu), exact = make_plan(problem, cpu);
  EXPECT_THAT(describe_signature(*drops), HasSubstr(" carry=truncated:-16 "));
  EXPECT_EQ(parsed(*drops)["options"]["carry"], "truncated:-16");
  EXPECT_THAT(describe_text(*drops), HasSubstr("carry truncated:-16: a segment's history is dropped"));
  EXPECT_THAT(describe_text(*exact), HasSubstr("carry truncated:-16: this backend drops nothing"));
  // 128 x 128 numbers of at most the bound have a norm of at most e^-16.
  const double bound = vanish_bound_of(*drops);
  EXPECT_LE(bound * 128, std::exp(-16.0));
  EXPECT_GT(bound * 128, std::exp(-16.0) * (1 - 1e-6));
  gpu.carry_log_decay = -80.0f;
  EXPECT_GT(vanish_bound_of(*make_plan(problem, gpu)), std::numeric_limits<float>::min());
}

TEST(Describe, LengthsAtExecutionAreSaidSo) {
  const auto plan =
      make_plan(test::problem_with_bounds(Rule::kKda, 100000, 8, 4), test::options_on(test::device_of("h200")));
  EXPECT_THAT(describe_text(*plan), HasSubstr("lengths that come at execution"));
  const json j = parsed(*plan);
  EXPECT_EQ(j["schedule_omitted"], "lengths come at execution");
  EXPECT_THAT(describe_signature(*plan), HasSubstr("cuts=at-execution:auto"));
}

// The cuts of late lengths follow from units, costs and bounds, and so do the bits of a result.
TEST(Describe, SignatureOfLateLengthsNamesWhatTheyAreCutBy) {
  const std::vector<std::vector<int64_t>> calls{{20000}, {9000, 3000}, {40000, 100, 100}, {3000}, {65536}};
  const auto cuts_of = [&](const Plan& plan) {
    std::string cuts;
    for (const std::vector<int64_t>& lengths : calls) {
      std::vector<int64_t> offsets{0};
      for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
      const auto num_seqs = static_cast<int64_t>(lengths.size());
      std::vector<std::byte> memory(table_bytes(plan.problem.num_seqs, plan.capacity) + 64);
      void* aligned = memory.data();
      size_t space = memory.size();
      std::align(64, 1, aligned, space);
      const TableView table = fill_table(plan, {offsets.data(), 0, num_seqs}, static_cast<std::byte*>(aligned), space);
      SegmentTable rows;
      rows.rows1.assign(table.rows1, table.rows1 + table.num_rows1);
      rows.rows3.assign(table.rows3, table.rows3 + table.num_rows3);
      const SegmentLists segments(rows, num_seqs);
      for (size_t n = 0; n < segments.size(); ++n) cuts += cut_text(segments[n]) + " ";
    }
    return cuts;
  };
  std::map<std::string, std::string> cuts_by_signature;
  int32_t plans = 0;
  for (const int32_t units : {4, 16}) {
    for (const int32_t threads : {1, 4, 16}) {
      for (const int64_t tokens : {int64_t{65536}, int64_t{100000}}) {
        for (const int64_t num_seqs : {3, 64}) {
          for (const int32_t factor : {1, 20}) {
            Options options = test::options_on(test::cpu_with(units));
            options.threads = threads;
            options.costs.at(test::kCpuCosts, Rule::kKda).split_ns *= factor;
            options.costs.at(test::kCpuCosts, Rule::kKda).carry_ns *= factor;
            const auto plan = make_plan(test::problem_with_bounds(Rule::kKda, tokens, num_seqs, 2, 128, 16), options);
            ++plans;
            const std::string signature = describe_signature(*plan), cuts = cuts_of(*plan);
            EXPECT_EQ(cuts_by_signature.emplace(signature, cuts).first->second, cuts) << signature;
          }
        }
      }
    }
  }
  std::set<std::string> kinds;
  for (const auto& [signature, cuts] : cuts_by_signature) kinds.insert(cuts);
  EXPECT_GT(kinds.size(), 3u) << "the plans cut alike, so nothing was compared";
  EXPECT_LT(static_cast<int32_t>(cuts_by_signature.size()), plans) << "plans that cut alike share a signature";
  Options options = test::options_on(test::cpu_with(16));
  options.segments = DR_SEGMENTS_COUNT;
  options.segment_value = 4;
  EXPECT_THAT(describe_signature(*make_plan(test::problem_with_bounds(Rule::kKda, 65536, 3, 2), options)),
              ::testing::EndsWith("cuts=at-execution:4"))
      << "cuts by a count follow from the lengths alone";
}

TEST(Describe, EveryKindOfPlanParses) {
  const std::vector<int64_t> lengths{5000, 0, 64, 20000};
  for (int32_t i = 0; i < device_count(); ++i) {
    Options options = test::options_on(test::device_of(device_at(i).name));
    const Problem problem = test::problem_of(Rule::kKda, lengths, 2);
    for (const bool invariant : {false, true}) {
      options.invariant = invariant;
      EXPECT_EQ(parsed(*make_plan(problem, options))["device"]["name"], std::string(device_at(i).name));
    }
  }
  Options odd = test::options_on(test::cpu_with(2));
  odd.device.name[0] = '"';
  odd.device.name[1] = '\n';
  EXPECT_EQ(parsed(*make_plan(test::problem_of(Rule::kKda, lengths, 2), odd))["device"]["name"].get<std::string>()[0],
            '"');
  const json empty = parsed(*make_plan(test::problem_of(Rule::kKda, {}, 2), test::options_on(test::cpu_with(2))));
  EXPECT_EQ(empty["segments"].size(), 0u);
}

}  // namespace
}  // namespace deltarelay
