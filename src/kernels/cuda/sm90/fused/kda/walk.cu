// The fused walk of KDA for gates that the frame of a chunk's middle holds.
#include "kernels/cuda/sm90/fused/kda/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

cudaError_t launch_fused_kda(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream) {
  return fused_kda::launch<true, GateSource::kTiles>(maps, args, activation, shape, stream);
}

cudaError_t load_fused_kda() {
  return fused_kda::load<true, GateSource::kTiles>({GateForm::kRawBounded, GateForm::kLog});
}

}  // namespace deltarelay::cuda::sm90
