// The fused walk of KDA where states inside rows are stored, and every channel of a chunk has a frame that holds it
// (frames.cuh).
#include "kernels/cuda/sm90/fused/kda/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

template cudaError_t launch_fused_kda<false, GateSource::kTiles, true>(const FusedMaps&, const WalkArgs&,
                                                                       const Activation&, const WalkShape&,
                                                                       cudaStream_t);
template cudaError_t load_fused_kda<false, GateSource::kTiles, true>();

}  // namespace deltarelay::cuda::sm90
