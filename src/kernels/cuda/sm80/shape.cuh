// Launches prepare and walk for one rule, data type and width.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm80/chunk_grid.cuh"
#include "kernels/cuda/sm80/prepare_gdn.cuh"
#include "kernels/cuda/sm80/prepare_kda.cuh"
#include "kernels/cuda/sm80/shape.h"
#include "kernels/cuda/sm80/walk.cuh"

namespace deltarelay::cuda::sm80 {

template <DType kType>
using NumberOf =
    std::conditional_t<kType == DType::kBf16, __nv_bfloat16, std::conditional_t<kType == DType::kFp16, __half, float>>;

// The mid frame needs e^{+-80}. e^80 overflows fp16, and the lower half of e^-80 underflows in fp32. Those types use
// levels.
template <DType kType>
constexpr bool kTakesMidFrame = kType == DType::kBf16;

// Do some shapes of this width need operands with lower halves?
template <DType kType, int kWidth>
constexpr bool kHasFine = is_fine(sizeof(NumberOf<kType>), kWidth - 1);

template <Rule kRule, DType kType, class Number, int kWidth>
cudaError_t launch_prepare_of(const PrepareArgs& args, const Shape& shape, cudaStream_t stream) {
  if constexpr (kRule == Rule::kGdn) {
    const uint32_t group = static_cast<uint32_t>(args.heads_v / args.heads_qk);
    const dim3 grid = ChunkGrid::of(args.chunks, static_cast<uint32_t>(args.heads_qk) * shares_of(group));
    return launch_dependent(prepare_gdn_kernel<Number, kWidth>, grid, kThreads,
                            sizeof(GdnPrepareShared<Number, kWidth>), stream, args, shape.dk, group);
  } else {
    auto launch = [&](auto mid_frame) {
      constexpr bool kMidFrame = decltype(mid_frame)::value;
      using Prepare = KdaPrepare<Number, kWidth, kMidFrame>;
      return launch_dependent(prepare_kda_kernel<Number, kWidth, kMidFrame>,
                              ChunkGrid::of(args.chunks, static_cast<uint32_t>(args.heads_v)), Prepare::kThreads,
                              sizeof(typename Prepare::Shared), stream, args, shape.dk);
    };
    if constexpr (kTakesMidFrame<kType>) {
      if (shape.mid_frame) return launch(std::true_type{});
    }
    return launch(std::false_type{});
  }
}

template <Rule kRule, DType kType, int kWidth>
cudaError_t ShapeKernels<kRule, kType, kWidth>::prepare(const PrepareArgs& args, const Shape& shape,
                                                        cudaStream_t stream) {
  using Number = NumberOf<kType>;
  if constexpr (kHasFine<kType, kWidth>) {
    if (is_fine(sizeof(Number), shape.dk))
      return launch_prepare_of<kRule, kType, Fine<Number>, kWidth>(args, shape, stream);
  }
  return launch_prepare_of<kRule, kType, Number, kWidth>(args, shape, stream);
}

template <Rule kRule, class Number, int kWidth, int kColumns, bool kBoth = false>
cudaError_t launch_walk_tiles(const WalkInputs& inputs, const WalkArgs& args, const Shape& shape, const WalkGrid& grid,
                              cudaStream_t stream) {
  using Stage = sm80::Stage<kRule, Number, kWidth, kColumns, kBoth>;
  return launch_dependent(walk_kernel<kRule, Number, kWidth, kColumns, kBoth>, static_cast<unsigned>(grid.ctas),
                          Stage::kAllThreads, Stage::kSharedBytes, stream, inputs, args, Extent{shape.dk, shape.dv},
                          grid.tiles);
}

template <Rule kRule, DType kType, int kWidth>
cudaError_t ShapeKernels<kRule, kType, kWidth>::walk(const WalkInputs& inputs, const WalkArgs& args, const Shape& shape,
                                                     const WalkGrid& grid, cudaStream_t stream) {
  using Number = NumberOf<kType>;
  if constexpr (kType == DType::kFp32) {
    if (shape.tf32) return launch_walk_tiles<kRule, Tf32, kWidth, kTileValues>(inputs, args, shape, grid, stream);
  }
  if constexpr (kHasFine<kType, kWidth>) {
    if (is_fine(sizeof(Number), shape.dk))
      return launch_walk_tiles<kRule, Fine<Number>, kWidth, kTileValues>(inputs, args, shape, grid, stream);
  }
  if constexpr (walks_both(kRule, sizeof(Number), kWidth)) {
    if (grid.both) return launch_walk_tiles<kRule, Number, kWidth, kWideTile, true>(inputs, args, shape, grid, stream);
  }
  if constexpr (has_wide_tiles(sizeof(Number), kWidth)) {
    if (grid.columns == kWideTile)
      return launch_walk_tiles<kRule, Number, kWidth, kWideTile>(inputs, args, shape, grid, stream);
  }
  return launch_walk_tiles<kRule, Number, kWidth, kTileValues>(inputs, args, shape, grid, stream);
}

template <Rule kRule, DType kType, int kWidth>
cudaError_t ShapeKernels<kRule, kType, kWidth>::load(const Shape&) {
  using Number = NumberOf<kType>;
  cudaError_t status = cudaSuccess;
  auto load = [&status](auto* kernel, size_t shared_bytes) {
    if (status == cudaSuccess) status = load_kernel(kernel, shared_bytes);
  };
  auto load_prepare = [&load]<class Of>(Of) {
    if constexpr (kRule == Rule::kGdn) {
      load(prepare_gdn_kernel<Of, kWidth>, sizeof(GdnPrepareShared<Of, kWidth>));
    } else {
      if constexpr (kTakesMidFrame<kType>)
        load(prepare_kda_kernel<Of, kWidth, true>, sizeof(typename KdaPrepare<Of, kWidth, true>::Shared));
      load(prepare_kda_kernel<Of, kWidth, false>, sizeof(typename KdaPrepare<Of, kWidth, false>::Shared));
    }
  };
  load_prepare(Number{});
  if constexpr (kHasFine<kType, kWidth>) {
    load_prepare(Fine<Number>{});
    load(walk_kernel<kRule, Fine<Number>, kWidth, kTileValues, false>,
         Stage<kRule, Fine<Number>, kWidth, kTileValues>::kSharedBytes);
  }
  if constexpr (kType == DType::kFp32)
    load(walk_kernel<kRule, Tf32, kWidth, kTileValues, false>, Stage<kRule, Tf32, kWidth, kTileValues>::kSharedBytes);
  if constexpr (has_wide_tiles(sizeof(Number), kWidth))
    load(walk_kernel<kRule, Number, kWidth, kWideTile, false>, Stage<kRule, Number, kWidth, kWideTile>::kSharedBytes);
  if constexpr (walks_both(kRule, sizeof(Number), kWidth))
    load(walk_kernel<kRule, Number, kWidth, kWideTile, true>,
         Stage<kRule, Number, kWidth, kWideTile, true>::kSharedBytes);
  load(walk_kernel<kRule, Number, kWidth, kTileValues, false>, Stage<kRule, Number, kWidth, kTileValues>::kSharedBytes);
  return status;
}

}  // namespace deltarelay::cuda::sm80
