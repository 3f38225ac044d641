// Moves states between registers and memory: the caller's pools in any layout and type, and slots of the workspace.
//
// One warpgroup holds 64 value rows of S^T in fp32, as an accumulator of wgmma. Number 4 b + 2 r + c of a lane is value
// row value_row0 + lane_row + 8 r, key channel 8 b + lane_column + c, with lane_row = 16 * warp + lane / 4 and
// lane_column = 2 * (lane % 4). Pairs of channels are neighbours in a value-major matrix.
//
// Vector accesses: the contract promises the alignment of the pool pointer alone (alignment_bytes, at least one
// element) and leaves the strides free. So the code tests the address of each matrix. The answer is the same for all
// lanes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda {

constexpr int kStateWidth = 128;  // DK, and the values of a strip (args.h)
constexpr int kStateFloats = kStateWidth * kStateWidth;

// Slot of `row` (a sequence or a checkpoint). Returns -1 if there is nothing to read or write. An index outside the
// pool counts as null and is reported.
__device__ __forceinline__ int64_t slot_of(const StateView& pool, int64_t row, uint32_t* report = nullptr) {
  if (pool.data == nullptr) return -1;
  int64_t slot = row;
  if (pool.index != nullptr) {
    slot = pool.index_dtype == DType::kInt64 ? static_cast<const int64_t*>(pool.index)[row]
                                             : static_cast<const int32_t*>(pool.index)[row];
    if (slot < 0 || (pool.has_null_index && slot == pool.null_index)) return -1;
  }
  if (slot < pool.num_slots) return slot;
  if (report != nullptr) atomicOr(report, static_cast<uint32_t>(DR_REPORT_SLOTS));
  return -1;
}

// Slot of the state that sequence `row` starts from. `has_initial` is a mask, or nullptr.
__device__ __forceinline__ int64_t initial_slot(const StateView& pool, const uint8_t* has_initial, int64_t row,
                                                uint32_t* report = nullptr) {
  if (has_initial != nullptr && has_initial[row] == 0) return -1;
  return slot_of(pool, row, report);
}

// The matrix of one slot and head. Element (value row v, key channel k) lies v * value_step + k * key_step elements
// behind `data`.
struct StateMatrix {
  uint8_t* data;
  int value_step, key_step;
  DType dtype;
};

__device__ __forceinline__ uint8_t* state_data(const StateView& pool, int64_t slot, int head) {
  const int64_t element = slot * pool.stride_slot + head * pool.stride_head;
  return static_cast<uint8_t*>(pool.data) + element * float_bytes(pool.dtype);
}

__device__ __forceinline__ StateMatrix state_matrix(const StateView& pool, int64_t slot, int head) {
  const bool value_major = pool.layout == StateLayout::kValueMajor;
  return {state_data(pool, slot, head), value_major ? kStateWidth : 1, value_major ? 1 : pool.columns, pool.dtype};
}

// Can one access take `count` neighbouring channels that start at a multiple of `count`?
__device__ __forceinline__ bool has_aligned(const StateMatrix& matrix, unsigned count) {
  const unsigned bytes = count * static_cast<unsigned>(float_bytes(matrix.dtype));
  return matrix.key_step == 1 && reinterpret_cast<uintptr_t>(matrix.data) % bytes == 0;
}

// Two 16-bit numbers of either type; `low` has the lower address.
__device__ __forceinline__ float2 unpack_pair(uint32_t packed, DType dtype) {
  const bool bf16 = dtype == DType::kBf16;
  return {bf16 ? Pair<__nv_bfloat16>::low(packed) : Pair<__half>::low(packed),
          bf16 ? Pair<__nv_bfloat16>::high(packed) : Pair<__half>::high(packed)};
}
__device__ __forceinline__ uint32_t pack_pair(float low, float high, DType dtype) {
  return dtype == DType::kBf16 ? Pair<__nv_bfloat16>::pack(low, high) : Pair<__half>::pack(low, high);
}

// Stores one number of a state of any width.
__device__ __forceinline__ void store_number(uint8_t* data, DType dtype, int element, float value) {
  if (dtype == DType::kFp32)
    reinterpret_cast<float*>(data)[element] = value;
  else
    reinterpret_cast<uint16_t*>(data)[element] = static_cast<uint16_t>(pack_pair(value, 0.0f, dtype));
}

