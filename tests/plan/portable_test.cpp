// Planning with the portable GPU kernels: what cuda-sm80 takes, on which GPUs its code runs, its fixed tiling and its
// own costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/sm80/accepts.h"
#include "kernels/cuda/sm80/tiling.h"
#include "plan/devices/cuda_devices.h"
#include "plan/modes.h"
#include "plan/plan.h"
#include "plan_cases.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

using ::testing::HasSubstr;

constexpr const char* kName = "cuda-sm80";

Options on(const char* device) {
  Options options = test::options_on(test::device_of(device));
  options.backend = kName;
  return options;
}

std::string reason_of(const std::function<void(Problem&, Options&)>& change) {
  Problem problem = test::problem_of(Rule::kKda, {300, 40}, 2);
  Options options = on("a100");
  change(problem, options);
  return backend_named(kName)->decline(problem, request_of(options));
}

TEST(CudaSm80, TakesEveryProblem) {
  for (const char* device : {"a100", "h100", "h200", "b200", "gb200", "rtx3090", "rtx4090", "rtx5090", "rtx-pro-6000"})
    EXPECT_EQ(reason_of([&](Problem&, Options& o) { o.device = test::device_of(device); }), "") << device;
  for (const DType type : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    EXPECT_EQ(reason_of([&](Problem& p, Options&) { p.dtype = type; }), "");
    EXPECT_EQ(reason_of([&](Problem& p, Options&) { p.dtype_o = p.dtype_gate = p.dtype_beta = type; }), "");
  }
  EXPECT_EQ(reason_of([](Problem& p, Options&) { p.rule = Rule::kGdn; }), "");
  EXPECT_EQ(reason_of([](Problem& p, Options&) { p.dk = p.dv = 1; }), "");
  EXPECT_EQ(reason_of([](Problem& p, Options&) { p.dk = 256, p.dv = 7; }), "");
  EXPECT_EQ(reason_of([](Problem& p, Options&) { p.alignment = {2, 2, 2, 2, 2, 2}; }), "");
  EXPECT_EQ(reason_of([](Problem& p, Options&) { p.q.token = 257; }), "");
  EXPECT_EQ(reason_of([](Problem&, Options& o) { o.invariant = true; }), "");
}

TEST(CudaSm80, DeclinesTheRestByNameExpectedAndFound) {
  const std::vector<std::pair<std::function<void(Problem&, Options&)>, std::string>> refusals{
      {[](Problem&, Options& o) { o.device = test::cpu_with(2); }, "device: expected a CUDA device, found a CPU"},
      {[](Problem&, Options& o) { o.device.compute_capability = 75; },
       "compute capability: expected 8.0 or higher, found 7.5"},
      {[](Problem& p, Options&) { p.num_tokens = int64_t{1} << 37; }, "num_tokens: expected at most 268435455 chunks"},
      {[](Problem&, Options& o) {
         o.columns = {0, 3};
       },
       "columns: expected all value columns, found a list of 2"},
      {[](Problem&, Options& o) { o.variant = "fused"; }, "variant: expected none (there is one), found fused"},
      {[](Problem&, Options& o) { o.math = DR_MATH_TF32; }, "math: expected default with bf16 data, found tf32"},
      {[](Problem&, Options& o) { o.isa = "neon"; }, "isa: expected none (instruction sets are of CPUs), found neon"},
  };
  for (const auto& [change, words] : refusals) EXPECT_THAT(reason_of(change), HasSubstr(words));
}

TEST(CudaSm80, OnThisMachineNeedsCodeForItsGpu) {
  const std::string reason = reason_of([](Problem&, Options& o) {
    o.device_is_here = true;
    o.device.compute_capability = 80;
  });
  const std::string built = cuda_build_text();
  if (built == "none") {
    EXPECT_THAT(reason, HasSubstr("this library was built without CUDA kernels"));
  } else if (!reason.empty()) {
    EXPECT_THAT(reason, HasSubstr("compute capability: expected one of those this library was built for"));
    EXPECT_THAT(reason, HasSubstr("found 8.0"));
  }
}

