#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/stages/scores.cuh"

namespace deltarelay::cuda::sm90 {
namespace {

using Kernel = void(ScoresArgs);

Kernel* kernel_of(DType dtype, bool scalar_gate) {
  if (dtype == DType::kBf16)
    return scalar_gate ? scores::scores_kernel<__nv_bfloat16, true> : scores::scores_kernel<__nv_bfloat16, false>;
  return scalar_gate ? scores::scores_kernel<__half, true> : scores::scores_kernel<__half, false>;
}
constexpr size_t shared_bytes(bool scalar_gate) { return scalar_gate ? 0 : sizeof(scores::Shared); }

}  // namespace

cudaError_t launch_scores(const ScoresArgs& args, DType dtype, bool scalar_gate, uint32_t ctas, cudaStream_t stream) {
  return launch_dependent(kernel_of(dtype, scalar_gate), dim3(ctas), scores::kThreads, shared_bytes(scalar_gate),
                          stream, args);
}

cudaError_t load_scores() {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const bool scalar_gate : {false, true}) {
      const cudaError_t status = load_kernel(kernel_of(dtype, scalar_gate), shared_bytes(scalar_gate));
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
