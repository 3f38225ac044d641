// Layouts of matrices in shared memory, as descriptors of wgmma and TMA.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"

namespace deltarelay::cuda {

// A swizzled tile has rows of 128 bytes in groups of 8. The 16-byte piece p of row r lies at p ^ (r % 8).
constexpr int kSwizzleGroupBytes = 1024;

// Start of an operand in units of 16 bytes, as descriptors count. The bits above hold the CTA's place in its cluster.
__device__ __forceinline__ uint32_t operand_place(uint32_t address) { return (address & 0x3ffff) >> 4; }

// Operand in a swizzled tile. `leading`: for an MN-major (transposed) read, the distance between blocks of 64 columns;
// otherwise unused.
constexpr uint32_t kSwizzledHigh = (uint32_t{1} << 30) | (kSwizzleGroupBytes >> 4);
__device__ __forceinline__ uint64_t swizzled_operand(uint32_t address, int leading = 16) {
  return (uint64_t{kSwizzledHigh} << 32) | (static_cast<uint64_t>(leading >> 4) << 16) | operand_place(address);
}

// Operand in 8 x 8 core matrices of 128 bytes without swizzle. Steps lead to the next core matrix along K, and along M
// or N.
__device__ __forceinline__ uint64_t plain_operand(uint32_t address, int k_step, int row_step) {
  return (static_cast<uint64_t>(row_step >> 4) << 32) | (static_cast<uint64_t>(k_step >> 4) << 16) |
         operand_place(address);
}

// The same operands, `bytes` behind a known place (operand_place). Several operands of one stage then cost one addition
// each.
__device__ __forceinline__ uint64_t swizzled_operand_at(uint32_t place, int bytes, int leading = 16) {
  return (uint64_t{kSwizzledHigh} << 32) | (place + static_cast<uint32_t>((bytes >> 4) + ((leading >> 4) << 16)));
}
__device__ __forceinline__ uint64_t plain_operand_at(uint32_t place, int bytes, int k_step, int row_step) {
  return (static_cast<uint64_t>(row_step >> 4) << 32) |
         (place + static_cast<uint32_t>((bytes >> 4) + ((k_step >> 4) << 16)));
}

// Moves an operand by `bytes`.
__device__ __forceinline__ constexpr uint64_t operand_step(int bytes) { return static_cast<uint64_t>(bytes >> 4); }
// Step to 16 channels of a product over 128 channels, which lie in two tiles of 64, `half_bytes` apart.
__device__ __forceinline__ constexpr uint64_t channel_step(int step, int half_bytes) {
  return operand_step((step / 4) * half_bytes + (step % 4) * 32);
}

// Byte offset of 16-byte piece `piece` in row `row` of a swizzled tile.
__device__ __forceinline__ uint32_t swizzled_offset(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4));
}

}  // namespace deltarelay::cuda
