// carry: computes the state that enters every later segment, by folding transitions in order.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

// args and the number of multiprocessors decide how the fold of a head is spread over CTAs. The bits of the result
// depend on the fold alone.
cudaError_t launch_carry(const CarryArgs& args, int32_t multiprocessors, cudaStream_t stream);

// Loads the kernels onto the device and sets their shared memory limit. Call once per device, before any launch.
cudaError_t load_carry();

}  // namespace deltarelay::cuda
