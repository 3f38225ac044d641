// Bad options: each is refused with its name, what was expected and what was found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "deltarelay/deltarelay.h"
#include "plan/plan.h"
#include "plan_cases.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

using ::testing::HasSubstr;

Options validated(const std::function<void(dr_options&)>& change) {
  dr_options request{};
  request.size = sizeof request;
  change(request);
  return validate_options(&request, test::problem_of(Rule::kKda, {100}, 2, 64, 32));
}

void expect_refused(const std::function<void(dr_options&)>& change, dr_status status, const std::string& words) {
  try {
    validated(change);
    FAIL() << "accepted, expected a refusal with: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
}

TEST(Options, Defaults) {
  const Options none = validate_options(nullptr, test::problem_of(Rule::kKda, {100}, 2));
  EXPECT_EQ(none.segments, DR_SEGMENTS_AUTO);
  EXPECT_TRUE(none.device_is_here);
  EXPECT_EQ(none.threads, none.device.units);
  EXPECT_EQ(none.policy, "deltarelay");
  const Options zero = validated([](dr_options&) {});
  EXPECT_EQ(zero.threads, none.threads);
  EXPECT_EQ(zero.policy, none.policy);
  EXPECT_TRUE(zero.backend.empty());
}

TEST(Options, OneSegmentIsOff) {
  const Options one = validated([](dr_options& o) {
    o.segments = DR_SEGMENTS_COUNT;
    o.segment_value = 1;
  });
  EXPECT_EQ(one.segments, DR_SEGMENTS_OFF);
}

TEST(Options, ACpuIsHereWhateverItsFacts) {
  dr_device device = device_at(0);
  EXPECT_TRUE(validated([&](dr_options& o) { o.device = &device; }).device_is_here);
  device.units += 1;
  device.l1_bytes = 0;
  device.l2_bytes = int64_t{1} << 40;
  std::strncpy(device.name, "the machine next door", sizeof device.name - 1);
  const Options other = validated([&](dr_options& o) { o.device = &device; });
  EXPECT_TRUE(other.device_is_here);
  EXPECT_EQ(other.threads, device.units);
}

TEST(Options, FactsOfACpuThatCannotBe) {
  dr_device device = device_at(0);
  device.units = 4097;
  expect_refused([&](dr_options& o) { o.device = &device; }, DR_INVALID,
                 "options.device.units: expected 1 to 4096, found 4097");
  device = device_at(0);
  device.l1_bytes = -1;
  expect_refused([&](dr_options& o) { o.device = &device; }, DR_INVALID, "options.device.l1_bytes");
  device = device_at(0);
  device.l2_bytes = -1;
  expect_refused([&](dr_options& o) { o.device = &device; }, DR_INVALID, "options.device.l2_bytes");
}

TEST(Options, Refusals) {
  expect_refused([](dr_options& o) { o.size = 7; }, DR_INVALID, "options.size");
  expect_refused([](dr_options& o) { o.segments = 9; }, DR_INVALID, "options.segments: expected 0 to 3, found 9");
  expect_refused([](dr_options& o) { o.segments = DR_SEGMENTS_COUNT; }, DR_INVALID, "options.segment_value");
  expect_refused([](dr_options& o) { o.segments = DR_SEGMENTS_LENGTH, o.segment_value = -64; }, DR_INVALID,
                 "found -64");
  expect_refused([](dr_options& o) { o.segments = DR_SEGMENTS_COUNT, o.segment_value = 2, o.invariant = 1; },
                 DR_INVALID, "options.segments");
  expect_refused([](dr_options& o) { o.backend = "gpu"; }, DR_INVALID, "found 'gpu'");
  expect_refused([](dr_options& o) { o.backend = "gpu"; }, DR_INVALID, "reference");
  expect_refused([](dr_options& o) { o.isa = "mmx"; }, DR_UNSUPPORTED, "options.isa");
  expect_refused([](dr_options& o) { o.isa = "mmx"; }, DR_UNSUPPORTED, cpu_isa_name(0));
  expect_refused([](dr_options& o) { o.policy = "best"; }, DR_INVALID, "flashkda-pr9");
  expect_refused([](dr_options& o) { o.policy = "fla", o.segments = DR_SEGMENTS_OFF; }, DR_INVALID, "options.policy");
  expect_refused([](dr_options& o) { o.policy = "fla", o.invariant = 1; }, DR_INVALID, "options.policy");
  expect_refused([](dr_options& o) { o.threads = -1; }, DR_INVALID, "options.threads");
  expect_refused([](dr_options& o) { o.carry = 2; }, DR_INVALID, "options.carry");
  expect_refused([](dr_options& o) { o.reserved = 1; }, DR_INVALID, "options.reserved");
  const int32_t columns[] = {3, 2, 32};
  expect_refused([&](dr_options& o) { o.num_columns = 2; }, DR_INVALID, "options.columns");
  expect_refused([&](dr_options& o) { o.num_columns = 33, o.columns = columns; }, DR_INVALID, "options.num_columns");
  expect_refused([&](dr_options& o) { o.num_columns = 2, o.columns = columns; }, DR_INVALID, "found 2 after 3");
  expect_refused([&](dr_options& o) { o.num_columns = 1, o.columns = columns + 2; }, DR_INVALID, "found 32");
}

// What a truncated carry drops is bounded only where no token makes a state grow.
TEST(Options, TruncatedCarry) {
  Problem bounded = test::problem_of(Rule::kKda, {100}, 2, 64, 32);
  bounded.l2norm = true;
  bounded.beta_form = BetaForm::kLogit;
  auto taken = [&](const Problem& problem, float log_decay) {
    dr_options request{};
    request.size = sizeof request;
    request.carry = DR_CARRY_TRUNCATED;
    request.carry_log_decay = log_decay;
    try {
      return std::to_string(validate_options(&request, problem).carry_log_decay);
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), DR_INVALID);
      return std::string(error.what());
    }
  };
  EXPECT_EQ(taken(bounded, 0.0f), std::to_string(-16.0f));
  EXPECT_EQ(taken(bounded, -80.0f), std::to_string(-80.0f));
  EXPECT_EQ(taken(bounded, -0.5f), std::to_string(-0.5f));
  for (const float wrong : {-80.5f, 1.0f, -INFINITY, NAN})
    EXPECT_THAT(taken(bounded, wrong),
                HasSubstr("options.carry_log_decay: expected 0 (which stands for -16) or a number "
                          "from -80 to below 0, found " +
                          std::to_string(wrong)));
  Problem twice = bounded;
  twice.beta_form = BetaForm::kTwiceLogit;
  EXPECT_EQ(taken(twice, -20.0f), std::to_string(-20.0f));
  Problem value = bounded;
  value.beta_form = BetaForm::kValue;
  EXPECT_THAT(taken(value, -20.0f), HasSubstr("options.carry: expected exact while problem.beta_form is the write "
                                              "strength itself"));
  Problem raw = bounded;
  raw.l2norm = false;
  EXPECT_THAT(taken(raw, -20.0f), HasSubstr("options.carry: expected exact while problem.l2norm is 0"));
  EXPECT_THAT(taken(raw, -20.0f), HasSubstr("found truncated"));
  expect_refused([](dr_options& o) { o.carry_log_decay = -16.0f; }, DR_INVALID,
                 "options.carry_log_decay: expected 0 while options.carry is exact");
}

