// Choosing and launching a kernel of the fused walk of KDA, for gates that the frame of a chunk's middle holds
// (kMidFrame) and for all others. Each kind is compiled in a file of its own: walk.cu, walk_by_channel.cu.
#pragma once
#include <initializer_list>

#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/kda/walk.cuh"
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::cuda::sm90::fused_kda {

using Kernel = void(FusedMaps, WalkArgs, Activation);

template <bool kMidFrame, GateSource kSource, Form kForm, bool kSuffix>
Kernel* kernel_of(GateForm form) {
  if (form == GateForm::kLog) return fused_kda_kernel<kForm, GateForm::kLog, kSource, kSuffix, kMidFrame>;
  if constexpr (!kMidFrame) {
    if (form == GateForm::kLinear) return fused_kda_kernel<kForm, GateForm::kLinear, kSource, kSuffix, false>;
    if (form == GateForm::kRawSoftplus) return fused_kda_kernel<kForm, GateForm::kRawSoftplus, kSource, kSuffix, false>;
  }
  return fused_kda_kernel<kForm, GateForm::kRawBounded, kSource, kSuffix, kMidFrame>;
}

template <bool kMidFrame, GateSource kSource, Form kForm, bool kSuffix>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, unsigned grid,
                   cudaStream_t stream) {
  const LaunchShape shape{
      .grid = dim3(grid), .block = kFusedThreads, .shared_bytes = sizeof(FusedShared<kForm>), .cluster = ctas(kForm)};
  return launch_dependent(kernel_of<kMidFrame, kSource, kForm, kSuffix>(activation.gate_form), shape, stream, maps,
                          args, activation);
}

template <bool kMidFrame, GateSource kSource>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, const WalkShape& shape,
                   cudaStream_t stream) {
  if (shape.form == Form::kSingle)
    return launch<kMidFrame, kSource, Form::kSingle, false>(maps, args, activation, shape.ctas, stream);
  return shape.suffix ? launch<kMidFrame, kSource, Form::kPair, true>(maps, args, activation, shape.ctas, stream)
                      : launch<kMidFrame, kSource, Form::kPair, false>(maps, args, activation, shape.ctas, stream);
}

// All kernels of these gate forms.
template <bool kMidFrame, GateSource kSource>
cudaError_t load(std::initializer_list<GateForm> forms) {
  for (const GateForm form : forms) {
    cudaError_t status =
        load_kernel(kernel_of<kMidFrame, kSource, Form::kSingle, false>(form), sizeof(FusedShared<Form::kSingle>));
    if (status == cudaSuccess)
      status = load_kernel(kernel_of<kMidFrame, kSource, Form::kPair, false>(form), sizeof(FusedShared<Form::kPair>));
    if (status == cudaSuccess)
      status = load_kernel(kernel_of<kMidFrame, kSource, Form::kPair, true>(form), sizeof(FusedShared<Form::kPair>));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90::fused_kda
