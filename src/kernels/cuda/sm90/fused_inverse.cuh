// P, L and T of one chunk in the fused walks: 32 x 32, of one chunk and head.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda::sm90 {

// Two neighbouring 16-bit numbers in shared memory.
__device__ __forceinline__ uint32_t& word_at(uint8_t* address) { return *reinterpret_cast<uint32_t*>(address); }

// Byte of core matrix (row / 8, column / 8) of P and T.
__device__ __forceinline__ constexpr int core_offset(int row, int column) { return column * 512 + row * 128; }

// -L in fp32, 16 x 16 blocks: the two on the diagonal, and the one below. Rows are padded: float4 stays aligned on the diagonal, float2
// below it, and rows fall into different banks.
struct FusedLower {
  float diagonal[2][16][20];
  float corner[16][18];
  uint4 inverses
      [2][32];  // in fp16: rows of the inverses of the four 8 x 8 blocks on the diagonal; what rounding took from them
};

// Stores a 16 x 16 block in the layout of an accumulator, at row and column `row`, `column` (in blocks of 8) of P.
template <class Element>
__device__ __forceinline__ void store_block(uint8_t* matrix, int row, int column, const float* block, int lane) {
  using Two = Pair<Element>;
  const Fragment packed = {Two::pack(block[0], block[1]), Two::pack(block[2], block[3]), Two::pack(block[4], block[5]),
                           Two::pack(block[6], block[7])};
  const int core = lane / 8;
  store_matrix(shared_address(matrix + core_offset(row + core % 2, column + core / 2) + lane % 8 * 16), packed);
}

// What is above the diagonal of P and T in blocks that nobody writes, once for all chunks of a stage: of P 16 x 16, of T also two of 8 x 8. By
// kClearThreads threads.
constexpr int kClearThreads = 80;
__device__ __forceinline__ void clear_above(uint8_t* p, uint8_t* t, int thread) {
  const int square = thread / 16, row = thread % 16;
  uint8_t* at = square < 4 ? (square < 2 ? p : t) + core_offset(0, 2 + square % 2) + row * 16
                           : t + (row < 8 ? core_offset(0, 1) : core_offset(2, 3)) + row % 8 * 16;
  *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
}

