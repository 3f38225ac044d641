// Launching the fused walk of KDA.
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/kda/walk.cuh"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/single_ctas.h"

namespace deltarelay::cuda::sm90 {
namespace {

using Kernel = void(FusedMaps, WalkArgs, Activation);

template <int kCtas, bool kSuffix>
Kernel* kernel_of(GateForm form) {
  return form == GateForm::kLog ? fused_kda_kernel<kCtas, GateForm::kLog, kSuffix>
                                : fused_kda_kernel<kCtas, GateForm::kRawBounded, kSuffix>;
}

template <int kCtas, bool kSuffix>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, int32_t units,
                   cudaStream_t stream) {
  const unsigned grid = kCtas == 1 ? single_ctas(args, kMostItems, units) : items_of(args) * kCtas * (kSuffix ? 2 : 1);
  const LaunchShape shape{
      .grid = dim3(grid), .block = kFusedThreads, .shared_bytes = sizeof(FusedShared<kCtas>), .cluster = kCtas};
  return launch_dependent(kernel_of<kCtas, kSuffix>(activation.gate_form), shape, stream, maps, args, activation);
}

}  // namespace

cudaError_t launch_fused_kda(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream) {
  if (shape.value_tiles == 1) return launch<1, false>(maps, args, activation, shape.units, stream);
  return shape.suffix ? launch<2, true>(maps, args, activation, shape.units, stream)
                      : launch<2, false>(maps, args, activation, shape.units, stream);
}

cudaError_t load_fused_kda() {
  for (const GateForm form : {GateForm::kRawBounded, GateForm::kLog}) {
    cudaError_t status = load_kernel(kernel_of<1, false>(form), sizeof(FusedShared<1>));
    if (status == cudaSuccess) status = load_kernel(kernel_of<2, false>(form), sizeof(FusedShared<2>));
    if (status == cudaSuccess) status = load_kernel(kernel_of<2, true>(form), sizeof(FusedShared<2>));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
