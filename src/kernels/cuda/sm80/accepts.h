// What the cuda-sm80 backend takes, what it offers for it, and how its launches are spread: plain C++, so that a plan
// for a GPU that is not here, or by a library without CUDA, is made, accepted and declined for the same reasons.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/sm80/record.h"

namespace deltarelay::cuda::sm80 {

// Numbers of the variants: as exact as the data; or, for fp32 data and where dr_options.math asks for it, with one
// product of TF32 in the walk instead of three.
enum Way : int32_t { kExact = 0, kTf32 = 1 };

std::string decline(const Problem& problem, const Request& request);
Variants variants(const Problem& problem, const Request& request);
// Every work item has one panel and is a CTA.
CtaTiling cta_tiling(const Problem& problem, int64_t unit_shared_bytes);
// Stage costs on a GPU (Backend::costs).
void costs(const dr_device& device, const DeviceSpeed& speed, int32_t index, Rule rule, dr_costs& costs);
// CTAs of a step (Backend::spread).
void spread(const SpreadRequest& request, Step& step);

// Is there code for GPUs of this capability in a library that was built for these architectures? The list is CMake's,
// with commas: "80-real,90,120-virtual".
bool has_code_for(int32_t compute_capability, const std::string& architectures);

// Which of the compiled kernels serve the problem, and a number for them, which all its variants share.
Shape shape_of(const Problem& problem, int32_t way = kExact);
int32_t shape_number(const Problem& problem);

// Padded numbers of key channels that kernels are compiled for (width_of).
inline constexpr int32_t kWidths[] = {64, 96, 128, 192, 256};
inline constexpr int32_t kNumWidths = 5;

inline constexpr const char* kCostNames[] = {""};

// The backend as far as plans go. What runs them, a library with CUDA adds.
constexpr Backend planned_backend() {
  return {.name = "cuda-sm80",
          .device_kind = DR_DEVICE_CUDA,
          .cost_variants = kCostNames,
          .costs = costs,
          .decline = decline,
          .variants = variants,
          .spread = spread};
}

}  // namespace deltarelay::cuda::sm80
