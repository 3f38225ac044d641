// carry: the state that enters every later segment, by folding transitions in order.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

// How a fold of a head is spread over thread blocks follows from args and the number of multiprocessors; its bits depend on neither:
// they are those of the fold alone.
cudaError_t launch_carry(const CarryArgs& args, int32_t multiprocessors, cudaStream_t stream);

// Brings the kernels to the device and claims their shared memory. Once per device, before any launch.
cudaError_t load_carry();

}  // namespace deltarelay::cuda
