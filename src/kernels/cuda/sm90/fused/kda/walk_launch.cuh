// Choosing and launching a kernel of the fused walk of KDA, for gates that the frame of a chunk's middle holds
// (kMidFrame) and for all others. Each kind is compiled in a file of its own: walk.cu, walk_by_channel.cu.
#pragma once
#include <cstddef>
#include <initializer_list>

#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/kda/walk.cuh"
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::cuda::sm90::fused_kda {

using Kernel = void(FusedMaps, WalkArgs, Activation);

template <bool kMidFrame, Form kForm, bool kSummaries, bool kCheckpoints>
Kernel* kernel_of(GateForm form) {
  if (form == GateForm::kLog) return fused_kda_kernel<kForm, GateForm::kLog, kSummaries, kMidFrame, kCheckpoints>;
  if constexpr (!kMidFrame) {
    if (form == GateForm::kLinear) return fused_kda_kernel<kForm, GateForm::kLinear, kSummaries, false, kCheckpoints>;
    if (form == GateForm::kRawSoftplus)
      return fused_kda_kernel<kForm, GateForm::kRawSoftplus, kSummaries, false, kCheckpoints>;
  }
  return fused_kda_kernel<kForm, GateForm::kRawBounded, kSummaries, kMidFrame, kCheckpoints>;
}
template <Form kForm, bool kCheckpoints>
constexpr size_t kSharedBytes = sizeof(SharedOf<FusedShared<kForm>, kCheckpoints>);

template <bool kMidFrame, Form kForm, bool kSummaries>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, unsigned grid,
                   cudaStream_t stream) {
  const bool checkpoints = args.checkpoints.pool.data != nullptr;
  const LaunchShape shape{.grid = dim3(grid),
                          .block = kFusedThreads,
                          .shared_bytes = checkpoints ? kSharedBytes<kForm, true> : kSharedBytes<kForm, false>,
                          .cluster = ctas(kForm)};
  const auto kernel =
      checkpoints ? kernel_of<kMidFrame, kForm, kSummaries, true> : kernel_of<kMidFrame, kForm, kSummaries, false>;
  return launch_dependent(kernel(activation.gate_form), shape, stream, maps, args, activation);
}

template <bool kMidFrame>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, const WalkShape& shape,
                   cudaStream_t stream) {
  if (shape.form == Form::kSingle)
    return launch<kMidFrame, Form::kSingle, false>(maps, args, activation, shape.ctas, stream);
  return shape.summarizes ? launch<kMidFrame, Form::kPair, true>(maps, args, activation, shape.ctas, stream)
                          : launch<kMidFrame, Form::kPair, false>(maps, args, activation, shape.ctas, stream);
}

template <bool kMidFrame, Form kForm, bool kSummaries>
cudaError_t load_form(GateForm form) {
  const cudaError_t status =
      load_kernel(kernel_of<kMidFrame, kForm, kSummaries, false>(form), kSharedBytes<kForm, false>);
  if (status != cudaSuccess) return status;
  return load_kernel(kernel_of<kMidFrame, kForm, kSummaries, true>(form), kSharedBytes<kForm, true>);
}
// All kernels of these gate forms.
template <bool kMidFrame>
cudaError_t load(std::initializer_list<GateForm> forms) {
  for (const GateForm form : forms) {
    cudaError_t status = load_form<kMidFrame, Form::kSingle, false>(form);
    if (status == cudaSuccess) status = load_form<kMidFrame, Form::kPair, false>(form);
    if (status == cudaSuccess) status = load_form<kMidFrame, Form::kPair, true>(form);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90::fused_kda
