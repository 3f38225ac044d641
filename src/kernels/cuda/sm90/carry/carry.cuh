// carry: computes the state that enters every later segment, by folding transitions in order.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/carry/spread.h"

namespace deltarelay::cuda {

// Every spread gives the same bits.
cudaError_t launch_carry(const CarryArgs& args, const CarrySpread& spread, cudaStream_t stream);

// Loads the kernels onto the device and sets their shared memory limit. Call once per device, before any launch.
cudaError_t load_carry();

}  // namespace deltarelay::cuda
