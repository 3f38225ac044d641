// P, L and T of one chunk in the fused walks: 32 x 32, of one chunk and head.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/tile/invert_by_halves.cuh"

namespace deltarelay::cuda::sm90 {

// Two neighbouring 16-bit numbers in shared memory.
__device__ __forceinline__ uint32_t& word_at(uint8_t* address) { return *reinterpret_cast<uint32_t*>(address); }

// Byte of core matrix (row / 8, column / 8) of P and T.
__device__ __forceinline__ constexpr int core_offset(int row, int column) { return column * 512 + row * 128; }

// N = -L in fp32: its 8 x 8 blocks (i, j) on and below the diagonal, row by row, with two places left free so that both 16 x 16 blocks on the diagonal lie
// alike. Of rows 4-7 the two pieces of 16 bytes are exchanged, and blocks are a piece longer than their rows: neither what an accumulator holds, nor a column
// of pieces, nor a row of every block on the diagonal meets in one bank.
struct FusedLower {
  static constexpr int kBlockBytes = 8 * 32 + 16;
  alignas(16) uint8_t blocks[12 * kBlockBytes];
  uint4 upper[32];

  static __device__ __forceinline__ constexpr int offset(int i, int j) { return (3 * i - i / 2 + j) * kBlockBytes; }
  static __device__ __forceinline__ constexpr int in_block(int row, int column) {
    return row * 32 + ((column / 4) ^ (row / 4)) * 16 + column % 4 * 4;
  }
  // In fp16: rows of the inverses of the four 8 x 8 blocks on the diagonal, one a lane; what rounding took from them, in the two places.
  __device__ __forceinline__ uint4& inverse(int half, int lane) {
    static_assert(sizeof upper <= 2 * kBlockBytes);
    return half == 0 ? upper[lane] : reinterpret_cast<uint4*>(blocks + offset(0, 1))[lane];
  }
  // So many neighbours from an element of block (i, j) on, all in one piece.
  template <class Numbers>
  __device__ __forceinline__ Numbers& at(int i, int j, int row, int column) {
    return *reinterpret_cast<Numbers*>(blocks + offset(i, j) + in_block(row, column));
  }
};

// Byte of this lane's row in a 16 x 16 block, for storing all of it at once.
__device__ __forceinline__ constexpr int block_offset(int lane) {
  return core_offset(lane / 8 % 2, lane / 16) + lane % 8 * 16;
}
// A 16 x 16 block of P or T in the layout of an accumulator, at row and column `row`, `column` (in blocks of 8).
template <class Element>
__device__ __forceinline__ void store_block(uint8_t* matrix, int row, int column, const float* block, int lane) {
  using Two = Pair<Element>;
  uint8_t* at = matrix + core_offset(row, column) + block_offset(lane);
  const Fragment packed = {Two::pack(block[0], block[1]), Two::pack(block[2], block[3]), Two::pack(block[4], block[5]),
                           Two::pack(block[6], block[7])};
  store_matrix(shared_address(at), packed);
}

// What is above the diagonal of P and T in 8 x 8 blocks, once for all chunks of a stage: nobody writes it (but some of P). By kClearThreads threads.
constexpr int kClearThreads = 96;
__device__ __forceinline__ void clear_above(uint8_t* p, uint8_t* t, int thread) {
  const int square = thread / 16, row = thread % 16;
  uint8_t* at = square < 4 ? (square < 2 ? p : t) + core_offset(0, 2 + square % 2) + row * 16
                           : (square == 4 ? p : t) + (row < 8 ? core_offset(0, 1) : core_offset(2, 3)) + row % 8 * 16;
  *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
}

// Where invert_by_halves finds N and leaves T.
template <class Element>
struct FusedSquares {
  using Two = Pair<Element>;
  FusedLower& lower;
  uint8_t* t;
  int lane;

  __device__ __forceinline__ float4 four(int i, int j) const { return lower.at<float4>(lane / 8, lane / 8, i, j); }
  __device__ __forceinline__ float2 pair(int row, int column) const {
    return lower.at<float2>(row, column, lane / 4, lane % 4 * 2);
  }
  __device__ __forceinline__ uint4& passage(int half) { return lower.inverse(half, lane); }

