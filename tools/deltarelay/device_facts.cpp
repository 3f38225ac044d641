#include "deltarelay/device_facts.h"

#include <nlohmann/json.hpp>

#include "deltarelay/deltarelay.hpp"

namespace deltarelay::command {

using nlohmann::json;

dr_device device_at(int32_t index) {
  dr_device device;
  dr_device_init(&device);
  check(dr_device_get(index, &device));
  return device;
}

json device_json(const dr_device& device) {
  const auto costs = [](const dr_stage_costs& c) {
    return json{{"chunk", c.chunk},
                {"emit_ns", c.emit_ns},
                {"summarize_ns", c.summarize_ns},
                {"local_ns", c.local_ns},
                {"summarize_local_ns", c.summarize_local_ns},
                {"carry_ns", c.carry_ns},
                {"carry_unit_ns", c.carry_unit_ns},
                {"split_ns", c.split_ns},
                {"item_ns", c.item_ns},
                {"prepare_ns", c.prepare_ns}};
  };
  return {{"name", device.name},
          {"kind", device.kind == DR_DEVICE_CPU ? "cpu" : "cuda"},
          {"units", device.units},
          {"compute_capability", device.compute_capability},
          {"l1_bytes", device.l1_bytes},
          {"l2_bytes", device.l2_bytes},
          {"bytes_per_ns", device.bytes_per_ns},
          {"measured", device.measured != 0},
          {"kda", costs(device.kda)},
          {"gdn", costs(device.gdn)},
          {"kda_fused", costs(device.kda_fused)},
          {"gdn_fused", costs(device.gdn_fused)},
          {"portable_measured", device.portable_measured != 0},
          {"kda_portable", costs(device.kda_portable)},
          {"gdn_portable", costs(device.gdn_portable)}};
}

std::string capability_text(const dr_device& device) {
  return std::to_string(device.compute_capability / 10) + "." + std::to_string(device.compute_capability % 10);
}

}  // namespace deltarelay::command