TEST(CudaSm80, CodeRunsOnItsMajorCapabilityAndVirtualCodeOnAllLater) {
  using cuda::sm80::has_code_for;
  EXPECT_TRUE(has_code_for(80, "80-real"));
  EXPECT_TRUE(has_code_for(89, "80-real"));
  EXPECT_FALSE(has_code_for(90, "80-real"));
  EXPECT_FALSE(has_code_for(75, "80"));
  EXPECT_TRUE(has_code_for(89, "80-virtual"));
  EXPECT_TRUE(has_code_for(103, "90"));
  EXPECT_FALSE(has_code_for(103, "90-real,80-virtual")) << "it would not wait for the kernel before it";
  EXPECT_FALSE(has_code_for(80, "90-real,90-virtual"));
  EXPECT_TRUE(has_code_for(121, "80-real,120-real"));
  EXPECT_FALSE(has_code_for(100, "80-real,90-real,120-real,120-virtual"));
  EXPECT_FALSE(has_code_for(90, ""));
}

TEST(CudaSm80, BooksCheckpointsOfAnyWidthOnTheirWayToAPoolOf16Bits) {
  Problem problem = test::problem_of(Rule::kGdn, {300, 0, 130}, 3, 60, 100);
  problem.dtype = DType::kFp32;
  const auto plan = make_plan(test::with_checkpoints(problem, 48, 8), on("a100"));
  const Buffer* buffer = plan->ledger.find(BufferId::kCheckpoints);
  ASSERT_NE(buffer, nullptr);
  EXPECT_EQ(buffer->bytes, size_t{6 + 2} * 3 * 60 * 100 * sizeof(float));
  const auto wide = make_plan(test::with_checkpoints(problem, 48, 8, DType::kFp32), on("a100"));
  EXPECT_EQ(wide->ledger.find(BufferId::kCheckpoints), nullptr);
  const auto whole = make_plan(test::with_checkpoints(problem, 64, 6), on("a100"));
  EXPECT_EQ(whole->ledger.find(BufferId::kCheckpoints), nullptr) << "whole chunks";
}

TEST(CudaSm80, ShapesHaveNumbersOfTheirOwn) {
  std::set<int32_t> numbers;
  for (const Rule rule : {Rule::kKda, Rule::kGdn})
    for (const DType type : {DType::kFp32, DType::kBf16, DType::kFp16})
      for (const int32_t dk : {1, 65, 97, 129, 193}) {
        Problem problem = test::problem_of(rule, {64}, 1, dk, 64);
        problem.dtype = type;
        const int32_t number = cuda::sm80::shape_number(problem);
        EXPECT_GE(number, 0);
        EXPECT_LT(number, Backend::kMostShapes);
        numbers.insert(number);
      }
  EXPECT_EQ(numbers.size(), 30u);
}

TEST(CudaSm80, MidFrameIsForBoundedGates) {
  Problem problem = test::problem_of(Rule::kKda, {64}, 1);
  EXPECT_FALSE(cuda::sm80::shape_of(problem).mid_frame) << "a log gate without a floor";
  problem.gate_floor = -5.0f;
  EXPECT_TRUE(cuda::sm80::shape_of(problem).mid_frame);
  problem.gate_floor = -5.5f;
  EXPECT_FALSE(cuda::sm80::shape_of(problem).mid_frame);
}

Problem fp32_problem(Rule rule) {
  Problem problem = test::problem_of(rule, {4096, 70}, 2);
  problem.dtype = problem.dtype_o = problem.dtype_gate = problem.dtype_beta = DType::kFp32;
  return problem;
}

