// Walks a plan's steps.
#pragma once
#include <cstddef>

#include "plan/plan.h"

namespace deltarelay {

// Readies the machine for executions of a plan that can run here: they load no kernel. Throws Error(DR_DEVICE_ERROR).
void load(const Plan& plan);

// `tensors` and `workspace` have been validated against the plan. Allocates nothing. A plan for a GPU is put onto
// `stream`, a cudaStream_t, and the call returns; else `stream` is nullptr.
void execute(const Plan& plan, const dr_tensors& tensors, std::byte* workspace, void* stream);

}  // namespace deltarelay
