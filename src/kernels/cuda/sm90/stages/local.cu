#include <algorithm>

#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/stages/local_again.cuh"

namespace deltarelay::cuda::sm90 {
namespace {

dim3 grid_of(const LocalArgs& args, uint32_t chunks) {
  return {static_cast<uint32_t>(args.call.heads_v), std::min(chunks, kMostRows), (chunks + kMostRows - 1) / kMostRows};
}

template <class Element, bool kScalar, bool kScores>
cudaError_t launch(const LocalMaps& maps, const LocalArgs& args, uint32_t chunks, cudaStream_t stream) {
  return launch_dependent(local::local_kernel<Element, kScalar, kScores>, grid_of(args, chunks), local::kThreads,
                          sizeof(local::Shared<kScalar, kScores>), stream, maps, args);
}
template <class Element, bool kScalar, bool kScores>
cudaError_t load() {
  return load_kernel(local::local_kernel<Element, kScalar, kScores>, sizeof(local::Shared<kScalar, kScores>));
}

template <class Element>
cudaError_t launch_again(const LocalMaps& maps, const LocalArgs& args, uint32_t chunks, cudaStream_t stream) {
  return launch_dependent(local::again_kernel<Element>, grid_of(args, chunks), local::kThreads,
                          sizeof(local::AgainShared), stream, maps, args);
}
template <class Element, bool kScores>
cudaError_t launch_rule(const LocalMaps& maps, const LocalArgs& args, const LocalLaunch& how, cudaStream_t stream) {
  if (!kScores && !how.scalar_gate && makes_again(args.call.stage))
    return launch_again<Element>(maps, args, how.chunks, stream);
  return how.scalar_gate ? launch<Element, true, kScores>(maps, args, how.chunks, stream)
                         : launch<Element, false, kScores>(maps, args, how.chunks, stream);
}
template <bool kScores>
cudaError_t launch_type(const LocalMaps& maps, const LocalArgs& args, const LocalLaunch& how, cudaStream_t stream) {
  return how.dtype == DType::kBf16 ? launch_rule<__nv_bfloat16, kScores>(maps, args, how, stream)
                                   : launch_rule<__half, kScores>(maps, args, how, stream);
}

}  // namespace

cudaError_t launch_local(const LocalMaps& maps, const LocalArgs& args, const LocalLaunch& how, cudaStream_t stream) {
  return forms_scores(args.call.stage) ? launch_type<true>(maps, args, how, stream)
                                       : launch_type<false>(maps, args, how, stream);
}

cudaError_t load_local() {
  for (const cudaError_t status :
       {load_kernel(local::again_kernel<__nv_bfloat16>, sizeof(local::AgainShared)),
        load_kernel(local::again_kernel<__half>, sizeof(local::AgainShared)), load<__nv_bfloat16, true, true>(),
        load<__nv_bfloat16, true, false>(), load<__nv_bfloat16, false, true>(), load<__nv_bfloat16, false, false>(),
        load<__half, true, true>(), load<__half, true, false>(), load<__half, false, true>(),
        load<__half, false, false>()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
