// A plan as a picture: units on one axis, time on the other, the split schedule above the unsplit one on one time scale.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

namespace deltarelay::command {

// There is no schedule to draw before the lengths are known.
class NothingToDraw : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `plan` is the JSON of dr_plan_describe. Returns an SVG document: the schedule, item by item, or, where the plan has too many items
// to list, its stages. Throws NothingToDraw.
std::string draw_timeline(const nlohmann::json& plan, const std::string& case_line);

}  // namespace deltarelay::command
