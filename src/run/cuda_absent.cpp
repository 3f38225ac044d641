// A build without CUDA: there are no GPUs, and no plan that could run on one.
#include "plan/devices/cuda_devices.h"
#include "problem/status.h"
#include "run/execute_cuda.h"

namespace deltarelay {

int32_t cuda_device_count() { return 0; }
int32_t cuda_current_device() { return -1; }
CudaFacts cuda_facts(int32_t) { return {}; }
std::string cuda_build_text() { return "none"; }

void load_cuda(const Plan&) { throw Error(DR_INTERNAL, "plan: expected one for a CPU, found one for a GPU"); }
void execute_cuda(const Plan& plan, const Steps&, const Problem&, const dr_tensors&, std::byte*, void*) {
  load_cuda(plan);
}

}  // namespace deltarelay
