// Products of tiles of fp32 numbers in shared memory: one product of TF32 for 16-bit data, which TF32 holds exactly, or
// three.
#pragma once
#include <cstdint>

#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/stages/tiles.h"

namespace deltarelay::cuda::sm80 {

constexpr int kSlabRow = kSlab + 4;           // floats from row to row: rows at one column touch every bank once
constexpr int kSquareRow = kStageTokens + 4;  // the same of C x C matrices

template <int kProducts>
using SlabNumbers = FloatArithmetic<kProducts>;

// A left operand whose columns are multiplied by factors: factor[step] of columns 8 step + 2 (lane % 4) and the next.
template <class Numbers>
__device__ __forceinline__ typename Numbers::Left load_left_scaled(uint32_t address, int row_bytes,
                                                                   const float2 (&factor)[Numbers::kSteps]) {
  typename Numbers::Left a;
#pragma unroll
  for (int step = 0; step < Numbers::kSteps; ++step) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 pair = load_pair(address + step * 32 + r * 8 * row_bytes);
      Numbers::set(a, step, r, pair.x * factor[step].x);
      Numbers::set(a, step, r + 2, pair.y * factor[step].y);
    }
  }
  return a;
}

// sums += (rows 16 `row_tile` of a C x C matrix up to its diagonal) x (tile of C rows). Columns of the tile from
// `column` on, 8 for each of kCount accumulators. The matrix has zeros above its diagonal in blocks of 32 columns.
template <class Numbers, int kCount>
__device__ __forceinline__ void multiply_lower(float (&sums)[kCount][4], uint32_t square, int row_tile, uint32_t tile,
                                               int tile_row_bytes, int lane) {
  for (int group = 0; group <= row_tile / 2; ++group) {
    const auto left = Numbers::load_left(
        square + (row_tile * kBlock * kSquareRow + group * 32) * 4 + Numbers::left_place(lane, kSquareRow * 4),
        kSquareRow * 4);
    const uint32_t right = tile + group * 32 * tile_row_bytes + Numbers::columns_place(lane, tile_row_bytes);
#pragma unroll
    for (int n = 0; n < kCount; ++n)
      Numbers::multiply(sums[n], left, Numbers::load_columns(right + n * 32, tile_row_bytes));
  }
}

// Accumulators of 16 rows from row `row` on to a tile in shared memory.
template <int kCount>
__device__ __forceinline__ void put_sums(const float (&sums)[kCount][4], float* tile, int row_floats, int row,
                                         int lane) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float2*>(tile + (row + lane / 4 + 8 * r) * row_floats + 8 * n + lane % 4 * 2) =
          make_float2(sums[n][2 * r], sums[n][2 * r + 1]);
    }
  }
}

}  // namespace deltarelay::cuda::sm80
