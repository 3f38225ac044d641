// The table of tolerances (docs/numerics.md). No entry is widened to make a case pass.
#pragma once
#include "case/case.h"

namespace deltarelay::check {

// Of o, by the data type of q, k, v, and by the products that are asked for; with the rounding of o itself where o is
// stored narrower than that.
double tolerance_of_output(const cases::Case& c);
// Of final states and checkpoints that are stored in `dtype`.
double tolerance_of_state(const cases::Case& c, int32_t dtype);
// The part of each that is for storing in fewer bits; a block is allowed at least what that costs the exact result
// (measure.h).
double storage_of_output(const cases::Case& c);
// Of what a stage writes between q and o: an intermediate that is stored in `dtype`, and the part of it for storing.
double tolerance_of_intermediate(const cases::Case& c, const TensorEntry& entry);
double storage_of_intermediate(const cases::Case& c, const TensorEntry& entry);
double storage_of_state(int32_t dtype);

}  // namespace deltarelay::check
