// dr_plan_*: what is refused, and what a plan reports.
#include <cstring>

#include "small_call.h"

namespace contract {
namespace {

// A handle that a failed call must not change.
dr_plan* const kUntouched = reinterpret_cast<dr_plan*>(uintptr_t{0x1000});

void expect_no_plan(const dr_problem* problem, const dr_options* options, const std::string& argument,
                    const std::vector<std::string>& words) {
  dr_plan* plan = kUntouched;
  expect_failure(dr_plan_create(problem, options, &plan), DR_INVALID, argument, words);
  EXPECT_EQ(plan, kUntouched);
}

TEST(PlanCreate, NullArguments) {
  const SmallCall call;
  expect_no_plan(nullptr, nullptr, "problem", {"expected a pointer", "found NULL"});
  expect_failure(dr_plan_create(&call.problem, nullptr, nullptr), DR_INVALID, "plan",
                 {"expected a pointer", "found NULL"});
  dr_plan_destroy(nullptr);
}

// One wrong value for every field; tests/problem has the rules in detail.
TEST(PlanCreate, EveryFieldOfTheProblemIsChecked) {
  const auto refuse = [](const char* argument, const std::vector<std::string>& words, auto spoil) {
    SmallCall call;
    spoil(call.problem);
    expect_no_plan(&call.problem, nullptr, std::string("problem.") + argument, words);
  };
  static const int32_t kDecreasing[3] = {0, 9, 8};
  refuse("size", {"expected at least " + std::to_string(sizeof(dr_problem)), "found 12"},
         [](dr_problem& p) { p.size = 12; });
  refuse("rule", {"DR_KDA", "found 5"}, [](dr_problem& p) { p.rule = 5; });
  refuse("num_seqs", {"found -1"}, [](dr_problem& p) { p.num_seqs = -1; });
  refuse("num_tokens", {"found -1"}, [](dr_problem& p) { p.num_tokens = -1; });
  refuse("seq_len", {"found -1"}, [](dr_problem& p) { p.seq_len = -1; });
  refuse("seq_offsets[2]", {"at least 9", "found 8"}, [](dr_problem& p) { p.seq_offsets = kDecreasing; });
  refuse("seq_offsets_dtype", {"DR_INT32", "found 1"}, [](dr_problem& p) { p.seq_offsets_dtype = DR_FP32; });
  refuse("heads_qk", {"found 0"}, [](dr_problem& p) { p.heads_qk = 0; });
  refuse("heads_v", {"head count", "multiple of heads_qk = 2", "found 3"}, [](dr_problem& p) { p.heads_v = 3; });
  refuse("dk", {"1 to 256", "found 257"}, [](dr_problem& p) { p.dk = 257; });
  refuse("dv", {"1 to 512", "found 0"}, [](dr_problem& p) { p.dv = 0; });
  refuse("dv", {"1 to 512", "found 513"}, [](dr_problem& p) { p.dv = 513; });
  refuse("dtype", {"DR_BF16", "found 4"}, [](dr_problem& p) { p.dtype = DR_INT32; });
  refuse("dtype_o", {"DR_BF16", "found 9"}, [](dr_problem& p) { p.dtype_o = 9; });
  refuse("dtype_gate", {"DR_BF16", "found 9"}, [](dr_problem& p) { p.dtype_gate = 9; });
  refuse("dtype_beta", {"DR_BF16", "found 9"}, [](dr_problem& p) { p.dtype_beta = 9; });
  refuse("gate_form", {"DR_GATE_LOG", "found 4"}, [](dr_problem& p) { p.gate_form = 4; });
  refuse("beta_form", {"DR_BETA_LOGIT", "found -1"}, [](dr_problem& p) { p.beta_form = -1; });
  refuse("scale", {"finite", "found nan"}, [](dr_problem& p) {
    p.scale_given = 1;
    p.scale = std::numeric_limits<float>::quiet_NaN();
  });
  refuse("lower_bound", {"expected 0", "found -5"}, [](dr_problem& p) { p.lower_bound = -5.0f; });
  refuse("gate_floor", {"below 0", "found 1"}, [](dr_problem& p) { p.gate_floor = 1.0f; });
  refuse("dtype_a_log", {"DR_BF16", "found 9"}, [](dr_problem& p) { p.dtype_a_log = 9; });
  refuse("dtype_dt_bias", {"DR_BF16", "found 4"}, [](dr_problem& p) { p.dtype_dt_bias = DR_INT32; });
  refuse("layout_q.alignment_bytes", {"power of two", "found 12"},
         [](dr_problem& p) { p.layout_q.alignment_bytes = 12; });
  refuse("final.alignment_bytes", {"power of two", "found 12"}, [](dr_problem& p) { p.final.alignment_bytes = 12; });
  refuse("final.reserved", {"expected 0", "found 1"}, [](dr_problem& p) { p.final.reserved[3] = 1; });
  refuse("layout_q.token", {"at least 32", "found 31"}, [](dr_problem& p) { p.layout_q.token = 31; });
  refuse("layout_k.head", {"at least 16", "found 15"}, [](dr_problem& p) { p.layout_k.head = 15; });
  refuse("layout_v.token", {"found -1"}, [](dr_problem& p) { p.layout_v.token = -1; });
  refuse("layout_o.sequence", {"packed", "found 99"}, [](dr_problem& p) { p.layout_o.sequence = 99; });
  refuse("layout_g.token", {"at least 32", "found 20"}, [](dr_problem& p) { p.layout_g.token = 20; });
  refuse("layout_beta.token", {"at least 2", "found 1"}, [](dr_problem& p) { p.layout_beta.token = 1; });
  refuse("initial.use", {"DR_STATE_ROWS", "found 7"}, [](dr_problem& p) { p.initial.use = 7; });
  refuse("final.layout", {"DR_STATE_VALUE_MAJOR", "found 0"}, [](dr_problem& p) { p.final.layout = 0; });
  refuse("initial_mask", {"found 1"}, [](dr_problem& p) { p.initial_mask = 1; });
  refuse("checkpoints", {"DR_CHECKPOINTS_LIST", "found 8"}, [](dr_problem& p) { p.checkpoints = 8; });
  refuse("checkpoint_every", {"multiple of 16", "found 20"}, [](dr_problem& p) {
    p.checkpoints = DR_CHECKPOINTS_EVERY;
    p.checkpoint_every = 20;
  });
  refuse("checkpoint.use", {"DR_STATE_NONE", "found 1"}, [](dr_problem& p) {
    p.checkpoint.use = DR_STATE_ROWS;
    p.checkpoint.layout = DR_STATE_KEY_MAJOR;
  });
}

TEST(PlanCreate, EveryOptionIsChecked) {
  const auto refuse = [](const char* argument, const std::vector<std::string>& words, auto spoil) {
    const SmallCall call;
    dr_options options;
    dr_options_init(&options);
    spoil(options);
    expect_no_plan(&call.problem, &options, std::string("options.") + argument, words);
  };
  static const int32_t kColumns[2] = {0, 8};
  refuse("size", {"found 3"}, [](dr_options& o) { o.size = 3; });
  refuse("segments", {"found 4"}, [](dr_options& o) { o.segments = 4; });
  refuse("segment_value", {"found 0"}, [](dr_options& o) { o.segments = DR_SEGMENTS_COUNT; });
  refuse("backend", {"cpu", "reference", "found 'tpu'"}, [](dr_options& o) { o.backend = "tpu"; });
  refuse("policy", {"found 'luck'"}, [](dr_options& o) { o.policy = "luck"; });
  refuse("threads", {"found -2"}, [](dr_options& o) { o.threads = -2; });
  refuse("carry", {"found 2"}, [](dr_options& o) { o.carry = 2; });
  refuse("reserved", {"expected 0", "found 1"}, [](dr_options& o) { o.reserved = 1; });
  refuse("carry_log_decay", {"expected 0 while options.carry is exact", "found -16"},
         [](dr_options& o) { o.carry_log_decay = -16.0f; });
  refuse("num_columns", {"found -1"}, [](dr_options& o) { o.num_columns = -1; });
  refuse("columns", {"found NULL"}, [](dr_options& o) { o.num_columns = 1; });
  refuse("columns", {"found 8"}, [](dr_options& o) {
    o.columns = kColumns;
    o.num_columns = 2;
  });
  dr_device device;
  dr_device_init(&device);
  device.units = 4;
  refuse("device.kind", {"found 0"}, [&](dr_options& o) { o.device = &device; });
}

TEST(PlanCreate, UnsupportedIsNotInvalid) {
  const SmallCall call;
  dr_options options;
  dr_options_init(&options);
  options.backend = "cuda-sm90";  // valid, but the device is a CPU
  dr_plan* plan = kUntouched;
  EXPECT_EQ(dr_plan_create(&call.problem, &options, &plan), DR_UNSUPPORTED);
  EXPECT_NE(std::string(dr_last_error()).find("cuda-sm90"), std::string::npos) << dr_last_error();
  EXPECT_EQ(plan, kUntouched);
}

TEST(PlanCreate, KeepsNothingOfTheRequest) {
  SmallCall call;
  std::string backend = "reference";
  dr_options options;
  dr_options_init(&options);
  options.backend = backend.c_str();
  const PlanOwner owner(call.problem, &options);
  ASSERT_NE(owner.plan, nullptr);
  backend.assign(backend.size(), 'x');
  call.offsets[1] = 1000;
  dr_problem_init(&call.problem);
  dr_plan_summary summary;
  dr_plan_summary_init(&summary);
  ASSERT_EQ(dr_plan_summarize(owner.plan, &summary), DR_SUCCESS) << dr_last_error();
  EXPECT_STREQ(summary.backend, "reference");
  size_t bytes = 0;
  ASSERT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  EXPECT_EQ(dr_execute(owner.plan, &call.tensors, call.workspace(bytes), bytes, nullptr), DR_SUCCESS)
      << dr_last_error();
}

TEST(PlanQueries, BadInput) {
  const SmallCall call;
  const PlanOwner owner(call.problem);
  size_t bytes = 77;
  expect_failure(dr_plan_workspace_bytes(nullptr, &bytes), DR_INVALID, "plan", {"expected a pointer", "found NULL"});
  expect_failure(dr_plan_workspace_bytes(owner.plan, nullptr), DR_INVALID, "bytes",
                 {"expected a pointer", "found NULL"});
  EXPECT_EQ(bytes, 77u);

  dr_plan_summary summary;
  dr_plan_summary_init(&summary);
  expect_failure(dr_plan_summarize(nullptr, &summary), DR_INVALID, "plan", {"expected a pointer", "found NULL"});
  expect_failure(dr_plan_summarize(owner.plan, nullptr), DR_INVALID, "summary", {"expected a pointer", "found NULL"});
  summary.size = 8;
  expect_failure(dr_plan_summarize(owner.plan, &summary), DR_INVALID, "summary.size", {"found 8"});
  EXPECT_EQ(summary.chunk, 0);

  char text[8] = "as was";
  size_t needed = 77;
  expect_failure(dr_plan_describe(nullptr, DR_DESCRIBE_TEXT, text, sizeof text, &needed), DR_INVALID, "plan",
                 {"expected a pointer", "found NULL"});
  expect_failure(dr_plan_describe(owner.plan, 3, text, sizeof text, &needed), DR_INVALID, "format",
                 {"DR_DESCRIBE_JSON (1)", "found 3"});
  expect_failure(dr_plan_describe(owner.plan, -1, text, sizeof text, &needed), DR_INVALID, "format", {"found -1"});
  expect_failure(dr_plan_describe(owner.plan, DR_DESCRIBE_TEXT, nullptr, 8, &needed), DR_INVALID, "text",
                 {"capacity", "found NULL"});
  EXPECT_EQ(needed, 77u);
  EXPECT_STREQ(text, "as was");
}

TEST(PlanQueries, SummaryCountsSegments) {
  const SmallCall call;
  dr_options options;
  dr_options_init(&options);
  options.segments = DR_SEGMENTS_OFF;
  const PlanOwner owner(call.problem, &options);
  dr_plan_summary summary;
  dr_plan_summary_init(&summary);
  ASSERT_EQ(dr_plan_summarize(owner.plan, &summary), DR_SUCCESS);
  EXPECT_EQ(summary.num_segments, 2);
  EXPECT_EQ(summary.max_segments, 1);
  EXPECT_EQ(summary.cut_sequences, 0);
  EXPECT_GE(summary.chunk, 1);
  EXPECT_GE(summary.threads, 1);
  EXPECT_EQ(summary.predicted_ns, summary.unsplit_ns);
}

TEST(PlanQueries, SummaryCountsCuts) {
  SmallCall call;
  call.offsets[1] = 10;
  call.offsets[2] = 10 + 4096;
  call.problem.num_tokens = call.offsets[2];
  dr_options options;
  dr_options_init(&options);
  options.segments = DR_SEGMENTS_COUNT;
  options.segment_value = 3;
  const PlanOwner owner(call.problem, &options);
  dr_plan_summary summary;
  dr_plan_summary_init(&summary);
  ASSERT_EQ(dr_plan_summarize(owner.plan, &summary), DR_SUCCESS);
  EXPECT_EQ(summary.num_segments, 4);
  EXPECT_EQ(summary.max_segments, 3);
  EXPECT_EQ(summary.cut_sequences, 1);
}

TEST(PlanQueries, DescriptionsAreCutToTheirRoom) {
  const SmallCall call;
  const PlanOwner owner(call.problem);
  for (const int32_t format : {DR_DESCRIBE_TEXT, DR_DESCRIBE_JSON, DR_DESCRIBE_SIGNATURE}) {
    size_t needed = 0;
    ASSERT_EQ(dr_plan_describe(owner.plan, format, nullptr, 0, &needed), DR_SUCCESS) << dr_last_error();
    ASSERT_GT(needed, 8u);
    std::string whole(needed, '?');
    ASSERT_EQ(dr_plan_describe(owner.plan, format, whole.data(), needed, nullptr), DR_SUCCESS);
    EXPECT_EQ(std::strlen(whole.c_str()), needed - 1);
    char few[8];
    std::memset(few, '#', sizeof few);
    ASSERT_EQ(dr_plan_describe(owner.plan, format, few, 5, &needed), DR_SUCCESS);
    EXPECT_EQ(std::string(few), whole.substr(0, 4));
    EXPECT_EQ(few[5], '#');
    ASSERT_EQ(dr_plan_describe(owner.plan, format, few, 1, nullptr), DR_SUCCESS);
    EXPECT_EQ(few[0], '\0');
  }
}

}  // namespace
}  // namespace contract
