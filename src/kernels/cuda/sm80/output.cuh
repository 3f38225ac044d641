// Where the walk leaves its outputs.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm80/stage.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/tile/state_io.cuh"

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

  // What a lane takes of a passage: pieces of some tokens, or of half as many where numbers are larger than the values were.
  template <int kSize>
  struct Pieces {
    static constexpr int kTokens = kSize > Stage::kElement ? kChunk / 2 : kChunk;
    static constexpr int kAcross = kColumns * kSize / 16, kTogether = 32 / kAcross;  // of a token; tokens
    static constexpr int kCount = kTokens / kTogether;
    uint4 piece[kCount];
    static __device__ __forceinline__ int token(int lane) { return lane % kTogether; }
    static __device__ __forceinline__ int at(int lane) { return lane / kTogether * 16; }
  };

  Output() = default;
  __device__ __forceinline__ Output(const TensorView& o, const Item& item, const Extent& extent) {
    const int element = float_bytes(o.dtype), first = item.tile * Stage::kColumns;
    data = static_cast<uint8_t*>(o.data) +
           (item.sequence_at * o.sequence + item.token * o.token + item.head * o.head + first) * element;
    stride = o.token * element;
    whole_chunks = access_of(o, element) == Access::kPieces ? item.tokens / kChunk : 0;
    tokens = item.tokens;
    columns = extent.dv - first;
    dtype = o.dtype;
  }

  // O^T of a warp: rows are value columns from `column` on, columns are tokens of chunk `chunk`. `passage`: the warp's columns in a tile of
  // values in shared memory, which it has read. They leave it by fetch() and finish(), around which the warp may do something else, so as not
  // to wait for what it has just written or asked for. fp32 numbers, which do not all fit the passage of 16-bit ones, leave at once.
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
        send(fetch<4>(passage, lane), chunk, part * kChunk / kParts, column, passage, lane);
        __syncwarp();
      }
    } else {
      if (dtype == DType::kBf16)
        lay_down<__nv_bfloat16>(out, passage, lane);
      else
        lay_down<__half>(out, passage, lane);
    }
  }
  __device__ __forceinline__ void finish(const Pieces<2>& pieces, int chunk, int column, uint32_t passage,
                                         int lane) const {
    if (dtype != DType::kFp32) send(pieces, chunk, 0, column, passage, lane);
  }

  // Blocks of 8 value columns and 8 tokens, transposed: rows are tokens now. Block `number` is one of kAcross beside each other.
  template <class To>
  static __device__ __forceinline__ void lay_down(const float (&out)[kRowTiles][kChunk / 8][4], uint32_t passage,
                                                  int lane) {
    constexpr int kAcross = 2 * kRowTiles;
    auto place_of = [&](int number, int row) {
      return passage + (number / kAcross * 8 + row) * Stage::kValueRowBytes + number % kAcross * 16;
    };
#pragma unroll
    for (int first = 0; first < kAcross * kChunk / 8; first += 4) {
      Fragment blocks;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const float(&sum)[4] = out[(first + b) % kAcross / 2][(first + b) / kAcross];
        blocks.reg[b] = Pair<To>::pack(sum[b % 2 * 2], sum[b % 2 * 2 + 1]);
      }
#if __CUDA_ARCH__ >= 900
      store_matrix_transposed(place_of(first + lane / 8, lane % 8), blocks);
#else
#pragma unroll
      for (int b = 0; b < 4; ++b)
        store_word(place_of(first + b, lane / 4) + lane % 4 * 4, transpose_block(blocks.reg[b]));
#endif
    }
  }

  // Of numbers of kSize bytes, byte `at` of a token. Where they are larger than the values were, a token takes two rows.
  template <int kSize>
  static __device__ __forceinline__ uint32_t place(int token, int at) {
    if constexpr (kSize > Stage::kElement)
      return (2 * token + at / (kColumns * 2)) * Stage::kValueRowBytes + at % (kColumns * 2);
    else
      return token * Stage::kValueRowBytes + at;
  }

  // All, before the first is stored: a store waits for the load before it.
  template <int kSize>
  static __device__ __forceinline__ Pieces<kSize> fetch(uint32_t passage, int lane) {
    using Of = Pieces<kSize>;
    Of pieces;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Of::kCount; ++i)
      pieces.piece[i] = load_four(passage + place<kSize>(i * Of::kTogether + Of::token(lane), Of::at(lane)));
    return pieces;
  }

  // The first token of the passage is token `from` of the chunk.
  template <int kSize>
  __device__ __forceinline__ void send(const Pieces<kSize>& pieces, int chunk, int from, int column, uint32_t passage,
                                       int lane) const {
    using Of = Pieces<kSize>;
    const int64_t first = static_cast<int64_t>(chunk) * kChunk + from;
    uint8_t* to = data + first * stride + column * kSize;
    if (chunk < whole_chunks && column + kColumns <= columns) {
      to += Of::token(lane) * stride + Of::at(lane);
#pragma unroll
      for (int i = 0; i < Of::kCount; ++i) {
        *reinterpret_cast<uint4*>(to) = pieces.piece[i];
        to += Of::kTogether * stride;
      }
      return;
    }
    const int left = tokens - static_cast<int>(first);
#pragma unroll 1
    for (int i = lane; i < Of::kTokens * kColumns; i += 32) {  // rare, so in few instructions
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
