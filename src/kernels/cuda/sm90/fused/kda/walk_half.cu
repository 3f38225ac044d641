// The fused walk of KDA for fp16 data and gates that the frame of a chunk's middle holds.
#include "kernels/cuda/sm90/fused/kda/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

template cudaError_t launch_fused_kda<true, GateSource::kHalfTiles, false>(const FusedMaps&, const WalkArgs&,
                                                                           const Activation&, const WalkShape&,
                                                                           cudaStream_t);
template cudaError_t load_fused_kda<true, GateSource::kHalfTiles, false>();

}  // namespace deltarelay::cuda::sm90
