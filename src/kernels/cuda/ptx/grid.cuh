// Programmatic dependent launch, from Hopper on: a grid may be set up while the one before it in the stream drains (launch.h). On earlier GPUs
// a grid starts when the one before it has ended, and both functions do nothing.
#pragma once

namespace deltarelay::cuda {

// Waits for the grids this one depends on, and their memory.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next grid be launched.
__device__ __forceinline__ void allow_next_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace deltarelay::cuda
