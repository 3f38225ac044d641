// The device's stage costs, which are stated at DK = DV = 128, scaled to one problem; one entry per number of value tiles.
#pragma once
#include <cstdint>

#include "kernels/stages.h"
#include "plan/costs.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace deltarelay {

constexpr int32_t kMaxModes = 5;  // 1, 2, 4, 8, 16 value tiles

struct Modes {
  plan::Costs costs[kMaxModes];
  int32_t tiles[kMaxModes];
  int32_t count = 0;
};

// Rows and chunks of a call of which nothing is cut: a sequence without tokens has no row. When lengths come at execution, the most of them.
CallBounds uncut_bounds(const Problem& problem, int64_t chunk);

// The tilings worth weighing: never more tiles than value panels, and no more than it takes to give every unit an item of a
// single whole sequence.
Modes modes_of(const Problem& problem, const Options& options, const Backend& backend, int32_t isa);

// Costs for one number of tiles.
plan::Costs costs_of(const Problem& problem, const Options& options, const Backend& backend, int32_t isa,
                     int32_t tiles);

// What the device states of kernels without a step before the phases; chunk 0: nothing.
inline const dr_stage_costs& fused_costs(Op op, const dr_device& device) {
  return op == Op::kKda ? device.kda_fused : device.gdn_fused;
}

// What the device states of the portable kernels; chunk 0: nothing.
inline const dr_stage_costs& portable_costs(Op op, const dr_device& device) {
  return op == Op::kKda ? device.kda_portable : device.gdn_portable;
}

// Were the costs that this backend is planned with measured on such a device?
inline bool is_measured(const dr_device& device, const Backend& backend) {
  return (&backend == &kCudaSm80Backend ? device.portable_measured : device.measured) != 0;
}

// What a unit of the device runs at once, where the backend says so; else value_columns is 0 and it is one work item.
inline CtaTiling cta_tiling_of(const Problem& problem, const dr_device& device, const Backend& backend) {
  return backend.cta_tiling == nullptr ? CtaTiling{} : backend.cta_tiling(problem, device.l1_bytes);
}

// Most tiles that the value columns of one head can be spread over.
int32_t most_tiles(const Problem& problem, const Backend& backend, int32_t isa);

}  // namespace deltarelay
