// Launching with programmatic dependence, where the GPU has it: the kernel may be set up while the one before it in the
// stream drains, and says itself when it needs that one's results (wait_for_previous_grid).
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace deltarelay::cuda {

struct LaunchShape {
  dim3 grid;
  unsigned block;
  size_t shared_bytes;
  unsigned cluster = 1;  // blocks that start together
};

// Has the current device programmatic dependent launch? Asked of the runtime once for each device: this runs with every
// launch.
inline bool has_dependent_launch() {
  static std::atomic<uint64_t> known{0}, has{0};  // a bit for each of the first 64 devices
  int ordinal = 0;
  if (cudaGetDevice(&ordinal) != cudaSuccess) return false;  // the launch will say why
  const uint64_t bit = ordinal < 64 ? uint64_t{1} << ordinal : 0;
  if ((known.load(std::memory_order_acquire) & bit) != 0) return (has.load(std::memory_order_relaxed) & bit) != 0;
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) != cudaSuccess) return false;
  if (major >= 9) has.fetch_or(bit, std::memory_order_relaxed);
  known.fetch_or(bit, std::memory_order_release);
  return major >= 9;
}

template <class... Params, class... Values>
cudaError_t launch_dependent(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
                             const Values&... values) {
  static_assert((0 + ... + ((sizeof(Params) + 15) / 16 * 16)) <= 4096, "every driver takes 4 KB of kernel parameters");
  if (shape.grid.x == 0 || shape.grid.y == 0) return cudaSuccess;
  cudaLaunchAttribute attributes[2]{};
  unsigned used = 0;
  if (has_dependent_launch()) {
    attributes[used].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[used++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[used].id = cudaLaunchAttributeClusterDimension;
    attributes[used].val.clusterDim.x = shape.cluster;
    attributes[used].val.clusterDim.y = 1;
    attributes[used++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.block);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = used;
  return cudaLaunchKernelEx(&config, kernel, values...);
}

// The same without clusters.
template <class... Params, class... Values>
cudaError_t launch_dependent(void (*kernel)(Params...), dim3 grid, unsigned block, size_t shared_bytes,
                             cudaStream_t stream, const Values&... values) {
  return launch_dependent(kernel, LaunchShape{grid, block, shared_bytes}, stream, values...);
}

// Lets a kernel use this much shared memory and brings its code to the current device.
template <class Kernel>
cudaError_t load_kernel(Kernel* kernel, size_t shared_bytes) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (status != cudaSuccess) return status;
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

}  // namespace deltarelay::cuda
