// Grids in which a CTA has one chunk and some of its heads. A CTA finds both without a division.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda::sm80 {

// x counts the CTAs of a chunk, y counts chunks, and z counts overflows of y. Neighbours in the grid are neighbours in
// memory. The grid may have up to kMostY - 1 chunks more than requested.
struct ChunkGrid {
  static constexpr uint32_t kMostY = 32768;
  static dim3 of(int32_t chunks, uint32_t ctas_a_chunk) {
    const uint32_t count = static_cast<uint32_t>(chunks);
    return {ctas_a_chunk, count < kMostY ? count : kMostY, (count + kMostY - 1) / kMostY};
  }
  // Computed again at each use, so that no register keeps the value.
  static __device__ __forceinline__ uint32_t chunk() { return opaque(blockIdx.z) * kMostY + opaque(blockIdx.y); }
};

}  // namespace deltarelay::cuda::sm80
