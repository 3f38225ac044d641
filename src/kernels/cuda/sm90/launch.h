// Host side of the Hopper kernels: one function to launch each, one to load it ahead of the first launch.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/rows/walk_maps.h"

namespace deltarelay::cuda::sm90 {

// `mid_frame`: gates are bounded so that scores may be formed in the frame of the chunk's middle (prepare_kda.cuh).
cudaError_t launch_prepare_kda(const PrepareArgs& args, DType dtype, bool mid_frame, cudaStream_t stream);
cudaError_t load_prepare_kda(DType dtype);

// `value_tiles`: CTAs over the value columns of one strip, 1 (rows to emit only) or 2. `twins`: with one, fused CTAs of
// two strips share what is made. `suffix`: with two, summaries walk their suffix first.
struct WalkShape {
  DType dtype;
  int32_t value_tiles;
  bool twins;
  bool suffix;
  int32_t units;  // multiprocessors
};
cudaError_t launch_walk_kda(const WalkMaps& maps, const WalkArgs& args, const WalkShape& shape, cudaStream_t stream);
cudaError_t launch_walk_gdn(const WalkMaps& maps, const WalkArgs& args, const WalkShape& shape, cudaStream_t stream);
cudaError_t load_walk_kda(DType dtype);
cudaError_t load_walk_gdn(DType dtype);

// Emits and summarizes the rows of args.phase from the inputs as they come, with one CTA a strip (rows to emit only) or
// two. args.prepared is not used.
cudaError_t launch_fused_kda(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream);
cudaError_t load_fused_kda();
cudaError_t launch_fused_gdn(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream);
cudaError_t load_fused_gdn(DType dtype);

}  // namespace deltarelay::cuda::sm90
