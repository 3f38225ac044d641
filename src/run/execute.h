// Walk a plan's steps: rows that start from the true state, folds, rows that wait for them.
#pragma once
#include <cstddef>

#include "plan/plan.h"

namespace deltarelay {

// `tensors` and `workspace` have been validated against the plan. Allocates nothing.
void execute(const Plan& plan, const dr_tensors& tensors, std::byte* workspace);

}  // namespace deltarelay
