// dr_execute refuses every wrong argument before it writes anything.
#include <functional>

#include "small_call.h"

namespace contract {
namespace {

size_t workspace_bytes(const dr_plan* plan) {
  size_t bytes = 0;
  EXPECT_EQ(dr_plan_workspace_bytes(plan, &bytes), DR_SUCCESS) << dr_last_error();
  return bytes;
}

dr_status execute(SmallCall& call, const dr_plan* plan) {
  const size_t bytes = workspace_bytes(plan);
  return dr_execute(plan, &call.tensors, call.workspace(bytes), bytes, nullptr);
}

TEST(Execute, WritesEveryOutput) {
  SmallCall call;
  const PlanOwner owner(call.problem);
  uint32_t report = 99;
  call.tensors.report = &report;
  ASSERT_EQ(execute(call, owner.plan), DR_SUCCESS) << dr_last_error();
  EXPECT_EQ(report, 0u);
  const size_t row = SmallCall::kHeads * SmallCall::kDv;
  double sum = 0.0;
  for (size_t i = 0; i < call.o.size(); ++i) {
    ASSERT_NE(call.o[i], SmallCall::kPoison) << i;
    if (i >= 66 * row) {
      ASSERT_EQ(call.o[i], 0.0f) << "a row after the last sequence";
    }
    sum += std::fabs(static_cast<double>(call.o[i]));
  }
  EXPECT_GT(sum, 1.0);
  for (const float x : call.state) ASSERT_NE(x, SmallCall::kPoison);
}

TEST(Execute, NullArguments) {
  SmallCall call;
  const PlanOwner owner(call.problem);
  const size_t bytes = workspace_bytes(owner.plan);
  void* workspace = call.workspace(bytes);
  expect_failure(dr_execute(nullptr, &call.tensors, workspace, bytes, nullptr), DR_INVALID, "plan", {"found NULL"});
  expect_failure(dr_execute(owner.plan, nullptr, workspace, bytes, nullptr), DR_INVALID, "tensors", {"found NULL"});
  ASSERT_GT(bytes, 0u);
  expect_failure(dr_execute(owner.plan, &call.tensors, nullptr, bytes, nullptr), DR_INVALID, "workspace",
                 {"found NULL"});
  EXPECT_TRUE(call.untouched());
}

TEST(Execute, Workspace) {
  SmallCall call;
  const PlanOwner owner(call.problem);
  const size_t bytes = workspace_bytes(owner.plan);
  ASSERT_GT(bytes, 0u);
  expect_failure(dr_execute(owner.plan, &call.tensors, call.workspace(bytes), bytes - 1, nullptr), DR_INVALID,
                 "workspace_bytes", {"at least " + std::to_string(bytes), "found " + std::to_string(bytes - 1)});
  for (const size_t skew : {size_t{1}, size_t{16}, size_t{128}}) {
    expect_failure(dr_execute(owner.plan, &call.tensors, call.workspace(bytes, skew), bytes, nullptr), DR_INVALID,
                   "workspace", {"multiple of 256", std::to_string(skew) + " bytes past"});
  }
  EXPECT_TRUE(call.untouched());
}

TEST(Execute, StreamOfAnotherDevice) {
  SmallCall call;
  const PlanOwner owner(call.problem);
  const size_t bytes = workspace_bytes(owner.plan);
  int stream = 0;
  expect_failure(dr_execute(owner.plan, &call.tensors, call.workspace(bytes), bytes, &stream), DR_INVALID, "stream",
                 {"expected NULL", "found a pointer"});
  EXPECT_TRUE(call.untouched());
}

TEST(Execute, PlanForAnAbsentDevice) {
  SmallCall call;
  dr_device device;
  dr_device_init(&device);
  ASSERT_EQ(dr_device_find("h200", &device), DR_SUCCESS);
  dr_options options;
  dr_options_init(&options);
  options.device = &device;
  const PlanOwner owner(call.problem, &options);
  ASSERT_NE(owner.plan, nullptr);
  expect_failure(execute(call, owner.plan), DR_UNSUPPORTED, "plan", {"'h200'"});
  EXPECT_TRUE(call.untouched());
}

// One wrong pointer at a time; tests/problem has the rules in detail.
TEST(Execute, EveryTensorIsChecked) {
  const auto refuse = [](const char* argument, const std::vector<std::string>& words,
                         const std::function<void(SmallCall&)>& spoil) {
    SmallCall call;
    const PlanOwner owner(call.problem);
    spoil(call);
    expect_failure(execute(call, owner.plan), DR_INVALID, std::string("tensors.") + argument, words);
    EXPECT_TRUE(call.untouched()) << argument;
  };
  static const int32_t kIndex[2] = {0, 1};
  static const uint8_t kMask[2] = {1, 1};
  refuse("size", {"found 0"}, [](SmallCall& c) { c.tensors.size = 0; });
  refuse("size", {"found 160, the size in version 0.1"}, [](SmallCall& c) { c.tensors.size = 160; });
  refuse("reserved", {"found 1"}, [](SmallCall& c) { c.tensors.reserved = 1; });
  refuse("q", {"found NULL"}, [](SmallCall& c) { c.tensors.q = nullptr; });
  refuse("k", {"found NULL"}, [](SmallCall& c) { c.tensors.k = nullptr; });
  refuse("v", {"found NULL"}, [](SmallCall& c) { c.tensors.v = nullptr; });
  refuse("g", {"found NULL"}, [](SmallCall& c) { c.tensors.g = nullptr; });
  refuse("beta", {"found NULL"}, [](SmallCall& c) { c.tensors.beta = nullptr; });
  refuse("o", {"found NULL"}, [](SmallCall& c) { c.tensors.o = nullptr; });
  refuse("q", {"multiple of 16", "multiple of 4"}, [](SmallCall& c) { c.tensors.q = c.q.data() + 1; });
  refuse("o", {"multiple of 16", "multiple of 8"}, [](SmallCall& c) { c.tensors.o = c.o.data() + 2; });
  refuse("o", {"memory of its own"}, [](SmallCall& c) { c.tensors.v = c.o.data(); });
  refuse("initial", {"expected NULL"}, [](SmallCall& c) { c.tensors.initial = c.state.data(); });
  refuse("initial_index", {"expected NULL"}, [](SmallCall& c) { c.tensors.initial_index = kIndex; });
  refuse("has_initial", {"expected NULL"}, [](SmallCall& c) { c.tensors.has_initial = kMask; });
  refuse("final", {"found NULL"}, [](SmallCall& c) { c.tensors.final = nullptr; });
  refuse("final_index", {"expected NULL"}, [](SmallCall& c) { c.tensors.final_index = kIndex; });
  refuse("checkpoint", {"expected NULL"}, [](SmallCall& c) { c.tensors.checkpoint = c.state.data(); });
  refuse("checkpoint_index", {"expected NULL"}, [](SmallCall& c) { c.tensors.checkpoint_index = kIndex; });
  refuse("checkpoint_offsets", {"expected NULL"}, [](SmallCall& c) { c.tensors.checkpoint_offsets = kIndex; });
  refuse("checkpoint_positions", {"expected NULL"}, [](SmallCall& c) { c.tensors.checkpoint_positions = kIndex; });
  refuse("seq_offsets", {"expected NULL"}, [](SmallCall& c) { c.tensors.seq_offsets = c.offsets; });
  refuse("report", {"multiple of 4"}, [](SmallCall& c) {
    c.tensors.report = reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(c.state.data()) + 1);
  });
}

TEST(Execute, GateParameters) {
  SmallCall call;
  call.problem.gate_form = DR_GATE_RAW_SOFTPLUS;
  const PlanOwner owner(call.problem);
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.a_log", {"expected a pointer", "found NULL"});
  EXPECT_TRUE(call.untouched());
}

TEST(Execute, SlotsAndMask) {
  SmallCall call;
  int64_t final_index[2] = {1, 2};
  int32_t initial_index[2] = {0, -1};
  uint8_t mask[2] = {0, 1};
  std::vector<float> initial(call.state.size(), std::numeric_limits<float>::quiet_NaN());
  call.problem.final.use = DR_STATE_SLOTS;
  call.problem.final.index_dtype = DR_INT64;
  call.problem.initial.use = DR_STATE_SLOTS;
  call.problem.initial.layout = DR_STATE_KEY_MAJOR;
  call.problem.initial_mask = 1;
  call.tensors.initial = initial.data();
  call.tensors.initial_index = initial_index;
  call.tensors.has_initial = mask;
  call.tensors.final_index = final_index;
  const PlanOwner owner(call.problem);
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.final_index[1]", {"below num_slots = 2", "found 2"});
  final_index[1] = 1;
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.final_index[1]",
                 {"no other row writes", "1 a second time"});
  initial_index[0] = 5;
  final_index[1] = 0;
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.initial_index[0]", {"below num_slots = 2", "found 5"});
  call.tensors.has_initial = nullptr;
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.has_initial", {"found NULL"});
  EXPECT_TRUE(call.untouched());

