// Launching the fused walk of KDA for gates that are not bounded.
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/kda/walk.cuh"
#include "kernels/cuda/sm90/fused/kda/walk_by_channel.h"

namespace deltarelay::cuda::sm90 {
namespace {

using Kernel = void(FusedMaps, WalkArgs, Activation);

template <Form kForm, bool kSuffix>
Kernel* kernel_of(GateForm form) {
  switch (form) {
    case GateForm::kLog:
      return fused_kda_kernel<kForm, GateForm::kLog, kSuffix, false>;
    case GateForm::kLinear:
      return fused_kda_kernel<kForm, GateForm::kLinear, kSuffix, false>;
    case GateForm::kRawSoftplus:
      return fused_kda_kernel<kForm, GateForm::kRawSoftplus, kSuffix, false>;
    default:
      return fused_kda_kernel<kForm, GateForm::kRawBounded, kSuffix, false>;
  }
}

template <Form kForm, bool kSuffix>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, unsigned grid,
                   cudaStream_t stream) {
  const LaunchShape shape{
      .grid = dim3(grid), .block = kFusedThreads, .shared_bytes = sizeof(FusedShared<kForm>), .cluster = ctas(kForm)};
  return launch_dependent(kernel_of<kForm, kSuffix>(activation.gate_form), shape, stream, maps, args, activation);
}

}  // namespace

cudaError_t launch_fused_kda_by_channel(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                                        const WalkShape& shape, cudaStream_t stream) {
  if (shape.form == Form::kSingle) return launch<Form::kSingle, false>(maps, args, activation, shape.ctas, stream);
  return shape.suffix ? launch<Form::kPair, true>(maps, args, activation, shape.ctas, stream)
                      : launch<Form::kPair, false>(maps, args, activation, shape.ctas, stream);
}

cudaError_t load_fused_kda_by_channel() {
  for (const GateForm form : {GateForm::kLog, GateForm::kLinear, GateForm::kRawSoftplus, GateForm::kRawBounded}) {
    cudaError_t status = load_kernel(kernel_of<Form::kSingle, false>(form), sizeof(FusedShared<Form::kSingle>));
    if (status == cudaSuccess)
      status = load_kernel(kernel_of<Form::kPair, false>(form), sizeof(FusedShared<Form::kPair>));
    if (status == cudaSuccess)
      status = load_kernel(kernel_of<Form::kPair, true>(form), sizeof(FusedShared<Form::kPair>));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
