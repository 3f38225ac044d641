// Loading a kernel whose CTAs share a multiprocessor.
#pragma once
#include "kernels/cuda/launch/launch.h"

namespace deltarelay::cuda::sm80 {

// Global memory is read once, so L1 may shrink until all resident CTAs have their shared memory.
template <class Kernel>
cudaError_t load_resident(Kernel* kernel, size_t shared_bytes) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  return status != cudaSuccess ? status : load_kernel(kernel, shared_bytes);
}

}  // namespace deltarelay::cuda::sm80
