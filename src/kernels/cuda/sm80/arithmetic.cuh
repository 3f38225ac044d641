// Products of a warp, and the layout of their operands in registers and in shared memory: one policy per number type.
//
// All sizes come in groups of 32: a left operand is 16 rows x 32 columns, a right operand 32 rows x 8 columns. An
// accumulator holds 4 numbers per lane (lane = 4 quad + member): (row quad, column 2 member), (quad, 2 member + 1),
// (quad + 8, 2 member), (quad + 8, 2 member + 1). Four neighbouring accumulators, 16 numbers, become a left operand by
// conversion alone: every number stays in its lane.
//
// A row of a tile in shared memory has `row_bytes` bytes, 16 more than a multiple of 128 (or of 64). So 8 rows at one
// column touch every bank once.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm80/record.h"

namespace deltarelay::cuda::sm80 {

// fp32 numbers whose products keep 11 bits of each factor.
struct Tf32 {
  float value;
};

// 16-bit numbers. The left operands and squares of their products have an upper and a lower half.
template <class Element>
struct Fine {
  Element value;
};
template <class Number>
struct ElementOf {
  using Type = Number;
};
template <class Element>
struct ElementOf<Fine<Element>> {
  using Type = Element;
};
template <class Number>
constexpr bool kIsFine = !std::is_same_v<Number, typename ElementOf<Number>::Type>;

// 16-bit numbers: mma.m16n8k16 and ldmatrix.
template <class Element>
struct HalfArithmetic {
  static constexpr bool kExactSums = false;  // fp32 is enough for sums of gates
  static constexpr int kBatch = 4;           // right operands that are loaded together
  static constexpr bool kLoadsAhead = true;  // load a batch before the batch ahead of it is used
  struct Left {
    Fragment half[2];
  };
  using Right = Fragment;

  template <int kCount>
  static __device__ __forceinline__ Left left(const float (&sums)[kCount], int group) {
    return {pack_block<Element>(sums, 2 * group), pack_block<Element>(sums, 2 * group + 1)};
  }
  static __device__ __forceinline__ uint32_t pack(float2 two) { return Pair<Element>::pack(two.x, two.y); }
  static __device__ __forceinline__ void multiply(float (&sum)[4], const Left& a, const Right& b) {
    mma<Element>(sum, a.half[0], b.reg[0], b.reg[1]);
    mma<Element>(sum, a.half[1], b.reg[2], b.reg[3]);
  }
  // Several accumulators with one left operand. Products alternate between accumulators, because each waits for the
  // previous product of its accumulator.
  template <int kSums, int kCount>
  static __device__ __forceinline__ void multiply_batch(float (&sums)[kSums][4], int first, const Left& a,
                                                        const Right (&b)[kCount]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kCount; ++n)
        mma<Element>(sums[first + n], a.half[half], b[n].reg[2 * half], b[n].reg[2 * half + 1]);
    }
  }

  // Adds left^T of each row tile times a square (record.h) whose rows are columns of the accumulators. The part above
  // the diagonal is not stored.
  template <int kRowTiles>
  static __device__ __forceinline__ void multiply_square(float (&sums)[kRowTiles][4][4], const Left (&a)[kRowTiles],
                                                         uint32_t square, int lane) {
    const uint4 lower = load_four(square + SquarePlaces::kLower + lane * 16);
    const uint4 between = load_four(square + SquarePlaces::kBetween + lane * 16);
    const uint2 upper = load_two(square + SquarePlaces::kUpper + lane * 8);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const Fragment(&left)[2] = a[r].half;
      mma_half<Element>(sums[r][0], left[0], upper.x);
      mma<Element>(sums[r][1], left[0], lower.x, lower.y);
      mma<Element>(sums[r][2], left[0], between.x, between.y);
      mma<Element>(sums[r][3], left[0], between.z, between.w);
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const Fragment(&left)[2] = a[r].half;
      mma_half<Element>(sums[r][2], left[1], upper.y);
      mma<Element>(sums[r][3], left[1], lower.z, lower.w);
    }
  }

  // Where this lane starts to read: a left operand; a right operand whose columns are 8 rows of a tile; a right operand
  // whose rows are 32 rows of a tile.
  static __device__ __forceinline__ uint32_t left_place(int lane, int row_bytes) {
    return lane % 16 * row_bytes + lane / 16 * 16;
  }
  static __device__ __forceinline__ uint32_t rows_place(int lane, int row_bytes) {
    return lane % 8 * row_bytes + lane / 8 * 16;
  }
  static __device__ __forceinline__ uint32_t columns_place(int lane, int row_bytes) { return lane * row_bytes; }
  static __device__ __forceinline__ Left load_left(uint32_t address, int) {
    return {load_matrix(address), load_matrix(address + 32)};
  }
  static __device__ __forceinline__ Right load_rows(uint32_t address) { return load_matrix(address); }
  static __device__ __forceinline__ Right load_columns(uint32_t address, int) {
    return load_matrix_transposed(address);
  }

  // Values of 32 tokens (columns) and 16 value columns (rows) in accumulator layout, from a tile [token][value].
  static __device__ __forceinline__ uint32_t values_place(int lane, int row_bytes) {
    return (lane / 16 * 8 + lane % 8) * row_bytes + lane / 8 % 2 * 16;
  }
  struct Values {
    Fragment block[2];
    __device__ __forceinline__ float get(int n, int i) const {
      const uint32_t pair = block[n / 2].reg[n % 2 * 2 + i / 2];
      return i % 2 == 0 ? Pair<Element>::low(pair) : Pair<Element>::high(pair);
    }
  };
  static __device__ __forceinline__ Values load_values(uint32_t address, int row_bytes) {
    return {load_matrix_transposed(address), load_matrix_transposed(address + 16 * row_bytes)};
  }
};

