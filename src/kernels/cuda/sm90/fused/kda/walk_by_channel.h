// Host side of the fused walk of KDA for gates that are not bounded (launch.h has it for bounded ones): every channel
// of a chunk has a frame that holds it (frames.cuh).
#pragma once
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::cuda::sm90 {

cudaError_t launch_fused_kda_by_channel(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                                        const WalkShape& shape, cudaStream_t stream);
cudaError_t load_fused_kda_by_channel();

}  // namespace deltarelay::cuda::sm90
