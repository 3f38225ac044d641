// Facts about devices, as data.
#include <string>
#include <string_view>

#include "api/last_error.h"
#include "plan/plan.h"
#include "problem/struct_size.h"

namespace deltarelay {
namespace {

void get_device(int32_t index, dr_device* device) {
  const int32_t count = device_count();
  if (index < 0 || index >= count) {
    fail_invalid("index", "0 to " + std::to_string(count - 1), std::to_string(index));
  }
  require_pointer("device", device);
  check_output_size("device", device, sizeof *device);
  const dr_device facts = device_at(index);
  write_output(device, &facts, sizeof facts);
}

int32_t device_named(const char* name) {
  require_pointer("name", name);
  std::string known;
  for (int32_t i = 0; i < device_count(); ++i) {
    const dr_device facts = device_at(i);
    if (std::string_view(facts.name) == name) return i;
    known += (i == 0 ? "" : ", ") + std::string(facts.name);
  }
  fail_invalid("name", "one of " + known, "'" + std::string(name) + "'");
}

}  // namespace
}  // namespace deltarelay

using namespace deltarelay;

int32_t dr_device_count(void) { return device_count(); }

dr_status dr_device_get(int32_t index, dr_device* device) {
  return as_status([&] { get_device(index, device); });
}

dr_status dr_device_find(const char* name, dr_device* device) {
  return as_status([&] { get_device(device_named(name), device); });
}
