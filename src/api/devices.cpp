// Facts about devices, as data.
#include <string>

#include "api/last_error.h"
#include "plan/plan.h"
#include "problem/struct_size.h"

namespace deltarelay {
namespace {

void give(const dr_device& facts, dr_device* device) {
  require_pointer("device", device);
  check_output_size("device", device, sizeof *device);
  write_output(device, &facts, sizeof facts);
}

void get_device(int32_t index, dr_device* device) {
  const int32_t count = device_count();
  if (index < 0 || index >= count) {
    fail_invalid("index", "0 to " + std::to_string(count - 1), std::to_string(index));
  }
  give(device_at(index), device);
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
