// Plans that run on a GPU. Defined in a build with CUDA; without it there is no such plan.
#pragma once
#include <cstddef>

#include "plan/plan.h"

namespace deltarelay {

// Loads every kernel that an execution of the plan may launch. Throws Error(DR_DEVICE_ERROR).
void load_cuda(const Plan& plan);

// Puts the steps of a call onto the stream, a cudaStream_t, and returns. `problem`: the plan's, with the rows and
// sequences of this call. Throws Error(DR_DEVICE_ERROR).
void execute_cuda(const Plan& plan, const Steps& steps, const Problem& problem, const dr_tensors& tensors,
                  std::byte* workspace, void* stream);

}  // namespace deltarelay
