// Choosing and launching a kernel of the fused walk of GDN. Kernels with and without checkpoints are compiled in files
// of their own: walk.cu, checkpoints.cu.
#pragma once
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/gdn/walk.cuh"
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::cuda::sm90 {
namespace fused_gdn {

template <class Element, Form kForm, bool kSummaries, bool kCheckpoints>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, unsigned grid,
                   cudaStream_t stream) {
  const LaunchShape shape{.grid = dim3(grid),
                          .block = kFusedThreads,
                          .shared_bytes = sizeof(SharedOf<Shared<kForm>, kCheckpoints>),
                          .cluster = ctas(kForm)};
  return launch_dependent(fused_gdn_kernel<Element, kForm, kSummaries, kCheckpoints>, shape, stream, maps, args,
                          activation);
}

template <class Element, bool kCheckpoints>
cudaError_t launch_tiles(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                         const WalkShape& shape, cudaStream_t stream) {
  const auto with = [&](auto launch_form) { return launch_form(maps, args, activation, shape.ctas, stream); };
  if (shape.form == Form::kTwins) return with(launch<Element, Form::kTwins, false, kCheckpoints>);
  if (shape.form == Form::kSingle) return with(launch<Element, Form::kSingle, false, kCheckpoints>);
  return shape.summarizes ? with(launch<Element, Form::kPair, true, kCheckpoints>)
                          : with(launch<Element, Form::kPair, false, kCheckpoints>);
}

template <class Element, Form kForm, bool kSummaries, bool kCheckpoints>
cudaError_t load() {
  return load_kernel(fused_gdn_kernel<Element, kForm, kSummaries, kCheckpoints>,
                     sizeof(SharedOf<Shared<kForm>, kCheckpoints>));
}

template <class Element, bool kCheckpoints>
cudaError_t load_tiles() {
  cudaError_t status = load<Element, Form::kSingle, false, kCheckpoints>();
  if (status == cudaSuccess) status = load<Element, Form::kTwins, false, kCheckpoints>();
  if (status == cudaSuccess) status = load<Element, Form::kPair, false, kCheckpoints>();
  return status == cudaSuccess ? load<Element, Form::kPair, true, kCheckpoints>() : status;
}

}  // namespace fused_gdn

template <bool kCheckpoints>
cudaError_t launch_fused_gdn(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream) {
  using fused_gdn::launch_tiles;
  return shape.dtype == DType::kBf16 ? launch_tiles<__nv_bfloat16, kCheckpoints>(maps, args, activation, shape, stream)
                                     : launch_tiles<__half, kCheckpoints>(maps, args, activation, shape, stream);
}

template <bool kCheckpoints>
cudaError_t load_fused_gdn(DType dtype) {
  using fused_gdn::load_tiles;
  return dtype == DType::kBf16 ? load_tiles<__nv_bfloat16, kCheckpoints>() : load_tiles<__half, kCheckpoints>();
}

}  // namespace deltarelay::cuda::sm90
