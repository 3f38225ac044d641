// What the cuda-sm80 backend takes, and how much memory it needs: plain C++, so that a plan for a GPU that is not here,
// or by a library without CUDA, is accepted and declined for the same reasons.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/cuda/sm80/record.h"
#include "kernels/stages.h"

namespace deltarelay::cuda::sm80 {

// Ways to serve a problem: as exact as its data; or, for fp32 data and where dr_options.math asks for it, with one
// product of TF32 in the walk instead of three.
enum Way : int32_t { kExact = 0, kTf32 = 1 };
inline constexpr int32_t kNumWays = 2;
inline constexpr const char* kWayNames[kNumWays] = {"", ""};  // dr_options.math chooses between them
bool takes_way(const Problem& problem, int32_t way);

std::string decline(const Problem& problem, const Request& request);
int32_t chunk(const Problem& problem, int32_t way);
int32_t panel_columns(const Problem& problem, int32_t way);
Sizes sizes(const Problem& problem, int32_t way, const Tiling& tiling);
// Every work item has one panel and is a CTA.
int32_t value_tiles(const Problem& problem);
CtaTiling cta_tiling(const Problem& problem, int64_t unit_shared_bytes);
// Where a suffix may stand for its row (suffix.cuh).
bool short_summaries(const Problem& problem);
bool tries_suffixes(const Problem& problem, const CallBounds& bounds, int32_t units, bool exact);

// Is there code for GPUs of this capability in a library that was built for these architectures? The list is CMake's,
// with commas: "80-real,90,120-virtual".
bool has_code_for(int32_t compute_capability, const std::string& architectures);

// Which of the compiled kernels serve the problem, and a number for them, which all its ways share.
Shape shape_of(const Problem& problem, int32_t way = kExact);
int32_t shape_number(const Problem& problem);

// The backend as far as plans go. What runs them, a library with CUDA adds.
constexpr Backend planned_backend() {
  return {.name = "cuda-sm80",
          .decline = decline,
          .chunk = chunk,
          .panel_columns = panel_columns,
          .sizes = sizes,
          .num_ways = kNumWays,
          .tf32_way = kTf32,
          .way_names = kWayNames,
          .takes_way = takes_way,
          .value_tiles = value_tiles,
          .cta_tiling = cta_tiling,
          .short_summaries = short_summaries,
          .tries_suffixes = tries_suffixes};
}

}  // namespace deltarelay::cuda::sm80
