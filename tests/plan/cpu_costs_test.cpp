// Whose costs a CPU is planned with: measured on one model, estimates on others.
#include <gtest/gtest.h>

#include <cstring>

#include "plan/backends.h"
#include "plan/devices/device_costs.h"
#include "plan/devices/devices.h"
#include "plan/plan.h"

namespace deltarelay {
namespace {

dr_device cpu_of(const char* model, int32_t flops_per_ns) {
  dr_device device = device_at(0);
  std::memset(device.model, 0, sizeof device.model);
  std::strncpy(device.model, model, sizeof device.model - 1);
  device.flops_per_ns = flops_per_ns;
  return device;
}

dr_costs costs_of(const dr_device& device, Rule rule) { return costs_of_device(device).at(cost_row("cpu", ""), rule); }

constexpr const char* kMeasured = "Arm Neoverse-V1";

TEST(CpuCosts, AreMeasuredOnOneModel) {
  for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
    for (const int32_t flops : {0, 10}) {
      const dr_costs c = costs_of(cpu_of(kMeasured, flops), rule);
      EXPECT_EQ(c.measured, 1);
      EXPECT_STREQ(c.measured_on, kMeasured);
      EXPECT_EQ(c.emit_ns, rule == Rule::kKda ? 32500 : 27700) << "what was measured is not scaled";
    }
    for (const char* model : {"", "Arm Neoverse-N1", "neoverse-v1"}) {
      const dr_costs c = costs_of(cpu_of(model, 0), rule);
      EXPECT_EQ(c.measured, 0) << model;
      EXPECT_STREQ(c.measured_on, kMeasured);
      EXPECT_EQ(c.emit_ns, rule == Rule::kKda ? 32500 : 27700) << "the same ratios, so the same plans";
    }
  }
}

TEST(CpuCosts, OfAnotherModelGoByItsRate) {
  for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
    const dr_costs one = costs_of(cpu_of("another", 83), rule);
    const dr_costs fast = costs_of(cpu_of("another", 166), rule);
    EXPECT_EQ(one.emit_ns, costs_of(cpu_of("another", 0), rule).emit_ns);
    EXPECT_EQ(fast.measured, 0);
    EXPECT_EQ(fast.emit_ns, one.emit_ns / 2);
    EXPECT_EQ(fast.summarize_ns, one.summarize_ns / 2);
    EXPECT_EQ(fast.local_ns, one.local_ns / 2);
    EXPECT_EQ(fast.summarize_local_ns, one.summarize_local_ns / 2);
    EXPECT_EQ(fast.carry_unit_ns, one.carry_unit_ns / 2);
    EXPECT_EQ(fast.split_ns, one.split_ns) << "no arithmetic";
    EXPECT_EQ(fast.item_ns, one.item_ns) << "no arithmetic";
    const dr_costs fastest = costs_of(cpu_of("another", 2147483647), rule);
    EXPECT_GE(fastest.emit_ns, 1);
    EXPECT_LE(fastest.local_ns, fastest.emit_ns);
  }
}

TEST(CpuCosts, ThisMachineSaysItsModel) {
  const dr_device device = device_at(0);
  EXPECT_EQ(device.flops_per_ns, 0) << "nobody has measured it";
  EXPECT_EQ(costs_of(device, Rule::kKda).measured, std::strcmp(device.model, kMeasured) == 0 ? 1 : 0);
  EXPECT_STRNE(device.model, "") << "Linux names the processors of both architectures";
}

}  // namespace
}  // namespace deltarelay
