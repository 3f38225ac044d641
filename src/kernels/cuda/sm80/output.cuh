// Where the walk leaves its outputs.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm80/shared_memory.cuh"
#include "kernels/cuda/sm80/stage.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/state_io.cuh"

namespace deltarelay::cuda::sm80 {

// Where the outputs of an item go.
template <class Stage>
struct Output {
  static constexpr int kTokens = Stage::kTokens;
  uint8_t* data;   // first token, first value column of the tile
  int64_t stride;  // of tokens, in numbers
  int tokens, columns;
  DType dtype;
  Access access;  // pieces of 8 numbers, or pairs from an even column on, may be written at once; or neither

  __device__ __forceinline__ Output(const TensorView& o, const Item& item, const Extent& extent) {
    const int element = o.dtype == DType::kFp32 ? 4 : 2, first = item.tile * Stage::kColumns;
    data = static_cast<uint8_t*>(o.data) +
           (item.sequence_at * o.sequence + item.token * o.token + item.head * o.head + first) * element;
    stride = o.token;
    tokens = item.tokens;
    columns = extent.dv - first;
    dtype = o.dtype;
    access = access_of(o, element);
  }

  // O^T of a warp: rows are value columns from `column` on, columns are tokens of chunk `chunk`. `passage`: the warp's 16 columns in a tile of
  // values in shared memory, which it has read.
  __device__ __forceinline__ void store(const float (&out)[kTokens / 8][4], int chunk, int column, uint32_t passage,
                                        int lane) const {
    const int64_t first = static_cast<int64_t>(chunk) * kTokens;
    const int left = tokens - static_cast<int>(first), g = lane / 4, q = lane % 4;
    if (dtype == DType::kFp32) {
      float* to = reinterpret_cast<float*>(data) + first * stride + column + g;
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) {
        const int token = i / 4 * 8 + 2 * q + i % 2, value = i / 2 % 2 * 8;
        if (token < left && column + g + value < columns) to[token * stride + value] = out[i / 4][i % 4];
      }
      return;
    }
    uint32_t pair[kTokens / 8][2];  // now rows are tokens. All at once, before lanes part
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i)
      pair[i / 2][i % 2] = transpose_block(pack_pair(out[i / 2][i % 2 * 2], out[i / 2][i % 2 * 2 + 1], dtype));
    if (Stage::kElement == 2 && access == Access::kPieces && column + 16 <= columns) {
      store_pieces(pair, first, left, column, passage, lane);
      return;
    }
    uint16_t* to = reinterpret_cast<uint16_t*>(data) + (first + g) * stride + column + 2 * q;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int value = column + 2 * q + 8 * r;
        uint16_t* at = to + 8 * n * stride + 8 * r;
        if (8 * n + g >= left || value >= columns) continue;
        if (access != Access::kNumbers && value + 1 < columns) {
          *reinterpret_cast<uint32_t*>(at) = pair[n][r];
        } else {
          at[0] = static_cast<uint16_t>(pair[n][r]);
          if (value + 1 < columns) at[1] = static_cast<uint16_t>(pair[n][r] >> 16);
        }
      }
    }
    __syncwarp();
  }

  // Through shared memory, so that 32 bytes of a token are written at once.
  __device__ __forceinline__ void store_pieces(const uint32_t (&pair)[kTokens / 8][2], int64_t first, int left,
                                               int column, uint32_t passage, int lane) const {
    constexpr int kRow = Stage::kValueRowBytes;
    __syncwarp();  // all lanes have their values
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i)
      store_word(passage + (i / 2 * 8 + lane / 4) * kRow + i % 2 * 16 + lane % 4 * 4, pair[i / 2][i % 2]);
    __syncwarp();
    const int row = lane / 16 * 8 + lane % 8, piece = lane / 8 % 2;
    uint16_t* to = reinterpret_cast<uint16_t*>(data) + (first + row) * stride + column + piece * 8;
#pragma unroll
    for (int n = 0; n < kTokens / 16; ++n) {
      const uint4 numbers = load_four(passage + (16 * n + row) * kRow + piece * 16);
      if (16 * n + row < left) *reinterpret_cast<uint4*>(to + 16 * n * stride) = numbers;
    }
    __syncwarp();
  }
};

}  // namespace deltarelay::cuda::sm80
