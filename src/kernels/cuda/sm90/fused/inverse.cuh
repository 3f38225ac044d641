// Aqk, Akk and inverse - I of one chunk in the fused walks: 32 x 32 matrices.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/tile/invert_by_halves.cuh"

namespace deltarelay::cuda::sm90 {

// Two neighbouring 16-bit numbers in shared memory.
__device__ __forceinline__ uint32_t& word_at(uint8_t* address) { return *reinterpret_cast<uint32_t*>(address); }

// Byte offset of core matrix (row / 8, column / 8) of Aqk and inverse - I.
__device__ __forceinline__ constexpr int core_offset(int row, int column) { return column * 512 + row * 128; }

// N = -Akk in fp32: its 8 x 8 blocks (i, j) on and below the diagonal, row by row. Two places stay free, so that both
// 16 x 16 diagonal blocks have the same layout. In rows 4-7 the two 16-byte pieces are exchanged, and a block is one
// piece longer than its rows. So three accesses are free of bank conflicts: accumulator stores, columns of pieces, and
// one row of every diagonal block.
struct NegatedAkk {
  static constexpr int kBlockBytes = 8 * 32 + 16;
  alignas(16) uint8_t blocks[12 * kBlockBytes];
  uint4 upper[32];

  static __device__ __forceinline__ constexpr int offset(int i, int j) { return (3 * i - i / 2 + j) * kBlockBytes; }
  static __device__ __forceinline__ constexpr int in_block(int row, int column) {
    return row * 32 + ((column / 4) ^ (row / 4)) * 16 + column % 4 * 4;
  }
  // Rows of the inverses of the four 8 x 8 diagonal blocks in fp16, one per lane (half 0), and their round-off (half
  // 1), which uses the two free places.
  __device__ __forceinline__ uint4& passage(int half, int lane) {
    static_assert(sizeof upper <= 2 * kBlockBytes);
    return half == 0 ? upper[lane] : reinterpret_cast<uint4*>(blocks + offset(0, 1))[lane];
  }
  // Neighbouring numbers from an element of block (i, j) on, all in one piece.
  template <class Numbers>
  __device__ __forceinline__ Numbers& at(int i, int j, int row, int column) {
    return *reinterpret_cast<Numbers*>(blocks + offset(i, j) + in_block(row, column));
  }
};

// Byte offset of this lane's row in a 16 x 16 block, to store the block with one instruction.
__device__ __forceinline__ constexpr int block_offset(int lane) {
  return core_offset(lane / 8 % 2, lane / 16) + lane % 8 * 16;
}
// Stores a 16 x 16 block of Aqk or inverse - I in accumulator layout, at block row `row` and block column `column`
// (blocks of 8).
template <class Element>
__device__ __forceinline__ void store_block(uint8_t* matrix, int row, int column, const float* block, int lane) {
  using Two = Pair<Element>;
  uint8_t* at = matrix + core_offset(row, column) + block_offset(lane);
  const Fragment packed = {Two::pack(block[0], block[1]), Two::pack(block[2], block[3]), Two::pack(block[4], block[5]),
                           Two::pack(block[6], block[7])};
  store_matrix(shared_address(at), packed);
}

// Clears the 8 x 8 blocks above the diagonal of Aqk and inverse - I, once for all chunks of a stage: nothing else is
// written there, except some zeros of Aqk. By kClearThreads threads.
constexpr int kClearThreads = 96;
__device__ __forceinline__ void clear_above(uint8_t* aqk, uint8_t* inverse, int thread) {
  const int square = thread / 16, row = thread % 16;
  uint8_t* at = square < 4
                    ? (square < 2 ? aqk : inverse) + core_offset(0, 2 + square % 2) + row * 16
                    : (square == 4 ? aqk : inverse) + (row < 8 ? core_offset(0, 1) : core_offset(2, 3)) + row % 8 * 16;
  *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
}

// Where invert_by_halves reads N and writes inverse - I.
template <class Element>
struct FusedSquares {
  using Two = Pair<Element>;
  NegatedAkk& negated;
  uint8_t* inverse;
  int lane;

  __device__ __forceinline__ float4 four(int i, int j) const { return negated.at<float4>(lane / 8, lane / 8, i, j); }
  __device__ __forceinline__ float2 pair(int row, int column) const {
    return negated.at<float2>(row, column, lane / 4, lane % 4 * 2);
  }
  __device__ __forceinline__ uint4& passage(int half) { return negated.passage(half, lane); }

