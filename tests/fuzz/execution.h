// Execution of a plan that was made for whatever a problem became, on memory that is as large as the problem says.
#pragma once
#include <cstdint>
#include <vector>

#include "deltarelay/deltarelay.h"
#include "input.h"

namespace fuzz {

// The problem, as the library accepted it, and the offsets that came with it (empty: batched, or lengths at execution). Problems
// that are not small are left alone.
void execute(Input& input, const dr_problem& problem, const std::vector<int64_t>& offsets, const dr_plan* plan);

}  // namespace fuzz
