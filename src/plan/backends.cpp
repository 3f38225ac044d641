// The ordered list of backends, best first for each kind of device; each declines the other kind.
#include <string>

#include "plan/plan.h"

namespace deltarelay {
namespace {

std::string capability_text(int32_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

// Portable CUDA kernels are still to come: plans for GPUs that are not here can be made and read with what is known of them.
std::string decline_sm80(const Problem&, const Request& request) {
  if (request.device_kind != DR_DEVICE_CUDA) {
    return "device: expected a CUDA device, found a CPU (plans for a GPU that is not here can be made and read)";
  }
  if (request.compute_capability < 80) {
    return "compute capability: expected 8.0 or higher, found " + capability_text(request.compute_capability);
  }
  if (request.num_columns > 0) return "columns: expected all value columns, found a subset of them";
  if (request.carry != CarryMode::kExact) return "carry: expected exact, found truncated";
  if (request.here) return "device: expected one that is not here, this library has no cuda-sm80 kernels yet";
  return {};
}

int32_t sm80_chunk(const Problem&, int32_t) { return 64; }
int32_t sm80_panel(const Problem& problem, int32_t) { return problem.dv; }  // one item holds the whole state of a head

Sizes sm80_sizes(const Problem& problem, int32_t, const Tiling&) {
  Sizes sizes;
  sizes.state_floats = int64_t{problem.dk} * problem.dv;
  sizes.transition_floats = int64_t{problem.dk} * problem.dk;
  return sizes;
}

constexpr Backend kPlannedSm80 = {"cuda-sm80", decline_sm80, sm80_chunk, sm80_panel,
                                  sm80_sizes,  nullptr,      nullptr,    nullptr};

const Backend* const kBackends[] = {&kCpuBackend, &kCudaSm90Backend, &kPlannedSm80, &kReferenceBackend};

}  // namespace

int32_t backend_count() { return static_cast<int32_t>(sizeof kBackends / sizeof kBackends[0]); }

const Backend* backend_at(int32_t index) { return kBackends[index]; }

const Backend* backend_named(const std::string& name) {
  for (const Backend* backend : kBackends) {
    if (name == backend->name) return backend;
  }
  return nullptr;
}

}  // namespace deltarelay
