// A picture of a plan: units against time, the split schedule above the unsplit one on one time scale.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

namespace deltarelay::command {

// Thrown if the lengths are not known yet: there is no schedule to draw.
class NothingToDraw : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `plan` is the JSON of dr_plan_describe. Returns an SVG document: the schedule item by item or, if the plan has too
// many items to list, its stages. Throws NothingToDraw.
std::string draw_timeline(const nlohmann::json& plan, const std::string& case_line);

}  // namespace deltarelay::command