  __device__ __forceinline__ void put_rows(const float (&y)[8]) {
    const int block = lane / 8, row = lane % 8;
    *reinterpret_cast<uint4*>(t + core_offset(block, block) + row * 16) = {
        Two::pack(y[0], y[1]), Two::pack(y[2], y[3]), Two::pack(y[4], y[5]), Two::pack(y[6], y[7])};
  }
  __device__ __forceinline__ void put_below(const float (&below)[4]) {
    const int r = lane / 4, c = 2 * (lane % 4);
    word_at(t + core_offset(1, 0) + r * 16 + c * 2) = Two::pack(below[0], below[1]);
    word_at(t + core_offset(3, 2) + r * 16 + c * 2) = Two::pack(below[2], below[3]);
  }
  __device__ __forceinline__ void put_corner(const float (&corner)[2][4]) {
    store_block<Element>(t, 2, 0, &corner[0][0], lane);
  }
};

// The same where that has not the range. Blocks of 16 on the diagonal by substitution in fp32, so repeated keys (L near 1 everywhere), which make powers
// of L grow, do no harm: lanes 0-15 and 16-31 each solve one row of a block, y = n + y N, from the last column back. With Y0 and Y1 these
// blocks, the one below them is M + Y1 M, where M = N10 + N10 Y0. N is overwritten.
template <class Element>
__device__ __forceinline__ void write_t_by_rows(FusedLower& lower, uint8_t* t, int lane) {
  using Two = Pair<Element>;
  const int sixteen = lane / 16, half = lane / 8 % 2, row = lane % 8;
  // Four numbers of this lane's block of 16, which lies as the first one does.
  auto four = [&](int i, int j, int r, int c) -> float4& {
    return *reinterpret_cast<float4*>(lower.blocks + sixteen * FusedLower::offset(2, 2) + FusedLower::offset(i, j) +
                                      FusedLower::in_block(r, c));
  };
  float y[16];
#pragma unroll
  for (int j = 0; j < 16; j += 4) {  // beside the upper 8 rows there is nothing
    float4 n = {};
    if (j < 8 || half == 1) n = four(half, j / 8, row, j % 8);
    y[j] = n.x, y[j + 1] = n.y, y[j + 2] = n.z, y[j + 3] = n.w;
  }
#pragma unroll
  for (int m = 14; m >= 1; --m) {
#pragma unroll
    for (int j = 0; j < m; j += 4) {
      const float4 n = four(m / 8, j / 8, m % 8, j % 8);
      y[j] = fmaf(y[m], n.x, y[j]);
      if (j + 1 < m) y[j + 1] = fmaf(y[m], n.y, y[j + 1]);
      if (j + 2 < m) y[j + 2] = fmaf(y[m], n.z, y[j + 2]);
      if (j + 3 < m) y[j + 3] = fmaf(y[m], n.w, y[j + 3]);
    }
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 16; j += 4) {
    if (j < 8 || half == 1) four(half, j / 8, row, j % 8) = {y[j], y[j + 1], y[j + 2], y[j + 3]};
  }
#pragma unroll
  for (int piece = 0; piece < 2; ++piece) {
    const float* values = y + 8 * piece;
    *reinterpret_cast<uint4*>(t + core_offset(2 * sixteen + half, 2 * sixteen + piece) + row * 16) = {
        Two::pack(values[0], values[1]), Two::pack(values[2], values[3]), Two::pack(values[4], values[5]),
        Two::pack(values[6], values[7])};
  }
  __syncwarp();
  // Products on the tensor cores: tf32 has 11 bits against the 8 of the result, and the identity's part is not rounded. By blocks of 8, from those on
  // that are given; one above the diagonal is 0.
  const int r = lane / 4, c = lane % 4;
  auto number = [&](int row_block, int column_block, int i, int j) {
    return row_block < column_block ? 0 : as_tf32(lower.at<float>(row_block, column_block, i, j));
  };
  auto multiply = [&](int left_rows, int left_columns, int right_rows, float(&product)[2][4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) a[e] = number(left_rows + e % 2, left_columns + step, r, c + 4 * (e / 2));
#pragma unroll
      for (int n = 0; n < 2; ++n)
        mma_tf32(product[n], a, number(right_rows + step, n, c, r), number(right_rows + step, n, c + 4, r));
    }
  };
  float corner[2][4];
  auto each_pair = [&](auto body) {  // of the corner, as an accumulator has it
#pragma unroll
    for (int i = 0; i < 4; ++i) body(lower.at<float2>(2 + i % 2, i / 2, r, 2 * c), &corner[i / 2][2 * (i % 2)]);
  };
  each_pair([](const float2& stored, float* two) { two[0] = stored.x, two[1] = stored.y; });
  multiply(2, 0, 0, corner);  // N10 + N10 Y0
  __syncwarp();
  each_pair([](float2& stored, const float* two) { stored = {two[0], two[1]}; });
  __syncwarp();
  multiply(2, 2, 2, corner);  // M + Y1 M
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
  if (!invert_by_halves<Element>(FusedSquares<Element>{lower, t, lane}, lane)) {
    __syncwarp();
    write_t_by_rows<Element>(lower, t, lane);
  }
}

}  // namespace deltarelay::cuda::sm90
