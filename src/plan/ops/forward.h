// The forward: its steps in order, and its workspace. Whoever adds an operation writes such a file for it
// (docs/adding-an-operation.md).
#pragma once
#include "kernels/step.h"
#include "plan/plan.h"

namespace deltarelay {

// The steps of a call that has this at most. The plan has its table and its workspace.
Steps forward_steps(const Plan& plan, const CallBounds& bounds);

// Books the workspace. The plan has its tiling and its table, or its capacity where lengths come at execution.
void book_forward(Plan& plan);

}  // namespace deltarelay
