// Launching the walk of one rule and data type.
#pragma once
#include <numeric>

#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/records/walk.cuh"

namespace deltarelay::cuda::sm90 {

// Neighbouring strips of one key head share q and k in clusters of up to so many CTAs. A multiprocessor holds one CTA,
// and GPCs have an even number of multiprocessors, so that pairs leave none of them without work; clusters of 4 do
// (docs/kernels/sm90-walk.md).
constexpr int kMostTogether = 2;

template <class Stage, class Element, Form kForm, bool kCheckpoints, bool kSuffix>
cudaError_t launch_tiles(const WalkMaps& maps, const WalkArgs& args, unsigned grid, cudaStream_t stream) {
  const int together = Stage::kRawTiles ? std::gcd(args.strips.all / args.heads_qk, kMostTogether) : 1;
  const LaunchShape shape{.grid = dim3(grid),
                          .block = kWalkThreads,
                          .shared_bytes = sizeof(WalkShared<Stage>),
                          .cluster = static_cast<unsigned>(kForm == Form::kPair ? 2 : together)};
  return launch_dependent(walk_kernel<Stage, Element, kForm, kCheckpoints, kSuffix>, shape, stream, maps, args);
}

template <class Stage, class Element, bool kCheckpoints>
cudaError_t launch_rows(const WalkMaps& maps, const WalkArgs& args, const WalkShape& shape, cudaStream_t stream) {
  if (shape.form == Form::kSingle)
    return launch_tiles<Stage, Element, Form::kSingle, kCheckpoints, false>(maps, args, shape.ctas, stream);
  if constexpr (!kCheckpoints) {
    if (shape.suffix) return launch_tiles<Stage, Element, Form::kPair, false, true>(maps, args, shape.ctas, stream);
  }
  return launch_tiles<Stage, Element, Form::kPair, kCheckpoints, false>(maps, args, shape.ctas, stream);
}

template <class Stage, class Element>
cudaError_t launch_walk(const WalkMaps& maps, const WalkArgs& args, const WalkShape& shape, cudaStream_t stream) {
  return args.checkpoints.pool.data != nullptr ? launch_rows<Stage, Element, true>(maps, args, shape, stream)
                                               : launch_rows<Stage, Element, false>(maps, args, shape, stream);
}

template <class Stage, class Element>
cudaError_t load_walk() {
  cudaError_t status = cudaSuccess;
  for (const auto kernel :
       {walk_kernel<Stage, Element, Form::kSingle, false, false>,
        walk_kernel<Stage, Element, Form::kPair, false, false>, walk_kernel<Stage, Element, Form::kPair, false, true>,
        walk_kernel<Stage, Element, Form::kSingle, true, false>,
        walk_kernel<Stage, Element, Form::kPair, true, false>}) {
    if (status == cudaSuccess) status = load_kernel(kernel, sizeof(WalkShared<Stage>));
  }
  return status;
}

}  // namespace deltarelay::cuda::sm90