// x = high + low, each of 16 bits, if x belongs to a left operand or a square. Tiles keep their 16 bits. The product of
// two low parts is left out: the error is at most 2^-16 |x y| (bf16).
template <class Element>
struct FineArithmetic : HalfArithmetic<Element> {
  using Whole = HalfArithmetic<Element>;
  using typename Whole::Right;
  struct Left {
    typename Whole::Left high, low;
  };

  static __device__ __forceinline__ float rest_of(float x) {
    return x - Pair<Element>::low(Pair<Element>::pack(x, 0.0f));
  }
  template <int kCount>
  static __device__ __forceinline__ Left left(const float (&sums)[kCount], int group) {
    float rest[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) rest[i] = rest_of(sums[16 * group + i]);
    return {Whole::left(sums, group), Whole::left(rest, 0)};
  }
  template <int kSums, int kCount>
  static __device__ __forceinline__ void multiply_batch(float (&sums)[kSums][4], int first, const Left& a,
                                                        const Right (&b)[kCount]) {
    Whole::multiply_batch(sums, first, a.low, b);
    Whole::multiply_batch(sums, first, a.high, b);
  }
  template <int kRowTiles>
  static __device__ __forceinline__ void multiply_square(float (&sums)[kRowTiles][4][4], const Left (&a)[kRowTiles],
                                                         uint32_t square, int lane) {
    typename Whole::Left high[kRowTiles], low[kRowTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) high[r] = a[r].high, low[r] = a[r].low;
    Whole::multiply_square(sums, high, square + SquarePlaces::kBytes, lane);
    Whole::multiply_square(sums, low, square, lane);
    Whole::multiply_square(sums, high, square, lane);
  }
};

// fp32 numbers: mma.m16n8k8 in TF32. Column k of a left operand and row k of a right operand may be any channel, if
// both are the same. Here k = member is channel 2 member, and k = member + 4 is channel 2 member + 1. So accumulators
// are operands without a move, and the two numbers of a lane are neighbours. kProducts 3: x = high + low with 11 bits
// each, and x y ~ high high + low high + high low; the error is at most 2^-21 |x y|.
template <int kProducts>
struct FloatArithmetic {
  static constexpr bool kExactSums = kProducts == 3;
  static constexpr int kBatch = 1;  // more do not fit registers
  static constexpr bool kLoadsAhead = false;
  static constexpr int kSteps = 4;  // steps of 8 columns
  struct Left {
    uint32_t high[kSteps][4], low[kProducts == 3 ? kSteps : 1][4];
  };
  struct Right {
    float2 pair[kSteps];
  };

