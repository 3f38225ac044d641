// w, u, k_to_end, q_from_start and sums of gates from tokens and a given inverse: the chunk-local stage without scores.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/stage_args.h"

namespace deltarelay::cuda::sm90 {

struct RecomputeArgs {
  ChunkArgs call;
  Strips strips;
};

cudaError_t launch_recompute(const RecomputeArgs& args, DType dtype, bool scalar_gate, uint32_t ctas,
                             cudaStream_t stream);
cudaError_t load_recompute();

}  // namespace deltarelay::cuda::sm90
