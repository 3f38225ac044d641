// Launching prepare and walk of one op, data type and width.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm80/prepare_gdn.cuh"
#include "kernels/cuda/sm80/prepare_kda.cuh"
#include "kernels/cuda/sm80/shape.h"
#include "kernels/cuda/sm80/walk.cuh"

namespace deltarelay::cuda::sm80 {

template <DType kType>
using NumberOf =
    std::conditional_t<kType == DType::kBf16, __nv_bfloat16, std::conditional_t<kType == DType::kFp16, __half, float>>;

// e^80 does not fit fp16, and of an e^-80 in fp32 the lower half falls below its range: levels only.
template <DType kType>
constexpr bool kTakesMidFrame = kType == DType::kBf16;

template <Op kOp, DType kType, int kWidth>
cudaError_t ShapeKernels<kOp, kType, kWidth>::prepare(const PrepareArgs& args, const Shape& shape,
                                                      cudaStream_t stream) {
  using Number = NumberOf<kType>;
  if constexpr (kOp == Op::kGdn) {
    const int group = args.heads_v / args.heads_qk, shares = (group + kHeadsTogether - 1) / kHeadsTogether;
    const unsigned grid =
        static_cast<unsigned>(args.chunks) * static_cast<unsigned>(args.heads_qk) * static_cast<unsigned>(shares);
    return launch_dependent(prepare_gdn_kernel<Number, kWidth>, grid, kThreads,
                            sizeof(GdnPrepareShared<Number, kWidth>), stream, args, shape.dk, shares);
  } else {
    const unsigned grid = static_cast<unsigned>(args.chunks) * static_cast<unsigned>(args.heads_v);
    if constexpr (kTakesMidFrame<kType>) {
      if (shape.mid_frame)
        return launch_dependent(prepare_kda_kernel<Number, kWidth, true>, grid, kThreads,
                                sizeof(typename KdaPrepare<Number, kWidth, true>::Shared), stream, args, shape.dk);
    }
    return launch_dependent(prepare_kda_kernel<Number, kWidth, false>, grid, kThreads,
                            sizeof(typename KdaPrepare<Number, kWidth, false>::Shared), stream, args, shape.dk);
  }
}

template <Op kOp, DType kType, int kWidth>
cudaError_t ShapeKernels<kOp, kType, kWidth>::walk(const WalkInputs& inputs, const WalkArgs& args, const Shape& shape,
                                                   cudaStream_t stream) {
  using Number = NumberOf<kType>;
  const bool summarizes = args.phase == 1 && args.slot_transition != nullptr;
  const int tiles = whole_tiles(shape.dv) + (summarizes ? whole_tiles(shape.dk) : 0);
  const unsigned grid =
      static_cast<unsigned>(args.row_bound) * static_cast<unsigned>(args.heads_v) * static_cast<unsigned>(tiles);
  const Extent extent{shape.dk, shape.dv};
  if constexpr (kType == DType::kFp32) {
    if (shape.tf32)
      return launch_dependent(walk_kernel<kOp, Tf32, kWidth>, grid, kThreads, Stage<kOp, Tf32, kWidth>::kSharedBytes,
                              stream, inputs, args, extent, tiles);
  }
  return launch_dependent(walk_kernel<kOp, Number, kWidth>, grid, kThreads, Stage<kOp, Number, kWidth>::kSharedBytes,
                          stream, inputs, args, extent, tiles);
}

template <Op kOp, DType kType, int kWidth>
cudaError_t ShapeKernels<kOp, kType, kWidth>::load(const Shape&) {
  using Number = NumberOf<kType>;
  cudaError_t status = cudaSuccess;
  auto load = [&status](auto* kernel, size_t shared_bytes) {
    if (status == cudaSuccess) status = load_kernel(kernel, shared_bytes);
  };
  if constexpr (kOp == Op::kGdn) {
    load(prepare_gdn_kernel<Number, kWidth>, sizeof(GdnPrepareShared<Number, kWidth>));
  } else {
    if constexpr (kTakesMidFrame<kType>)
      load(prepare_kda_kernel<Number, kWidth, true>, sizeof(typename KdaPrepare<Number, kWidth, true>::Shared));
    load(prepare_kda_kernel<Number, kWidth, false>, sizeof(typename KdaPrepare<Number, kWidth, false>::Shared));
  }
  if constexpr (kType == DType::kFp32) load(walk_kernel<kOp, Tf32, kWidth>, Stage<kOp, Tf32, kWidth>::kSharedBytes);
  load(walk_kernel<kOp, Number, kWidth>, Stage<kOp, Number, kWidth>::kSharedBytes);
  return status;
}

}  // namespace deltarelay::cuda::sm80
