// The ordered list of backends, best first for each kind of device; each declines the other kind.
#include "plan/backends.h"

#include "plan/devices/device_costs.h"

namespace deltarelay {
namespace {

const Backend* const kBackends[] = {&kCpuBackend, &kCudaSm90Backend, &kCudaSm80Backend, &kReferenceBackend};

// Calls take(row) for each row of costs until it returns true; the number of that row, or of rows.
template <class Take>
int32_t find_cost_row(const Take& take) {
  int32_t number = 0;
  for (const Backend* backend : kBackends) {
    for (size_t i = 0; i < backend->cost_variants.size(); ++i) {
      if (take(CostRow{backend, backend->cost_variants[i], static_cast<int32_t>(i)})) return number;
      ++number;
    }
  }
  return number;
}

}  // namespace

int32_t backend_count() { return static_cast<int32_t>(sizeof kBackends / sizeof kBackends[0]); }

const Backend* backend_at(int32_t index) { return kBackends[index]; }

const Backend* backend_named(const std::string& name) {
  for (const Backend* backend : kBackends) {
    if (name == backend->name) return backend;
  }
  return nullptr;
}

int32_t num_cost_rows() {
  return find_cost_row([](const CostRow&) { return false; });
}

CostRow cost_row_at(int32_t row) {
  CostRow found{};
  int32_t number = 0;
  find_cost_row([&](const CostRow& at) {
    found = at;
    return number++ == row;
  });
  return found;
}

int32_t cost_row(std::string_view backend, std::string_view variant) {
  const int32_t row =
      find_cost_row([&](const CostRow& at) { return backend == at.backend->name && variant == at.variant; });
  return row < num_cost_rows() ? row : -1;
}

int32_t cost_row_of(const Backend& backend, const Variant& variant) {
  if (!backend.cost_variants.empty()) return cost_row(backend.name, variant.name);
  return find_cost_row([&](const CostRow& at) { return at.backend->device_kind == backend.device_kind; });
}

}  // namespace deltarelay
