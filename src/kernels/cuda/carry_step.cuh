// What both kernels of carry share: numbers split for tensor cores, and the state that enters a fold.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/state_io.cuh"

namespace deltarelay::cuda {

constexpr int kColumns = 16;  // key columns of a warp

// x = high + low + at most 2^-23 |x|. `high` is rounded to 11 bits (half away from zero); of `low`, which is exact and
// has 12, the product drops the last one. A NaN ends up in `low`. (as_tf32 keeps infinities, which costs two instructions more.)
__device__ __forceinline__ void split(float x, uint32_t& high, uint32_t& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// 16 channels of Mt as A operands of two products j: rows g and g + 8 are columns 2 g and 2 g + 1 of the warp (lane = 4 g + q),
// m[2 j + e] holds them at the channels of column q + 4 e.
struct Transition {
  uint32_t high[2][4], low[2][4];

  __device__ __forceinline__ void set(const float2 (&m)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      split(m[i].x, high[i / 2][i % 2 * 2], low[i / 2][i % 2 * 2]);
      split(m[i].y, high[i / 2][i % 2 * 2 + 1], low[i / 2][i % 2 * 2 + 1]);
    }
  }
};

// Results of a lane: 0 and 2 of value tile n are row 8 n + 2 q, columns k0 + 2 g and + 1; 1 and 3 are row 8 n + 2 q + 1.
template <int kValueTiles>
__device__ __forceinline__ void load_pairs(float (&to)[kValueTiles][4], const float* lane_first) {
#pragma unroll
  for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float2 pair = *reinterpret_cast<const float2*>(lane_first + (8 * n + e) * kStateWidth);
      to[n][e] = pair.x;
      to[n][e + 2] = pair.y;
    }
  }
}
template <int kValueTiles>
__device__ __forceinline__ void store_pairs(const float (&from)[kValueTiles][4], float* lane_first) {
#pragma unroll
  for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      *reinterpret_cast<float2*>(lane_first + (8 * n + e) * kStateWidth) = make_float2(from[n][e], from[n][e + 2]);
  }
}

// Slice::kRows value rows times Slice::kChannels channels of a state in shared memory, moved by Slice::kThreads threads.
// Slice::place(row, channel) says where a number lies; four channels from a multiple of four on are neighbours.
template <class Slice, class Move>
__device__ __forceinline__ void for_each_piece(int thread, Move move) {
  constexpr int kPieces = Slice::kChannels / 4, kAll = Slice::kRows * kPieces;
#pragma unroll
  for (int i = 0; i < (kAll + Slice::kThreads - 1) / Slice::kThreads; ++i) {
    const int piece = i * Slice::kThreads + thread;
    if (kAll % Slice::kThreads == 0 || piece < kAll) move(piece / kPieces, piece % kPieces * 4);
  }
}

// `rows`: the slice in a slot.
template <class Slice>
__device__ __forceinline__ void fill_from_slot(float* state, const float* rows, int thread) {
  for_each_piece<Slice>(thread, [&](int row, int channel) {
    *reinterpret_cast<float4*>(state + Slice::place(row, channel)) =
        *reinterpret_cast<const float4*>(rows + row * kStateWidth + channel);
  });
}
template <class Slice>
__device__ __forceinline__ void copy_to_slot(float* rows, const float* state, int thread) {
  for_each_piece<Slice>(thread, [&](int row, int channel) {
    *reinterpret_cast<float4*>(rows + row * kStateWidth + channel) =
        *reinterpret_cast<const float4*>(state + Slice::place(row, channel));
  });
}

// The slice begins at value_row0 and channel0 of the caller's state; slot < 0: zero.
template <class Slice>
__device__ __forceinline__ void fill_from_initial(float* state, const StateView& pool, int64_t slot, int head,
                                                  int value_row0, int channel0, int thread) {
  constexpr int kEach = Slice::kRows * Slice::kChannels / Slice::kThreads;
  const StateMatrix matrix = slot < 0 ? StateMatrix{} : state_matrix(pool, slot, head);
  // Neighbouring threads take neighbouring numbers; how far a thread's numbers are apart follows.
  const bool value_major = matrix.key_step == 1;
  const int row = value_major ? thread / Slice::kChannels : thread % Slice::kRows;
  const int row_step = value_major ? Slice::kThreads / Slice::kChannels : 0;
  const int channel = value_major ? thread % Slice::kChannels : thread / Slice::kRows;
  const int channel_step = value_major ? 0 : Slice::kThreads / Slice::kRows;
  const int first = (value_row0 + row) * matrix.value_step + (channel0 + channel) * matrix.key_step;
  const int step = row_step * matrix.value_step + channel_step * matrix.key_step;
  float numbers[kEach];  // all loads leave before the first is waited for
  if (slot < 0) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) numbers[i] = 0.0f;
  } else if (matrix.dtype == DType::kFp32) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) numbers[i] = reinterpret_cast<const float*>(matrix.data)[first + i * step];
  } else {
    uint16_t stored[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) stored[i] = reinterpret_cast<const uint16_t*>(matrix.data)[first + i * step];
#pragma unroll
    for (int i = 0; i < kEach; ++i) numbers[i] = unpack_pair(stored[i], matrix.dtype).x;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) state[Slice::place(row + i * row_step, channel + i * channel_step)] = numbers[i];
}

}  // namespace deltarelay::cuda
