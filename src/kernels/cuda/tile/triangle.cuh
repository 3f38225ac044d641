// The strictly lower triangle Akk of a chunk of 32 tokens, and how one warp inverts the diagonal blocks of I + Akk.
#pragma once

namespace deltarelay::cuda {

// Akk in fp32. Rows are padded to 36 floats: float4 stays aligned, and rows fall into different banks.
struct Triangle {
  float row[32][36];
  // Four numbers of the block that begins at (base, base).
  __device__ __forceinline__ float4 four_of_block(int base, int r, int c) const {
    return *reinterpret_cast<const float4*>(&row[base + r][base + c]);
  }
  // Stores a row of a block to row r, from column `base` on.
  __device__ __forceinline__ void put_row(int r, int base, const float (&x)[16]) {
#pragma unroll
    for (int j = 0; j < 16; j += 4)
      *reinterpret_cast<float4*>(&row[r][base + j]) = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
  }
};

// Replaces the 16 x 16 diagonal blocks of Akk by those of inverse = (I + Akk)^-1. Uses substitution in fp32. Repeated
// keys make Akk close to 1 everywhere: powers of Akk then grow while the inverse stays bounded, so no series would
// converge. Substitution also takes keys that are not normalised.
//
// Each lane solves one row of a block, x (I + Akk_bb) = e_row, from the last column back, and keeps it in `x`. Lanes
// 0-15 have the first block, lanes 16-31 the second.
//
// `Lower`: Triangle, or a type with the same functions and another layout.
template <class Lower>
__device__ __forceinline__ void invert_diagonal_blocks(Lower& lower, float (&x)[16], int lane) {
  const int row = lane % 16, base = lane / 16 * 16;
#pragma unroll
  for (int j = 0; j < 16; ++j) x[j] = j == row ? 1.0f : 0.0f;
#pragma unroll
  for (int m = 15; m >= 1; --m) {
#pragma unroll
    for (int j = 0; j < m; j += 4) {
      const float4 l = lower.four_of_block(base, m, j);
      x[j] = fmaf(-x[m], l.x, x[j]);
      if (j + 1 < m) x[j + 1] = fmaf(-x[m], l.y, x[j + 1]);
      if (j + 2 < m) x[j + 2] = fmaf(-x[m], l.z, x[j + 2]);
      if (j + 3 < m) x[j + 3] = fmaf(-x[m], l.w, x[j + 3]);
    }
  }
  __syncwarp();
  lower.put_row(lane, base, x);
  __syncwarp();
}

}  // namespace deltarelay::cuda
