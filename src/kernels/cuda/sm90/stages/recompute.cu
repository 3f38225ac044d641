#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/stages/recompute.cuh"

namespace deltarelay::cuda::sm90 {
namespace {

template <class Element, bool kScalar>
cudaError_t launch(const RecomputeArgs& args, uint32_t ctas, cudaStream_t stream) {
  return launch_dependent(recompute::recompute_kernel<Element, kScalar>, dim3(ctas), recompute::kThreads,
                          sizeof(recompute::Shared<kScalar>), stream, args);
}
template <class Element, bool kScalar>
cudaError_t load() {
  return load_kernel(recompute::recompute_kernel<Element, kScalar>, sizeof(recompute::Shared<kScalar>));
}

}  // namespace

cudaError_t launch_recompute(const RecomputeArgs& args, DType dtype, bool scalar_gate, uint32_t ctas,
                             cudaStream_t stream) {
  if (dtype == DType::kBf16)
    return scalar_gate ? launch<__nv_bfloat16, true>(args, ctas, stream)
                       : launch<__nv_bfloat16, false>(args, ctas, stream);
  return scalar_gate ? launch<__half, true>(args, ctas, stream) : launch<__half, false>(args, ctas, stream);
}

cudaError_t load_recompute() {
  for (const cudaError_t status :
       {load<__nv_bfloat16, true>(), load<__nv_bfloat16, false>(), load<__half, true>(), load<__half, false>()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
