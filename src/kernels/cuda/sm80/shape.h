// The kernels of one rule, data type and width. CMake writes the files that instantiate them (shape.cu.in); launch.cu
// chooses.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/cuda/sm80/launch.h"

namespace deltarelay::cuda::sm80 {

template <Rule kRule, DType kType, int kWidth>
struct ShapeKernels {
  static cudaError_t prepare(const PrepareArgs& args, const Shape& shape, cudaStream_t stream);
  static cudaError_t walk(const WalkInputs& inputs, const WalkArgs& args, const Shape& shape, const WalkGrid& grid,
                          cudaStream_t stream);
  static cudaError_t load(const Shape& shape);
};

cudaError_t load_carry(int32_t width);

}  // namespace deltarelay::cuda::sm80
