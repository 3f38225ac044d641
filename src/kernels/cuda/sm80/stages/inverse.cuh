// (I + Akk)^-1 of a chunk, by the whole CTA.
//
// Blocks of 16 tokens on the diagonal are inverted by substitution in fp32 (triangle.cuh). Then a matrix of twice the
// size follows from two inverses X_0 and X_1 on its diagonal: X_10 = -X_1 (Akk_10 X_0), first for 32 tokens and then
// for 64. Products are 3xTF32, whatever the data. Akk_10 X_0 waits above the diagonal.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/stages/products.cuh"
#include "kernels/cuda/sm80/stages/scores.cuh"
#include "kernels/cuda/tile/triangle.cuh"

namespace deltarelay::cuda::sm80 {

// 32 tokens of a square, as invert_diagonal_blocks takes them.
struct HalfSquare {
  float* data;
  __device__ __forceinline__ float4 four_of_block(int base, int r, int c) const {
    return *reinterpret_cast<const float4*>(data + (base + r) * kSquareRow + base + c);
  }
  __device__ __forceinline__ void put_row(int r, int base, const float (&x)[16]) {
#pragma unroll
    for (int j = 0; j < 16; j += 4)
      *reinterpret_cast<float4*>(data + r * kSquareRow + base + j) = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
  }
};

// sums = (16 rows at `left`) x (columns at `right`), with kColumns columns and rows, 16 or 32.
template <int kColumns>
__device__ __forceinline__ void multiply_blocks(float (&sums)[2][4], const float* left, const float* right, int lane) {
  using Numbers = FloatArithmetic<3>;
  constexpr int kRowBytes = kSquareRow * 4;
  auto a = Numbers::load_left(shared_address(left) + Numbers::left_place(lane, kRowBytes), kRowBytes);
#pragma unroll
  for (int step = kColumns / 8; step < Numbers::kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a.high[step][i] = a.low[step][i] = 0;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    auto b = Numbers::load_columns(shared_address(right + 8 * n) + Numbers::columns_place(lane, kRowBytes), kRowBytes);
#pragma unroll
    for (int step = kColumns / 8; step < Numbers::kSteps; ++step) b.pair[step] = make_float2(0.0f, 0.0f);
    Numbers::multiply(sums[n], a, b);
  }
}

__device__ __forceinline__ void negate(float (&sums)[2][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = -sums[i / 4][i % 4];
}

// Replaces the matrix of 2 kColumns tokens at `square` by its inverse, where the halves on its diagonal are inverted.
// kColumns 16: by one warp (`part` 0); 32: by four. Without a barrier at its end.
template <int kColumns, class Barrier>
__device__ __forceinline__ void join_halves(float* square, int part, int lane, Barrier barrier) {
  const int row = part % (kColumns / 16) * 16, column = part / (kColumns / 16) * 16;
  const float *first = square, *lower = square + kColumns * kSquareRow, *second = lower + kColumns;
  float* const wait = square + kColumns;
  float sums[2][4] = {};
  multiply_blocks<kColumns>(sums, lower + row * kSquareRow, first + column, lane);
  put_sums(sums, wait + column, kSquareRow, row, lane);
  barrier();
  float corner[2][4] = {};
  multiply_blocks<kColumns>(corner, second + row * kSquareRow, wait + column, lane);
  negate(corner);
  put_sums(corner, square + kColumns * kSquareRow + column, kSquareRow, row, lane);
}

// Sets the block of 16 tokens above the diagonal of 32 tokens to 0.
__device__ __forceinline__ void clear_above(float* square, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) square[(2 * i + lane / 16) * kSquareRow + 16 + lane % 16] = 0.0f;
}

// `square`: Akk without its factors beta below the diagonal; anything finite above it, in blocks of 16 tokens. Then the
// inverse, with 0 above the diagonal in blocks of 32 tokens. Begins and ends with a barrier.
__device__ __forceinline__ void invert(Square& square, const float* beta, int blocks, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  __syncthreads();
  for (int i = thread; i < kStageTokens * kStageTokens; i += kStageThreads) {
    const int row = i / kStageTokens, column = i % kStageTokens;
    if (column < row) square.row[row][column] *= beta[row];
  }
  __syncthreads();
  if (32 * warp < blocks * kBlock) {
    HalfSquare half{&square.row[32 * warp][32 * warp]};
    float x[16];
    invert_diagonal_blocks(half, x, lane);
    if (32 * warp + kBlock < blocks * kBlock) {
      join_halves<16>(half.data, 0, lane, [] { __syncwarp(); });
      __syncwarp();
      clear_above(half.data, lane);
    }
  }
  __syncthreads();
  if (blocks == 4) join_halves<32>(&square.row[0][0], warp, lane, [] { __syncthreads(); });
  __syncthreads();
}

}  // namespace deltarelay::cuda::sm80
