// Prints and reads device facts.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "case/case.h"
#include "deltarelay/deltarelay.h"

namespace deltarelay::command {

dr_device device_at(int32_t index);
// The manufacturer's name of this machine's CPU, or "unknown CPU".
std::string cpu_model();
// Stage costs of one backend, variant and rule on a device; and all costs of a device.
dr_costs costs_of(const dr_device& device, const char* backend, const char* variant, int32_t rule);
std::vector<dr_costs> costs_of(const dr_device& device);
nlohmann::json device_json(const dr_device& device);  // with the library's costs
nlohmann::json device_json(const dr_device& device, const std::vector<dr_costs>& all);
// Reads a file that device_json wrote. Throws cases::CaseError, which names the file and the error in it.
cases::DeviceFacts read_device_file(const std::string& path);
// "9.0" for 90.
std::string capability_text(const dr_device& device);

}  // namespace deltarelay::command
