// Launching the walk of one op and data type.
#pragma once
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/walk.cuh"

namespace deltarelay::cuda::sm90 {

template <class Stage, class Element, int kGroups>
cudaError_t launch_groups(const WalkMaps& maps, const WalkArgs& args, cudaStream_t stream) {
  const unsigned grid = static_cast<unsigned>(args.row_bound) * static_cast<unsigned>(args.heads_v) * (2 / kGroups);
  // The two halves of a head read the same records: started together they find them in L2, apart they fetch them twice.
  const LaunchShape shape{.grid = dim3(grid),
                          .block = (kGroups + 1) * kWarpgroup,
                          .shared_bytes = kWalkSharedBytes<Stage>,
                          .cluster = 2 / kGroups};
  return launch_dependent(walk_kernel<Stage, Element, kGroups>, shape, stream, maps, args);
}

template <class Stage, class Element>
cudaError_t launch_tiles(const WalkMaps& maps, const WalkArgs& args, const WalkShape& shape, cudaStream_t stream) {
  return shape.value_tiles == 2 ? launch_groups<Stage, Element, 1>(maps, args, stream)
                                : launch_groups<Stage, Element, 2>(maps, args, stream);
}

template <class Stage, class Element>
cudaError_t load_tiles() {
  const cudaError_t status = load_kernel(walk_kernel<Stage, Element, 1>, kWalkSharedBytes<Stage>);
  return status != cudaSuccess ? status : load_kernel(walk_kernel<Stage, Element, 2>, kWalkSharedBytes<Stage>);
}

}  // namespace deltarelay::cuda::sm90
