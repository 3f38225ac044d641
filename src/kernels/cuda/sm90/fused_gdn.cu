// Launching the fused walk of GDN.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/fused_gdn.cuh"
#include "kernels/cuda/sm90/launch.h"

namespace deltarelay::cuda::sm90 {
namespace {

template <class Element, int kCtas>
cudaError_t launch(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, cudaStream_t stream) {
  const unsigned grid = static_cast<unsigned>(args.row_bound) * static_cast<unsigned>(args.heads_v) * kCtas;
  const LaunchShape shape{
      .grid = dim3(grid), .block = kFusedThreads, .shared_bytes = sizeof(fused_gdn::Shared<kCtas>), .cluster = kCtas};
  return launch_dependent(fused_gdn_kernel<Element, kCtas>, shape, stream, maps, args, activation);
}

template <class Element>
cudaError_t launch_tiles(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, int32_t value_tiles,
                         cudaStream_t stream) {
  return value_tiles == 1 ? launch<Element, 1>(maps, args, activation, stream)
                          : launch<Element, 2>(maps, args, activation, stream);
}

template <class Element>
cudaError_t load_tiles() {
  const cudaError_t status = load_kernel(fused_gdn_kernel<Element, 1>, sizeof(fused_gdn::Shared<1>));
  return status != cudaSuccess ? status : load_kernel(fused_gdn_kernel<Element, 2>, sizeof(fused_gdn::Shared<2>));
}

}  // namespace

cudaError_t launch_fused_gdn(const FusedMaps& maps, const WalkArgs& args, const Activation& activation, DType dtype,
                             int32_t value_tiles, cudaStream_t stream) {
  return dtype == DType::kBf16 ? launch_tiles<__nv_bfloat16>(maps, args, activation, value_tiles, stream)
                               : launch_tiles<__half>(maps, args, activation, value_tiles, stream);
}

cudaError_t load_fused_gdn(DType dtype) {
  return dtype == DType::kBf16 ? load_tiles<__nv_bfloat16>() : load_tiles<__half>();
}

}  // namespace deltarelay::cuda::sm90