// Calls body(i, value row, key channel) for the 32 pairs of a lane: numbers state[2 i] and state[2 i + 1].
template <class Body>
__device__ __forceinline__ void for_each_pair(int first_row, int first_key, Body body) {
#pragma unroll
  for (int b = 0; b < 16; ++b) {
#pragma unroll
    for (int r = 0; r < 2; ++r) body(2 * b + r, first_row + 8 * r, first_key + 8 * b);
  }
}

// Exchanges between an even lane and the odd lane after it. Each has two neighbouring numbers (or packed pairs) of two
// blocks of 8 channels: `first` and `second`. Afterwards the even lane has four numbers of the first block, the odd
// lane four of the second, in order. A second call undoes it.
template <class Number>
__device__ __forceinline__ void exchange(Number& first, Number& second, bool odd) {
  const Number low = first, high = second, taken = __shfl_xor_sync(~0u, odd ? low : high, 1);
  first = odd ? taken : low;
  second = odd ? high : taken;
}

// Calls body(i, j, element) for the 16 groups of four numbers that a lane has after `exchange`, made from pairs i and j
// of its state (for_each_pair). `element` is their place in a value-major matrix. Needs whole warps.
template <class Body>
__device__ __forceinline__ void for_each_four(int first_row, int lane_column, Body body) {
  const int first_key = 8 * (lane_column / 2 % 2) + 4 * (lane_column / 4);
#pragma unroll
  for (int b = 0; b < 16; b += 2) {
#pragma unroll
    for (int r = 0; r < 2; ++r) body(2 * b + r, 2 * b + 2 + r, (first_row + 8 * r) * kStateWidth + 8 * b + first_key);
  }
}

// Loads from value row `value_row0` of the head on; slot < 0 gives zeros. Key-major: the lanes l / 4 take 8
// neighbouring value rows, which are whole 32-byte sectors in fp32. kFours: value-major fp32 by float4, so that one
// access of a warp covers 64 bytes of each of its eight rows; the number of rows limits the rate. Costs a few registers
// more than pairs.
template <bool kFours = false>
__device__ __forceinline__ void load_state(float (&state)[64], const StateView& pool, int64_t slot, int head,
                                           int value_row0, int lane_row, int lane_column) {
  if (slot < 0) {
#pragma unroll
    for (float& number : state) number = 0.0f;
    return;
  }
  const StateMatrix matrix = state_matrix(pool, slot, head);
  const int row = value_row0 + lane_row;
  const bool pairs = has_aligned(matrix, 2);
  if (matrix.dtype == DType::kFp32) {
    const float* data = reinterpret_cast<const float*>(matrix.data);
    if (kFours && has_aligned(matrix, 4)) {
      const bool odd = lane_column / 2 % 2 != 0;
      for_each_four(row, lane_column, [&](int i, int j, int element) {
        const float4 four = *reinterpret_cast<const float4*>(data + element);
        state[2 * i] = four.x, state[2 * i + 1] = four.y, state[2 * j] = four.z, state[2 * j + 1] = four.w;
      });
      // After all loads. Otherwise each exchange waits for its own load.
      for_each_four(row, lane_column, [&](int i, int j, int) {
        exchange(state[2 * i], state[2 * j], odd);
        exchange(state[2 * i + 1], state[2 * j + 1], odd);
      });
    } else if (pairs) {
      for_each_pair(row, lane_column, [&](int i, int v, int k) {
        const float2 pair = *reinterpret_cast<const float2*>(data + v * kStateWidth + k);
        state[2 * i] = pair.x;
        state[2 * i + 1] = pair.y;
      });
    } else {
      for_each_pair(row, lane_column, [&](int i, int v, int k) {
        const int element = v * matrix.value_step + k * matrix.key_step;
        state[2 * i] = data[element];
        state[2 * i + 1] = data[element + matrix.key_step];
      });
    }
    return;
  }
  const uint16_t* data = reinterpret_cast<const uint16_t*>(matrix.data);
  const auto put = [&](int i, uint32_t packed) {
    const float2 pair = unpack_pair(packed, matrix.dtype);
    state[2 * i] = pair.x;
    state[2 * i + 1] = pair.y;
  };
  if (pairs) {
    for_each_pair(row, lane_column,
                  [&](int i, int v, int k) { put(i, *reinterpret_cast<const uint32_t*>(data + v * kStateWidth + k)); });
  } else {
    for_each_pair(row, lane_column, [&](int i, int v, int k) {
      const int element = v * matrix.value_step + k * matrix.key_step;
      put(i, data[element] | static_cast<uint32_t>(data[element + matrix.key_step]) << 16);
    });
  }
}

