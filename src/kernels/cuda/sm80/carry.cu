#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm80/carry.cuh"
#include "kernels/cuda/sm80/shape.h"

namespace deltarelay::cuda::sm80 {
namespace {

template <int kWidth>
cudaError_t launch_width(const CarryArgs& args, const Shape& shape, unsigned ctas, cudaStream_t stream) {
  return launch_dependent(carry_kernel<kWidth>, ctas, Carry<kWidth>::kAllThreads,
                          sizeof(typename Carry<kWidth>::Shared), stream, args, Extent{shape.dk, shape.dv});
}

template <int kWidth>
cudaError_t load_width() {
  static_assert(sizeof(typename Carry<kWidth>::Shared) <= 99 * 1024);
  return load_kernel(carry_kernel<kWidth>, sizeof(typename Carry<kWidth>::Shared));
}

}  // namespace

cudaError_t launch_carry(const CarryArgs& args, const Shape& shape, unsigned ctas, cudaStream_t stream) {
  switch (width_of(shape.dk)) {
    case 64:
      return launch_width<64>(args, shape, ctas, stream);
    case 96:
      return launch_width<96>(args, shape, ctas, stream);
    case 128:
      return launch_width<128>(args, shape, ctas, stream);
    case 192:
      return launch_width<192>(args, shape, ctas, stream);
    default:
      return launch_width<256>(args, shape, ctas, stream);
  }
}

cudaError_t load_carry(int32_t width) {
  switch (width) {
    case 64:
      return load_width<64>();
    case 96:
      return load_width<96>();
    case 128:
      return load_width<128>();
    case 192:
      return load_width<192>();
    default:
      return load_width<256>();
  }
}

}  // namespace deltarelay::cuda::sm80
