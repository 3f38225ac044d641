// The fused walk of GDN.
#include "kernels/cuda/sm90/fused/gdn/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

template cudaError_t launch_fused_gdn<false>(const FusedMaps&, const WalkArgs&, const Activation&, const WalkShape&,
                                             cudaStream_t);
template cudaError_t load_fused_gdn<false>(DType);

}  // namespace deltarelay::cuda::sm90
