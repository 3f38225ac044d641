// How matrices lie in shared memory, in the words of wgmma and TMA.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"

namespace deltarelay::cuda {

// A swizzled tile has rows of 128 bytes in groups of 8; 16-byte piece p of row r lies at p ^ (r % 8).
constexpr int kSwizzleGroupBytes = 1024;

// Operand in a swizzled tile. `leading`: read MN-major (transposed), the distance between blocks of 64 columns; else unused.
__device__ __forceinline__ uint64_t swizzled_operand(uint32_t address, int leading = 16) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (uint64_t{kSwizzleGroupBytes >> 4} << 32) | (static_cast<uint64_t>(leading >> 4) << 16) |
         ((address & 0x3ffff) >> 4);
}

// Operand in 8 x 8 core matrices of 128 bytes without swizzle; steps between neighbours along K and along M or N.
__device__ __forceinline__ uint64_t plain_operand(uint32_t address, int k_step, int row_step) {
  return (static_cast<uint64_t>(row_step >> 4) << 32) | (static_cast<uint64_t>(k_step >> 4) << 16) |
         ((address & 0x3ffff) >> 4);
}

// Moves an operand by so many bytes.
__device__ __forceinline__ constexpr uint64_t operand_step(int bytes) { return static_cast<uint64_t>(bytes >> 4); }

// Byte of 16-byte piece `piece` in row `row` of a swizzled tile.
__device__ __forceinline__ uint32_t swizzled_offset(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4));
}

}  // namespace deltarelay::cuda
