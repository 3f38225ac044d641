// The fused walk of KDA where states inside rows are stored, and gates are in fp32.
#include "kernels/cuda/sm90/fused/kda/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

template cudaError_t launch_fused_kda<true, GateSource::kWideTiles, true>(const FusedMaps&, const WalkArgs&,
                                                                          const Activation&, const WalkShape&,
                                                                          cudaStream_t);
template cudaError_t load_fused_kda<true, GateSource::kWideTiles, true>();
template cudaError_t launch_fused_kda<false, GateSource::kWideTiles, true>(const FusedMaps&, const WalkArgs&,
                                                                           const Activation&, const WalkShape&,
                                                                           cudaStream_t);
template cudaError_t load_fused_kda<false, GateSource::kWideTiles, true>();

}  // namespace deltarelay::cuda::sm90