TEST(CudaSm80, Tf32ProductsAreTakenByNameOnly) {
  for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
    const Problem problem = fp32_problem(rule);
    Options options = on("a100");
    const auto exact = make_plan(problem, options);
    EXPECT_FALSE(cuda::sm80::shape_of(problem, exact->variant.number).tf32);
    EXPECT_STREQ(exact->variant.name, "");
    EXPECT_EQ(exact->other_variant, -1) << "a less exact way is not weighed";
    EXPECT_THAT(describe_text(*exact), HasSubstr("backend cuda-sm80: chunks of 32 tokens"));

    options.math = DR_MATH_TF32;
    const auto tf32 = make_plan(problem, options);
    EXPECT_TRUE(cuda::sm80::shape_of(problem, tf32->variant.number).tf32);
    EXPECT_STREQ(tf32->variant.name, "");
    EXPECT_THAT(describe_text(*tf32), HasSubstr("backend cuda-sm80 (tf32): chunks of 32 tokens"));
    EXPECT_THAT(describe_signature(*tf32), HasSubstr(" math=tf32 "));
    EXPECT_LT(tf32->unsplit_ns, exact->unsplit_ns);
    EXPECT_EQ(tf32->prepare_ns, exact->prepare_ns) << "records are as exact as ever";
    EXPECT_EQ(tf32->variant.record_bytes, exact->variant.record_bytes);

    options.backend.clear();
    test::move_to(test::device_of("h200"), options);
    EXPECT_STREQ(make_plan(problem, options)->backend->name, kName) << "nobody else has them";
  }
}

TEST(CudaSm80, OthersHaveNoTf32Products) {
  const Problem problem = fp32_problem(Rule::kGdn);
  Options options = test::options_on(test::device_of("cpu"));
  options.math = DR_MATH_TF32;
  for (const char* name : {"cpu", "reference"})
    EXPECT_THAT(backend_named(name)->decline(problem, request_of(options)), HasSubstr("found tf32")) << name;
  options.device = test::device_of("h200");
  EXPECT_THAT(backend_named("cuda-sm90")->decline(test::problem_of(Rule::kGdn, {100}, 2), request_of(options)),
              HasSubstr("math: expected default, found tf32"));
}

// CTAs of a multiprocessor: with 228 KiB of shared memory, with 164 and with 100.
TEST(CudaSm80, TilingFollowsFromTypeWidthsAndSharedMemory) {
  struct Expected {
    Rule rule;
    DType dtype;
    int32_t dk, dv, tiles, columns, in_228, in_164, in_100;
  };
  for (const Expected& e : {Expected{Rule::kKda, DType::kBf16, 128, 128, 1, 128, 2, 2, 1},
                            Expected{Rule::kGdn, DType::kBf16, 128, 128, 1, 128, 2, 2, 1},
                            Expected{Rule::kGdn, DType::kFp16, 100, 192, 2, 128, 2, 2, 1},
                            Expected{Rule::kKda, DType::kBf16, 60, 100, 2, 64, 4, 3, 2},
                            Expected{Rule::kKda, DType::kFp16, 64, 64, 1, 64, 4, 3, 2},
                            Expected{Rule::kGdn, DType::kFp32, 128, 192, 3, 64, 2, 2, 1},
                            Expected{Rule::kKda, DType::kFp32, 64, 65, 2, 64, 2, 1, 1},
                            Expected{Rule::kGdn, DType::kBf16, 192, 256, 4, 64, 2, 2, 1},
                            Expected{Rule::kGdn, DType::kBf16, 256, 512, 8, 64, 2, 1, 1},
                            Expected{Rule::kKda, DType::kBf16, 128, 500, 4, 128, 2, 2, 1},
                            Expected{Rule::kKda, DType::kFp32, 256, 1, 1, 64, 2, 1, 1}}) {
    Problem problem = test::problem_of(e.rule, {5000, 70}, 3, e.dk, e.dv);
    problem.dtype = e.dtype;
    SCOPED_TRACE(std::string(name_of(e.rule)) + " " + name_of(e.dtype) + " " + std::to_string(e.dk) + " x " +
                 std::to_string(e.dv));
    for (const auto& [name, together] : {std::pair{"h200", e.in_228}, {"a100", e.in_164}, {"rtx4090", e.in_100}}) {
      const auto plan = make_plan(problem, on(name));
      EXPECT_EQ(plan->chunk(), 32) << name;
      EXPECT_EQ(plan->tiling.value_tiles, e.tiles) << name;
      EXPECT_EQ(plan->costs.copies, 3 * e.tiles) << name;
      EXPECT_EQ(plan->costs.units, plan->options.device.units * together) << name;
      const std::string words = "at most " + std::to_string(together) + (together == 1 ? " CTA" : " CTAs") +
                                " a unit, each with " + std::to_string(e.columns) + " value columns, " +
                                (e.dk <= 64 && e.dtype != DType::kFp32 ? "64" : "128") + " threads";
      EXPECT_THAT(describe_text(*plan), HasSubstr(words)) << name;
    }
  }
  const auto uneven = make_plan(test::problem_of(Rule::kKda, {5000}, 3, 96, 70), on("rtx4090"));
  EXPECT_EQ(uneven->variant.state_floats, 128 * 96) << "rows in whole tiles";
  EXPECT_EQ(uneven->variant.transition_floats, 128 * 96);
}

