// Device facts, as the command prints and reads them.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "case/case.h"
#include "deltarelay/deltarelay.h"

namespace deltarelay::command {

dr_device device_at(int32_t index);
// What the maker of this machine's CPU calls it, or "unknown CPU".
std::string cpu_model();
// Stage costs of one backend, variant and rule on a device, and all that are stated for it.
dr_costs costs_of(const dr_device& device, const char* backend, const char* variant, int32_t rule);
std::vector<dr_costs> costs_of(const dr_device& device);
nlohmann::json device_json(const dr_device& device);  // with the library's costs
nlohmann::json device_json(const dr_device& device, const std::vector<dr_costs>& all);
// What device_json gave, from a file. Throws cases::CaseError that names the file and what is wrong in it.
cases::DeviceFacts read_device_file(const std::string& path);
// "9.0" for 90.
std::string capability_text(const dr_device& device);

}  // namespace deltarelay::command