  __device__ __forceinline__ void put_rows(const float (&y)[8]) {
    const int block = lane / 8, row = lane % 8;
    *reinterpret_cast<uint4*>(inverse + core_offset(block, block) + row * 16) = {
        Two::pack(y[0], y[1]), Two::pack(y[2], y[3]), Two::pack(y[4], y[5]), Two::pack(y[6], y[7])};
  }
  __device__ __forceinline__ void put_below(const float (&below)[4]) {
    const int r = lane / 4, c = 2 * (lane % 4);
    word_at(inverse + core_offset(1, 0) + r * 16 + c * 2) = Two::pack(below[0], below[1]);
    word_at(inverse + core_offset(3, 2) + r * 16 + c * 2) = Two::pack(below[2], below[3]);
  }
  __device__ __forceinline__ void put_corner(const float (&corner)[2][4]) {
    store_block<Element>(inverse, 2, 0, &corner[0][0], lane);
  }
};

// inverse - I where fp16 has not the range. Substitution in fp32 inverts the 16 x 16 diagonal blocks, so repeated keys
// (Akk near 1 everywhere), which make powers of Akk grow, do no harm. Each lane solves one row of a block, y = n + y N,
// from the last column back; lanes 0-15 have the first block, lanes 16-31 the second. With Y0 and Y1 these blocks of
// inverse - I, the block below Y0 is F + Y1 F, where F = N_10 + N_10 Y0. Overwrites N.
template <class Element>
__device__ __forceinline__ void write_inverse_by_rows(NegatedAkk& negated, uint8_t* inverse, int lane) {
  using Two = Pair<Element>;
  const int sixteen = lane / 16, half = lane / 8 % 2, row = lane % 8;
  // Four numbers of this lane's 16 x 16 block; both blocks have the layout of the first.
  auto four = [&](int i, int j, int r, int c) -> float4& {
    return *reinterpret_cast<float4*>(negated.blocks + sixteen * NegatedAkk::offset(2, 2) + NegatedAkk::offset(i, j) +
                                      NegatedAkk::in_block(r, c));
  };
  float y[16];
#pragma unroll
  for (int j = 0; j < 16; j += 4) {  // the upper 8 rows have one block only
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
    *reinterpret_cast<uint4*>(inverse + core_offset(2 * sixteen + half, 2 * sixteen + piece) + row * 16) = {
        Two::pack(values[0], values[1]), Two::pack(values[2], values[3]), Two::pack(values[4], values[5]),
        Two::pack(values[6], values[7])};
  }
  __syncwarp();
  // Products on the tensor cores. tf32 has 11 bits against 8 of the result, and N_10 or F itself is added without
  // rounding. Arguments are the first 8 x 8 blocks of the operands; a block above the diagonal is 0.
  const int r = lane / 4, c = lane % 4;
  auto number = [&](int row_block, int column_block, int i, int j) {
    return row_block < column_block ? 0 : as_tf32(negated.at<float>(row_block, column_block, i, j));
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
  auto each_pair = [&](auto body) {  // of the corner, in accumulator layout
#pragma unroll
    for (int i = 0; i < 4; ++i) body(negated.at<float2>(2 + i % 2, i / 2, r, 2 * c), &corner[i / 2][2 * (i % 2)]);
  };
  each_pair([](const float2& stored, float* two) { two[0] = stored.x, two[1] = stored.y; });
  multiply(2, 0, 0, corner);  // N_10 + N_10 Y0
  __syncwarp();
  each_pair([](float2& stored, const float* two) { stored = {two[0], two[1]}; });
  __syncwarp();
  multiply(2, 2, 2, corner);  // F + Y1 F
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    uint8_t* at = inverse + core_offset(2, n) + r * 16 + c * 4;
    word_at(at) = Two::pack(corner[n][0], corner[n][1]);
    word_at(at + 128) = Two::pack(corner[n][2], corner[n][3]);
  }
}

// inverse - I = (I - N)^-1 - I by one warp. Overwrites N.
template <class Element>
__device__ __forceinline__ void write_inverse(NegatedAkk& negated, uint8_t* inverse, int lane) {
  if (!invert_by_halves<Element>(FusedSquares<Element>{negated, inverse, lane}, lane)) {
    __syncwarp();
    write_inverse_by_rows<Element>(negated, inverse, lane);
  }
}

}  // namespace deltarelay::cuda::sm90
