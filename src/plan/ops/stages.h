// The stages of the forward as operations of their own: their steps and their predicted time.
#pragma once
#include "kernels/step.h"
#include "plan/plan.h"

namespace deltarelay {

// The steps of a call that has this at most. A state pass that can be cut has the steps of the forward.
Steps stage_steps(const Plan& plan, const CallBounds& bounds);

// Replaces the predicted time of a stage whose chunks run at once. Nothing is predicted for lengths that come at
// execution.
void time_stage(Plan& plan);

}  // namespace deltarelay
