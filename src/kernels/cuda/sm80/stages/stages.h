// The stages on cuda-sm80, in plain C++: what is taken, what plans are told, which kernels a problem needs.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/backend.h"

namespace deltarelay::cuda::sm80 {

// Empty when the stage is served; the problem is one.
std::string decline_this_stage(const Problem& problem, const Request& request);
Variants stage_variants(const Problem& problem);
void spread_stage(const SpreadRequest& request, Step& step);

// What is compiled for a stage: products for 16-bit data, for keys of few channels, or for fp32.
enum class StageNumbers : int32_t { kBf16, kFp16, kFineBf16, kFineFp16, kFp32 };
StageNumbers stage_numbers(const Problem& problem);
// Number of the kernels of a stage among those of stages.
constexpr int32_t kStageShapes = 25;
int32_t stage_number(const Problem& problem);

// A summary that is given no W and U prepares them. Where the tensors lie in the prepared memory, in bytes.
struct PreparedPlaces {
  int64_t w, u, k_to_end, gate_sums, bytes;
};
PreparedPlaces prepared_places(const Problem& problem);

}  // namespace deltarelay::cuda::sm80
