// Launches the passes over a state: walks of given W and U, and chains of summaries.
#include "kernels/cuda/sm80/stages/chains.cuh"
#include "kernels/cuda/sm80/stages/launch.h"
#include "kernels/cuda/sm80/stages/load.cuh"
#include "kernels/cuda/sm80/stages/pass.cuh"

namespace deltarelay::cuda::sm80 {
namespace {

// Calls body(kernel, bytes of shared memory).
template <class Number, int kWidth, class Body>
cudaError_t with_width(Body body) {
  return body(pass_kernel<Number, kWidth>, sizeof(typename Pass<Number, kWidth>::Ring));
}
template <class Number, class Body>
cudaError_t with_widths(int32_t dk, Body body) {
  return dk <= 128 ? with_width<Number, 128>(body) : with_width<Number, 256>(body);
}
template <class Body>
cudaError_t with_kernel(StageNumbers numbers, int32_t dk, Body body) {
  switch (numbers) {
    case StageNumbers::kBf16:
      return with_widths<__nv_bfloat16>(dk, body);
    case StageNumbers::kFp16:
      return with_widths<__half>(dk, body);
    case StageNumbers::kFineBf16:
      return with_width<Fine<__nv_bfloat16>, kPlainChannels>(body);
    case StageNumbers::kFineFp16:
      return with_width<Fine<__half>, kPlainChannels>(body);
    default:
      return with_widths<float>(dk, body);
  }
}

}  // namespace

cudaError_t launch_pass(const PassArgs& args, StageNumbers numbers, unsigned ctas, cudaStream_t stream) {
  return with_kernel(numbers, args.dk, [&](auto* kernel, size_t shared) {
    return launch_dependent(kernel, dim3(ctas), kStageThreads, shared, stream, args);
  });
}

cudaError_t launch_chains(const PassArgs& args, unsigned ctas, cudaStream_t stream) {
  return launch_dependent(chains_kernel, dim3(ctas), kChainThreads, 0, stream, args);
}

cudaError_t load_pass(StageNumbers numbers) {
  for (const int32_t dk : {128, 256}) {
    const cudaError_t status =
        with_kernel(numbers, dk, [](auto* kernel, size_t shared) { return load_resident(kernel, shared); });
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t load_chains() { return load_kernel(chains_kernel, 0); }

}  // namespace deltarelay::cuda::sm80
