// Chooses the kernels of a shape.
#include <cuda_runtime_api.h>

#include "kernels/cuda/sm80/launch.h"
#include "kernels/cuda/sm80/shape.h"

namespace deltarelay::cuda::sm80 {
namespace {

// Calls body with the kernels of the shape.
template <Rule kRule, DType kType, class Body>
cudaError_t with_width(const Shape& shape, Body body) {
  switch (width_of(shape.dk)) {
    case 64:
      return body(ShapeKernels<kRule, kType, 64>{});
    case 96:
      return body(ShapeKernels<kRule, kType, 96>{});
    case 128:
      return body(ShapeKernels<kRule, kType, 128>{});
    case 192:
      return body(ShapeKernels<kRule, kType, 192>{});
    default:
      return body(ShapeKernels<kRule, kType, 256>{});
  }
}
template <Rule kRule, class Body>
cudaError_t with_type(const Shape& shape, Body body) {
  switch (shape.dtype) {
    case DType::kFp32:
      return with_width<kRule, DType::kFp32>(shape, body);
    case DType::kBf16:
      return with_width<kRule, DType::kBf16>(shape, body);
    case DType::kFp16:
      return with_width<kRule, DType::kFp16>(shape, body);
    default:
      return cudaErrorInvalidValue;
  }
}
template <class Body>
cudaError_t with_kernels(const Shape& shape, Body body) {
  return shape.rule == Rule::kKda ? with_type<Rule::kKda>(shape, body) : with_type<Rule::kGdn>(shape, body);
}

}  // namespace

cudaError_t launch_prepare(const PrepareArgs& args, const Shape& shape, cudaStream_t stream) {
  return with_kernels(shape, [&](auto kernels) { return decltype(kernels)::prepare(args, shape, stream); });
}

cudaError_t launch_walk(const WalkInputs& inputs, const WalkArgs& args, const Shape& shape, const WalkGrid& grid,
                        cudaStream_t stream) {
  return with_kernels(shape, [&](auto kernels) { return decltype(kernels)::walk(inputs, args, shape, grid, stream); });
}

cudaError_t load(const Shape& shape) {
  const cudaError_t status = load_carry(width_of(shape.dk));
  if (status != cudaSuccess) return status;
  return with_kernels(shape, [&](auto kernels) { return decltype(kernels)::load(shape); });
}

}  // namespace deltarelay::cuda::sm80
