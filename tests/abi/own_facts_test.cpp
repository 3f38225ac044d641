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

// Whoever asks for costs may ask with any facts: they are those of the nearest GPU that is known.
TEST(OwnFacts, OfNoGpuThereIs) {
  const auto costs_of = [](const dr_device& device, dr_costs* costs) {
    dr_costs_init(costs);
    return dr_device_costs(&device, "cuda-sm80", nullptr, DR_KDA, DR_FORWARD, costs);
  };
  dr_device device;
  dr_device_init(&device);
  device.kind = DR_DEVICE_CUDA;
  device.name[0] = 'x';
  device.units = 100;
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
  dr_costs high, highest, low, lowest;
  device.compute_capability = 500;
  ASSERT_EQ(costs_of(device, &high), DR_SUCCESS) << dr_last_error();
  device.compute_capability = kMost;
  ASSERT_EQ(costs_of(device, &highest), DR_SUCCESS) << dr_last_error();
  EXPECT_EQ(highest.emit_ns, high.emit_ns);
  device.compute_capability = 1;
  ASSERT_EQ(costs_of(device, &low), DR_SUCCESS) << dr_last_error();
  device.compute_capability = kLeast;
  ASSERT_EQ(costs_of(device, &lowest), DR_SUCCESS) << dr_last_error();
  EXPECT_EQ(lowest.emit_ns, low.emit_ns);
  for (const int32_t units : {kLeast, -1, 0, kMost}) {
    device.units = units;
    EXPECT_EQ(costs_of(device, &low), DR_SUCCESS) << units << " units: " << dr_last_error();
  }
  std::memset(device.name, 'x', sizeof device.name);
  expect_failure(costs_of(device, &low), DR_INVALID, "device.name", {"ends within 32 bytes", "no end"});
  device.name[1] = '\0';
  std::memset(device.model, 'x', sizeof device.model);
  expect_failure(costs_of(device, &low), DR_INVALID, "device.model", {"ends within 64 bytes", "no end"});
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
