// What the cuda-sm90 backend takes, and how much memory it needs: plain C++, so that a plan for a GPU that is not here,
// or by a library without CUDA, is accepted and declined for the same reasons.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/stages.h"

namespace deltarelay::cuda::sm90 {

std::string decline(const Problem& problem, const Request& request);
// Ways to serve a problem: the fused walk, one kernel from the caller's tensors to outputs and summaries; or `prepare`,
// and the walk through its records.
enum Way : int32_t { kFused = 0, kPrepared = 1 };
inline constexpr int32_t kNumWays = 2;
inline constexpr const char* kWayNames[kNumWays] = {"fused", "prepared"};
bool takes_way(const Problem& problem, int32_t way);
int32_t chunk(const Problem& problem, int32_t way);
int32_t panel_columns(const Problem& problem, int32_t way);
// Strips of 128 value columns in one head (args.h).
int32_t strips(const Problem& problem);
Sizes sizes(const Problem& problem, int32_t way, const Tiling& tiling);
// One gate a head mostly forgets a segment; of 128 gates there is mostly one that does not.
bool short_summaries(const Problem& problem);
// Where rows are long enough for a suffix (suffix.cuh). Some summaries of KDA will be short, not all, and phase 1 ends
// earlier by that only when they take turns on the multiprocessors.
bool tries_suffixes(const Problem& problem, const CallBounds& bounds, int32_t units, bool exact);
// Where a fused CTA has a whole strip: whether two of them with strips of one key walk as twins, which share what
// strips of a key have in common. Rows have to be long enough: going on from one to the next takes them longer.
bool walks_twins(const Problem& problem, const CallBounds& bounds);
// Of fused CTAs that have a whole strip: those with strips of one key, as many of them as divide the multiprocessors.
RelayUnits relay_units(const Problem& problem, int32_t way, int32_t tiles_a_strip, const CallBounds& bounds,
                       int32_t units);

// The backend as far as plans go. What runs them, a library with CUDA adds.
constexpr Backend planned_backend() {
  return {.name = "cuda-sm90",
          .decline = decline,
          .chunk = chunk,
          .panel_columns = panel_columns,
          .sizes = sizes,
          .num_ways = kNumWays,
          .way_names = kWayNames,
          .takes_way = takes_way,
          .strips = strips,
          .short_summaries = short_summaries,
          .tries_suffixes = tries_suffixes,
          .walks_twins = walks_twins,
          .relay_units = relay_units};
}

}  // namespace deltarelay::cuda::sm90
