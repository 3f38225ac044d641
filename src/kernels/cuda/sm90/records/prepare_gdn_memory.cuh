// Sizes, shared memory and fragments of GDN `prepare` (prepare_gdn.cuh).
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/records/prepare_grid.h"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90::prepare_gdn {

constexpr int kChunk = GdnRecord::kChunk;
constexpr int kBlock = 16;
constexpr int kBlocks = kChunk / kBlock;
constexpr int kWarps = kBlocks;
constexpr int kThreads = 32 * kWarps;
static_assert(kHeads == kWarps);
constexpr int kSlab = kBlock * kRowBytes;
constexpr int kSquare = kChunk * kRowBytes;
constexpr int kTile = 2 * kSquare;

// Factors of one value head. One warp makes them for all warps.
struct Factors {
  float sum[kChunk];  // G, base 2
  float row[kChunk];  // e^{G_i - G(end of the previous block row)}; unused in block row 0
  // For block rows r = 1, 2, 3, from 8 r (r - 1) on: e^{G(end of block row r - 1) - G_j}, j < 16 r.
  float column[6 * kBlock];
  float beta[kChunk];
  int bounded;  // all operands of the recursion fit into fp16 (prepare_gdn.cuh)
  int padding[3];
};

// Overlays the tiles once the products are in registers.
struct Scratch {
  // Two heads alternate: -Akk / beta in blocks below the diagonal, inverse on it; fp16, swizzled. solve_wide uses both
  // as one 64 x 64 matrix in fp32.
  uint8_t square[2][kSquare];
  uint8_t stage[kSquare];          // rows of Aqk, then of inverse - I, before they are stored; upper blocks stay 0
  float lower[kWarps][2][8][12];   // N = -Akk of the 8 x 8 diagonal blocks, [column][row], padded
  uint8_t corner[kWarps][2][128];  // their inverses, fp16, transposed
};

struct Shared {
  union {
    struct {
      uint8_t q[kTile], k[kTile];
    } tiles;
    Scratch scratch;
  };
  Factors factors[kHeads];                                 // each made by one warp
  float norm_q[kChunk], norm_k[kChunk], square_k[kChunk];  // scale rq, rk, |rk k|^2; 0 for tokens past the end
  float diagonal[kChunk];                                  // scale rq rk q.k
  uint64_t tiles_ready, rows_ready;
  uint32_t rotation;
};
static_assert(sizeof(Scratch) <= 2 * kTile);
static_assert(kResident * (sizeof(Shared) + 1024) <= 228 * 1024);

// A thread's place. In accumulators it holds rows `row` and `row + 8`, columns 8 n + `column` + {0, 1}.
struct Lane {
  int lane, role, row, column;
  uint32_t block;  // byte offset of this lane's row in block (0, 0) of a square, for (ld|st)matrix
  __device__ __forceinline__ Lane(int role_of_warp) : lane(threadIdx.x % 32), role(role_of_warp) {
    row = kBlock * role + lane / 4;
    column = 2 * (lane % 4);
    block = swizzled_offset(lane % 16, lane / 16);
  }
};

// Address of block (row_block, column_block) of a square.
__device__ __forceinline__ uint32_t block_address(uint32_t square, uint32_t lane_block, int row_block,
                                                  int column_block) {
  return square + row_block * kSlab + (lane_block ^ (column_block * 32));
}

__device__ __forceinline__ float2 pair_at(const float* values, int index) {
  return *reinterpret_cast<const float2*>(values + index);
}

// The numbers of a thread's two rows.
__device__ __forceinline__ float2 pair_of_rows(const float* values, const Lane& at) {
  return {values[at.row], values[at.row + 8]};
}

// 16 x 16 numbers of a matrix, in the order of an operand's registers: pair r of `value` becomes register r.
struct Block {
  float value[8];
  template <class Element>
  __device__ __forceinline__ Fragment pack() const {
    return pack_block<Element>(value, 0);
  }
};

// acc += a b, with b loaded by load_matrix_transposed from a block that is stored row by row.
__device__ __forceinline__ void add_product(Block& acc, const Fragment& a, const Fragment& b) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
    mma<__half>(*reinterpret_cast<float(*)[4]>(&acc.value[4 * n]), a, b.reg[2 * n], b.reg[2 * n + 1]);
}

}  // namespace deltarelay::cuda::sm90::prepare_gdn
