// inverse = (I + Akk)^-1 of a chunk of 32 tokens, by one warp.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/tile/invert_by_halves.cuh"
#include "kernels/cuda/tile/triangle.cuh"

namespace deltarelay::cuda::sm80 {

// A 32 x 32 matrix over pairs of tokens, fp32, in shared memory. Rows have no padding. Instead the float4 groups of a
// row are permuted, so that no access pattern in use has a bank conflict. The patterns are: pairs at (row quad, column
// 2 member) of lane 4 quad + member, in accumulator layout; single numbers at (quad, member) and (member, quad), as
// operands; float4 of 8 rows at one column; float4 of one row.
//
// A lane computes one address. All others follow from that address by one XOR and a constant.
struct SwizzledSquare {
  static constexpr int kRowBytes = kChunk * 4;
  alignas(kRowBytes) float number[kChunk * kChunk];

  static __device__ __forceinline__ constexpr uint32_t swizzle(uint32_t row) { return row % 4 * 8 + row / 4 % 2 * 4; }
  __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t column) const {
    return shared_address(number) + row * kRowBytes + (column ^ swizzle(row)) * 4;
  }
  // Address `rows` further down and `columns` further right. Both are multiples of 4 that add no carry to the lane's
  // own row and column.
  template <class Numbers = float>
  static __device__ __forceinline__ Numbers& beyond(uint32_t place, uint32_t rows, uint32_t columns) {
    const uint32_t there = place ^ (columns ^ swizzle(rows)) * 4;
    return *static_cast<Numbers*>(__cvta_shared_to_generic(there + rows * kRowBytes));
  }

  // Interface of Triangle. `base` is 0 or 16; the compiler knows the offset once r is known.
  __device__ __forceinline__ float4 four_of_block(uint32_t base, uint32_t r, uint32_t c) const {
    return *reinterpret_cast<const float4*>(
        &number[base * kChunk + (base ^ (swizzle(r) & 16)) + r * kChunk + (c ^ (swizzle(r) & 15))]);
  }
  __device__ __forceinline__ void put_row(int r, int base, const float (&x)[16]) {
    const uint32_t first = place(r, base);
#pragma unroll
    for (int j = 0; j < 16; j += 4) beyond<float4>(first, 0, j) = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
  }
};

// Calls body(row, column) for the 8 x 8 blocks of a 32 x 32 square on and below the diagonal, with the position of
// their first number. Positions are constants after unrolling.
template <class Body>
__device__ __forceinline__ void for_each_part(Body body) {
#pragma unroll
  for (int row = 0; row < kChunk; row += 8) {
#pragma unroll
    for (int column = 0; column <= row; column += 8) body(row, column);
  }
}
// Index of a block among them.
constexpr int kParts = 10;
__device__ __forceinline__ constexpr int part_number(int row, int column) {
  return row / 8 * (row / 8 + 1) / 2 + column / 8;
}
// This lane's two numbers of a block in accumulator layout, with zeros on and above the diagonal.
__device__ __forceinline__ float2 below_diagonal(float2 pair, int row, int column, int lane) {
  const int right_of = lane % 4 * 2 - lane / 4;  // distance of the first number to the right of the block's diagonal
  if (row > column) return pair;
  return make_float2(right_of < 0 ? pair.x : 0.0f, right_of + 1 < 0 ? pair.y : 0.0f);
}

// Stores Aqk or inverse - I in 16-bit numbers. part(i, j) returns this lane's two numbers of block (i, j), packed
// (SquarePlaces).
template <class PartAt>
__device__ __forceinline__ void store_parts(uint8_t* square, int lane, PartAt part) {
  *reinterpret_cast<uint4*>(square + SquarePlaces::kLower + lane * 16) =
      make_uint4(part(1, 0), part(1, 1), part(3, 2), part(3, 3));
  *reinterpret_cast<uint4*>(square + SquarePlaces::kBetween + lane * 16) =
      make_uint4(part(2, 0), part(2, 1), part(3, 0), part(3, 1));
  *reinterpret_cast<uint2*>(square + SquarePlaces::kUpper + lane * 8) = make_uint2(part(0, 0), part(2, 2));
}

// Stores Aqk or inverse - I of 32 tokens. pair(row, column) returns this lane's numbers of that block.
template <class Number, class PairAt>
__device__ __forceinline__ void store_square(uint8_t* square, int lane, PairAt pair) {
  float2 parts[kParts];
  for_each_part([&](int row, int column) {
    parts[part_number(row, column)] = below_diagonal(pair(row, column), row, column, lane);
  });
  if constexpr (sizeof(Number) == 2) {
    using Numbers = Arithmetic<Number>;
    auto part = [&](int i, int j) { return Numbers::pack(parts[part_number(8 * i, 8 * j)]); };
    store_parts(square, lane, part);
    if constexpr (kIsFine<Number>) {
#pragma unroll
      for (float2& two : parts) two = make_float2(Numbers::rest_of(two.x), Numbers::rest_of(two.y));
      store_parts(square + SquarePlaces::kBytes, lane, part);
    }
  } else {
#pragma unroll
    for (int row = 0; row < kChunk; row += 8) {
#pragma unroll
      for (int column = 0; column < kSquareRowBytes / 4; column += 8)  // the padding of a row too
        *reinterpret_cast<float2*>(square + (row + lane / 4) * kSquareRowBytes + (column + lane % 4 * 2) * 4) =
            column > row ? make_float2(0.0f, 0.0f) : parts[part_number(row, column)];
    }
  }
}

