// Launching the fused walk of GDN.
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/gdn/walk.cuh"
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::cuda::sm90 {
namespace {

template <class Element, Form kForm, bool kSummaries, bool kCheckpoints>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, unsigned grid,
                   cudaStream_t stream) {
  const LaunchShape shape{.grid = dim3(grid),
                          .block = kFusedThreads,
                          .shared_bytes = sizeof(SharedOf<fused_gdn::Shared<kForm>, kCheckpoints>),
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

template <class Element>
cudaError_t launch_tiles(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                         const WalkShape& shape, cudaStream_t stream) {
  return args.checkpoints.pool.data != nullptr ? launch_tiles<Element, true>(maps, args, activation, shape, stream)
                                               : launch_tiles<Element, false>(maps, args, activation, shape, stream);
}

template <class Element, Form kForm, bool kSummaries = false>
cudaError_t load_form() {
  const cudaError_t status =
      load_kernel(fused_gdn_kernel<Element, kForm, kSummaries, false>, sizeof(fused_gdn::Shared<kForm>));
  if (status != cudaSuccess) return status;
  return load_kernel(fused_gdn_kernel<Element, kForm, kSummaries, true>,
                     sizeof(SharedOf<fused_gdn::Shared<kForm>, true>));
}

template <class Element>
cudaError_t load_tiles() {
  for (const auto load : {load_form<Element, Form::kSingle>, load_form<Element, Form::kTwins>,
                          load_form<Element, Form::kPair>, load_form<Element, Form::kPair, true>}) {
    const cudaError_t status = load();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
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
