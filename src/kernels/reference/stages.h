// The stages as operations of their own (include/deltarelay/stages.h), in double precision. Every stage backend is
// measured against them.
#pragma once
#include <cstddef>

#include "kernels/stages.h"

namespace deltarelay::reference {

// Runs one stage of a whole call, on up to tiling.threads workers. Computes all value columns, whatever args.columns
// says. Throws Error(DR_INTERNAL) if the operation is not a stage.
void run_stage(const StageArgs& args, Executor& executor);

// Bytes of args.scratch_bytes that run_stage needs, a multiple of kWorkspaceAlignment.
size_t stage_scratch_bytes(const Problem& problem);

}  // namespace deltarelay::reference
