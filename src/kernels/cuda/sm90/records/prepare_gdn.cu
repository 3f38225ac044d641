#include <cstdint>

#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/records/prepare_gdn.cuh"

namespace deltarelay::cuda::sm90 {
namespace {

using Kernel = void(GdnTiles, PrepareArgs, int, int);

Kernel* kernel_of(DType dtype) {
  if (dtype == DType::kBf16) return prepare_gdn::prepare_gdn_kernel<__nv_bfloat16>;
  if (dtype == DType::kFp16) return prepare_gdn::prepare_gdn_kernel<__half>;
  return nullptr;
}

}  // namespace

cudaError_t launch_prepare_gdn(const GdnTiles& tiles, const PrepareArgs& args, DType dtype, int32_t heads,
                               cudaStream_t stream) {
  Kernel* const kernel = kernel_of(dtype);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int64_t pairs = static_cast<int64_t>(args.chunks) * args.heads_qk;
  const int64_t shares = gdn_shares(args.heads_v / args.heads_qk, heads);
  if (pairs * shares > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch_dependent(kernel, static_cast<unsigned>(pairs * shares), prepare_gdn::kThreads,
                          sizeof(prepare_gdn::Shared), stream, tiles, args, heads, static_cast<int>(shares));
}

cudaError_t load_prepare_gdn(DType dtype) {
  Kernel* const kernel = kernel_of(dtype);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  // Global memory is read once, so L1 may shrink until all resident CTAs have their shared memory.
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  return status != cudaSuccess ? status : load_kernel(kernel, sizeof(prepare_gdn::Shared));
}

}  // namespace deltarelay::cuda::sm90
