// A unit lower triangular 32 x 32 matrix, and how one warp inverts its diagonal blocks.
#pragma once

namespace deltarelay::cuda {

// Strictly lower triangular L in fp32. Rows padded to 36: float4 stays aligned and rows fall into different banks.
struct Triangle {
  float row[32][36];
  // Four numbers of the block that begins at (base, base).
  __device__ __forceinline__ float4 four_of_block(int base, int r, int c) const {
    return *reinterpret_cast<const float4*>(&row[base + r][base + c]);
  }
  // A row of a block to row r, from column `base` on.
  __device__ __forceinline__ void put_row(int r, int base, const float (&x)[16]) {
#pragma unroll
    for (int j = 0; j < 16; j += 4)
      *reinterpret_cast<float4*>(&row[r][base + j]) = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
  }
};

// The 16 x 16 diagonal blocks of L become those of (I + L)^-1. By substitution in fp32, so repeated keys (L near 1 everywhere), which make
// powers of L grow while the inverse stays bounded, and keys that are not normalised do no harm: no series would do.
//
// Lanes 0-15 and 16-31 each solve one row of a block, x (I + L_bb) = e_row, from the last column back, and keep it in `x`.
//
// `Lower`: Triangle, or what places the numbers otherwise.
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