// Access for invert_by_halves: reads N = -Akk and writes inverse - I, for bf16 data. Scratch lies above the diagonal of
// Akk.
struct RecordSquares {
  uint8_t* inverse;
  int lane;
  uint32_t block_at, pair_at, passage_at[2];  // addresses in Akk
  uint32_t below[2];                          // blocks (1, 0) and (3, 2) of inverse - I, packed

  __device__ __forceinline__ RecordSquares(const SwizzledSquare& akk, uint8_t* to, int of_lane)
      : inverse(to), lane(of_lane) {
    const uint32_t l = static_cast<uint32_t>(lane);
    block_at = akk.place(l / 8 * 8, l / 8 * 8);
    pair_at = akk.place(l / 4, l % 4 * 2);
    for (uint32_t i = 0; i < 2; ++i) passage_at[i] = akk.place(l % 16, 16 + i * 8 + l / 16 * 4);
  }
  __device__ __forceinline__ float4 four(int i, int j) const {
    const float4 l = SwizzledSquare::beyond<float4>(block_at, i, j);
    return make_float4(-l.x, -l.y, -l.z, -l.w);
  }
  __device__ __forceinline__ float2 pair(int i, int j) const {
    const float2 l = SwizzledSquare::beyond<float2>(pair_at, 8 * i, 8 * j);
    return make_float2(-l.x, -l.y);
  }
  __device__ __forceinline__ uint4& passage(int half) { return SwizzledSquare::beyond<uint4>(passage_at[half], 0, 0); }

  __device__ __forceinline__ void put_rows(const float (&y)[8]) {
    using Two = Pair<__nv_bfloat16>;
    passage(1) = make_uint4(Two::pack(y[0], y[1]), Two::pack(y[2], y[3]), Two::pack(y[4], y[5]), Two::pack(y[6], y[7]));
  }
  __device__ __forceinline__ void put_below(const float (&x)[4]) {
    below[0] = Pair<__nv_bfloat16>::pack(x[0], x[1]);
    below[1] = Pair<__nv_bfloat16>::pack(x[2], x[3]);
  }
  __device__ __forceinline__ void put_corner(const float (&x)[2][4]) {
    const Fragment diagonal = load_matrix(passage_at[1]);
    store_parts(inverse, lane, [&](int i, int j) {
      if (i == j) return diagonal.reg[i];
      if (i % 2 == 1 && j == i - 1) return below[i / 2];
      return Pair<__nv_bfloat16>::pack(x[j][i % 2 * 2], x[j][i % 2 * 2 + 1]);
    });
  }
};

// Stores inverse - I to a record. With inverse_00 and inverse_11 the inverses of the 16 x 16 diagonal blocks, the block
// below them is inverse_10 = -inverse_11 (Akk_10 inverse_00): two products of 16 x 16 matrices. Overwrites Akk.
template <class Number>
__device__ __forceinline__ void store_inverse(SwizzledSquare& akk, uint8_t* inverse, int lane) {
  if constexpr (std::is_same_v<Number, __nv_bfloat16>) {
    if (invert_by_halves<Number>(RecordSquares(akk, inverse, lane), lane)) return;
    __syncwarp();
  }
  float x[16];
  invert_diagonal_blocks(akk, x, lane);
  const uint32_t quad = lane / 4, member = lane % 4;
  const uint32_t left_at = akk.place(quad, member), right_at = akk.place(member, quad);
  const uint32_t pair_at = akk.place(quad, 2 * member);
  auto number = [](uint32_t place, int rows, int columns) { return SwizzledSquare::beyond(place, rows, columns); };
  auto pair = [&](int rows, int columns) -> float2& { return SwizzledSquare::beyond<float2>(pair_at, rows, columns); };
  auto pair_of = [](const float(&product)[2][4], int row, int column) {
    return make_float2(product[column][2 * row], product[column][2 * row + 1]);
  };
  // product += (rows 16 to 31, columns from `left` on) (rows from `right` on, columns 0 to 15)
  auto multiply = [&](int left, int right, float(&product)[2][4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a_high[4], a_low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        FloatArithmetic<3>::split(number(left_at, 16 + i % 2 * 8, left + 8 * step + i / 2 * 4), a_high[i], a_low[i]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t b_high[2], b_low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          FloatArithmetic<3>::split(number(right_at, right + 8 * step + 4 * i, 8 * n), b_high[i], b_low[i]);
        mma_tf32(product[n], a_low, b_high[0], b_high[1]);
        mma_tf32(product[n], a_high, b_low[0], b_low[1]);
        mma_tf32(product[n], a_high, b_high[0], b_high[1]);
      }
    }
  };
  float middle[2][4] = {}, corner[2][4] = {};
  multiply(0, 0, middle);  // Akk_10 inverse_00
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) pair(16 + i % 2 * 8, i / 2 * 8) = pair_of(middle, i % 2, i / 2);
  __syncwarp();
  multiply(16, 16, corner);  // inverse_11 (Akk_10 inverse_00): the right factor is in rows 16 to 31, columns 0 to 15

  store_square<Number>(inverse, lane, [&](int row, int column) {
    if (row < 16 || column >= 16) return pair(row, column);
    const float2 product = pair_of(corner, row % 16 / 8, column / 8);
    return make_float2(-1.0f * product.x, -1.0f * product.y);
  });
}

}  // namespace deltarelay::cuda::sm80
