// The same as walk_half.cu with states stored inside rows.
#include "kernels/cuda/sm90/fused/kda/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

template cudaError_t launch_fused_kda<true, GateSource::kHalfTiles, true>(const FusedMaps&, const WalkArgs&,
                                                                          const Activation&, const WalkShape&,
                                                                          cudaStream_t);
template cudaError_t load_fused_kda<true, GateSource::kHalfTiles, true>();

}  // namespace deltarelay::cuda::sm90