  // With the mistake corrected: the masked slot is not read, and the null slot reads zero.
  initial_index[0] = 0;
  call.tensors.has_initial = mask;
  ASSERT_EQ(execute(call, owner.plan), DR_SUCCESS) << dr_last_error();
  for (const float x : call.o) ASSERT_TRUE(std::isfinite(x));
  for (const float x : call.state) ASSERT_TRUE(std::isfinite(x));
}

TEST(Execute, LengthsThatComeWithTheTensors) {
  SmallCall call;
  call.problem.seq_offsets = nullptr;
  const PlanOwner owner(call.problem);
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.seq_offsets", {"expected a pointer", "found NULL"});
  call.tensors.seq_offsets = call.offsets;
  call.offsets[2] = 71;
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.seq_offsets[2]",
                 {"at most num_tokens = 70", "found 71"});
  call.offsets[2] = 2;
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.seq_offsets[2]", {"at least 3", "found 2"});
  EXPECT_TRUE(call.untouched());
  call.offsets[2] = 70;
  EXPECT_EQ(execute(call, owner.plan), DR_SUCCESS) << dr_last_error();
}

TEST(Execute, CheckpointLists) {
  SmallCall call;
  int32_t rows[3] = {0, 0, 2};
  int32_t positions[2] = {16, 64};
  std::vector<float> checkpoints(call.state.size(), SmallCall::kPoison);
  call.problem.checkpoints = DR_CHECKPOINTS_LIST;
  call.problem.checkpoint.use = DR_STATE_ROWS;
  call.problem.checkpoint.layout = DR_STATE_KEY_MAJOR;
  call.problem.checkpoint.num_slots = 2;
  call.tensors.checkpoint = checkpoints.data();
  call.tensors.checkpoint_offsets = rows;
  call.tensors.checkpoint_positions = positions;
  const PlanOwner owner(call.problem);
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.checkpoint_positions[1]",
                 {"at most the length 63 of sequence 1", "found 64"});
  positions[1] = 48;
  rows[1] = 3;
  expect_failure(execute(call, owner.plan), DR_INVALID, "tensors.checkpoint_positions[0]",
                 {"at most the length 3 of sequence 0", "found 16"});
  EXPECT_TRUE(call.untouched());
  for (const float x : checkpoints) ASSERT_EQ(x, SmallCall::kPoison);
  rows[1] = 0;
  ASSERT_EQ(execute(call, owner.plan), DR_SUCCESS) << dr_last_error();
  for (const float x : checkpoints) ASSERT_NE(x, SmallCall::kPoison);
}

// A caller's own thread pool with one thread.
void run_in_order(void* pool, int64_t count, dr_parallel_body body, void* context) {
  ++*static_cast<int*>(pool);
  for (int64_t i = 0; i < count; ++i) body(context, i);
}

TEST(Execute, OnTheCallersThreads) {
  SmallCall call, own;
  int calls = 0;
  dr_options options;
  dr_options_init(&options);
  options.threads = 3;
  const PlanOwner plain(call.problem, &options);
  options.parallel_for = run_in_order;
  options.parallel_pool = &calls;
  const PlanOwner owner(own.problem, &options);
  ASSERT_EQ(execute(call, plain.plan), DR_SUCCESS) << dr_last_error();
  ASSERT_EQ(execute(own, owner.plan), DR_SUCCESS) << dr_last_error();
  EXPECT_GT(calls, 0);
  EXPECT_EQ(std::memcmp(call.o.data(), own.o.data(), call.o.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(call.state.data(), own.state.data(), call.state.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace contract
