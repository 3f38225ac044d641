// Device facts of the library, as the command prints them.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "deltarelay/deltarelay.h"

namespace deltarelay::command {

dr_device device_at(int32_t index);
// Stage costs of one backend, variant and rule on a device, and all that are stated for it.
dr_costs costs_of(const dr_device& device, const char* backend, const char* variant, int32_t rule);
std::vector<dr_costs> costs_of(const dr_device& device);
nlohmann::json device_json(const dr_device& device);
// "9.0" for 90.
std::string capability_text(const dr_device& device);

}  // namespace deltarelay::command