// T = (I - N)^-1 - I by one warp, by halves: inverses of the 8 x 8 blocks on the diagonal by substitution in fp32, a row a lane; from them those of
// 16 x 16 blocks, and T, by products of fp16. With Y0 and Y1 inverses (less I) and E what is below them, the block below is M + Y1 M, where
// M = E + E Y0: what is added to E is not rounded. fp16 has the 11 bits of tf32, against the 8 of T in bf16, but not its range: false, and nothing
// that counts, where a number above kLargest has come up. Numbers are within 2 where keys are normed, strengths are within 2 and norms of
// raw keys in one chunk alike; N has the ratio of two norms in it. Below 6e-5 fp16 loses bits: so do rows of keys that are a thousand times their
// neighbours, whose columns are above kLargest.
// Of fp16 data T itself keeps 11 bits, and products of operands with 11 bits would cost as much as storing it: there operands have a lower half
// too, and a product is three.
template <class Element>
__device__ __forceinline__ bool write_t_by_halves(FusedLower& lower, uint8_t* t, int lane) {
  using Two = Pair<Element>;
  using Half = Pair<__half>;
  constexpr float kLargest = 1024.0f;
  const int block = lane / 8, row = lane % 8, first = 8 * (block % 2);
  const float(&own)[16][20] = lower.diagonal[block / 2];
  auto load4 = [&](int i, int j) { return *reinterpret_cast<const float4*>(&own[first + i][first + j]); };
  float y[8];
#pragma unroll
  for (int j = 0; j < 8; j += 4) {
    const float4 n = load4(row, j);
    y[j] = n.x, y[j + 1] = n.y, y[j + 2] = n.z, y[j + 3] = n.w;
  }
#pragma unroll
  for (int m = 6; m >= 1; --m) {
#pragma unroll
    for (int j = 0; j < m; j += 4) {
      const float4 n = load4(m, j);
      y[j] = fmaf(y[m], n.x, y[j]);
      if (j + 1 < m) y[j + 1] = fmaf(y[m], n.y, y[j + 1]);
      if (j + 2 < m) y[j + 2] = fmaf(y[m], n.z, y[j + 2]);
      if (j + 3 < m) y[j + 3] = fmaf(y[m], n.w, y[j + 3]);
    }
  }
  *reinterpret_cast<uint4*>(t + core_offset(block, block) + row * 16) = {Two::pack(y[0], y[1]), Two::pack(y[2], y[3]),
                                                                         Two::pack(y[4], y[5]), Two::pack(y[6], y[7])};
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
  lower.inverses[0][lane] = halves;
  if constexpr (kSplit)
    lower.inverses[1][lane] = {own_inverse[0].lower, own_inverse[1].lower, own_inverse[2].lower, own_inverse[3].lower};
  __syncwarp();
  Split left[4], right[4];  // the inverses as A, as B operands
#pragma unroll
  for (int half = 0; half < (kSplit ? 2 : 1); ++half) {
    const uint32_t inverses = shared_address(&lower.inverses[half][lane]);
    const Fragment as_a = load_matrix(inverses), as_b = load_matrix_transposed(inverses);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      (half == 0 ? left[i].upper : left[i].lower) = as_a.reg[i];
      (half == 0 ? right[i].upper : right[i].lower) = as_b.reg[i];
    }
  }

  // 16 x 16: both blocks in one product, of a matrix that has them on its diagonal.
  const int r = lane / 4, c = 2 * (lane % 4);
  const float2 e0 = *reinterpret_cast<const float2*>(&lower.diagonal[0][8 + r][c]),
               e1 = *reinterpret_cast<const float2*>(&lower.diagonal[1][8 + r][c]);
  float below[4] = {e0.x, e0.y, e1.x, e1.y};
  multiply(below, {split(e0.x, e0.y), kZero, kZero, split(e1.x, e1.y)}, right[0], right[2]);
  const Split m0 = split(below[0], below[1]), m1 = split(below[2], below[3]);
  multiply(below, {left[1], kZero, kZero, left[3]}, transposed(m0), transposed(m1));
  const Split b0 = split(below[0], below[1]), b1 = split(below[2], below[3]);
  word_at(t + core_offset(1, 0) + r * 16 + c * 2) = Two::pack(below[0], below[1]);
  word_at(t + core_offset(3, 2) + r * 16 + c * 2) = Two::pack(below[2], below[3]);

  // 32 x 32
  float corner[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = *reinterpret_cast<const float2*>(&lower.corner[r + 8 * (i % 2)][8 * (i / 2) + c]);
    corner[i / 2][2 * (i % 2)] = two.x, corner[i / 2][2 * (i % 2) + 1] = two.y;
  }
  auto packed = [&](int i) { return split(corner[i / 2][2 * (i % 2)], corner[i / 2][2 * (i % 2) + 1]); };
  const Split n10[4] = {packed(0), packed(1), packed(2), packed(3)};
  multiply(corner[0], n10, right[0], transposed(b0));
  multiply(corner[1], n10, kZero, right[1]);
  const Split m[4] = {packed(0), packed(1), packed(2), packed(3)};
#pragma unroll
  for (int n = 0; n < 2; ++n)
    multiply(corner[n], {left[2], b1, kZero, left[3]}, transposed(m[2 * n]), transposed(m[2 * n + 1]));
  store_block<Element>(t, 2, 0, &corner[0][0], lane);

  auto larger = [](uint32_t a, uint32_t b) {
    const __half2 most =
        __hmax2(__habs2(reinterpret_cast<const __half2&>(a)), __habs2(reinterpret_cast<const __half2&>(b)));
    return reinterpret_cast<const uint32_t&>(most);
  };
  const uint32_t most = larger(
      larger(larger(halves.x, halves.y), larger(halves.z, halves.w)),
      larger(larger(larger(b0.upper, b1.upper), larger(m[0].upper, m[1].upper)), larger(m[2].upper, m[3].upper)));
  const __half2 limit = __float2half2_rn(kLargest);
  return __all_sync(~0u, __hbgt2(limit, reinterpret_cast<const __half2&>(most)));
}

