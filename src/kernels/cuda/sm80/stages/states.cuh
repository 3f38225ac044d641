// The states of a stage, between registers and memory (state.cuh says how a warp holds them).
#pragma once
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/stage_args.h"

namespace deltarelay::cuda::sm80 {

// The states of a stage as a pool: a slot for each chunk, or for each summary of a chain.
__device__ __forceinline__ StateView states_pool(const Intermediates& stage, int heads, const Extent& extent) {
  StateView pool{};
  pool.data = stage.states;
  pool.stride_head = static_cast<int64_t>(extent.dk) * extent.dv;
  pool.stride_slot = pool.stride_head * heads;
  pool.layout = stage.states_layout;
  pool.dtype = stage.dtype_states;
  pool.columns = extent.dv;
  return pool;
}

// Stores the state of a warp in pairs of neighbours, where every pair of the pool is aligned: two channels of a
// value-major matrix; two values of a key-major one of 16 bits, whose blocks are transposed first. Needs whole warps.
template <int kCount>
__device__ __forceinline__ void store_in_pairs(const float (&state)[kCount], const StateView& pool, int64_t slot,
                                               int head, const Place& at, const Extent& extent, int lane) {
  const PoolMatrix matrix = pool_matrix(pool, slot, head, extent);
  const bool value_major = matrix.key_step == 1, fp32 = matrix.dtype == DType::kFp32;
  const int width = value_major ? extent.dk : extent.dv;
  if (width % 2 != 0 || (fp32 && !value_major)) return store_state(state, pool, slot, head, at, extent);
  if (fp32) {
    float* const data = reinterpret_cast<float*>(matrix.data);
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int v = at.row + i / 2 % 2 * 8, k = at.column + i / 4 * 8;
      if (v < extent.dv && k < extent.dk)
        *reinterpret_cast<float2*>(data + v * width + k) = make_float2(state[i], state[i + 1]);
    }
    return;
  }
  // After transposing, a lane has channel `row` of its block of 8 x 8, and two values.
  const int row = value_major ? at.row : at.column - lane % 4 * 2 + lane / 4;
  const int column = value_major ? at.column : at.row - lane / 4 + lane % 4 * 2;
  uint16_t* const data = reinterpret_cast<uint16_t*>(matrix.data) + row * width + column;
  const bool bf16 = matrix.dtype == DType::kBf16;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const int of_values = i / 2 % 2 * 8, of_keys = i / 4 * 8;
    uint32_t pair =
        bf16 ? Pair<__nv_bfloat16>::pack(state[i], state[i + 1]) : Pair<__half>::pack(state[i], state[i + 1]);
    if (value_major) {
      if (row + of_values < extent.dv && column + of_keys < extent.dk)
        *reinterpret_cast<uint32_t*>(data + of_values * width + of_keys) = pair;
    } else {
      pair = transpose_block(pair);
      if (row + of_keys < extent.dk && column + of_values < extent.dv)
        *reinterpret_cast<uint32_t*>(data + of_keys * width + of_values) = pair;
    }
  }
}

}  // namespace deltarelay::cuda::sm80
