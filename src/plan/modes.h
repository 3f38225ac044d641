// The device's stage costs, which are stated at DK = DV = 128, scaled to one problem; one entry per number of value
// tiles.
#pragma once
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/variant.h"
#include "plan/options.h"
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
Modes modes_of(const Problem& problem, const Options& options, const Backend& backend, const Variant& variant);

// Costs for one number of tiles a head, a multiple of variant.strips.
plan::Costs costs_of(const Problem& problem, const Options& options, const Backend& backend, const Variant& variant,
                     int32_t tiles_a_head);

// The costs that plans by this variant are made with.
const dr_costs& stated_costs(const Problem& problem, const Options& options, const Backend& backend,
                             const Variant& variant);

// Most tiles that the value columns of one head can be spread over.
int32_t most_tiles(const Problem& problem, const Variant& variant);

}  // namespace deltarelay
