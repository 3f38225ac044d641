// Choosing and launching a kernel of the fused walk of KDA. Kernels for gates that the frame of a chunk's middle holds
// (kMidFrame) and for all others, for gates in bf16 and in fp32, for fp16 data, and with and without checkpoints are
// compiled in files of their own: walk.cu, walk_by_channel.cu, walk_wide.cu, walk_wide_by_channel.cu, walk_half.cu, and
// checkpoints*.cu.
#pragma once
#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/kda/walk.cuh"
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::cuda::sm90 {
namespace fused_kda {

using Kernel = void(FusedMaps, WalkArgs, Activation);

// The forms of gates that have kernels; takes_way knows them too (accepts.cpp).
// Type of the data whose gates come like this.
template <GateSource kSource>
using ElementOf = std::conditional_t<kSource == GateSource::kHalfTiles, __half, __nv_bfloat16>;

template <bool kMidFrame, GateSource kSource>
constexpr bool has_kernels(GateForm form) {
  if (form == GateForm::kLog) return true;
  if (kMidFrame) return form == GateForm::kRawBounded;
  return kSource == GateSource::kTiles || form == GateForm::kRawSoftplus;
}

template <bool kMidFrame, GateSource kSource, Form kForm, bool kSummaries, bool kCheckpoints, GateForm kGate>
Kernel* kernel_of() {
  if constexpr (has_kernels<kMidFrame, kSource>(kGate))
    return fused_kda_kernel<kForm, kGate, kSource, kSummaries, kMidFrame, kCheckpoints, ElementOf<kSource>>;
  else
    return nullptr;
}

template <bool kMidFrame, GateSource kSource, Form kForm, bool kSummaries, bool kCheckpoints>
Kernel* kernel_of(GateForm form) {
  switch (form) {
    case GateForm::kLog:
      return kernel_of<kMidFrame, kSource, kForm, kSummaries, kCheckpoints, GateForm::kLog>();
    case GateForm::kLinear:
      return kernel_of<kMidFrame, kSource, kForm, kSummaries, kCheckpoints, GateForm::kLinear>();
    case GateForm::kRawSoftplus:
      return kernel_of<kMidFrame, kSource, kForm, kSummaries, kCheckpoints, GateForm::kRawSoftplus>();
    case GateForm::kRawBounded:
      return kernel_of<kMidFrame, kSource, kForm, kSummaries, kCheckpoints, GateForm::kRawBounded>();
  }
  return nullptr;
}

template <bool kMidFrame, Form kForm, GateSource kSource, bool kCheckpoints>
constexpr size_t shared_bytes(bool long_rows) {
  using Shared = FusedShared<kForm, ElementOf<kSource>>;
  return std::max(fused_shared_bytes<kForm, kSource, kMidFrame, ElementOf<kSource>>(long_rows),
                  sizeof(SharedOf<Shared, kCheckpoints>));
}

template <bool kMidFrame, GateSource kSource, Form kForm, bool kSummaries, bool kCheckpoints>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, const WalkShape& walk,
                   cudaStream_t stream) {
  Kernel* const kernel = kernel_of<kMidFrame, kSource, kForm, kSummaries, kCheckpoints>(activation.gate_form);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  const LaunchShape shape{.grid = dim3(walk.ctas),
                          .block = kFusedThreads,
                          .shared_bytes = shared_bytes<kMidFrame, kForm, kSource, kCheckpoints>(walk.long_rows),
                          .cluster = ctas(kForm)};
  return launch_dependent(kernel, shape, stream, maps, args, activation);
}

template <bool kMidFrame, GateSource kSource, Form kForm, bool kSummaries, bool kCheckpoints>
cudaError_t load(GateForm form) {
  return load_kernel(kernel_of<kMidFrame, kSource, kForm, kSummaries, kCheckpoints>(form),
                     shared_bytes<kMidFrame, kForm, kSource, kCheckpoints>(true));
}

}  // namespace fused_kda

template <bool kMidFrame, GateSource kSource, bool kCheckpoints>
cudaError_t launch_fused_kda(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream) {
  const auto with = [&](auto launch_form) { return launch_form(maps, args, activation, shape, stream); };
  using fused_kda::launch;
  if (shape.form == Form::kSingle) return with(launch<kMidFrame, kSource, Form::kSingle, false, kCheckpoints>);
  return shape.summarizes ? with(launch<kMidFrame, kSource, Form::kPair, true, kCheckpoints>)
                          : with(launch<kMidFrame, kSource, Form::kPair, false, kCheckpoints>);
}

template <bool kMidFrame, GateSource kSource, bool kCheckpoints>
cudaError_t load_fused_kda() {
  using fused_kda::load;
  for (const GateForm form : {GateForm::kLog, GateForm::kLinear, GateForm::kRawSoftplus, GateForm::kRawBounded}) {
    if (!fused_kda::has_kernels<kMidFrame, kSource>(form)) continue;
    cudaError_t status = load<kMidFrame, kSource, Form::kSingle, false, kCheckpoints>(form);
    if (status == cudaSuccess) status = load<kMidFrame, kSource, Form::kPair, false, kCheckpoints>(form);
    if (status == cudaSuccess) status = load<kMidFrame, kSource, Form::kPair, true, kCheckpoints>(form);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
