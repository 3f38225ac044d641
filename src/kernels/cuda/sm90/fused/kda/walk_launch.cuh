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

// What a launch does beside emitting rows.
enum class Also { kNothing, kSuffix, kCheckpoints };

template <bool kMidFrame, Form kForm, Also kAlso>
Kernel* kernel_of(GateForm form) {
  constexpr bool kSuffix = kAlso == Also::kSuffix, kCheckpoints = kAlso == Also::kCheckpoints;
  if (form == GateForm::kLog) return fused_kda_kernel<kForm, GateForm::kLog, kSuffix, kMidFrame, kCheckpoints>;
  if constexpr (!kMidFrame) {
    if (form == GateForm::kLinear) return fused_kda_kernel<kForm, GateForm::kLinear, kSuffix, false, kCheckpoints>;
    if (form == GateForm::kRawSoftplus)
      return fused_kda_kernel<kForm, GateForm::kRawSoftplus, kSuffix, false, kCheckpoints>;
  }
  return fused_kda_kernel<kForm, GateForm::kRawBounded, kSuffix, kMidFrame, kCheckpoints>;
}
template <Form kForm, Also kAlso>
constexpr size_t kSharedBytes = sizeof(SharedOf<FusedShared<kForm>, kAlso == Also::kCheckpoints>);

template <bool kMidFrame, Form kForm, Also kAlso>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, unsigned grid,
                   cudaStream_t stream) {
  const LaunchShape shape{
      .grid = dim3(grid), .block = kFusedThreads, .shared_bytes = kSharedBytes<kForm, kAlso>, .cluster = ctas(kForm)};
  return launch_dependent(kernel_of<kMidFrame, kForm, kAlso>(activation.gate_form), shape, stream, maps, args,
                          activation);
}

template <bool kMidFrame>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, const WalkShape& shape,
                   cudaStream_t stream) {
  const auto with = [&](auto launch_kernel) { return launch_kernel(maps, args, activation, shape.ctas, stream); };
  const bool checkpoints = args.checkpoints.pool.data != nullptr;
  if (shape.form == Form::kSingle)
    return checkpoints ? with(launch<kMidFrame, Form::kSingle, Also::kCheckpoints>)
                       : with(launch<kMidFrame, Form::kSingle, Also::kNothing>);
  if (shape.suffix) return with(launch<kMidFrame, Form::kPair, Also::kSuffix>);
  return checkpoints ? with(launch<kMidFrame, Form::kPair, Also::kCheckpoints>)
                     : with(launch<kMidFrame, Form::kPair, Also::kNothing>);
}

template <bool kMidFrame, Form kForm, Also kAlso>
cudaError_t load(GateForm form) {
  return load_kernel(kernel_of<kMidFrame, kForm, kAlso>(form), kSharedBytes<kForm, kAlso>);
}
// All kernels of these gate forms.
template <bool kMidFrame>
cudaError_t load(std::initializer_list<GateForm> forms) {
  for (const GateForm form : forms) {
    for (const auto load_one :
         {load<kMidFrame, Form::kSingle, Also::kNothing>, load<kMidFrame, Form::kSingle, Also::kCheckpoints>,
          load<kMidFrame, Form::kPair, Also::kNothing>, load<kMidFrame, Form::kPair, Also::kSuffix>,
          load<kMidFrame, Form::kPair, Also::kCheckpoints>}) {
      const cudaError_t status = load_one(form);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90::fused_kda
