// What the stages cost on a device: a row for each backend and variant that has costs (backends.h), and for each rule.
// The library's own, with the rows that a caller gave in their place.
#pragma once
#include <cstdint>

#include "deltarelay/deltarelay.h"
#include "problem/types.h"

namespace deltarelay {

class DeviceCosts {
 public:
  static constexpr int32_t kMostRows = 6;
  dr_costs& at(int32_t row, Rule rule) { return rows_[row][rule == Rule::kKda ? 0 : 1]; }
  const dr_costs& at(int32_t row, Rule rule) const { return const_cast<DeviceCosts*>(this)->at(row, rule); }

 private:
  dr_costs rows_[kMostRows][2] = {};
};

// The library's costs for a device: of the model in the table that the device is, or that is nearest to it. Rows of
// another kind of device stay zero.
DeviceCosts costs_of_device(const dr_device& device);

}  // namespace deltarelay
