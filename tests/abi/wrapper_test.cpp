// The C++ wrapper owns its handles and throws what the C functions report.
#include <deltarelay/deltarelay.hpp>
#include <type_traits>

#include "small_call.h"

namespace contract {
namespace {

static_assert(!std::is_copy_constructible_v<deltarelay::Plan> &&
              std::is_nothrow_move_constructible_v<deltarelay::Plan>);
static_assert(!std::is_copy_constructible_v<deltarelay::Workspace>);
static_assert(std::is_nothrow_move_constructible_v<deltarelay::Workspace>);
static_assert(sizeof(deltarelay::Problem) == sizeof(dr_problem));

deltarelay::Problem small_problem(const std::vector<int64_t>& offsets) {
  deltarelay::Problem problem(DR_KDA);
  problem.packed(offsets, SmallCall::kTokens).heads(SmallCall::kHeads, SmallCall::kHeads);
  problem.widths(SmallCall::kDk, SmallCall::kDv).with_final(DR_STATE_KEY_MAJOR);
  return problem;
}

TEST(Wrapper, GivesTheBitsOfTheCFunctions) {
  SmallCall c, cpp;
  const PlanOwner owner(c.problem);
  size_t bytes = 0;
  ASSERT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  ASSERT_EQ(dr_execute(owner.plan, &c.tensors, c.workspace(bytes), bytes, nullptr), DR_SUCCESS) << dr_last_error();

  const std::vector<int64_t> offsets = {0, 3, 66};
  const deltarelay::Plan plan(small_problem(offsets));
  EXPECT_EQ(plan.workspace_bytes(), bytes);
  const deltarelay::Workspace workspace(bytes);
  plan.execute(cpp.tensors, workspace);
  EXPECT_EQ(c.o, cpp.o);
  EXPECT_EQ(c.state, cpp.state);
}

TEST(Wrapper, ThrowsStatusAndMessage) {
  const std::vector<int64_t> offsets = {0, 3, 66};
  deltarelay::Problem problem = small_problem(offsets);
  problem.dk = 1000;
  try {
    const deltarelay::Plan plan(problem);
    FAIL() << "was accepted";
  } catch (const deltarelay::Exception& error) {
    EXPECT_EQ(error.status(), DR_INVALID);
    EXPECT_STREQ(error.what(), "problem.dk: expected 1 to 256, found 1000");
  }
  EXPECT_THROW(deltarelay::Problem(DR_GDN).packed(std::span<const int64_t>{}), deltarelay::Exception);
  EXPECT_THROW(deltarelay::find_device("nonesuch"), deltarelay::Exception);
}

TEST(Wrapper, FillsTheFieldsThatBelongTogether) {
  const std::vector<int32_t> offsets = {0, 8, 20};
  deltarelay::Problem problem(DR_GDN);
  problem.packed(offsets).heads(2, 4).widths(32, 64).types(DR_BF16, DR_FP32).scaled_by(0.25f);
  problem.with_initial(DR_STATE_VALUE_MAJOR, DR_BF16, DR_STATE_SLOTS);
  EXPECT_EQ(problem.num_seqs, 2);
  EXPECT_EQ(problem.num_tokens, 20);
  EXPECT_EQ(problem.seq_offsets_dtype, DR_INT32);
  EXPECT_EQ(problem.heads_v, 4);
  EXPECT_EQ(problem.dtype_gate, DR_FP32);
  EXPECT_EQ(problem.scale, 0.25f);
  EXPECT_EQ(problem.initial.use, DR_STATE_SLOTS);
  const deltarelay::Plan plan(problem);
  EXPECT_NE(plan.get(), nullptr);

  problem.batched(3, 50);
  EXPECT_EQ(deltarelay::Plan(problem, deltarelay::Options().whole()).summary().num_segments, 3);
  const deltarelay::Options truncated = deltarelay::Options().with_truncated_carry(-20.0f);
  EXPECT_EQ(truncated.carry, DR_CARRY_TRUNCATED);
  EXPECT_EQ(truncated.carry_log_decay, -20.0f);
  problem.packed_later(4, 1000, DR_INT64);
  EXPECT_EQ(problem.seq_offsets, nullptr);
  EXPECT_NE(deltarelay::Plan(problem).get(), nullptr);
}

TEST(Wrapper, PlansMove) {
  const std::vector<int64_t> offsets = {0, 3, 66};
  deltarelay::Plan first(small_problem(offsets), deltarelay::Options().on_backend("reference").with_threads(1));
  const dr_plan* handle = first.get();
  const deltarelay::Plan second = std::move(first);
  EXPECT_EQ(second.get(), handle);
  EXPECT_STREQ(second.summary().backend, "reference");
  EXPECT_EQ(second.summary().threads, 1);
}

TEST(Wrapper, DescribesPlans) {
  const std::vector<int64_t> offsets = {0, 3, 66};
  const deltarelay::Plan plan(small_problem(offsets), deltarelay::Options().on_backend("reference"));
  const std::string text = plan.describe();
  EXPECT_NE(text.find("reference"), std::string::npos) << text;
  EXPECT_EQ(text.find('\0'), std::string::npos);
  EXPECT_EQ(plan.describe(DR_DESCRIBE_JSON).front(), '{');
  EXPECT_EQ(plan.describe(DR_DESCRIBE_SIGNATURE).find('\n'), std::string::npos);
}

TEST(Wrapper, WorkspacesAreAligned) {
  for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    deltarelay::Workspace workspace(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace.data()) % 256, 0u);
    EXPECT_EQ(workspace.size(), bytes);
    const deltarelay::Workspace moved = std::move(workspace);
    EXPECT_EQ(moved.size(), bytes);
  }
  EXPECT_EQ(deltarelay::Workspace(0).data(), nullptr);
}

}  // namespace
}  // namespace contract