TEST(CudaSm80, ACtaFitsEveryDevice) {
  using namespace cuda::sm80;
  static_assert(registers_a_thread(128, 1) == 255 && registers_a_thread(64, 4) == 255 &&
                registers_a_thread(128, 3) == 168);
  static_assert(ctas_in(164 << 10, 81 << 10) == 2 && ctas_in(164 << 10, (81 << 10) + 16) == 1,
                "1 KiB of each is taken");
  struct Tile {
    int32_t columns;
    bool fine;
  };
  for (const Rule rule : {Rule::kKda, Rule::kGdn})
    for (const int32_t element : {2, 4})
      for (const int32_t width : {64, 96, 128, 192, 256})
        for (const auto [columns, fine] : {Tile{kTileValues, false}, Tile{kWideTile, false}, Tile{kTileValues, true}}) {
          if (columns == kWideTile && !has_wide_tiles(element, width)) continue;
          if (fine && (width > kPlainChannels || element != 2)) continue;
          const WalkTiling t = walk_tiling(rule, element, width, columns, fine);
          SCOPED_TRACE(std::string(name_of(rule)) + " " + std::to_string(element) + " bytes, " + std::to_string(width) +
                       " x " + std::to_string(columns) + (fine ? ", fine" : ""));
          EXPECT_GE(ctas_in(100 << 10, t.shared_bytes), 1);
          EXPECT_EQ(t.row_tiles * 16 * (t.threads / 32), columns);
          EXPECT_EQ(t.shared_bytes, t.stages * t.stage_bytes + kPlanBytes);
          // Tiles, the rest of the record and values, one behind the other.
          const RecordPlaces record = record_places(rule, element, width, fine);
          const int32_t tiles = rule == Rule::kGdn || t.overlaid ? 2 : 3;
          EXPECT_EQ(t.behind, tiles * kChunk * t.row_bytes);
          EXPECT_EQ(t.values, t.behind + record.bytes - record.aqk);
          EXPECT_EQ(t.stage_bytes, t.values + kChunk * t.value_row_bytes);
        }
}

TEST(CudaSm80, SharedMemoryThatIsNotKnownIsNoLimit) {
  const Problem problem = test::problem_of(Rule::kKda, {5000}, 3);
  EXPECT_EQ(cuda::sm80::cta_tiling(problem, 0).together(), 2);
  EXPECT_EQ(cuda::sm80::cta_tiling(problem, 48 << 10).together(), 1) << "one always runs, or the launch says why not";
}

