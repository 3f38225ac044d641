// Grids in which a CTA has one chunk and some of its heads. A CTA finds both without a division.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/sm80/grid.h"

namespace deltarelay::cuda::sm80 {

// x counts the CTAs of a chunk, y counts chunks, and z counts overflows of y. Neighbours in the grid are neighbours in
// memory. The grid may have up to kMostY - 1 chunks more than requested.
struct ChunkGrid {
  static constexpr uint32_t kMostY = ChunkCounts::kMostY;
  static dim3 of(int32_t chunks, uint32_t ctas_a_chunk) {
    const ChunkCounts counts(chunks);
    return {ctas_a_chunk, counts.y, counts.z};
  }
  // Computed again at each use, so that no register keeps the value.
  static __device__ __forceinline__ uint32_t chunk() { return opaque(blockIdx.z) * kMostY + opaque(blockIdx.y); }
};

}  // namespace deltarelay::cuda::sm80
