// Programmatic dependent launch, from Hopper on: a grid may be set up while the previous grid of the stream drains
// (launch.h). On earlier GPUs a grid starts when the previous one has ended, and both functions do nothing.
#pragma once

namespace deltarelay::cuda {

// Waits until the grids this one depends on have ended and their writes are visible.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next grid of the stream to launch.
__device__ __forceinline__ void allow_next_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace deltarelay::cuda
