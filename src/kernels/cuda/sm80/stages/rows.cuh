// A chunk of one value head, and columns of its tensors. A warp takes a block of 16 tokens, a lane one column: 32
// columns that lie side by side are one access of a warp, whatever strides and alignment a tensor has.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm80/stages/tiles.h"
#include "kernels/cuda/stage_args.h"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/cuda/tile/state_io.cuh"
#include "kernels/cuda/tile/warp_sum.cuh"

namespace deltarelay::cuda::sm80 {

struct StageChunk {
  ChunkPlace place;
  int head, key_head;
  int64_t row;  // of the first token in tensors of all tokens
};

__device__ __forceinline__ StageChunk stage_chunk(const Tables& tables, const ChunkPlace& place, int head, int group) {
  const int64_t before = tables.batched ? tables.token_begin()[place.sequence] : 0;
  return {place, head, head / group, before + place.token};
}

// Numbers of consecutive tokens: element `at` is the first one's, and neighbours lie `step` elements apart.
struct Rows {
  void* data;
  DType dtype;
  int64_t at, step;
};

// Rows of a tensor of the caller.
__device__ __forceinline__ Rows rows_of(const TensorView& t, const StageChunk& chunk, int head) {
  return {t.data, t.dtype, chunk.place.sequence_at * t.sequence + chunk.place.token * t.token + head * t.head, t.token};
}
// Rows of an intermediate [T, HV, width].
__device__ __forceinline__ Rows rows_of(void* data, DType dtype, const StageChunk& chunk, int heads, int width) {
  return {data, dtype, (chunk.row * heads + chunk.head) * width, static_cast<int64_t>(heads) * width};
}

// Column `column` of tokens [first, first + kCount). Tokens from `tokens` on are 0, and so is a column that does not
// exist.
template <int kCount>
__device__ __forceinline__ void load_column(float (&x)[kCount], const Rows& rows, int column, bool exists, int first,
                                            int tokens) {
  const int64_t at = rows.at + column + first * rows.step;
  const int count = exists ? tokens - first : 0;
  if (rows.dtype == DType::kFp32) {
    const float* data = static_cast<const float*>(rows.data) + at;
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = i < count ? data[i * rows.step] : 0.0f;
    return;
  }
  const uint16_t* data = static_cast<const uint16_t*>(rows.data) + at;
  uint32_t bits[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) bits[i] = i < count ? data[i * rows.step] : 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = number_of(bits[i], rows.dtype);
}

// Stores column `column` of tokens [first, first + kCount), as far as they exist.
template <int kCount>
__device__ __forceinline__ void store_column(const float (&x)[kCount], const Rows& rows, int column, bool exists,
                                             int first, int tokens) {
  const int64_t at = rows.at + column + first * rows.step;
  const int count = exists ? tokens - first : 0;
  if (rows.dtype == DType::kFp32) {
    float* data = static_cast<float*>(rows.data) + at;
#pragma unroll
    for (int i = 0; i < kCount; ++i, data += rows.step) {
      if (i < count) *data = x[i];
    }
    return;
  }
  const bool bf16 = rows.dtype == DType::kBf16;
  uint16_t* data = static_cast<uint16_t*>(rows.data) + at;
#pragma unroll
  for (int i = 0; i < kCount; ++i, data += rows.step) {
    const uint32_t bits = bf16 ? Pair<__nv_bfloat16>::pack(x[i], 0.0f) : Pair<__half>::pack(x[i], 0.0f);
    if (i < count) *data = static_cast<uint16_t>(bits);
  }
}

// Inverse norms of the rows of a chunk, or 1 without l2norm. All threads; a warp takes the tokens of its block.
__device__ __forceinline__ void find_norms(float* norms, const Rows& rows, int width, int tokens, bool l2norm, int warp,
                                           int lane) {
  float square[kBlock] = {}, norm = 1.0f;
  if (l2norm) {
    for (int slab = 0; slab < width; slab += kSlab) {
      float x[kBlock];
      load_column(x, rows, slab + lane, slab + lane < width, warp * kBlock, tokens);
#pragma unroll
      for (int t = 0; t < kBlock; ++t) square[t] = fmaf(x[t], x[t], square[t]);
    }
    norm = rsqrtf(sum_over_lanes<kBlock>(square, lane) + kL2NormEpsilon);
  }
  if (lane < kBlock) norms[warp * kBlock + lane] = norm;
}

}  // namespace deltarelay::cuda::sm80
