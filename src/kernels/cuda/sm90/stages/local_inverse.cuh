// inverse = (I + Akk)^-1 of a chunk of 64 tokens, in fp32 and TF32.
//
// The diagonal blocks of 16 tokens come by substitution (tile/triangle.cuh). Below them, with blocks a and b of 16 and
// then of 32 tokens,
//     inverse_ba = -inverse_b (Akk_ba inverse_a)
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm90/stages/local_levels.cuh"
#include "kernels/cuda/tile/triangle.cuh"

namespace deltarelay::cuda::sm90::local {

// Two neighbouring diagonal blocks of 16, from token `first` on, as invert_diagonal_blocks takes them.
struct TwoBlocks {
  Square& lower;
  int first;
  __device__ __forceinline__ float4 four_of_block(int base, int r, int c) const {
    return *reinterpret_cast<const float4*>(&lower.row[first + base + r][first + base + c]);
  }
  __device__ __forceinline__ void put_row(int r, int base, const float (&x)[16]) {
#pragma unroll
    for (int j = 0; j < 16; j += 4)
      *reinterpret_cast<float4*>(&lower.row[first + r][first + base + j]) = {x[j], x[j + 1], x[j + 2], x[j + 3]};
  }
};

struct Corner {
  int row, column;
};

// d = a b by one warp: 16 x 16 numbers, over `steps` times 8, of the blocks that begin at a and b.
__device__ __forceinline__ void multiply(float (&d)[2][4], const Square& square, Corner a, Corner b, int steps,
                                         int lane) {
  const int r = lane / 4, k = lane % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (step >= steps) break;
    uint32_t left[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      left[e] = as_tf32(square.row[a.row + r + 8 * (e % 2)][a.column + 8 * step + k + 4 * (e / 2)]);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      mma_tf32(d[n], left, as_tf32(square.row[b.row + 8 * step + k][b.column + 8 * n + r]),
               as_tf32(square.row[b.row + 8 * step + k + 4][b.column + 8 * n + r]));
  }
}
__device__ __forceinline__ void store(Square& square, Corner to, const float (&d)[2][4], float sign, int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      *reinterpret_cast<float2*>(&square.row[to.row + lane / 4 + 8 * r][to.column + 8 * n + 2 * (lane % 4)]) = {
          sign * d[n][2 * r], sign * d[n][2 * r + 1]};
  }
}

// The diagonal block of 32 tokens from `first` on, by one warp.
__device__ __forceinline__ void invert_thirty_two(Square& lower, int first, int lane) {
  float x[16];
  TwoBlocks blocks{lower, first};
  invert_diagonal_blocks(blocks, x, lane);
  const int second = first + 16;
  float d[2][4];
  multiply(d, lower, {second, first}, {first, first}, 2, lane);
  __syncwarp();
  store(lower, {second, first}, d, 1.0f, lane);
  __syncwarp();
  multiply(d, lower, {second, second}, {second, first}, 2, lane);
  __syncwarp();
  store(lower, {second, first}, d, -1.0f, lane);
}

// Where the inverse goes, rounded: to its tile, and times beta of the column to another unless that is nullptr.
struct InverseTiles {
  uint8_t *plain, *weighed;
  const float* beta;
};

// Eight numbers of a row, from column 8 `piece` on, times beta.
template <class Element>
__device__ __forceinline__ uint4 weighed_piece(const uint4& eight, const float* beta, int piece) {
  const float4 low = *reinterpret_cast<const float4*>(beta + 8 * piece);
  const float4 high = *reinterpret_cast<const float4*>(beta + 8 * piece + 4);
  return {scaled<Element>(eight.x, {low.x, low.y}), scaled<Element>(eight.y, {low.z, low.w}),
          scaled<Element>(eight.z, {high.x, high.y}), scaled<Element>(eight.w, {high.z, high.w})};
}

