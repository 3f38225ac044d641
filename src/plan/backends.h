// The list of backends: the only place of the planner that knows one by name.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/backend.h"

namespace deltarelay {

// Backends in order of preference, "reference" last.
int32_t backend_count();
const Backend* backend_at(int32_t index);
const Backend* backend_named(const std::string& name);  // nullptr: unknown

// The rows of a device's costs: what the backends of the list have costs for, in their order.
struct CostRow {
  const Backend* backend;
  const char* variant;
  int32_t index;  // of backend->cost_variants
};
int32_t num_cost_rows();
CostRow cost_row_at(int32_t row);
// Which row has this name; -1: none.
int32_t cost_row(std::string_view backend, std::string_view variant);
// The row that plans of a variant are made with: its own, or, of a backend without costs, the first of its kind of
// device.
int32_t cost_row_of(const Backend& backend, const Variant& variant);

}  // namespace deltarelay
