#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/records/prepare_grid.h"
#include "kernels/cuda/sm90/records/prepare_halves.h"
#include "kernels/cuda/sm90/records/prepare_kda.cuh"

namespace deltarelay::cuda::sm90 {
namespace {

using Kernel = void(PrepareArgs, int, int);

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

// The head index runs fastest: neighbours in the grid are neighbours in memory.
cudaError_t launch(const PrepareArgs& args, DType dtype, bool mid_frame, const KdaGrid& grid, int32_t records_a_chunk,
                   cudaStream_t stream) {
  return launch_dependent(kernel_of(dtype, variant_of(args, mid_frame)),
                          dim3(static_cast<unsigned>(args.heads_v), static_cast<unsigned>(grid.y)), kPrepareThreads,
                          sizeof(KdaPrepareShared), stream, args, grid.chunks, records_a_chunk);
}

}  // namespace

cudaError_t launch_prepare_kda(const PrepareArgs& args, DType dtype, bool mid_frame, int32_t chunks,
                               cudaStream_t stream) {
  return launch(args, dtype, mid_frame, {chunks, (args.chunks + chunks - 1) / chunks}, 1, stream);
}

cudaError_t launch_prepare_kda_halves(const PrepareArgs& args, DType dtype, bool mid_frame, cudaStream_t stream) {
  return launch(args, dtype, mid_frame, kda_grid(2 * args.chunks, args.heads_v), 2, stream);
}

cudaError_t load_prepare_kda(DType dtype) {
  for (const Variant variant : {Variant::kCommon, Variant::kMidFrame, Variant::kLevels}) {
    const cudaError_t status = load_kernel(kernel_of(dtype, variant), sizeof(KdaPrepareShared));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda::sm90
