// Squares and products of the tokens of a chunk in the fused walks: diagonals of [q; k] [q; k]^T, which the tensor cores give in fp32. By
// FFMA they cost a warp some 190 instructions a chunk.
#pragma once
#include <cstdint>

namespace deltarelay::cuda::sm90 {

constexpr int kBlockRows = 16;  // rows of a warp in a product of 64

// Of 32 columns of such a product the numbers (i, i) of this lane's rows: token i of rows lane / 4 and lane / 4 + 8 of block row warp % 2.
// One of the four lanes of a row has it in its accumulators.
__device__ __forceinline__ float2 diagonal_of(const float* columns, int warp, int lane) {
  const bool odd = lane / 4 % 2 != 0;
  const float* block = columns;
  float low = odd ? block[1] : block[0], high = odd ? block[7] : block[6];
  if (warp % 2 != 0) low = odd ? block[9] : block[8], high = odd ? block[15] : block[14];
  const int from = lane / 4 * 4 + lane / 8;
  return make_float2(__shfl_sync(~0u, low, from), __shfl_sync(~0u, high, from));
}

}  // namespace deltarelay::cuda::sm90
