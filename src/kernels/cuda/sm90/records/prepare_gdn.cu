#include <algorithm>
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

cudaError_t launch_prepare_gdn(const GdnTiles& tiles, const PrepareArgs& args, DType dtype, int32_t multiprocessors,
                               cudaStream_t stream) {
  Kernel* const kernel = kernel_of(dtype);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  // A CTA per (chunk, q/k head) shares the products among all value heads of that head. A small call gives up some of
  // this sharing until every multiprocessor has its resident CTAs.
  const int64_t pairs = static_cast<int64_t>(args.chunks) * args.heads_qk;
  const int64_t wanted = static_cast<int64_t>(prepare_gdn::kResident) * multiprocessors;
  const int64_t group = args.heads_v / args.heads_qk;
  if (pairs == 0) return cudaSuccess;
  const int64_t most_shares = std::clamp<int64_t>((wanted + pairs - 1) / pairs, 1, group);
  const int64_t heads = std::min<int64_t>((group + most_shares - 1) / most_shares, prepare_gdn::kHeads);
  const int64_t shares = (group + heads - 1) / heads;
  if (pairs * shares > INT32_MAX) return cudaErrorInvalidConfiguration;
  return launch_dependent(kernel, static_cast<unsigned>(pairs * shares), prepare_gdn::kThreads,
                          sizeof(prepare_gdn::Shared), stream, tiles, args, static_cast<int>(heads),
                          static_cast<int>(shares));
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
