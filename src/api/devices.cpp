// Facts about devices, as data.
#include "plan/devices/devices.h"

#include <string>

#include "api/last_error.h"
#include "plan/backends.h"
#include "plan/devices/device_costs.h"
#include "problem/status.h"
#include "problem/struct_size.h"

namespace deltarelay {
namespace {

void give(const dr_device& facts, dr_device* device) {
  require_pointer("device", device);
  give_output("device", device, facts);
}

void get_device(int32_t index, dr_device* device) {
  const int32_t count = device_count();
  if (index < 0 || index >= count) {
    fail_invalid("index", "0 to " + std::to_string(count - 1), std::to_string(index));
  }
  give(device_at(index), device);
}

void give_costs(const dr_device* given, const char* backend, const char* variant, int32_t rule, int32_t op,
                dr_costs* costs) {
  require_pointer("device", given);
  require_pointer("backend", backend);
  require_pointer("costs", costs);
  const dr_device device = take_input("device", *given);
  check_text("device.name", device.name);
  check_text("device.model", device.model);
  const std::string name = variant != nullptr ? variant : "";
  const int32_t row = cost_row(backend, name);
  if (row < 0 || cost_row_at(row).backend->device_kind != device.kind) {
    fail_invalid("backend", "a backend, and its variant, that has costs on this kind of device",
                 "'" + std::string(backend) + "', variant '" + name + "'");
  }
  if (rule != DR_KDA && rule != DR_GDN) fail_invalid("rule", "DR_KDA (1) or DR_GDN (2)", std::to_string(rule));
  if (op != DR_FORWARD) fail_invalid("op", "DR_FORWARD (0)", std::to_string(op));
  give_output("costs", costs, costs_of_device(device).at(row, static_cast<Rule>(rule)));
}

void find_device(const char* name, dr_device* device) {
  require_pointer("name", name);
  give(device_named(name), device);
}

}  // namespace
}  // namespace deltarelay

using namespace deltarelay;

int32_t dr_device_count(void) { return device_count(); }

dr_status dr_device_get(int32_t index, dr_device* device) {
  return as_status([&] { get_device(index, device); });
}

dr_status dr_device_find(const char* name, dr_device* device) {
  return as_status([&] { find_device(name, device); });
}

dr_status dr_device_costs(const dr_device* device, const char* backend, const char* variant, int32_t rule, int32_t op,
                          dr_costs* costs) {
  return as_status([&] { give_costs(device, backend, variant, rule, op, costs); });
}
