// What the cuda-sm90 backend takes, and how much memory it needs: plain C++, so that a plan for a GPU that is not here, or by a
// library without CUDA, is accepted and declined for the same reasons.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/stages.h"

namespace deltarelay::cuda::sm90 {

std::string decline(const Problem& problem, const Request& request);
// The fused walk serves this problem: one kernel from the caller's tensors to outputs and summaries, without `prepare`.
bool fused(const Problem& problem);
int32_t chunk(const Problem& problem, int32_t isa);
int32_t panel_columns(const Problem& problem, int32_t isa);
Sizes sizes(const Problem& problem, int32_t isa, const Tiling& tiling);

}  // namespace deltarelay::cuda::sm90
