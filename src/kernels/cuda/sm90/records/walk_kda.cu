#include "kernels/cuda/sm90/records/walk_launch.cuh"

namespace deltarelay::cuda::sm90 {

cudaError_t launch_walk_kda(const WalkMaps& maps, const WalkArgs& args, const WalkShape& shape, cudaStream_t stream) {
  return shape.dtype == DType::kFp16 ? launch_walk<KdaStage, __half>(maps, args, shape, stream)
                                     : launch_walk<KdaStage, __nv_bfloat16>(maps, args, shape, stream);
}

cudaError_t load_walk_kda(DType dtype) {
  return dtype == DType::kFp16 ? load_walk<KdaStage, __half>() : load_walk<KdaStage, __nv_bfloat16>();
}

}  // namespace deltarelay::cuda::sm90
