// The fused walk of KDA for all other gates in fp32: every channel of a chunk has a frame that holds it (frames.cuh).
#include "kernels/cuda/sm90/fused/kda/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

template cudaError_t launch_fused_kda<false, GateSource::kWideTiles, false>(const FusedMaps&, const WalkArgs&,
                                                                            const Activation&, const WalkShape&,
                                                                            cudaStream_t);
template cudaError_t load_fused_kda<false, GateSource::kWideTiles, false>();

}  // namespace deltarelay::cuda::sm90
