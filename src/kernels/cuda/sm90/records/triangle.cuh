// inverse - I of a unit lower triangular 32 x 32 matrix by one warp.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/tile/triangle.cuh"

namespace deltarelay::cuda::sm90 {

// Writes inverse - I, inverse = (I + Akk)^-1, in core matrices (KdaRecord::kInverse). With
// inverse_00 and inverse_11 the inverses of the 16 x 16 diagonal blocks, the block below them is
// inverse_10 = -inverse_11 (Akk_10 inverse_00). Overwrites Akk.
template <class Element>
__device__ __forceinline__ void write_inverse(Triangle& akk, uint8_t* inverse, int lane) {
  const int block = lane / 16, row = lane % 16;
  float x[16];
  invert_diagonal_blocks(akk, x, lane);
  // Two 16 x 16 x 16 products on the tensor cores. tf32 operands have 11 bits and the range of fp32; bf16 results have
  // 8.
  const int r = lane / 4, c = lane % 4;
  auto multiply = [&](int left_column, int right_row, float(&product)[2][4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        a[e] = as_tf32(akk.row[16 + r + 8 * (e % 2)][left_column + 8 * step + c + 4 * (e / 2)]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t b0 = as_tf32(akk.row[right_row + 8 * step + c][8 * n + r]);
        const uint32_t b1 = as_tf32(akk.row[right_row + 8 * step + c + 4][8 * n + r]);
        mma_tf32(product[n], a, b0, b1);
      }
    }
  };
  float middle[2][4] = {}, corner[2][4] = {};
  multiply(0, 0, middle);  // Akk_10 inverse_00
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    *reinterpret_cast<float2*>(&akk.row[16 + r][8 * n + 2 * c]) = {middle[n][0], middle[n][1]};
    *reinterpret_cast<float2*>(&akk.row[24 + r][8 * n + 2 * c]) = {middle[n][2], middle[n][3]};
  }
  __syncwarp();
  multiply(16, 16, corner);  // inverse_11 (Akk_10 inverse_00)

  auto write_piece = [&](int piece, const float* values) {
    uint32_t packed[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) packed[e] = Pair<Element>::pack(values[2 * e], values[2 * e + 1]);
    *reinterpret_cast<uint4*>(inverse + piece * 512 + (lane / 8) * 128 + (lane % 8) * 16) =
        make_uint4(packed[0], packed[1], packed[2], packed[3]);
  };
#pragma unroll
  for (int j = 0; j < 16; ++j) x[j] = j == row ? 0.0f : x[j];
  write_piece(2 * block, x);
  write_piece(2 * block + 1, x + 8);
  *reinterpret_cast<uint4*>(inverse + (2 + block) * 512 + (row / 8) * 128 + (row % 8) * 16) = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    uint8_t* at = inverse + n * 512 + 256 + r * 16 + c * 4;
    *reinterpret_cast<uint32_t*>(at) = Pair<Element>::pack(-corner[n][0], -corner[n][1]);
    *reinterpret_cast<uint32_t*>(at + 128) = Pair<Element>::pack(-corner[n][2], -corner[n][3]);
  }
}

}  // namespace deltarelay::cuda::sm90
