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

// Where the outputs of an item go. They pass through shared memory, so that neighbouring lanes write neighbouring pieces.
template <class Stage>
struct alignas(16) Output {
  static constexpr int kRowTiles = Stage::kRowTiles, kColumns = 16 * kRowTiles;  // of a warp
  uint8_t* data;     // first token, first value column of the tile
  int64_t stride;    // bytes of a token
  int whole_chunks;  // so many are whole, and may be written in pieces
  int tokens, columns;
  DType dtype;

  Output() = default;
  __device__ __forceinline__ Output(const TensorView& o, const Item& item, const Extent& extent) {
    const int element = o.dtype == DType::kFp32 ? 4 : 2, first = item.tile * Stage::kColumns;
    data = static_cast<uint8_t*>(o.data) +
           (item.sequence_at * o.sequence + item.token * o.token + item.head * o.head + first) * element;
    stride = o.token * element;
    whole_chunks = access_of(o, element) == Access::kPieces ? item.tokens / kChunk : 0;
    tokens = item.tokens;
    columns = extent.dv - first;
    dtype = o.dtype;
  }

  // O^T of a warp: rows are value columns from `column` on, columns are tokens of chunk `chunk`. `passage`: the warp's columns in a tile of
  // values in shared memory, which it has read. They leave it in finish(), before which the warp may do something else, so as not to wait for
  // what it has just written. fp32 numbers, which do not all fit the passage of 16-bit ones, leave at once.
  __device__ __forceinline__ void begin(const float (&out)[kRowTiles][kChunk / 8][4], int chunk, int column,
                                        uint32_t passage, int lane) const {
    const int g = lane / 4, q = lane % 4;
    __syncwarp();  // all lanes have their values
    if (dtype == DType::kFp32) {
      constexpr int kParts = 4 / Stage::kElement;  // fp32 numbers of half a chunk take the place of 16-bit ones
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kRowTiles * kChunk / 2 / kParts; ++i) {
          const int r = i % kRowTiles, n = i / kRowTiles / 4, j = i / kRowTiles % 4;
          store_word(passage + place<4>(8 * n + 2 * q + j % 2, (16 * r + g + j / 2 * 8) * 4),
                     __float_as_uint(out[r][part * kChunk / 8 / kParts + n][j]));
        }
        __syncwarp();
        copy<4>(chunk, part * kChunk / kParts, column, passage, lane);
        __syncwarp();
      }
    } else {
      uint32_t pair[kRowTiles][kChunk / 8][2];  // now rows are tokens. All at once, before lanes part
#pragma unroll
      for (int i = 0; i < kRowTiles * kChunk / 4; ++i) {
        const float(&sum)[4] = out[i % kRowTiles][i / kRowTiles / 2];
        const int j = i / kRowTiles % 2;
        pair[i % kRowTiles][i / kRowTiles / 2][j] = transpose_block(pack_pair(sum[2 * j], sum[2 * j + 1], dtype));
      }
#pragma unroll
      for (int i = 0; i < kRowTiles * kChunk / 4; ++i) {
        const int r = i % kRowTiles, n = i / kRowTiles / 2, j = i / kRowTiles % 2;
        store_word(passage + place<2>(8 * n + g, 32 * r + 16 * j + 4 * q), pair[r][n][j]);
      }
    }
  }
  __device__ __forceinline__ void finish(int chunk, int column, uint32_t passage, int lane) const {
    if (dtype == DType::kFp32) return;
    __syncwarp();
    copy<2>(chunk, 0, column, passage, lane);
  }

  // Of numbers of kSize bytes, byte `at` of a token. Where they are larger than the values were, a token takes two rows.
  template <int kSize>
  static __device__ __forceinline__ uint32_t place(int token, int at) {
    if constexpr (kSize > Stage::kElement)
      return (2 * token + at / (kColumns * 2)) * Stage::kValueRowBytes + at % (kColumns * 2);
    else
      return token * Stage::kValueRowBytes + at;
  }

  // From the passage, whose first token is token `from` of the chunk.
  template <int kSize>
  __device__ __forceinline__ void copy(int chunk, int from, int column, uint32_t passage, int lane) const {
    constexpr int kTokens = kSize > Stage::kElement ? kChunk / 2 : kChunk;
    const int64_t first = static_cast<int64_t>(chunk) * kChunk + from;
    uint8_t* to = data + first * stride + column * kSize;
    if (chunk < whole_chunks && column + kColumns <= columns) {
      constexpr int kPieces = kColumns * kSize / 16, kTogether = 32 / kPieces;  // of a token; tokens
      const int token = lane % kTogether, at = lane / kTogether * 16;
      to += token * stride + at;
#pragma unroll
      for (int t = 0; t < kTokens; t += kTogether) {
        *reinterpret_cast<uint4*>(to) = load_four(passage + place<kSize>(t + token, at));
        to += kTogether * stride;
      }
      return;
    }
    const int left = tokens - static_cast<int>(first);
#pragma unroll 1
    for (int i = lane; i < kTokens * kColumns; i += 32) {  // rare, so in few instructions
      const int token = i / kColumns, at = i % kColumns;
      if (token >= left || column + at >= columns) continue;
      const uint32_t word = __float_as_uint(load_float(passage + place<kSize>(token, at * kSize / 4 * 4)));
      uint8_t* number = to + token * stride + at * kSize;
      if constexpr (kSize == 4)
        *reinterpret_cast<uint32_t*>(number) = word;
      else
        *reinterpret_cast<uint16_t*>(number) = static_cast<uint16_t>(at % 2 == 0 ? word : word >> 16);
    }
  }
};

}  // namespace deltarelay::cuda::sm80
