// What a CTA of a walk may do before the previous grid has ended.
#pragma once
#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/grid.cuh"

namespace deltarelay::cuda {

// Did the table arrive with the launch, in the kernel parameters?
__device__ __forceinline__ bool table_came(const WalkArgs& args) { return args.tables.memory == nullptr; }

// Call before loading a state that the previous grid wrote. Only phase 3 may have started without waiting.
__device__ __forceinline__ void wait_for_state(const WalkArgs& args) {
  if (args.phase == 3) wait_for_previous_grid();
}

}  // namespace deltarelay::cuda
