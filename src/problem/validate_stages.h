// The rules of the stages, for validate_problem.cpp.
#pragma once
#include "deltarelay/deltarelay.h"
#include "problem/problem.h"

namespace deltarelay {

// Checks problem.chunks of a stage and resolves its defaults. `dtype`: of the problem. Throws Error(DR_INVALID).
Chunks read_chunks(const dr_problem& request, Op op, DType dtype);
// Checks the pools and checkpoints of a stage. Throws Error(DR_INVALID).
void check_stage(const Problem& problem);

}  // namespace deltarelay
