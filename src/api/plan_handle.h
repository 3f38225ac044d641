// What the opaque handle holds.
#pragma once
#include <memory>

#include "deltarelay/deltarelay.h"
#include "plan/plan.h"

struct dr_plan {
  std::unique_ptr<const deltarelay::Plan> plan;
};
