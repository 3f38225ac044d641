// Moves states between registers and memory: pools of the caller in any layout and type, slots of the workspace.
//
// A warp holds 16 rows of S^T in accumulator layout (arithmetic.cuh). Number 4 b + 2 r + c of a lane is value row
// `row` + 8 r and key channel 8 b + `column` + c, with row = first row of the warp + lane / 4 and column = 2 (lane %
// 4).
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda::sm80 {

struct Place {
  int row, column;
};
struct Extent {
  int dk, dv;
};

// One matrix of a pool. The element (value row v, key channel k) has index v * value_step + k * key_step.
struct PoolMatrix {
  uint8_t* data;
  int value_step, key_step;
  DType dtype;
};

__device__ __forceinline__ PoolMatrix pool_matrix(const StateView& pool, int64_t slot, int head, const Extent& extent) {
  const int64_t element = slot * pool.stride_slot + head * pool.stride_head;
  const bool value_major = pool.layout == StateLayout::kValueMajor;
  return {static_cast<uint8_t*>(pool.data) + element * float_bytes(pool.dtype), value_major ? extent.dk : 1,
          value_major ? 1 : extent.dv, pool.dtype};
}

// Calls body(number, value row, key channel) for those numbers of a lane that exist in the pool.
template <int kCount, class Body>
__device__ __forceinline__ void for_each_existing(const Place& at, const Extent& extent, Body body) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int v = at.row + i / 2 % 2 * 8, k = at.column + i / 4 * 8 + i % 2;
    if (v < extent.dv && k < extent.dk) body(i, v, k);
  }
}

// A slot < 0 reads zero. Numbers outside the pool's matrix are zero too.
template <int kCount>
__device__ __forceinline__ void load_state(float (&state)[kCount], const StateView& pool, int64_t slot, int head,
                                           const Place& at, const Extent& extent) {
#pragma unroll
  for (float& number : state) number = 0.0f;
  if (slot < 0) return;
  const PoolMatrix matrix = pool_matrix(pool, slot, head, extent);
  if (matrix.dtype == DType::kFp32) {
    const float* data = reinterpret_cast<const float*>(matrix.data);
    for_each_existing<kCount>(
        at, extent, [&](int i, int v, int k) { state[i] = data[v * matrix.value_step + k * matrix.key_step]; });
  } else {
    const uint16_t* data = reinterpret_cast<const uint16_t*>(matrix.data);
    for_each_existing<kCount>(at, extent, [&](int i, int v, int k) {
      state[i] = unpack_pair(data[v * matrix.value_step + k * matrix.key_step], matrix.dtype).x;
    });
  }
}

// A slot < 0 writes nothing.
template <int kCount>
__device__ __forceinline__ void store_state(const float (&state)[kCount], const StateView& pool, int64_t slot, int head,
                                            const Place& at, const Extent& extent) {
  if (slot < 0) return;
  const PoolMatrix matrix = pool_matrix(pool, slot, head, extent);
  if (matrix.dtype == DType::kFp32) {
    float* data = reinterpret_cast<float*>(matrix.data);
    for_each_existing<kCount>(
        at, extent, [&](int i, int v, int k) { data[v * matrix.value_step + k * matrix.key_step] = state[i]; });
  } else {
    uint16_t* data = reinterpret_cast<uint16_t*>(matrix.data);
    for_each_existing<kCount>(at, extent, [&](int i, int v, int k) {
      data[v * matrix.value_step + k * matrix.key_step] =
          static_cast<uint16_t>(pack_pair(state[i], 0.0f, matrix.dtype));
    });
  }
}

// Flags of args.slot_lives at one (slot, head): byte i is 0 if rows 64 i to 64 i + 63 of M^T have vanished. There are 8
// bytes, of which these kernels use the first word. carry reads the word at once, so the CTA of tile 0 also clears the
// bytes of tiles that do not exist.
__device__ __forceinline__ void put_row_lives(uint32_t* slot_lives, int64_t slot_head, int tile, int tiles,
                                              bool lives) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(slot_lives + 2 * slot_head);
  bytes[tile] = lives ? 1 : 0;
  if (tile != 0) return;
  for (int i = tiles; i < 4; ++i) bytes[i] = 0;
}

// A matrix of a slot at one head: rows of kWidth floats, padded to whole tiles.
template <int kWidth>
__device__ __forceinline__ void load_slot(float (&state)[kWidth / 2], const float* matrix, const Place& at) {
#pragma unroll
  for (int i = 0; i < kWidth / 2; i += 2) {
    const float2 pair =
        *reinterpret_cast<const float2*>(matrix + (at.row + i / 2 % 2 * 8) * kWidth + at.column + i / 4 * 8);
    state[i] = pair.x;
    state[i + 1] = pair.y;
  }
}
template <int kWidth>
__device__ __forceinline__ void store_slot(const float (&state)[kWidth / 2], float* matrix, const Place& at) {
#pragma unroll
  for (int i = 0; i < kWidth / 2; i += 2) {
    *reinterpret_cast<float2*>(matrix + (at.row + i / 2 % 2 * 8) * kWidth + at.column + i / 4 * 8) =
        make_float2(state[i], state[i + 1]);
  }
}

}  // namespace deltarelay::cuda::sm80