  // `high` is rounded to 11 bits (half away from zero). `low` is exact and has 12 bits; the product drops the last one.
  static __device__ __forceinline__ void split(float x, uint32_t& high, uint32_t& low) {
    high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
  }
  static __device__ __forceinline__ void set(Left& a, int step, int i, float x) {
    if constexpr (kProducts == 3)
      split(x, a.high[step][i], a.low[step][i]);
    else
      a.high[step][i] = as_tf32(x);
  }

  template <int kCount>
  static __device__ __forceinline__ Left left(const float (&sums)[kCount], int group) {
    Left a;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) set(a, step, i, sums[16 * group + 4 * step + i % 2 * 2 + i / 2]);
    }
    return a;
  }

  // Tensor cores truncate when they add. So at most two products of high parts are added there, and the rest in fp32.
  static __device__ __forceinline__ void multiply(float (&sum)[4], const Left& a, const Right& b) {
    if constexpr (kProducts == 3) {
      float upper[2][4] = {}, cross[4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t high[2], low[2];
        split(b.pair[step].x, high[0], low[0]);
        split(b.pair[step].y, high[1], low[1]);
        mma_tf32(upper[step / 2], a.high[step], high[0], high[1]);
        mma_tf32(cross, a.low[step], high[0], high[1]);
        mma_tf32(cross, a.high[step], low[0], low[1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += (upper[0][i] + upper[1][i]) + cross[i];
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        mma_tf32(sum, a.high[step], as_tf32(b.pair[step].x), as_tf32(b.pair[step].y));
    }
  }

  template <int kSums>
  static __device__ __forceinline__ void multiply_batch(float (&sums)[kSums][4], int first, const Left& a,
                                                        const Right (&b)[kBatch]) {
    multiply(sums[first], a, b[0]);
  }
  template <int kRowTiles>
  static __device__ __forceinline__ void multiply_square(float (&sums)[kRowTiles][4][4], const Left (&a)[kRowTiles],
                                                         uint32_t square, int lane) {
    const uint32_t rows = square + rows_place(lane, kSquareRowBytes);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const Right right = load_rows(rows + n * 8 * kSquareRowBytes);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) multiply(sums[r][n], a[r], right);
    }
  }

  static __device__ __forceinline__ uint32_t left_place(int lane, int row_bytes) {
    return lane / 4 * row_bytes + lane % 4 * 8;
  }
  static __device__ __forceinline__ uint32_t rows_place(int lane, int row_bytes) {
    return lane / 4 * row_bytes + lane % 4 * 8;
  }
  static __device__ __forceinline__ uint32_t columns_place(int lane, int row_bytes) {
    return lane % 4 * 2 * row_bytes + lane / 4 * 4;
  }
  static __device__ __forceinline__ Left load_left(uint32_t address, int row_bytes) {
    Left a;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair = load_pair(address + step * 32 + r * 8 * row_bytes);
        set(a, step, r, pair.x);
        set(a, step, r + 2, pair.y);
      }
    }
    return a;
  }
  static __device__ __forceinline__ Right load_rows(uint32_t address) {
    Right b;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) b.pair[step] = load_pair(address + step * 32);
    return b;
  }
  static __device__ __forceinline__ Right load_columns(uint32_t address, int row_bytes) {
    Right b;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      b.pair[step].x = load_float(address + step * 8 * row_bytes);
      b.pair[step].y = load_float(address + (step * 8 + 1) * row_bytes);
    }
    return b;
  }

  static __device__ __forceinline__ uint32_t values_place(int lane, int row_bytes) {
    return columns_place(lane, row_bytes);
  }
  struct Values {
    float number[4][4];
    __device__ __forceinline__ float get(int n, int i) const { return number[n][i]; }
  };
  static __device__ __forceinline__ Values load_values(uint32_t address, int row_bytes) {
    Values v;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v.number[n][i] = load_float(address + (8 * n + i % 2) * row_bytes + i / 2 * 32);
    }
    return v;
  }
};

