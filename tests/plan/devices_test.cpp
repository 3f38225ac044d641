// The table of devices and what their stages cost.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan_cases.h"

namespace deltarelay {
namespace {

TEST(Devices, TheTableIsUsable) {
  std::set<std::string> names;
  for (int32_t i = 0; i < device_count(); ++i) {
    const dr_device device = device_at(i);
    EXPECT_TRUE(names.insert(device.name).second) << device.name;
    EXPECT_EQ(device.size, sizeof device);
    EXPECT_GT(device.units, 0);
    const DeviceCosts costs = costs_of_device(device);
    const std::string name = device.name;
    for (int32_t row = 0; row < num_cost_rows(); ++row) {
      for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
        const dr_costs& c = costs.at(row, rule);
        if (cost_row_at(row).backend->device_kind != device.kind) {
          EXPECT_EQ(c.size, 0u) << name;
          continue;
        }
        EXPECT_EQ(c.size, sizeof c);
        EXPECT_EQ(c.rule, static_cast<int32_t>(rule));
        EXPECT_STREQ(c.backend, cost_row_at(row).backend->name);
        EXPECT_STREQ(c.variant, cost_row_at(row).variant);
        EXPECT_GT(c.emit_ns, 0);
        EXPECT_STRNE(c.measured_on, "");
        if (i > 0 && c.variant != std::string("fused")) EXPECT_GT(c.prepare_ns, 0) << name;
        // GPUs of this machine come last; what was measured of them is their model's.
        if (i > 0 && name.rfind("cuda:", 0) != 0) EXPECT_EQ(c.measured, name == "h200" ? 1 : 0) << name;
      }
    }
    if (i > 0) EXPECT_EQ(device.kind, DR_DEVICE_CUDA);
  }
  EXPECT_EQ(device_at(0).kind, DR_DEVICE_CPU);
  EXPECT_EQ(std::string(device_at(0).name), "cpu");
  const std::vector<std::pair<const char*, int32_t>> units{{"a100", 108},    {"h100", 132},    {"h200", 132},
                                                           {"b200", 148},    {"gb200", 152},   {"rtx3090", 82},
                                                           {"rtx4090", 128}, {"rtx5090", 170}, {"rtx-pro-6000", 188}};
  for (const auto& [name, count] : units) EXPECT_EQ(test::device_of(name).device.units, count) << name;
}

}  // namespace
}  // namespace deltarelay
