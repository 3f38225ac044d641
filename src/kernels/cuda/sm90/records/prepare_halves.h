// prepare of KDA for the chunks of a stage.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda::sm90 {

// Chunks of 64 tokens: two records of 32 tokens each. The second one is missing where a chunk has no more tokens.
cudaError_t launch_prepare_kda_halves(const PrepareArgs& args, DType dtype, bool mid_frame, cudaStream_t stream);

}  // namespace deltarelay::cuda::sm90
