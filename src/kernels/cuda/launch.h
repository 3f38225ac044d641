// Launching with programmatic dependence: the kernel may be set up while the one before it in the stream drains, and says itself when
// it needs that one's results (wait_for_previous_grid).
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

namespace deltarelay::cuda {

struct LaunchShape {
  dim3 grid;
  unsigned block;
  size_t shared_bytes;
  unsigned cluster = 1;  // blocks that start together
};

template <class... Params, class... Values>
cudaError_t launch_dependent(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
                             const Values&... values) {
  if (shape.grid.x == 0 || shape.grid.y == 0) return cudaSuccess;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = shape.cluster;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.block);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
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
