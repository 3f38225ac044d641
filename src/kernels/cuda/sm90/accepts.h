// What the cuda-sm90 backend takes, what it offers for it, and how its launches are spread: plain C++, so that a plan
// for a GPU that is not here, or by a library without CUDA, is made, accepted and declined for the same reasons.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/backend.h"

namespace deltarelay::cuda::sm90 {

// What a tensor map of TMA takes: addresses and strides in whole 16-byte pieces, strides below 2^40 bytes, coordinates
// in int32_t.
inline constexpr int64_t kMapBytes = 16;
inline constexpr int64_t kMapStrideBytes = int64_t{1} << 40;
inline constexpr int64_t kMapCoordinates = std::numeric_limits<int32_t>::max();

std::string decline(const Problem& problem, const Request& request);
// Numbers of the variants: the fused walk, one kernel from the caller's tensors to outputs and summaries; or `prepare`,
// and the walk through its records.
enum Way : int32_t { kFused = 0, kPrepared = 1, kStages = 2 };
inline constexpr int32_t kNumWays = 2;
inline constexpr const char* kWayNames[kNumWays] = {"fused", "prepared"};
// The only variant of the stages (stages.h), which no option names.
inline constexpr const char* kStagesName = "stages";
inline constexpr const char* kCostNames[] = {"prepared", "fused", kStagesName};  // in the order of plans
bool takes_way(const Problem& problem, int32_t way);
// Does the fused walk of KDA keep all channels of these gates in the frame of a chunk's middle? The kernels that do are
// compiled for log and raw bounded gates.
bool in_mid_frame(const Problem& problem);
// Of a stage (stages/accepts.cpp).
std::string decline_stage_of(const Problem& problem);
// What a tensor map of TMA takes of the strides of a tensor.
std::string decline_strides(const char* tensor, const Strides& strides, DType dtype);
// Strips of 128 value columns in one head (args.h).
int32_t strips(const Problem& problem);
Variants variants(const Problem& problem, const Request& request);
// Stage costs on a GPU (Backend::costs).
void costs(const dr_device& device, const DeviceSpeed& speed, int32_t index, Rule rule, dr_costs& costs);
// CTAs of a step (Backend::spread).
void spread(const SpreadRequest& request, Step& step);

// The backend as far as plans go. What runs them, a library with CUDA adds.
constexpr Backend planned_backend() {
  return {.name = "cuda-sm90",
          .device_kind = DR_DEVICE_CUDA,
          .variant_names = kWayNames,
          .cost_variants = kCostNames,
          .costs = costs,
          .decline = decline,
          .variants = variants,
          .spread = spread};
}

}  // namespace deltarelay::cuda::sm90
