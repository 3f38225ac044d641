// Launching the fused walk of GDN.
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/gdn/walk.cuh"
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::cuda::sm90 {
namespace {

template <class Element, Form kForm, bool kSummaries = false>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, unsigned grid,
                   cudaStream_t stream) {
  const LaunchShape shape{.grid = dim3(grid),
                          .block = kFusedThreads,
                          .shared_bytes = sizeof(fused_gdn::Shared<kForm>),
                          .cluster = ctas(kForm)};
  return launch_dependent(fused_gdn_kernel<Element, kForm, kSummaries>, shape, stream, maps, args, activation);
}

template <class Element>
cudaError_t launch_tiles(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                         const WalkShape& shape, cudaStream_t stream) {
  if (shape.form == Form::kTwins) return launch<Element, Form::kTwins>(maps, args, activation, shape.ctas, stream);
  if (shape.form == Form::kSingle) return launch<Element, Form::kSingle>(maps, args, activation, shape.ctas, stream);
  return shape.summarizes ? launch<Element, Form::kPair, true>(maps, args, activation, shape.ctas, stream)
                          : launch<Element, Form::kPair>(maps, args, activation, shape.ctas, stream);
}

template <class Element>
cudaError_t load_tiles() {
  cudaError_t status =
      load_kernel(fused_gdn_kernel<Element, Form::kSingle, false>, sizeof(fused_gdn::Shared<Form::kSingle>));
  if (status == cudaSuccess)
    status = load_kernel(fused_gdn_kernel<Element, Form::kTwins, false>, sizeof(fused_gdn::Shared<Form::kTwins>));
  for (const auto kernel :
       {fused_gdn_kernel<Element, Form::kPair, false>, fused_gdn_kernel<Element, Form::kPair, true>}) {
    if (status == cudaSuccess) status = load_kernel(kernel, sizeof(fused_gdn::Shared<Form::kPair>));
  }
  return status;
}

}  // namespace

cudaError_t launch_fused_gdn(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream) {
  return shape.dtype == DType::kBf16 ? launch_tiles<__nv_bfloat16>(maps, args, activation, shape, stream)
                                     : launch_tiles<__half>(maps, args, activation, shape, stream);
}

cudaError_t load_fused_gdn(DType dtype) {
  return dtype == DType::kBf16 ? load_tiles<__nv_bfloat16>() : load_tiles<__half>();
}

}  // namespace deltarelay::cuda::sm90
