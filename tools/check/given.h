// Intermediates that a stage is given.
#pragma once
#include <cstdint>

#include "check/tensors.h"

namespace deltarelay::check {

// Fills them with what the stages before this one make of the case's q, k, v, g and beta: these run on the reference,
// with intermediates in fp32, and the results are rounded once. What a stage must not read stays NaN: rows after the
// last offset, numbers above the diagonal. Throws RunError if the reference declines a stage, and cases::CaseError for
// sums of gates that are not finite.
//
// Every summary of a carry is that of a segment of kSummaryTokens tokens. The states of DR_OUTPUTS come from a pass
// with initial states, so that they are not zero in the first chunk either.
constexpr int64_t kSummaryTokens = 16;
void make_given(TensorSet& tensors, int32_t threads);

}  // namespace deltarelay::check
