// Scores of a chunk of 32 tokens on the tensor cores.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda {

// Multiplies [q; k] (64 rows, described by `rows`) by the 32 rows of `columns`, over 128 channels in tiles of 64,
// `half_bytes` apart. Warps 0 and 1 get the rows of q, warps 2 and 3 the rows of k. Does not wait for the product.
template <class Element>
__device__ __forceinline__ void multiply_scores(float (&scores)[16], uint64_t rows, uint64_t columns, int half_bytes) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint64_t at = channel_step(step, half_bytes);
    Wgmma<Element>::times(scores, rows + at, columns + at, step > 0);
  }
  wgmma_commit();
}

}  // namespace deltarelay::cuda
