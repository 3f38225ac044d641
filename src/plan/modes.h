// The device's stage costs, which are stated at DK = DV = 128, scaled to one problem; one entry per number of value
// tiles.
#pragma once
#include <cstdint>

#include "kernels/stages.h"
#include "plan/plan.h"
#include "plan/search/costs.h"
#include "problem/problem.h"

namespace deltarelay {

constexpr int32_t kMaxModes = 5;  // 1, 2, 4, 8, 16 value tiles

struct Modes {
  plan::Costs costs[kMaxModes];
  int32_t tiles[kMaxModes];
  int32_t count = 0;
};

// Rows and chunks of a call of which nothing is cut: a sequence without tokens has no row. When lengths come at
// execution, the most of them.
CallBounds uncut_bounds(const Problem& problem, int32_t chunk);
// The most chunks of sequences whose lengths come at execution.
int64_t late_chunks(const CallCounts& counts, int32_t chunk);

// The tilings worth weighing: never more tiles than value panels, and no more than it takes to give every unit an item
// of a single whole sequence.
Modes modes_of(const Problem& problem, const Options& options, const Backend& backend, int32_t isa);

// Costs for one number of tiles a head, a multiple of strips_of.
plan::Costs costs_of(const Problem& problem, const Options& options, const Backend& backend, int32_t isa,
                     int32_t tiles_a_head);

// The costs that a plan by this backend and way is made with; `record_bytes`: 0 where the way leaves no records.
const dr_costs& stated_costs(const Problem& problem, const Options& options, const Backend& backend,
                             int64_t record_bytes);

// What a unit of the device runs at once, where the backend says so; else value_columns is 0 and it is one work item.
inline CtaTiling cta_tiling_of(const Problem& problem, const dr_device& device, const Backend& backend) {
  return backend.cta_tiling == nullptr ? CtaTiling{} : backend.cta_tiling(problem, device.l1_bytes);
}

// Strips that the backend divides the value columns of a head into, 1 for most.
inline int32_t strips_of(const Problem& problem, const Backend& backend) {
  return backend.strips == nullptr ? 1 : backend.strips(problem);
}

// Most tiles that the value columns of one head can be spread over.
int32_t most_tiles(const Problem& problem, const Backend& backend, int32_t isa);

}  // namespace deltarelay
