// What the stages cost on a device: a row for each backend, variant and rule. The library's table (devices.cpp), with
// the rows that a caller gave in their place.
#pragma once
#include <cstdint>
#include <string_view>

#include "deltarelay/deltarelay.h"
#include "problem/types.h"

namespace deltarelay {

// Backends and variants whose costs are stated. `reference` is planned with the costs of the first row of its device.
enum class CostFamily : int32_t { kCpu = 0, kSm90Prepared = 1, kSm90Fused = 2, kSm80 = 3 };
constexpr int32_t kNumCostFamilies = 4;

struct CostFamilyNames {
  const char* backend;
  const char* variant;
  int32_t device_kind;
};
inline constexpr CostFamilyNames kCostFamilies[kNumCostFamilies] = {{"cpu", "", DR_DEVICE_CPU},
                                                                    {"cuda-sm90", "prepared", DR_DEVICE_CUDA},
                                                                    {"cuda-sm90", "fused", DR_DEVICE_CUDA},
                                                                    {"cuda-sm80", "", DR_DEVICE_CUDA}};

// Which family these names are of; -1: none.
constexpr int32_t cost_family(std::string_view backend, std::string_view variant) {
  for (int32_t i = 0; i < kNumCostFamilies; ++i) {
    if (backend == kCostFamilies[i].backend && variant == kCostFamilies[i].variant) return i;
  }
  return -1;
}

class DeviceCosts {
 public:
  dr_costs& at(CostFamily family, Rule rule) { return rows_[static_cast<int32_t>(family)][rule == Rule::kKda ? 0 : 1]; }
  const dr_costs& at(CostFamily family, Rule rule) const { return const_cast<DeviceCosts*>(this)->at(family, rule); }

 private:
  dr_costs rows_[kNumCostFamilies][2] = {};
};

// The library's costs for a device: of the model in the table that the device is, or that is nearest to it. Families of
// another kind of device stay zero.
DeviceCosts costs_of_device(const dr_device& device);

}  // namespace deltarelay