// What the plan of a backend says of its costs, and that it goes by them.
TEST(CudaSm80, HasCostsOfItsOwn) {
  const Problem problem = test::problem_of(Rule::kKda, {65536}, 4);
  const test::Machine h200 = test::device_of("h200");
  const dr_costs stated = h200.costs.at(test::kSm80Costs, Rule::kKda);
  EXPECT_NE(stated.measured, 0);
  EXPECT_EQ(test::costs_on("b200", test::kSm80Costs, Rule::kKda).measured, 0);
  EXPECT_STREQ(test::costs_on("b200", test::kSm80Costs, Rule::kKda).measured_on, "h200");
  const plan::Costs costs = test::costs_of(kName, problem, on("h200"), "", 1);
  EXPECT_EQ(costs.emit, 2 * stated.emit_ns) << "two items share a unit";
  EXPECT_THAT(describe_text(*make_plan(problem, on("h200"))), HasSubstr("132 units, measured costs"));
  EXPECT_EQ(make_plan(problem, on("h200"))->limits.risk_permille, 0);

  Options own = test::options_on(h200);
  own.costs.at(test::kSm80Costs, Rule::kKda).measured = 0;
  EXPECT_THAT(describe_text(*make_plan(problem, own)), HasSubstr("132 units, measured costs")) << "cuda-sm90";

  own = on("h200");
  own.costs.at(test::kSm80Costs, Rule::kKda).measured = 0;
  EXPECT_THAT(describe_text(*make_plan(problem, own)), HasSubstr("132 units, estimated costs"));
  EXPECT_EQ(make_plan(problem, own)->limits.risk_permille, 150);
  own.costs.at(test::kSm80Costs, Rule::kKda).emit_ns *= 2;
  EXPECT_GT(make_plan(problem, own)->unsplit_ns, make_plan(problem, on("h200"))->unsplit_ns);

  Problem exact = problem;
  exact.dtype = DType::kFp32;
  const plan::Costs slow = test::costs_of(kName, exact, on("h200"), "", 2);
  EXPECT_EQ(slow.units, costs.units);
  EXPECT_EQ(slow.emit, 2 * 4 * (stated.local_ns + (stated.emit_ns - stated.local_ns) / 2))
      << "two share a unit, four times the work";
}

// Summaries of GDN may end after a few chunks: then a first segment would be all of phase 1. KDA walks its rows whole.
TEST(CudaSm80, FirstSegmentsOfGdnAreShort) {
  for (const char* device : {"h200", "a100", "rtx4090"}) {
    const plan::Decision gdn = make_plan(test::problem_of(Rule::kGdn, {131072}, 8), on(device))->decision;
    ASSERT_GT(gdn.segment, 8) << device;
    EXPECT_LE(gdn.first, gdn.segment / 4) << device;
    const plan::Decision kda = make_plan(test::problem_of(Rule::kKda, {131072}, 8), on(device))->decision;
    ASSERT_GT(kda.segment, 0) << device;
    EXPECT_GE(kda.first, kda.segment) << device;
  }
}

TEST(CudaSm80, TheLargestCostsStayTheLargest) {
  Problem problem = test::problem_of(Rule::kKda, {300, 40}, 2);
  problem.dtype = DType::kFp32;  // of which a chunk takes some times as long
  Options options = on("a100");
  const Variants variants = backend_named(kName)->variants(problem, request_of(options));
  const auto prepare = [&](int32_t stated) {
    options.costs.at(test::kSm80Costs, Rule::kKda).prepare_ns = stated;
    return costs_of(problem, options, *backend_named(kName), variants[0], most_tiles(problem, variants[0])).prepare;
  };
  EXPECT_GT(prepare(1 << 28), prepare(1 << 27));
  EXPECT_GE(prepare(INT32_MAX), prepare(1 << 28));
}

}  // namespace
}  // namespace deltarelay
