#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/records/prepare_kda.cuh"

namespace deltarelay::cuda::sm90 {
namespace {

using Kernel = void(PrepareArgs, int);

enum class Variant { kCommon, kMidFrame, kLevels };

Kernel* kernel_of(DType dtype, Variant variant) {
  if (dtype == DType::kFp16) return prepare_kda_kernel<__half, false, false>;  // e^80 does not fit fp16: levels only
  switch (variant) {
    case Variant::kCommon:
      return prepare_kda_kernel<__nv_bfloat16, true, true>;
    case Variant::kMidFrame:
      return prepare_kda_kernel<__nv_bfloat16, true, false>;
    default:
      return prepare_kda_kernel<__nv_bfloat16, false, false>;
  }
}

Variant variant_of(const PrepareArgs& args, bool mid_frame) {
  if (!mid_frame) return Variant::kLevels;
  const TensorView& g = args.activation.g;
  const bool aligned =
      reinterpret_cast<uintptr_t>(g.data) % 8 == 0 && g.token % 4 == 0 && g.head % 4 == 0 && g.sequence % 4 == 0;
  const bool common = args.activation.gate_form == GateForm::kRawBounded && g.dtype == DType::kBf16 && aligned;
  return common ? Variant::kCommon : Variant::kMidFrame;
}

}  // namespace

cudaError_t launch_prepare_kda(const PrepareArgs& args, DType dtype, bool mid_frame, int32_t chunks,
                               cudaStream_t stream) {
  // The head index runs fastest: neighbours in the grid are neighbours in memory.
  const dim3 grid(static_cast<unsigned>(args.heads_v), static_cast<unsigned>((args.chunks + chunks - 1) / chunks));
  return launch_dependent(kernel_of(dtype, variant_of(args, mid_frame)), grid, kPrepareThreads,
                          sizeof(KdaPrepareShared), stream, args, chunks);
}

cudaError_t load_prepare_kda(DType dtype) {
  for (const Variant variant : {Variant::kCommon, Variant::kMidFrame, Variant::kLevels}) {
    const cudaError_t status = load_kernel(kernel_of(dtype, variant), sizeof(KdaPrepareShared));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
