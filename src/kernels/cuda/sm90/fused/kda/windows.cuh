// Scores of a chunk in which no single frame holds every channel (frames.cuh), by the scale group on the tensor cores.
// What a channel adds to a score is q_i k_j or k_i k_j times what it decays by from token j to token i. Two products
// form it without an exponent that could overflow:
//
// * Tokens on different sides of a line between two tokens: rows of the later side decayed from the line on, columns of
//   the earlier side decayed up to it. No exponent is above 0, whatever the gates.
// * Tokens of one window in a frame of this window, while it decays the channel by at most 2^kMostWindow.
//
// The line in the middle of a chunk and two windows of 16 tokens are the first way (WindowFrames). Where a window decays
// some channel by more than it can hold, lines at every level are the other: the middle of the chunk, of its halves, of
// their halves, down to single tokens (write_by_lines). It holds all gates and takes one time for all.
//
// Aqk~ is written as it will be used. Sums of k k lie in fp32 where the score group will write inverse - I, with a flag
// above the diagonal.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/sm90/fused/kda/gates.cuh"

namespace deltarelay::cuda::sm90 {

// Sums of k k below the diagonal, until the score group takes them. Rows i and 32 - i share a line of 32 numbers. Half
// of the line of row 16 is left. It lies where inverse - I is 0 otherwise (clear_above): there a flag says that the
// stage has such sums, and Aqk~ already.
struct KeySums {
  static constexpr int kFlag = 8 * kFusedChunk + 16;
  static __device__ __forceinline__ float* of(uint8_t* stage) {
    return reinterpret_cast<float*>(stage + FusedStage::kInverse);
  }
  static __device__ __forceinline__ int row(int i) {
    return i < kFusedSide ? (8 - i & 15) * kFusedChunk + kFusedChunk - i : (i - 8 & 15) * kFusedChunk;
  }
};
static_assert(FusedStage::kTriangleBytes == 16 * kFusedChunk * sizeof(float));

// A warp of the scale group has 8 columns of a 16 x 16 block of one matrix.
struct BlockShare {
  bool keys;   // of k k, else of q k
  int column;  // the first
  int lane;    // opaque: otherwise all places stay in registers between chunks
  __device__ __forceinline__ explicit BlockShare(const SidePlace& place)
      : keys(place.half != 0), column(place.later ? 8 : 0), lane(static_cast<int>(opaque(place.lane))) {}
  // Number e of the accumulator.
  __device__ __forceinline__ int row_of(int e) const { return lane / 4 + e / 2 * 8; }
  __device__ __forceinline__ int column_of(int e) const { return column + 2 * (lane % 4) + e % 2; }
};

// 16 or 8 rows of all channels, swizzled: the first row is a multiple of 8. The second half of the channels lies
// `half_bytes` further.
struct RowBlock {
  uint32_t address, half_bytes;
};

// product = rows columns^T: 16 rows, of the columns those of a share.
__device__ __forceinline__ void multiply_block(float (&product)[4], const RowBlock& rows, const RowBlock& columns,
                                               const BlockShare& share) {
  const int lane = share.lane;
  const uint32_t a = rows.address + swizzled_offset(lane % 16, lane / 16);
  const uint32_t b = columns.address + share.column * kRowBytes + swizzled_offset(lane % 8, lane / 8);
  float odd[4] = {};
#pragma unroll
  for (int e = 0; e < 4; ++e) product[e] = 0.0f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {  // 32 channels
      const Fragment both = load_matrix((b ^ (step * 64)) + half * columns.half_bytes);
      const Fragment first = load_matrix((a ^ (step * 64)) + half * rows.half_bytes),
                     second = load_matrix((a ^ (step * 64 + 32)) + half * rows.half_bytes);
      mma<__nv_bfloat16>(product, first, both.reg[0], both.reg[1]);
      mma<__nv_bfloat16>(odd, second, both.reg[2], both.reg[3]);
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) product[e] += odd[e];
}

// Stores the score of tokens i and j, j < i.
__device__ __forceinline__ void put_score(uint8_t* stage, bool keys, int i, int j, float score) {
  if (keys)
    KeySums::of(stage)[KeySums::row(i) + j] = score;
  else
    *reinterpret_cast<__nv_bfloat16*>(stage + FusedStage::kAqk + core_offset(i / 8, j / 8) + i % 8 * 16 + j % 8 * 2) =
        __float2bfloat16_rn(score);
}

// Stores a share of a block whose first row and column are tokens `row` and `column`.
__device__ __forceinline__ void put_block(uint8_t* stage, const BlockShare& share, const float (&scores)[4], int row,
                                          int column) {
#pragma unroll
  for (int e = 0; e < 4; e += 2) {
    const int i = row + share.row_of(e), j = column + share.column_of(e);
    const bool low = j < i, high = j + 1 < i;
    if (share.keys) {
      float* sums = KeySums::of(stage) + KeySums::row(i) + j;
      if (low) sums[0] = scores[e];
      if (high) sums[1] = scores[e + 1];
    } else {
      word_at(stage + FusedStage::kAqk + core_offset(i / 8, j / 8) + i % 8 * 16 + j % 8 * 2) =
          Pair<__nv_bfloat16>::pack(low ? scores[e] : 0.0f, high ? scores[e + 1] : 0.0f);
    }
  }
}

// Takes the scores of a stage, if the scale group has made them: `scores` become those of k k, and nothing is left
// above the diagonals. By all threads of the score group; warps 2 and 3 have the scores of k k.
__device__ __forceinline__ bool take_scores(uint8_t* stage, float (&scores)[16], int warp, int lane, uint32_t thread) {
  const float* sums = KeySums::of(stage);
  if (sums[KeySums::kFlag] == 0.0f) return false;
  if (warp >= 2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = warp % 2 * 16 + lane / 4 + r * 8, column = 2 * (lane % 4);
      const float* row = sums + KeySums::row(i);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int j = column + e / 2 * 8 + e % 2;
        scores[e / 2 * 4 + r * 2 + e % 2] = j < i ? row[j] : 0.0f;
      }
    }
  }
  named_barrier(kScoreBarrier, kWarpgroup);
  if (thread < kClearThreads) clear_above(stage + FusedStage::kAqk, stage + FusedStage::kInverse, thread);
  ptx::fence_proxy_async(ptx::space_shared);
  named_barrier(kScoreBarrier, kWarpgroup);
  return true;
}

}  // namespace deltarelay::cuda::sm90
