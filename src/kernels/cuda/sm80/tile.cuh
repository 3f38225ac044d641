// Copies tiles of tokens from global to shared memory, with all threads of a CTA.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm80/record.h"

namespace deltarelay::cuda::sm80 {

constexpr int kThreads = 128;  // threads of a CTA of GDN prepare

// Largest unit in which rows of a tensor may be copied. 16-bit tensors may have pointers and strides of any even number
// of bytes; such rows pass through registers.
enum class Access : int { kPieces, kWords, kNumbers };

__device__ __forceinline__ Access access_of(const TensorView& tensor, int element) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(tensor.data) |
                        static_cast<uint64_t>((tensor.token | tensor.head | tensor.sequence) * element);
  return bits % 16 == 0 ? Access::kPieces : bits % 4 == 0 ? Access::kWords : Access::kNumbers;
}

// A tile of kTileRows rows of kRowPieces pieces of 16 bytes. In shared memory a row has kRowBytes bytes. kAllThreads
// threads copy it; the caller is `thread`.
template <int kTileRows, int kRowPieces, int kRowBytes, int kAllThreads = kThreads>
struct TileCopy {
  static constexpr int kSide = kRowPieces % 16 == 0 ? 16 : kRowPieces % 8 == 0 ? 8 : 4, kDown = kAllThreads / kSide;

  // Copies all rows, which lie `stride` bytes apart. Neighbouring threads take neighbouring pieces.
  static __device__ __forceinline__ void load_whole(uint32_t to, const uint8_t* from, int64_t stride, int thread) {
    if constexpr (kTileRows % kDown == 0) {
      const int row0 = thread / kSide, piece0 = thread % kSide;
      from += row0 * stride + piece0 * 16;
      to += row0 * kRowBytes + piece0 * 16;
#pragma unroll
      for (int row = 0; row < kTileRows; row += kDown) {
#pragma unroll
        for (int piece = 0; piece < kRowPieces; piece += kSide)
          copy_piece(to + row * kRowBytes + piece * 16, from + piece * 16);
        from += kDown * stride;
      }
    } else {
#pragma unroll
      for (int first = 0; first < kTileRows * kRowPieces; first += kAllThreads) {
        const int i = first + thread, row = i / kRowPieces, piece = i % kRowPieces;
        if (i < kTileRows * kRowPieces) copy_piece(to + row * kRowBytes + piece * 16, from + row * stride + piece * 16);
      }
    }
  }

  // Copies a tile from a tensor of the caller. `rows` tokens and `bytes` bytes of each exist. Everything beyond is 0 in
  // the tile and never read: it may belong to another sequence or to nobody.
  static __device__ __forceinline__ void load(uint32_t to, const uint8_t* from, int64_t stride, int rows, int bytes,
                                              Access access, int thread) {
    if (access == Access::kPieces && rows >= kTileRows && bytes >= kRowPieces * 16)
      load_whole(to, from, stride, thread);
    else
      load_some(to, from, stride, rows, bytes, access, thread);
  }

  // The same for a tile that is incomplete or not aligned. Rare, so optimised for code size.
  static __device__ __forceinline__ void load_some(uint32_t to, const uint8_t* from, int64_t stride, int rows,
                                                   int bytes, Access access, int thread) {
    auto existing = [&](int row, int at, int most) {
      const int left = row < rows ? bytes - at : 0;
      return left < 0 ? 0 : left < most ? left : most;
    };
    if (access == Access::kPieces) {
#pragma unroll 1
      for (int i = thread; i < kTileRows * kRowPieces; i += kAllThreads) {
        const int row = i / kRowPieces, piece = i % kRowPieces;
        copy_piece(to + row * kRowBytes + piece * 16, from + (row < rows ? row : 0) * stride + piece * 16,
                   existing(row, piece * 16, 16));
      }
      return;
    }
#pragma unroll 1
    for (int i = thread; i < kTileRows * kRowPieces * 4; i += kAllThreads) {
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
};

template <int kBytes, int kAllThreads>
__device__ __forceinline__ void load_record_bytes(uint32_t to, const uint8_t* from, int thread) {
  constexpr int kStep = kAllThreads * 16;
  const int first = thread * 16;
#pragma unroll
  for (int at = 0; at < kBytes; at += kStep) {
    if (at + kStep <= kBytes || at + first < kBytes) copy_piece(to + at + first, from + at + first);
  }
}

}  // namespace deltarelay::cuda::sm80
