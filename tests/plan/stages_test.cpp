// Plans for the stages on a GPU: their steps, their workspace, what is declined.
#include "kernels/cuda/sm80/stages/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/sm80/accepts.h"
#include "plan/plan.h"
#include "plan_cases.h"

namespace deltarelay {
namespace {

using Names = std::vector<std::string>;

Names names_of(const Steps& steps) {
  Names names;
  for (const Step& step : steps) names.push_back(name_of(step) + std::string(step.when == When::kAlways ? "" : "?"));
  return names;
}

Options on_gpu() {
  Options options = test::options_on(test::device_of("h200"));
  options.backend = "cuda-sm80";
  return options;
}

Problem stage_of(Op op, int32_t given, int32_t wanted, Problem problem) {
  problem.op = op;
  problem.chunks.chunk = op == Op::kCarry ? 0 : 64;
  problem.chunks.given = given;
  problem.chunks.wanted = wanted;
  problem.chunks.dtype = problem.chunks.dtype_states = problem.dtype;
  return problem;
}

Problem pass_of(const std::vector<int64_t>& lengths, int32_t heads) {
  Problem p = stage_of(Op::kStatePass, DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS, DR_STATES | DR_V_NEW,
                       test::problem_of(Rule::kKda, lengths, heads));
  p.final.use = StateUse::kRows;
  return p;
}

constexpr int32_t kLocal = DR_AQK | DR_INVERSE | DR_W | DR_U;

// A grid of 0 CTAs is not launched, and nobody would notice but who looks at what it writes.
void expect_grids(const Problem& problem, const Options& options) {
  const auto plan = make_plan(problem, options);
  EXPECT_EQ(name_of(plan->steps[plan->steps.size() - 1]), std::string("finish"));
  for (const Step& step : plan->steps) {
    if (step.stage == Stage::kTable) continue;
    EXPECT_GT(step.ctas, 0) << plan->backend->name << ", op " << static_cast<int32_t>(problem.op) << ": "
                            << name_of(step);
    EXPECT_GT(step.ctas_stored, 0) << name_of(step);
  }
}

TEST(StagePlans, OfAGpuSayTheGridOfEveryLaunch) {
  const Problem late = test::problem_with_bounds(Rule::kKda, 1000, 4, 2);
  Problem pass = stage_of(Op::kStatePass, DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS, DR_V_NEW, late);
  pass.final.use = StateUse::kRows;
  const Problem outputs = stage_of(Op::kOutputs, DR_V_NEW | DR_STATES | DR_AQK | DR_Q_FROM_START, 0, late);
  for (const char* backend : {"cuda-sm80", "cuda-sm90"}) {
    Options options = on_gpu();
    options.backend = backend;
    expect_grids(stage_of(Op::kChunkLocal, 0, kLocal, late), options);
    expect_grids(stage_of(Op::kSummary, DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS, DR_SUMMARIES, late), options);
    expect_grids(pass, options);
    if (std::string(backend) != "cuda-sm80") continue;
    expect_grids(outputs, options);
    Problem carry = stage_of(Op::kCarry, DR_SUMMARIES, DR_COMPOSED, late);
    carry.chunks.dtype_states = DType::kFp32;
    expect_grids(carry, options);
  }
}

// Two waves of pairs and the first segment: 132 multiprocessors have 33 pieces of 4 heads and two halves.
TEST(StagePlans, GridsOfLateLengthsHoldWhatASearchCanCut) {
  Problem pass = stage_of(Op::kStatePass, DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS, DR_STATES | DR_V_NEW,
                          test::problem_with_bounds(Rule::kKda, 131072, 1, 4));
  pass.final.use = StateUse::kRows;
  Options options = on_gpu();
  options.backend = "cuda-sm90";
  const auto plan = make_plan(pass, options);
  int32_t walks = 0;
  for (const Step& step : plan->steps) {
    if (step.stage != Stage::kWalk) continue;
    EXPECT_EQ(step.form, Form::kPair);
    EXPECT_EQ(step.ctas, (33 + 1) * 4 * 2);
    ++walks;
  }
  EXPECT_EQ(walks, 2);
}

TEST(StagePlans, OfAGpuHaveTheirStepsInOrder) {
  const Problem local = stage_of(Op::kChunkLocal, 0, kLocal, test::problem_of(Rule::kKda, {300, 65}, 2));
  EXPECT_EQ(names_of(make_plan(local, on_gpu())->steps), (Names{"segment table?", "chunk-local"}));
  const Problem outputs =
      stage_of(Op::kOutputs, DR_V_NEW | DR_STATES, 0, test::problem_of(Rule::kGdn, {300, 0, 65}, 2));
  EXPECT_EQ(names_of(make_plan(outputs, on_gpu())->steps), (Names{"segment table?", "outputs"}));
  const Problem summary = stage_of(Op::kSummary, 0, DR_SUMMARIES, test::problem_of(Rule::kGdn, {300, 0}, 2));
  EXPECT_EQ(names_of(make_plan(summary, on_gpu())->steps), (Names{"segment table?", "prepare", "summary", "finish"}))
      << "a sequence without tokens has a summary too";
  const Problem solved = stage_of(Op::kSummary, DR_W | DR_U, DR_SUMMARIES, test::problem_of(Rule::kGdn, {300}, 2));
  EXPECT_EQ(names_of(make_plan(solved, on_gpu())->steps), (Names{"segment table?", "summary"}));
  Problem carry = stage_of(Op::kCarry, DR_SUMMARIES, DR_COMPOSED, test::problem_of(Rule::kGdn, {4, 0, 2}, 2));
  carry.final.use = StateUse::kRows;
  const auto folds = make_plan(carry, on_gpu());
  EXPECT_EQ(names_of(folds->steps), (Names{"segment table?", "carry of chains", "aliases?"}));
  EXPECT_EQ(folds->steps[1].rows, 3) << "chains without summaries are chains";
  const auto whole = make_plan(pass_of({640, 0}, 64), on_gpu());
  EXPECT_EQ(names_of(whole->steps), (Names{"segment table?", "emit", "aliases?", "finish"}));
  const auto cut = make_plan(pass_of({65536}, 2), on_gpu());
  EXPECT_EQ(names_of(cut->steps), (Names{"segment table?", "summarize + emit", "carry", "emit", "aliases?"}));
}

TEST(StagePlans, BookWhatTheyCannotDoWithout) {
  const auto whole = make_plan(pass_of({640, 64}, 64), on_gpu());
  ASSERT_EQ(whole->ledger.buffers().size(), 1u) << "nothing but the table";
  EXPECT_EQ(whole->ledger.buffers()[0].id, BufferId::kTable);
  const auto cut = make_plan(pass_of({65536}, 2), on_gpu());
  EXPECT_NE(cut->ledger.find(BufferId::kSlotState), nullptr);
  EXPECT_NE(cut->ledger.find(BufferId::kTransition), nullptr);
  EXPECT_EQ(cut->ledger.find(BufferId::kPrepared), nullptr);

  // Lengths with a tail that no chunk covers, and lengths that come later.
  Problem summary = stage_of(Op::kSummary, 0, DR_SUMMARIES, test::problem_of(Rule::kKda, {1, 65, 0}, 3));
  summary.num_tokens = 5000;
  const auto known = make_plan(summary, on_gpu());
  EXPECT_GE(static_cast<int64_t>(known->ledger.find(BufferId::kPrepared)->bytes),
            cuda::sm80::prepared_places(known->problem).bytes);
  for (const int64_t tokens : {1, 63, 64, 1000}) {
    const Problem late =
        stage_of(Op::kSummary, 0, DR_SUMMARIES, test::problem_with_bounds(Rule::kGdn, tokens, 3, 5, 60, 100));
    const auto plan = make_plan(late, on_gpu());
    EXPECT_GE(static_cast<int64_t>(plan->ledger.find(BufferId::kPrepared)->bytes),
              cuda::sm80::prepared_places(late).bytes)
        << tokens;
    EXPECT_EQ(names_of(plan->steps), (Names{"segment table", "prepare", "summary", "finish"}));
  }
}

TEST(StagePlans, ShapesHaveNumbersBesideThoseOfTheForward) {
  Problem problem = test::problem_of(Rule::kKda, {64}, 1);
  for (const Op op : {Op::kChunkLocal, Op::kStatePass, Op::kOutputs, Op::kSummary, Op::kCarry})
    for (const DType type : {DType::kFp32, DType::kBf16, DType::kFp16})
      for (const int32_t dk : {1, 64, 256}) {
        Problem stage = stage_of(op, 0, 0, problem);
        stage.dtype = stage.chunks.dtype = type;
        stage.dk = dk;
        EXPECT_GE(cuda::sm80::shape_number(stage), 30);
        EXPECT_LT(cuda::sm80::shape_number(stage), Backend::kMostShapes);
      }
}

TEST(StagePlans, DeclineWithTheArgumentTheExpectedAndTheFound) {
  const auto reason_of = [](const Problem& problem, Options options) {
    return backend_named(options.backend)->decline(problem, request_of(options));
  };
  Options cut = on_gpu(), tf32 = on_gpu(), variant = on_gpu(), columns = on_gpu();
  cut.segments = DR_SEGMENTS_COUNT;
  cut.segment_value = 3;
  tf32.math = DR_MATH_TF32;
  variant.variant = "fused";
  columns.columns = {0};
  const Problem outputs = stage_of(Op::kOutputs, DR_V_NEW | DR_STATES, 0, test::problem_of(Rule::kGdn, {300}, 2));
  EXPECT_EQ(reason_of(outputs, on_gpu()), "");
  EXPECT_EQ(reason_of(pass_of({300}, 2), cut), "");
  EXPECT_THAT(reason_of(outputs, cut), testing::HasSubstr("found a forced cut of outputs"));
  EXPECT_THAT(reason_of(outputs, tf32), testing::HasSubstr("math: expected default, found tf32"));
  EXPECT_THAT(reason_of(outputs, variant), testing::HasSubstr("variant: expected none (stages have one), found fused"));
  EXPECT_THAT(reason_of(outputs, columns), testing::HasSubstr("columns: expected all value columns"));
  Problem large = outputs;
  large.num_tokens = int64_t{1} << 40;
  EXPECT_THAT(reason_of(large, on_gpu()), testing::HasSubstr("num_tokens: expected at most"));
}

}  // namespace
}  // namespace deltarelay