// slot < 0 writes nothing. kFours: value-major by four numbers at a time, in any type.
template <bool kFours = false>
__device__ __forceinline__ void store_state(const float (&state)[64], const StateView& pool, int64_t slot, int head,
                                            int value_row0, int lane_row, int lane_column) {
  if (slot < 0) return;
  const StateMatrix matrix = state_matrix(pool, slot, head);
  const int row = value_row0 + lane_row;
  const bool fours = kFours && has_aligned(matrix, 4), pairs = has_aligned(matrix, 2), odd = lane_column / 2 % 2 != 0;
  if (matrix.dtype == DType::kFp32) {
    float* data = reinterpret_cast<float*>(matrix.data);
    if (fours) {
      for_each_four(row, lane_column, [&](int i, int j, int element) {
        float4 four = {state[2 * i], state[2 * i + 1], state[2 * j], state[2 * j + 1]};
        exchange(four.x, four.z, odd);
        exchange(four.y, four.w, odd);
        *reinterpret_cast<float4*>(data + element) = four;
      });
    } else if (pairs) {
      for_each_pair(row, lane_column, [&](int i, int v, int k) {
        *reinterpret_cast<float2*>(data + v * kStateWidth + k) = make_float2(state[2 * i], state[2 * i + 1]);
      });
    } else {
      for_each_pair(row, lane_column, [&](int i, int v, int k) {
        const int element = v * matrix.value_step + k * matrix.key_step;
        data[element] = state[2 * i];
        data[element + matrix.key_step] = state[2 * i + 1];
      });
    }
    return;
  }
  uint16_t* data = reinterpret_cast<uint16_t*>(matrix.data);
  const auto packed = [&](int i) { return pack_pair(state[2 * i], state[2 * i + 1], matrix.dtype); };
  if (fours) {
    for_each_four(row, lane_column, [&](int i, int j, int element) {
      uint2 four = {packed(i), packed(j)};
      exchange(four.x, four.y, odd);
      *reinterpret_cast<uint2*>(data + element) = four;
    });
  } else if (pairs) {
    for_each_pair(row, lane_column,
                  [&](int i, int v, int k) { *reinterpret_cast<uint32_t*>(data + v * kStateWidth + k) = packed(i); });
  } else {
    for_each_pair(row, lane_column, [&](int i, int v, int k) {
      const int element = v * matrix.value_step + k * matrix.key_step;
      const uint32_t pair = packed(i);
      data[element] = static_cast<uint16_t>(pair);
      data[element + matrix.key_step] = static_cast<uint16_t>(pair >> 16);
    });
  }
}

// A slot of the workspace for one strip: [128 value rows][128 key channels] in fp32, 256-byte aligned.
__device__ __forceinline__ void load_slot(float (&state)[64], const float* base, int value_row0, int lane_row,
                                          int lane_column) {
  for_each_pair(value_row0 + lane_row, lane_column, [&](int i, int v, int k) {
    const float2 pair = *reinterpret_cast<const float2*>(base + v * kStateWidth + k);
    state[2 * i] = pair.x;
    state[2 * i + 1] = pair.y;
  });
}
__device__ __forceinline__ void store_slot(const float (&state)[64], float* base, int value_row0, int lane_row,
                                           int lane_column) {
  for_each_pair(value_row0 + lane_row, lane_column, [&](int i, int v, int k) {
    *reinterpret_cast<float2*>(base + v * kStateWidth + k) = make_float2(state[2 * i], state[2 * i + 1]);
  });
}

}  // namespace deltarelay::cuda