template <class Number>
struct ArithmeticOf;
template <>
struct ArithmeticOf<__nv_bfloat16> {
  using Type = HalfArithmetic<__nv_bfloat16>;
};
template <>
struct ArithmeticOf<__half> {
  using Type = HalfArithmetic<__half>;
};
template <class Element>
struct ArithmeticOf<Fine<Element>> {
  using Type = FineArithmetic<Element>;
};
template <>
struct ArithmeticOf<float> {
  using Type = FloatArithmetic<3>;
};
template <>
struct ArithmeticOf<Tf32> {
  using Type = FloatArithmetic<1>;
};
template <class Number>
using Arithmetic = typename ArithmeticOf<Number>::Type;
// For products of two tiles, which have no lower halves.
template <class Number>
using TileArithmetic = Arithmetic<typename ElementOf<Number>::Type>;

// Converts four accumulators to a left operand.
template <class Arithmetic>
__device__ __forceinline__ typename Arithmetic::Left left_of(const float (&sums)[4][4]) {
  float numbers[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) numbers[i] = sums[i / 4][i % 4];
  return Arithmetic::left(numbers, 0);
}

// Stores block (i, j) of Aqk or inverse - I: columns 0-7 (`left`) and 8-15 (`right`) in accumulator layout. Call it
// with all lanes of a warp. Lower halves follow after all upper halves.
template <class Number>
__device__ __forceinline__ void store_block(uint8_t* square, int i, int j, const float (&left)[4],
                                            const float (&right)[4], int lane) {
  if constexpr (kIsFine<Number>) {
    float rest[2][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      rest[0][e] = Arithmetic<Number>::rest_of(left[e]);
      rest[1][e] = Arithmetic<Number>::rest_of(right[e]);
    }
    using Element = typename ElementOf<Number>::Type;
    store_block<Element>(square, i, j, left, right, lane);
    store_block<Element>(square + SquarePlaces::kBytes, i, j, rest[0], rest[1], lane);
  } else if constexpr (sizeof(Number) == 2) {
    const uint32_t part[2][2] = {{Pair<Number>::pack(left[0], left[1]), Pair<Number>::pack(right[0], right[1])},
                                 {Pair<Number>::pack(left[2], left[3]), Pair<Number>::pack(right[2], right[3])}};
    if (i == j) {  // part[0][1] is above the diagonal
      *reinterpret_cast<uint32_t*>(square + SquarePlaces::kUpper + lane * 8 + i * 4) = part[0][0];
      *reinterpret_cast<uint2*>(square + SquarePlaces::kLower + lane * 16 + i * 8) = make_uint2(part[1][0], part[1][1]);
    } else {
      *reinterpret_cast<uint4*>(square + SquarePlaces::kBetween + lane * 16) =
          make_uint4(part[0][0], part[0][1], part[1][0], part[1][1]);
    }
  } else {
    uint8_t* at = square + (16 * i + lane / 4) * kSquareRowBytes + (16 * j + lane % 4 * 2) * 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float2* row = reinterpret_cast<float2*>(at + 8 * r * kSquareRowBytes);
      row[0] = make_float2(left[2 * r], left[2 * r + 1]);
      row[4] = make_float2(right[2 * r], right[2 * r + 1]);
    }
  }
}
// Stores zeros where the format keeps them: in the block above the diagonal and in the padding of rows. So a copy of
// the square reads no unwritten memory.
template <class Number>
__device__ __forceinline__ void store_zeros(uint8_t* square, int lane) {
  if constexpr (sizeof(Number) == 4) {
    constexpr float kZero[4] = {};
    store_block<Number>(square, 0, 1, kZero, kZero, lane);
    float4* behind = reinterpret_cast<float4*>(square + lane * kSquareRowBytes + kChunk * 4);
    behind[0] = behind[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// Stores two neighbouring numbers to a tile or square, in shared or global memory.
template <class Number>
__device__ __forceinline__ void put_pair(uint8_t* to, float low, float high) {
  if constexpr (sizeof(Number) == 2)
    *reinterpret_cast<uint32_t*>(to) = Pair<Number>::pack(low, high);
  else
    *reinterpret_cast<float2*>(to) = make_float2(low, high);
}

}  // namespace deltarelay::cuda::sm80
