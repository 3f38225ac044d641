#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/stages/pass.cuh"
#include "kernels/cuda/sm90/stages/pass.h"

namespace deltarelay::cuda::sm90 {
namespace {

template <Form kForm, bool kScalar, class Element>
cudaError_t launch(const StatePassMaps& maps, const StatePassArgs& args, unsigned grid, cudaStream_t stream) {
  const LaunchShape shape{.grid = dim3(grid),
                          .block = pass::kThreads,
                          .shared_bytes = sizeof(pass::Shared<kForm, kScalar>),
                          .cluster = static_cast<unsigned>(ctas(kForm))};
  return launch_dependent(pass::state_pass_kernel<kForm, kScalar, Element>, shape, stream, maps, args);
}

// Calls use(kernel constants...) for the kernel of a launch.
template <class Element>
cudaError_t launch_of(const StatePassMaps& maps, const StatePassArgs& args, const StatePassLaunch& how,
                      cudaStream_t stream) {
  const bool pair = how.form == Form::kPair;
  if (how.scalar_gate)
    return pair ? launch<Form::kPair, true, Element>(maps, args, how.ctas, stream)
                : launch<Form::kSingle, true, Element>(maps, args, how.ctas, stream);
  return pair ? launch<Form::kPair, false, Element>(maps, args, how.ctas, stream)
              : launch<Form::kSingle, false, Element>(maps, args, how.ctas, stream);
}

template <Form kForm, bool kScalar, class Element>
cudaError_t load() {
  return load_kernel(pass::state_pass_kernel<kForm, kScalar, Element>, sizeof(pass::Shared<kForm, kScalar>));
}

}  // namespace

cudaError_t launch_state_pass(const StatePassMaps& maps, const StatePassArgs& args, const StatePassLaunch& how,
                              cudaStream_t stream) {
  return how.dtype == DType::kBf16 ? launch_of<__nv_bfloat16>(maps, args, how, stream)
                                   : launch_of<__half>(maps, args, how, stream);
}

cudaError_t load_state_pass() {
  for (const auto status : {load<Form::kPair, true, __nv_bfloat16>(), load<Form::kSingle, true, __nv_bfloat16>(),
                            load<Form::kPair, false, __nv_bfloat16>(), load<Form::kSingle, false, __nv_bfloat16>(),
                            load<Form::kPair, true, __half>(), load<Form::kSingle, true, __half>(),
                            load<Form::kPair, false, __half>(), load<Form::kSingle, false, __half>()}) {
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
