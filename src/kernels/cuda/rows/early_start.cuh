// What a CTA of a walk may do before the grid ahead of its own has ended.
#pragma once
#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/grid.cuh"

namespace deltarelay::cuda {

// The table came with the launch.
__device__ __forceinline__ bool table_came(const WalkArgs& args) { return args.tables.memory == nullptr; }

// Ahead of a state that comes from the grid before: in phase 3, which may have begun without waiting.
__device__ __forceinline__ void wait_for_state(const WalkArgs& args) {
  if (args.phase == 3) wait_for_previous_grid();
}

}  // namespace deltarelay::cuda
