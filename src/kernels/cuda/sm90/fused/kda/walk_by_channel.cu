// The fused walk of KDA for all other gates: every channel of a chunk has a frame that holds it (frames.cuh).
#include "kernels/cuda/sm90/fused/kda/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

cudaError_t launch_fused_kda_by_channel(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                                        const WalkShape& shape, cudaStream_t stream) {
  return fused_kda::launch<false, GateSource::kTiles>(maps, args, activation, shape, stream);
}

cudaError_t load_fused_kda_by_channel() {
  return fused_kda::load<false, GateSource::kTiles>(
      {GateForm::kLog, GateForm::kLinear, GateForm::kRawSoftplus, GateForm::kRawBounded});
}

}  // namespace deltarelay::cuda::sm90
