// Generates token tensors on the GPU: the values of generate.h, bit for bit.
#pragma once
#include <cstdint>

#include "case/case.h"

namespace deltarelay::check::gpu {

// Returns false for linear gates and means, which need exp and log (their last bits differ between libraries), and for
// correlated keys, which are normalised rows. The CPU generates those cases.
bool can_generate(const cases::Case& c);

// Writes q, k, v, g and beta of every token to the addresses in `tensors` (device memory, strides of the case), drawn
// with `seed` instead of the case's seed. Returns when the work is done.
void generate_tokens(const cases::Case& c, uint64_t seed, const dr_tensors& tensors);

}  // namespace deltarelay::check::gpu
