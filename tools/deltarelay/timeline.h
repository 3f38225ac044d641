// A plan as a picture: units on one axis, time on the other, the split schedule above the unsplit one on one time scale.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace deltarelay::command {

// `plan` is the JSON of dr_plan_describe, with its "schedule". Returns an SVG document.
std::string draw_timeline(const nlohmann::json& plan, const std::string& case_line);

}  // namespace deltarelay::command
