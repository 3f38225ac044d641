// The inverse of a unit lower triangular 32 x 32 matrix by one warp.
#pragma once
#include <cstdint>

#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/triangle.cuh"

namespace deltarelay::cuda::sm80 {

// Calls body(row, column) for the parts of 8 x 8 of a square of 32 tokens that are not right of the diagonal, by the place of their first
// numbers: it is known when the loops are unrolled.
template <class Body>
__device__ __forceinline__ void for_each_part(Body body) {
#pragma unroll
  for (int row = 0; row < kChunk; row += 8) {
#pragma unroll
    for (int column = 0; column <= row; column += 8) body(row, column);
  }
}
// The number of such a part.
constexpr int kParts = 10;
__device__ __forceinline__ constexpr int part_number(int row, int column) {
  return row / 8 * (row / 8 + 1) / 2 + column / 8;
}
// A lane's two numbers of a part, as sums hold them, without what is not below the diagonal.
__device__ __forceinline__ float2 below_diagonal(float2 pair, int row, int column, int lane) {
  const int right_of = lane % 4 * 2 - lane / 4;  // how far its first number is right of the part's own diagonal
  if (row > column) return pair;
  return make_float2(right_of < 0 ? pair.x : 0.0f, right_of + 1 < 0 ? pair.y : 0.0f);
}

// Stores P or T of 32 tokens: pair(row, column) has a lane's numbers of that part, below the diagonal.
template <class Number, class PairAt>
__device__ __forceinline__ void store_square(uint8_t* square, int lane, PairAt pair) {
#pragma unroll
  for (int block = 0; block < 3; ++block) {
    const int i = (block + 1) / 2, j = block / 2;
    float number[2][4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int row = 16 * i + part % 2 * 8, column = 16 * j + part / 2 * 8;
      const float2 two = column > row ? make_float2(0.0f, 0.0f) : below_diagonal(pair(row, column), row, column, lane);
      number[part / 2][part % 2 * 2] = two.x;
      number[part / 2][part % 2 * 2 + 1] = two.y;
    }
    store_block<Number>(square, i, j, number[0], number[1], lane);
  }
  store_zero_block<Number>(square, 0, 1, lane);
}

// Stores T = (I + L)^-1 - I to a record. With X0, X1 the inverses of the diagonal blocks, the block below them is -X1 (L10 X0), two products
// of 16 x 16 matrices. L is overwritten.
template <class Number>
__device__ __forceinline__ void store_inverse(Triangle& lower, uint8_t* t, int lane) {
  float x[16];
  invert_diagonal_blocks(lower, x, lane);
  const int g = lane / 4, q = lane % 4;
  // Rows 16 .. 31 from column `left` on, times rows from `right` on, columns 0 .. 15.
  auto multiply = [&](int left, int right, float(&product)[2][4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a_high[4], a_low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        FloatArithmetic<3>::split(lower.row[16 + g + i % 2 * 8][left + 8 * step + q + i / 2 * 4], a_high[i], a_low[i]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t b_high[2], b_low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          FloatArithmetic<3>::split(lower.row[right + 8 * step + q + 4 * i][8 * n + g], b_high[i], b_low[i]);
        mma_tf32(product[n], a_low, b_high[0], b_high[1]);
        mma_tf32(product[n], a_high, b_low[0], b_low[1]);
        mma_tf32(product[n], a_high, b_high[0], b_high[1]);
      }
    }
  };
  auto put = [&](const float(&product)[2][4], float sign) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      *reinterpret_cast<float2*>(&lower.row[16 + g][8 * n + 2 * q]) =
          make_float2(sign * product[n][0], sign * product[n][1]);
      *reinterpret_cast<float2*>(&lower.row[24 + g][8 * n + 2 * q]) =
          make_float2(sign * product[n][2], sign * product[n][3]);
    }
    __syncwarp();
  };
  float middle[2][4] = {}, corner[2][4] = {};
  multiply(0, 0, middle);  // L10 X0
  put(middle, 1.0f);
  multiply(16, 16, corner);  // X1 (L10 X0): its right factor stands in rows 16 .. 31, columns 0 .. 15
  put(corner, -1.0f);

  store_square<Number>(t, lane, [&](int row, int column) {
    return *reinterpret_cast<const float2*>(&lower.row[row + g][column + 2 * q]);
  });
}

}  // namespace deltarelay::cuda::sm80
