// Between the lanes of a warp.
#pragma once

namespace deltarelay::cuda {

// One step of a prefix sum over a warp: adds the value of the lane `step` below, if there is one.
__device__ __forceinline__ void add_from_below(float& sum, int step) {
  asm volatile(
      "{\n.reg .pred exists;\n.reg .f32 below;\n"
      "shfl.sync.up.b32 below|exists, %0, %1, 0, -1;\n"
      "@exists add.f32 %0, %0, below;\n}\n"
      : "+f"(sum)
      : "r"(step));
}

}  // namespace deltarelay::cuda
