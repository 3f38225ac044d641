// Stores the outputs of the walk.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm80/stage.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda::sm80 {

// Destination of the outputs of an item. Outputs pass through shared memory, so that neighbouring lanes write
// neighbouring pieces.
template <class Stage>
struct alignas(16) Output {
  static constexpr int kRowTiles = Stage::kRowTiles, kColumns = 16 * kRowTiles;  // of one warp
  uint8_t* data;     // first token, first value column of the tile
  int64_t stride;    // bytes per token
  int whole_chunks;  // chunks with all their tokens, which may be written in pieces of 16 bytes; they come first
  int tokens, columns;
  DType dtype;

  // Pieces that a lane takes from a passage. If outputs are wider than values, a passage holds half as many tokens.
  template <int kSize>
  struct Pieces {
    static constexpr int kTokens = kSize > Stage::kElement ? kChunk / 2 : kChunk;
    static constexpr int kAcross = kColumns * kSize / 16, kTogether = 32 / kAcross;  // pieces per token; tokens at once
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

  // Puts O^T of a warp into its passage. Rows of O^T are value columns from `column` on, its columns are the tokens of
  // chunk `chunk`. `passage` is the warp's part of the tile of values in shared memory, which the warp has already
  // read. fetch() and finish() take the outputs from there. The warp may do other work around them and so does not wait
  // for its own stores and loads. fp32 outputs leave at once: they do not all fit the passage of 16-bit values.
  __device__ __forceinline__ void begin(const float (&out)[kRowTiles][kChunk / 8][4], int chunk, int column,
                                        uint32_t passage, int lane) const {
    const int quad = lane / 4, member = lane % 4;
    __syncwarp();  // all lanes have read their values
    if (dtype == DType::kFp32) {
      constexpr int kParts = 4 / Stage::kElement;  // fp32 numbers of half a chunk take the space of 16-bit values
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kRowTiles * kChunk / 2 / kParts; ++i) {
          const int r = i % kRowTiles, n = i / kRowTiles / 4, j = i / kRowTiles % 4;
          store_word(passage + place<4>(8 * n + 2 * member + j % 2, (16 * r + quad + j / 2 * 8) * 4),
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

  // Stores blocks of 8 value columns and 8 tokens transposed, so that rows are tokens. kAcross blocks are side by side.
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

  // Offset of byte `at` of a token, for numbers of kSize bytes. If these are wider than the values, a token takes two
  // rows.
  template <int kSize>
  static __device__ __forceinline__ uint32_t place(int token, int at) {
    if constexpr (kSize > Stage::kElement)
      return (2 * token + at / (kColumns * 2)) * Stage::kValueRowBytes + at % (kColumns * 2);
    else
      return token * Stage::kValueRowBytes + at;
  }

  // Loads all pieces before the first is stored: a store waits for the load before it.
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

  // Writes pieces to the output tensor. Token 0 of the passage is token `from` of the chunk.
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
    for (int i = lane; i < Of::kTokens * kColumns; i += 32) {  // rare, so optimised for code size
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
