// Device facts of the library, as the command prints them.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "deltarelay/deltarelay.h"

namespace deltarelay::command {

dr_device device_at(int32_t index);
nlohmann::json device_json(const dr_device& device);
// "9.0" for 90.
std::string capability_text(const dr_device& device);

}  // namespace deltarelay::command
