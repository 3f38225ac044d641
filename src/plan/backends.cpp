// The ordered list of backends. CUDA entries without kernels serve to plan for GPUs that are not here.
#include <string>

#include "plan/plan.h"

namespace deltarelay {
namespace {

std::string capability_text(int32_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

std::string decline_cuda(const Request& request, bool capable, const char* takes) {
  if (request.device_kind != DR_DEVICE_CUDA) {
    return "device: expected a CUDA device, found a CPU (this library has no CUDA kernels built in; plans for a CUDA "
           "device can be "
           "made and read)";
  }
  if (!capable) {
    return std::string("compute capability: expected ") + takes + ", found " +
           capability_text(request.compute_capability);
  }
  if (request.num_columns > 0) return "columns: expected all value columns, found a subset of them";
  if (request.carry != CarryMode::kExact) return "carry: expected exact, found truncated";
  return {};
}

std::string decline_sm90(const Problem&, const Request& request) {
  return decline_cuda(request, request.compute_capability == 90, "9.0");
}

std::string decline_sm80(const Problem&, const Request& request) {
  return decline_cuda(request, request.compute_capability >= 80, "8.0 or higher");
}

int32_t cuda_chunk(const Problem&, int32_t) { return 64; }
int32_t cuda_panel(const Problem& problem, int32_t) { return problem.dv; }  // one item holds the whole state of a head

Sizes cuda_sizes(const Problem& problem, int32_t, const Tiling&) {
  Sizes sizes;
  sizes.state_floats = int64_t{problem.dk} * problem.dv;
  sizes.transition_floats = int64_t{problem.dk} * problem.dk;
  return sizes;
}

// Planning only: without run functions, and chosen only when the device is one that this machine does not have.
constexpr Backend kPlannedSm90 = {"cuda-sm90", decline_sm90, cuda_chunk, cuda_panel,
                                  cuda_sizes,  nullptr,      nullptr,    nullptr};
constexpr Backend kPlannedSm80 = {"cuda-sm80", decline_sm80, cuda_chunk, cuda_panel,
                                  cuda_sizes,  nullptr,      nullptr,    nullptr};

const Backend* const kBackends[] = {&kCpuBackend, &kPlannedSm90, &kPlannedSm80, &kReferenceBackend};

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