TEST(Options, DeviceRefusals) {
  auto with = [](const std::function<void(dr_device&)>& change, const std::string& words) {
    dr_device device = device_at(1);
    change(device);
    expect_refused([&](dr_options& o) { o.device = &device; }, DR_INVALID, words);
  };
  with([](dr_device& d) { d.size = 0; }, "options.device.size");
  with([](dr_device& d) { d.kind = 0; }, "options.device.kind");
  with([](dr_device& d) { d.units = 0; }, "options.device.units");
  with([](dr_device& d) { d.bytes_per_ns = -1; }, "options.device.bytes_per_ns");
  with([](dr_device& d) { d.flops_per_ns = -1; }, "options.device.flops_per_ns");
  with([](dr_device& d) { d.size = 368; }, "found 368, the size in version 0.1");
  with(
      [](dr_device& d) {
        for (char& c : d.model) c = 'x';
      },
      "options.device.model");
  with(
      [](dr_device& d) {
        for (char& c : d.name) c = 'x';
      },
      "options.device.name");
}

TEST(Options, CostsOfTheCallerReplaceTheLibrarys) {
  const dr_device h200 = device_named("h200");
  dr_costs given[2] = {costs_of_device(h200).at(test::kSm90FusedCosts, Rule::kKda),
                       costs_of_device(h200).at(test::kSm80Costs, Rule::kGdn)};
  given[0].emit_ns = 77777;
  given[1].measured = 0;
  const Options options = validated([&](dr_options& o) { o.device = &h200, o.costs = given, o.num_costs = 2; });
  EXPECT_EQ(options.costs.at(test::kSm90FusedCosts, Rule::kKda).emit_ns, 77777);
  EXPECT_EQ(options.costs.at(test::kSm80Costs, Rule::kGdn).measured, 0);
  const dr_costs kept = costs_of_device(h200).at(test::kSm90FusedCosts, Rule::kGdn);
  EXPECT_EQ(options.costs.at(test::kSm90FusedCosts, Rule::kGdn).emit_ns, kept.emit_ns);
}

