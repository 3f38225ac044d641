// inverse - I = (I - N)^-1 - I with N = -Akk, strictly lower triangular, 32 x 32, by one warp in few instructions. For
// 16-bit data.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda {

// Works by halves. Substitution in fp32, one row per lane, inverts the 8 x 8 diagonal blocks. Products in fp16 then
// give the 16 x 16 diagonal blocks and the whole matrix. Let Y0 and Y1 be two neighbouring diagonal blocks of the
// result and N_10 the block of N below Y0. The block of the result in that place is F + Y1 F, where F = N_10 + N_10 Y0.
// N_10 itself is added without rounding.
//
// fp16 has 11 significant bits, as tf32, against 8 of a result in bf16, but a smaller range. Returns false, with
// unspecified output, if a number exceeds kLargest. Numbers stay within 2 if keys are normalised, beta is at most 2 and
// the raw keys of a chunk have similar norms: N contains the ratio of two norms. fp16 loses bits below 6e-5. That
// happens in rows of keys a thousand times larger than their neighbours, and the columns of such keys exceed kLargest.
//
// fp16 data: the result keeps 11 bits, and operands of 11 bits would add as much error as storing it. There each
// operand has an upper and a lower half, and a product is three.
//
// `at` gives access to 8 x 8 blocks (i, j): rows from 8 i on, columns from 8 j on.
//     four(i, j)              numbers j to j + 3 of row i of N's block (lane / 8, lane / 8)
//     pair(i, j)              this lane's two numbers of block (i, j) of N, in accumulator layout (ptx/matrix.cuh)
//     passage(half)           16 bytes of this lane in shared memory; half 1 for fp16 data only
//     put_rows(y)             stores row lane % 8 of block (lane / 8, lane / 8); a warp barrier follows
//     put_below(x)            stores blocks (1, 0) and (3, 2), in accumulator layout
//     put_corner(x)           stores blocks (2, 0) and (3, 0), then (2, 1) and (3, 1); comes last
template <class Element, class Squares>
__device__ __forceinline__ bool invert_by_halves(Squares at, int lane) {
  using Half = Pair<__half>;
  constexpr float kLargest = 1024.0f;
  float y[8];
#pragma unroll
  for (int j = 0; j < 8; j += 4) {
    const float4 n = at.four(lane % 8, j);
    y[j] = n.x, y[j + 1] = n.y, y[j + 2] = n.z, y[j + 3] = n.w;
  }
#pragma unroll
  for (int m = 6; m >= 1; --m) {
#pragma unroll
    for (int j = 0; j < m; j += 4) {
      const float4 n = at.four(m, j);
      y[j] = fmaf(y[m], n.x, y[j]);
      if (j + 1 < m) y[j + 1] = fmaf(y[m], n.y, y[j + 1]);
      if (j + 2 < m) y[j + 2] = fmaf(y[m], n.z, y[j + 2]);
      if (j + 3 < m) y[j + 3] = fmaf(y[m], n.w, y[j + 3]);
    }
  }
  at.put_rows(y);
  // Two numbers as operands: upper and lower halves.
  struct Split {
    uint32_t upper, lower;
  };
  constexpr bool kSplit = std::is_same_v<Element, __half>;
  auto split = [](float x, float y) {
    const uint32_t upper = Half::pack(x, y);
    return Split{upper, kSplit ? Half::pack(x - Half::low(upper), y - Half::high(upper)) : 0};
  };
  auto transposed = [](const Split& x) {
    return Split{transpose_block(x.upper), kSplit ? transpose_block(x.lower) : 0};
  };
  constexpr Split kZero = {0, 0};
  auto multiply = [](float(&d)[4], const Split(&a)[4], const Split& b0, const Split& b1) {
    const Fragment upper = {a[0].upper, a[1].upper, a[2].upper, a[3].upper};
    mma<__half>(d, upper, b0.upper, b1.upper);
    if constexpr (kSplit) {
      mma<__half>(d, upper, b0.lower, b1.lower);
      mma<__half>(d, {a[0].lower, a[1].lower, a[2].lower, a[3].lower}, b0.upper, b1.upper);
    }
  };
  const Split own_inverse[4] = {split(y[0], y[1]), split(y[2], y[3]), split(y[4], y[5]), split(y[6], y[7])};
  const uint4 halves = {own_inverse[0].upper, own_inverse[1].upper, own_inverse[2].upper, own_inverse[3].upper};
  at.passage(0) = halves;
  if constexpr (kSplit)
    at.passage(1) = {own_inverse[0].lower, own_inverse[1].lower, own_inverse[2].lower, own_inverse[3].lower};
  __syncwarp();
  Split left[4], right[4];  // diagonal blocks of inverse - I as A and as B operands
#pragma unroll
  for (int half = 0; half < (kSplit ? 2 : 1); ++half) {
    const uint32_t inverses = shared_address(&at.passage(half));
    const Fragment as_a = load_matrix(inverses), as_b = load_matrix_transposed(inverses);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      (half == 0 ? left[i].upper : left[i].lower) = as_a.reg[i];
      (half == 0 ? right[i].upper : right[i].lower) = as_b.reg[i];
    }
  }

  // 16 x 16: one product of a block-diagonal matrix gives both blocks.
  const float2 n10 = at.pair(1, 0), n32 = at.pair(3, 2);
  float below[4] = {n10.x, n10.y, n32.x, n32.y};
  multiply(below, {split(n10.x, n10.y), kZero, kZero, split(n32.x, n32.y)}, right[0], right[2]);
  const Split f0 = split(below[0], below[1]), f1 = split(below[2], below[3]);
  multiply(below, {left[1], kZero, kZero, left[3]}, transposed(f0), transposed(f1));
  const Split b0 = split(below[0], below[1]), b1 = split(below[2], below[3]);
  at.put_below(below);

  // 32 x 32.
  float corner[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = at.pair(2 + i % 2, i / 2);
    corner[i / 2][2 * (i % 2)] = two.x, corner[i / 2][2 * (i % 2) + 1] = two.y;
  }
  auto packed = [&](int i) { return split(corner[i / 2][2 * (i % 2)], corner[i / 2][2 * (i % 2) + 1]); };
  const Split n_corner[4] = {packed(0), packed(1), packed(2), packed(3)};
  multiply(corner[0], n_corner, right[0], transposed(b0));
  multiply(corner[1], n_corner, kZero, right[1]);
  const Split f[4] = {packed(0), packed(1), packed(2), packed(3)};
#pragma unroll
  for (int n = 0; n < 2; ++n)
    multiply(corner[n], {left[2], b1, kZero, left[3]}, transposed(f[2 * n]), transposed(f[2 * n + 1]));
  at.put_corner(corner);

  auto larger = [](uint32_t a, uint32_t b) {
    const __half2 most =
        __hmax2(__habs2(reinterpret_cast<const __half2&>(a)), __habs2(reinterpret_cast<const __half2&>(b)));
    return reinterpret_cast<const uint32_t&>(most);
  };
  const uint32_t most = larger(
      larger(larger(halves.x, halves.y), larger(halves.z, halves.w)),
      larger(larger(larger(b0.upper, b1.upper), larger(f[0].upper, f[1].upper)), larger(f[2].upper, f[3].upper)));
  const __half2 limit = __float2half2_rn(kLargest);
  return __all_sync(~0u, __hbgt2(limit, reinterpret_cast<const __half2&>(most)));
}

}  // namespace deltarelay::cuda
