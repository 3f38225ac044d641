// Launching the fused walk of GDN.
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/fused/gdn/walk.cuh"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/single_ctas.h"

namespace deltarelay::cuda::sm90 {
namespace {

template <class Element, int kCtas, int kHeads, bool kSuffix>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, int32_t units,
                   cudaStream_t stream) {
  const unsigned grid = kCtas == kHeads ? single_ctas(args, kMostItems, units, kCtas) : items_of(args) * kCtas;
  const LaunchShape shape{.grid = dim3(grid),
                          .block = kFusedThreads,
                          .shared_bytes = sizeof(fused_gdn::Shared<kCtas, kHeads>),
                          .cluster = kCtas};
  return launch_dependent(fused_gdn_kernel<Element, kCtas, kHeads, kSuffix>, shape, stream, maps, args, activation);
}

template <class Element>
cudaError_t launch_tiles(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                         const WalkShape& shape, cudaStream_t stream) {
  if (shape.value_tiles == 1)
    return shape.twins ? launch<Element, 2, 2, false>(maps, args, activation, shape.units, stream)
                       : launch<Element, 1, 1, false>(maps, args, activation, shape.units, stream);
  return shape.suffix ? launch<Element, 2, 1, true>(maps, args, activation, shape.units, stream)
                      : launch<Element, 2, 1, false>(maps, args, activation, shape.units, stream);
}

template <class Element>
cudaError_t load_tiles() {
  cudaError_t status = load_kernel(fused_gdn_kernel<Element, 1, 1, false>, sizeof(fused_gdn::Shared<1, 1>));
  if (status == cudaSuccess)
    status = load_kernel(fused_gdn_kernel<Element, 2, 2, false>, sizeof(fused_gdn::Shared<2, 2>));
  for (const auto kernel : {fused_gdn_kernel<Element, 2, 1, false>, fused_gdn_kernel<Element, 2, 1, true>}) {
    if (status == cudaSuccess) status = load_kernel(kernel, sizeof(fused_gdn::Shared<2, 1>));
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
