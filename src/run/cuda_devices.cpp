#include "plan/devices/cuda_devices.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

namespace deltarelay {
namespace {

int64_t attribute(cudaDeviceAttr which, int32_t ordinal) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, ordinal) == cudaSuccess ? value : 0;
}

CudaFacts ask(int32_t ordinal) {
  CudaFacts facts;
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess) facts.model = properties.name;
  facts.units = static_cast<int32_t>(attribute(cudaDevAttrMultiProcessorCount, ordinal));
  facts.compute_capability = static_cast<int32_t>(attribute(cudaDevAttrComputeCapabilityMajor, ordinal) * 10 +
                                                  attribute(cudaDevAttrComputeCapabilityMinor, ordinal));
  facts.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, ordinal);
  facts.l2_bytes = attribute(cudaDevAttrL2CacheSize, ordinal);
  return facts;
}

// Asked once: the runtime fixes the devices of a process when it starts, and properties take it milliseconds. Never
// destroyed: threads may still be planning while the process exits.
const std::vector<CudaFacts>& devices() {
  static const std::vector<CudaFacts>& all = *[] {
    auto* const found = new std::vector<CudaFacts>;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
      cudaGetLastError();  // no driver, no GPU: an answer, not an error to leave to the caller's next check
      return found;
    }
    for (int32_t i = 0; i < count; ++i) found->push_back(ask(i));
    return found;
  }();
  return all;
}

}  // namespace

int32_t cuda_device_count() { return static_cast<int32_t>(devices().size()); }

int32_t cuda_current_device() {
  int ordinal = -1;
  if (devices().empty() || cudaGetDevice(&ordinal) != cudaSuccess) return -1;
  return ordinal;
}

CudaFacts cuda_facts(int32_t ordinal) { return devices().at(static_cast<size_t>(ordinal)); }

std::string cuda_build_text() {
  std::string portable = DELTARELAY_CUDA_ARCHITECTURES;
  std::replace(portable.begin(), portable.end(), ',', ' ');
  return "sm_90a, portable " + portable + " (CUDA " + std::to_string(CUDART_VERSION / 1000) + "." +
         std::to_string(CUDART_VERSION % 1000 / 10) + ")";
}

}  // namespace deltarelay
