// Executes the plan of a spoilt problem, on memory as large as the problem says.
#pragma once
#include <cstdint>
#include <vector>

#include "deltarelay/deltarelay.h"
#include "input.h"

namespace fuzz {

// Takes the problem as the library accepted it, and its offsets (empty: batched, or lengths at execution). Skips
// problems that are not small.
void execute(Input& input, const dr_problem& problem, const std::vector<int64_t>& offsets, const dr_plan* plan);

}  // namespace fuzz
