// Grids of CTAs that each have a chunk and some of its heads: no quotient finds which.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda::sm80 {

// What belongs to a chunk is along x, chunks are along y, and z counts the times that y is full: neighbours in the grid are neighbours in
// memory. The grid may have up to kMostY - 1 chunks more than it was given.
struct ChunkGrid {
  static constexpr uint32_t kMostY = 32768;
  static dim3 of(int32_t chunks, uint32_t ctas_a_chunk) {
    const uint32_t count = static_cast<uint32_t>(chunks);
    return {ctas_a_chunk, count < kMostY ? count : kMostY, (count + kMostY - 1) / kMostY};
  }
  // Found anew where it is needed, so that no register keeps it.
  static __device__ __forceinline__ uint32_t chunk() { return opaque(blockIdx.z) * kMostY + opaque(blockIdx.y); }
};

}  // namespace deltarelay::cuda::sm80