// The same where that has not the range. Blocks of 16 on the diagonal by substitution in fp32, so repeated keys (L near 1 everywhere), which make powers
// of L grow, do no harm: lanes 0-15 and 16-31 each solve one row of a block, y = n + y N, from the last column back. With Y0 and Y1 these
// blocks, the one below them is M + Y1 M, where M = N10 + N10 Y0. N is overwritten.
template <class Element>
__device__ __forceinline__ void write_t_by_rows(FusedLower& lower, uint8_t* t, int lane) {
  using Two = Pair<Element>;
  const int block = lane / 16, row = lane % 16;
  float(&own)[16][20] = lower.diagonal[block];
  float y[16];
#pragma unroll
  for (int j = 0; j < 16; j += 4) {
    const float4 n = *reinterpret_cast<const float4*>(&own[row][j]);
    y[j] = n.x, y[j + 1] = n.y, y[j + 2] = n.z, y[j + 3] = n.w;
  }
#pragma unroll
  for (int m = 14; m >= 1; --m) {
#pragma unroll
    for (int j = 0; j < m; j += 4) {
      const float4 n = *reinterpret_cast<const float4*>(&own[m][j]);
      y[j] = fmaf(y[m], n.x, y[j]);
      if (j + 1 < m) y[j + 1] = fmaf(y[m], n.y, y[j + 1]);
      if (j + 2 < m) y[j + 2] = fmaf(y[m], n.z, y[j + 2]);
      if (j + 3 < m) y[j + 3] = fmaf(y[m], n.w, y[j + 3]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 16; j += 4) *reinterpret_cast<float4*>(&own[row][j]) = {y[j], y[j + 1], y[j + 2], y[j + 3]};
#pragma unroll
  for (int piece = 0; piece < 2; ++piece) {
    const float* values = y + 8 * piece;
    *reinterpret_cast<uint4*>(t + core_offset(2 * block + row / 8, 2 * block + piece) + row % 8 * 16) = {
        Two::pack(values[0], values[1]), Two::pack(values[2], values[3]), Two::pack(values[4], values[5]),
        Two::pack(values[6], values[7])};
  }
  __syncwarp();
  // Products on the tensor cores: tf32 has 11 bits against the 8 of the result, and the identity's part is not rounded.
  const int r = lane / 4, c = lane % 4;
  auto multiply = [&](const auto& left, const auto& right, float(&product)[2][4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) a[e] = as_tf32(left[r + 8 * (e % 2)][8 * step + c + 4 * (e / 2)]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint32_t b0 = as_tf32(right[8 * step + c][8 * n + r]), b1 = as_tf32(right[8 * step + c + 4][8 * n + r]);
        mma_tf32(product[n], a, b0, b1);
      }
    }
  };
  float corner[2][4];
  auto each_pair = [&](auto body) {  // of the corner, as an accumulator has it
#pragma unroll
    for (int i = 0; i < 4; ++i)
      body(*reinterpret_cast<float2*>(&lower.corner[r + 8 * (i % 2)][8 * (i / 2) + 2 * c]),
           &corner[i / 2][2 * (i % 2)]);
  };
  each_pair([](const float2& stored, float* number) { number[0] = stored.x, number[1] = stored.y; });
  multiply(lower.corner, lower.diagonal[0], corner);  // N10 + N10 Y0
  __syncwarp();
  each_pair([](float2& stored, const float* number) { stored = {number[0], number[1]}; });
  __syncwarp();
  multiply(lower.diagonal[1], lower.corner, corner);  // M + Y1 M
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    uint8_t* at = t + core_offset(2, n) + r * 16 + c * 4;
    word_at(at) = Two::pack(corner[n][0], corner[n][1]);
    word_at(at + 128) = Two::pack(corner[n][2], corner[n][3]);
  }
}

// T = (I - N)^-1 - I by one warp. N is overwritten.
template <class Element>
__device__ __forceinline__ void write_t(FusedLower& lower, uint8_t* t, int lane) {
  if (!write_t_by_halves<Element>(lower, t, lane)) {
    __syncwarp();
    write_t_by_rows<Element>(lower, t, lane);
  }
}

}  // namespace deltarelay::cuda::sm90