// Eight numbers of a row of the inverse to its tiles. Blocks of 16 tokens above the diagonal are 0.
template <class Element>
__device__ __forceinline__ void round_piece(const Square& inverse, const InverseTiles& to, int row, int piece) {
  uint4 eight = make_uint4(0, 0, 0, 0), weighed = eight;
  if (piece / 2 <= row / 16) {  // the diagonal blocks of 16 tokens have their zeros
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; j += 4)
      *reinterpret_cast<float4*>(x + j) = *reinterpret_cast<const float4*>(&inverse.row[row][8 * piece + j]);
    eight = {Pair<Element>::pack(x[0], x[1]), Pair<Element>::pack(x[2], x[3]), Pair<Element>::pack(x[4], x[5]),
             Pair<Element>::pack(x[6], x[7])};
    if (to.weighed != nullptr) weighed = weighed_piece<Element>(eight, to.beta, piece);
  }
  *reinterpret_cast<uint4*>(to.plain + swizzled_offset(row, piece)) = eight;
  if (to.weighed != nullptr) *reinterpret_cast<uint4*>(to.weighed + swizzled_offset(row, piece)) = weighed;
}

// From the diagonal blocks of 32 tokens to the inverse, rounded in its tiles. Group 0 makes the blocks below, 16 x 16
// numbers a warp, and group 1 rounds what is there. Zeros of the inverses are left out. What a block is multiplied by
// lies above the diagonal, at its own place less 32 rows, plus 32 columns.
template <class Element>
__device__ __forceinline__ void invert_below(Square& lower, const InverseTiles& to, int warp, int lane) {
  if (warp >= 4) {
    const int thread = 32 * (warp - 4) + lane, row = thread / 4, piece = thread % 4;
    round_piece<Element>(lower, to, row, piece);
    round_piece<Element>(lower, to, row, piece + 4);
    round_piece<Element>(lower, to, row + 32, piece + 4);
    return;
  }
  const int row = 32 + warp / 2 * 16, column = warp % 2 * 16;
  float d[2][4];
  multiply(d, lower, {row, column}, {column, column}, column == 0 ? 4 : 2, lane);
  store(lower, {row - 32, column + 32}, d, 1.0f, lane);
  named_barrier(1, kGroup);
  multiply(d, lower, {row, 32}, {0, column + 32}, row == 32 ? 2 : 4, lane);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 beta = *reinterpret_cast<const float2*>(to.beta + column + 8 * n + lane % 4 * 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t place = swizzled_offset(row + lane / 4 + 8 * r, column / 8 + n) + lane % 4 * 4;
      const uint32_t two = Pair<Element>::pack(-d[n][2 * r], -d[n][2 * r + 1]);
      put(to.plain, place, two);
      if (to.weighed != nullptr) put(to.weighed, place, scaled<Element>(two, beta));
    }
  }
}

// Starts the loads of a given inverse: pieces with numbers on or below the diagonal. The others become 0.
__device__ __forceinline__ void request_inverse(uint8_t* tile, const uint4* rows, int64_t step, int valid) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = static_cast<int>(threadIdx.x + i * kThreads) / 8, piece = static_cast<int>(threadIdx.x) % 8;
    uint8_t* const to = tile + swizzled_offset(row, piece);
    if (row < valid && 8 * piece <= row)
      copy_piece(shared_address(to), &rows[row * step + piece]);
    else
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
  }
  close_copies();
}
// Waits for them. Numbers above the diagonal may be anything; the thread that loaded them makes them 0.
template <class Element>
__device__ __forceinline__ void wait_for_inverse(const InverseTiles& to) {
  wait_for_copies<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = static_cast<int>(threadIdx.x + i * kThreads) / 8, piece = static_cast<int>(threadIdx.x) % 8;
    const bool diagonal = piece == row / 8;
    if (to.weighed == nullptr && !diagonal) continue;
    auto& plain = *reinterpret_cast<uint4*>(to.plain + swizzled_offset(row, piece));
    uint32_t words[4] = {plain.x, plain.y, plain.z, plain.w};
    if (diagonal) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = 8 * piece + 2 * j;
        words[j] = column + 1 <= row ? words[j] : column <= row ? words[j] & 0xffffu : 0;
      }
      plain = {words[0], words[1], words[2], words[3]};
    }
    if (to.weighed != nullptr)
      *reinterpret_cast<uint4*>(to.weighed + swizzled_offset(row, piece)) =
          weighed_piece<Element>({words[0], words[1], words[2], words[3]}, to.beta, piece);
  }
}

}  // namespace deltarelay::cuda::sm90::local
