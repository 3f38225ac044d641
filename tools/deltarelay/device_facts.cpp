#include "deltarelay/device_facts.h"

#include <nlohmann/json.hpp>
#include <span>

#include "deltarelay/deltarelay.hpp"

namespace deltarelay::command {

using nlohmann::json;

dr_device device_at(int32_t index) {
  dr_device device;
  dr_device_init(&device);
  check(dr_device_get(index, &device));
  return device;
}

dr_costs costs_of(const dr_device& device, const char* backend, const char* variant, int32_t rule) {
  dr_costs costs;
  dr_costs_init(&costs);
  check(dr_device_costs(&device, backend, variant, rule, DR_FORWARD, &costs));
  return costs;
}

std::vector<dr_costs> costs_of(const dr_device& device) {
  struct Names {
    const char* backend;
    const char* variant;
  };
  constexpr Names kCpu[] = {{"cpu", ""}};
  constexpr Names kCuda[] = {{"cuda-sm90", "fused"}, {"cuda-sm90", "prepared"}, {"cuda-sm80", ""}};
  std::vector<dr_costs> all;
  for (const Names& names : device.kind == DR_DEVICE_CPU ? std::span<const Names>(kCpu) : std::span<const Names>(kCuda))
    for (const int32_t rule : {DR_KDA, DR_GDN}) all.push_back(costs_of(device, names.backend, names.variant, rule));
  return all;
}

json device_json(const dr_device& device) {
  json costs = json::array();
  for (const dr_costs& c : costs_of(device)) {
    costs.push_back({{"backend", c.backend},
                     {"variant", c.variant},
                     {"rule", c.rule == DR_KDA ? "kda" : "gdn"},
                     {"op", "forward"},
                     {"measured", c.measured != 0},
                     {"measured_on", c.measured_on},
                     {"chunk", c.chunk},
                     {"emit_ns", c.emit_ns},
                     {"summarize_ns", c.summarize_ns},
                     {"local_ns", c.local_ns},
                     {"summarize_local_ns", c.summarize_local_ns},
                     {"carry_ns", c.carry_ns},
                     {"carry_unit_ns", c.carry_unit_ns},
                     {"split_ns", c.split_ns},
                     {"item_ns", c.item_ns},
                     {"emit_bytes", c.emit_bytes},
                     {"summarize_bytes", c.summarize_bytes},
                     {"prepare_ns", c.prepare_ns}});
  }
  return {{"name", device.name},
          {"model", device.model},
          {"kind", device.kind == DR_DEVICE_CPU ? "cpu" : "cuda"},
          {"units", device.units},
          {"compute_capability", device.compute_capability},
          {"l1_bytes", device.l1_bytes},
          {"l2_bytes", device.l2_bytes},
          {"bytes_per_ns", device.bytes_per_ns},
          {"flops_per_ns", device.flops_per_ns},
          {"costs", costs}};
}

std::string capability_text(const dr_device& device) {
  return std::to_string(device.compute_capability / 10) + "." + std::to_string(device.compute_capability % 10);
}

}  // namespace deltarelay::command
