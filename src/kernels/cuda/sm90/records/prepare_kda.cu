#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/records/prepare_kda.cuh"

namespace deltarelay::cuda::sm90 {
namespace {

using Kernel = void(PrepareArgs, int);

Kernel* kernel_of(DType dtype, KdaScores scores) {
  if (dtype == DType::kFp16) return prepare_kda_kernel<__half, false, false>;  // e^80 does not fit fp16: levels only
  switch (scores) {
    case KdaScores::kRawBounded:
      return prepare_kda_kernel<__nv_bfloat16, true, true>;
    case KdaScores::kMidFrame:
      return prepare_kda_kernel<__nv_bfloat16, true, false>;
    default:
      return prepare_kda_kernel<__nv_bfloat16, false, false>;
  }
}

}  // namespace

cudaError_t launch_prepare_kda(const PrepareArgs& args, DType dtype, KdaScores scores, int32_t chunks,
                               cudaStream_t stream) {
  // The head index runs fastest: neighbours in the grid are neighbours in memory.
  const dim3 grid(static_cast<unsigned>(args.heads_v), static_cast<unsigned>((args.chunks + chunks - 1) / chunks));
  return launch_dependent(kernel_of(dtype, scores), grid, kPrepareThreads, sizeof(KdaPrepareShared), stream, args,
                          chunks);
}

cudaError_t load_prepare_kda(DType dtype) {
  for (const KdaScores scores : {KdaScores::kRawBounded, KdaScores::kMidFrame, KdaScores::kLevels}) {
    const cudaError_t status = load_kernel(kernel_of(dtype, scores), sizeof(KdaPrepareShared));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
