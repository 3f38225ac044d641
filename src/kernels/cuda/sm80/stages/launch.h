// Launches of the kernels of the stages.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm80/stages/stages.h"
#include "kernels/cuda/stage_args.h"

namespace deltarelay::cuda::sm80 {

cudaError_t launch_local(const ChunkArgs& args, StageNumbers numbers, cudaStream_t stream);
cudaError_t launch_outputs(const ChunkArgs& args, StageNumbers numbers, cudaStream_t stream);
cudaError_t launch_pass(const PassArgs& args, StageNumbers numbers, unsigned ctas, cudaStream_t stream);
cudaError_t launch_chains(const PassArgs& args, unsigned ctas, cudaStream_t stream);

// Load the kernels to the current device.
cudaError_t load_local(StageNumbers numbers);
cudaError_t load_outputs(StageNumbers numbers);
cudaError_t load_pass(StageNumbers numbers);
cudaError_t load_chains();

}  // namespace deltarelay::cuda::sm80