TEST(Options, CostRefusals) {
  auto with = [](const std::function<void(dr_costs&)>& change, const std::string& words) {
    const dr_device h200 = device_named("h200");
    dr_costs given[2] = {costs_of_device(h200).at(test::kSm90FusedCosts, Rule::kKda),
                         costs_of_device(h200).at(test::kSm80Costs, Rule::kGdn)};
    change(given[1]);
    expect_refused([&](dr_options& o) { o.device = &h200, o.costs = given, o.num_costs = 2; }, DR_INVALID, words);
  };
  with([](dr_costs& c) { c.emit_ns = 0; }, "options.costs[1].emit_ns");
  with([](dr_costs& c) { c.prepare_ns = -1; }, "options.costs[1].prepare_ns: expected at least 0, found -1");
  with([](dr_costs& c) { c.chunk = 0; }, "options.costs[1].chunk");
  with([](dr_costs& c) { c.local_ns = c.emit_ns + 1; }, "options.costs[1].local_ns: expected at most emit_ns");
  with([](dr_costs& c) { c.summarize_local_ns = c.summarize_ns + 1; },
       "options.costs[1].summarize_local_ns: expected at most summarize_ns");
  with([](dr_costs& c) { c.summarize_local_ns = -1; },
       "options.costs[1].summarize_local_ns: expected at least 0, found -1");
  with([](dr_costs& c) { c.rule = 0; }, "options.costs[1].rule: expected 1 to 2, found 0");
  with([](dr_costs& c) { c.op = DR_BACKWARD; }, "options.costs[1].op");
  with([](dr_costs& c) { c.backend[0] = 'x'; }, "expected costs of one of 'cpu', 'cuda-sm90 prepared'");
  with([](dr_costs& c) { c.variant[0] = 'x'; }, "found 'cuda-sm80 x'");
  with([](dr_costs& c) { c.size = 12; }, "options.costs[1].size");
  with(
      [](dr_costs& c) {
        for (char& x : c.measured_on) x = 'x';
      },
      "options.costs[1].measured_on");
  expect_refused([](dr_options& o) { o.num_costs = 1; }, DR_INVALID, "options.costs: expected a pointer");
  expect_refused([](dr_options& o) { o.num_costs = -1; }, DR_INVALID, "options.num_costs");
}

TEST(Options, VariantAndMath) {
  EXPECT_EQ(validated([](dr_options& o) { o.variant = "prepared"; }).variant, "prepared");
  EXPECT_EQ(validated([](dr_options& o) { o.math = DR_MATH_TF32; }).math, DR_MATH_TF32);
  expect_refused([](dr_options& o) { o.variant = "tf32"; }, DR_INVALID,
                 "options.variant: expected one of fused (cuda-sm90), prepared (cuda-sm90), found 'tf32'");
  expect_refused([](dr_options& o) { o.math = 2; }, DR_INVALID, "options.math: expected 0 to 1, found 2");
  expect_refused([](dr_options& o) { o.isa = "fused"; }, DR_UNSUPPORTED, "options.isa");
}

}  // namespace
}  // namespace deltarelay
