// The table of tolerances (docs/numerics.md). No entry is widened to make a case pass.
#pragma once
#include "case/case.h"

namespace deltarelay::check {

// Of o, by the data type of q, k, v, and by the products that are asked for; with the rounding of o itself where o is stored narrower than that.
double tolerance_of_output(const cases::Case& c);
// Of final states and checkpoints that are stored in `dtype`.
double tolerance_of_state(const cases::Case& c, int32_t dtype);

}  // namespace deltarelay::check
