// Tiles of 32 tokens from global to shared memory, by the 128 threads of a CTA.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/shared_memory.cuh"

namespace deltarelay::cuda::sm80 {

constexpr int kThreads = 128;

// The largest unit in which rows of a tensor may be copied. The contract leaves pointers and strides of 16-bit tensors any even number
// of bytes: such rows pass through registers.
enum class Access : int { kPieces, kWords, kNumbers };

__device__ __forceinline__ Access access_of(const TensorView& tensor, int element) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(tensor.data) |
                        static_cast<uint64_t>((tensor.token | tensor.head | tensor.sequence) * element);
  return bits % 16 == 0 ? Access::kPieces : bits % 4 == 0 ? Access::kWords : Access::kNumbers;
}

// Calls body(row, piece) for this thread's pieces of a tile of 32 rows. Neighbouring threads take neighbouring pieces.
template <int kRowPieces, class Body>
__device__ __forceinline__ void for_each_piece(Body body) {
  constexpr int kSide = kRowPieces % 8 == 0 ? 8 : 4;
  static_assert(kRowPieces % kSide == 0 && kChunk % (kThreads / kSide) == 0);
  // Opaque, or the compiler keeps every address of a chunk in registers from one chunk to the next.
  const int thread = static_cast<int>(opaque(threadIdx.x)), row0 = thread / kSide, piece0 = thread % kSide;
#pragma unroll
  for (int row = 0; row < kChunk; row += kThreads / kSide) {
#pragma unroll
    for (int piece = 0; piece < kRowPieces; piece += kSide) body(row0 + row, piece0 + piece);
  }
}

// A tile of a record: all of it exists.
template <int kRowPieces, int kRowBytes>
__device__ __forceinline__ void load_record_tile(uint32_t to, const uint8_t* from) {
  for_each_piece<kRowPieces>([&](int row, int piece) {
    copy_piece(to + row * kRowBytes + piece * 16, from + (row * kRowPieces + piece) * 16);
  });
}

__device__ __forceinline__ void load_record_bytes(uint32_t to, const uint8_t* from, int bytes) {
#pragma unroll 4
  for (int at = static_cast<int>(opaque(threadIdx.x)) * 16; at < bytes; at += kThreads * 16)
    copy_piece(to + at, from + at);
}

// A tile of a tensor of the caller: `rows` tokens exist, and `bytes` of each; what lies beyond is 0 in the tile and never read, for it may
// be another sequence's or nobody's.
template <int kRowPieces, int kRowBytes>
__device__ __forceinline__ void load_tile(uint32_t to, const uint8_t* from, int64_t stride, int rows, int bytes,
                                          Access access) {
  auto existing = [&](int row, int at, int most) {
    const int left = row < rows ? bytes - at : 0;
    return left < 0 ? 0 : left < most ? left : most;
  };
  if (access == Access::kPieces) {
    for_each_piece<kRowPieces>([&](int row, int piece) {
      const int count = existing(row, piece * 16, 16);
      copy_piece(to + row * kRowBytes + piece * 16, from + (row < rows ? row : 0) * stride + piece * 16, count);
    });
    return;
  }
  // Rare, so in few instructions.
#pragma unroll 1
  for (int i = static_cast<int>(opaque(threadIdx.x)); i < kChunk * kRowPieces * 4; i += kThreads) {
    const int row = i / (kRowPieces * 4), at = i % (kRowPieces * 4) * 4, count = existing(row, at, 4);
    const uint8_t* word = from + (count > 0 ? row * stride + at : 0);
    if (access == Access::kWords) {
      copy_word(to + row * kRowBytes + at, word, count);
    } else {
      const uint16_t* pair = reinterpret_cast<const uint16_t*>(word);
      uint32_t both = 0;
      if (count > 0) both = pair[0];
      if (count > 2) both |= static_cast<uint32_t>(pair[1]) << 16;
      store_word(to + row * kRowBytes + at, both);
    }
  }
}

}  // namespace deltarelay::cuda::sm80
