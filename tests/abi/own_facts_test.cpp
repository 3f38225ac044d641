// CPU facts of the caller: plans made with them run here, on as many threads as the facts have units.
#include <cstdio>

#include "small_call.h"

namespace contract {
namespace {

std::vector<float> outputs_of(SmallCall& call, const dr_options& options, int32_t threads) {
  const PlanOwner owner(call.problem, &options);
  if (owner.plan == nullptr) return {};
  dr_plan_summary summary;
  dr_plan_summary_init(&summary);
  EXPECT_EQ(dr_plan_summarize(owner.plan, &summary), DR_SUCCESS);
  EXPECT_EQ(summary.threads, threads);
  size_t bytes = 0;
  EXPECT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  EXPECT_EQ(dr_execute(owner.plan, &call.tensors, call.workspace(bytes), bytes, nullptr), DR_SUCCESS)
      << dr_last_error();
  return call.o;
}

TEST(OwnFacts, OfACpuRunHere) {
  dr_device device;
  dr_device_init(&device);
  ASSERT_EQ(dr_device_get(0, &device), DR_SUCCESS);
  dr_options options;
  dr_options_init(&options);
  options.segments = DR_SEGMENTS_OFF;
  options.threads = 1;
  SmallCall one;
  const std::vector<float> expected = outputs_of(one, options, 1);
  ASSERT_NE(expected.at(0), SmallCall::kPoison);
  options.device = &device;
  options.threads = 0;
  for (const int32_t units : {1, 3, 64}) {
    device.units = units;
    device.l1_bytes = 1000 * units;
    std::snprintf(device.name, sizeof device.name, "cpu of %d", static_cast<int>(units));
    SmallCall call;
    EXPECT_EQ(outputs_of(call, options, units), expected) << units << " units";
  }
}

TEST(OwnFacts, WithMoreUnitsThanThreadsCanBe) {
  dr_device device;
  dr_device_init(&device);
  ASSERT_EQ(dr_device_get(0, &device), DR_SUCCESS);
  device.units = 1 << 20;
  dr_options options;
  dr_options_init(&options);
  options.device = &device;
  SmallCall call;
  dr_plan* plan = nullptr;
  expect_failure(dr_plan_create(&call.problem, &options, &plan), DR_INVALID, "options.device.units",
                 {"expected 1 to 4096", "found 1048576"});
}

}  // namespace
}  // namespace contract
