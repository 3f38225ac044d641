// Shared by the state groups of the fused walks of KDA and GDN: loads and stores of a row's state, outputs, and
// arithmetic that does not depend on the gates.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/sm90/rows/transition.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/sm90/single_ctas.h"
#include "kernels/cuda/tile/descriptor.cuh"
#include "kernels/cuda/tile/state_io.cuh"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90 {

constexpr int kFusedChunk = 32;
constexpr int kFusedThreads = 4 * kWarpgroup;
// Largest CTA that still leaves 60 KB of L1. Shared memory is carved out of 256 KB in steps, and the system takes one
// KB more. Above this size L1 has 28 KB, and short rows, which load and store many states, take 10 % longer.
constexpr int kRoomForL1 = 195 * 1024;
// Registers per thread of the two state groups and of the two other groups: together the whole register file. The least
// that a state group needs differs from kernel to kernel.
template <int kState>
struct FusedRegisters {
  static constexpr int kStates = kState, kOthers = 65536 / (2 * kWarpgroup) - kState;
};

// One half of a state's channels.
__device__ __forceinline__ float (&half_of(float (&state)[64], int half))[32] {
  return reinterpret_cast<float(&)[32]>(state[32 * half]);
}

// This lane's column in an 8-column block of an accumulator. Opaque: the compiler would otherwise read the thread
// number again in every chunk, and wait for it.
__device__ __forceinline__ int lane_column_of(int lane) {
  return static_cast<int>(opaque(static_cast<uint32_t>(2 * (lane % 4))));
}

// Loads this lane's values of a chunk, from its row at `at` on.
__device__ __forceinline__ void load_values(Fragment (&value)[2], uint32_t at) {
#pragma unroll
  for (int b = 0; b < 2; ++b) value[b] = load_matrix_transposed(at + b * 16 * kRowBytes);
}

// d += a Aqk^T or a (inverse - I)^T; a has 32 columns.
template <class Element>
__device__ __forceinline__ void add_triangle(float (&d)[16], const Fragment (&a)[2], uint64_t triangle) {
#pragma unroll
  for (int k = 0; k < 2; ++k) Wgmma<Element>::times(d, a[k], triangle + operand_step(k * 1024), true);
}
// d += a (inverse - I).
template <class Element>
__device__ __forceinline__ void add_transposed_triangle(float (&d)[16], const Fragment (&a)[2], uint64_t triangle) {
#pragma unroll
  for (int k = 0; k < 2; ++k) Wgmma<Element>::add_transposed(d, a[k], triangle + operand_step(k * 256));
}
__device__ __forceinline__ uint64_t transposed_triangle_at(uint32_t place, int bytes) {
  return plain_operand_at(place, bytes, 128, 512);
}
// Aqk or inverse - I as the other operand: at an address, or `bytes` behind a place (operand_place).
__device__ __forceinline__ uint64_t triangle_operand(uint32_t address) { return plain_operand(address, 512, 128); }
__device__ __forceinline__ uint64_t triangle_operand_at(uint32_t place, int bytes) {
  return plain_operand_at(place, bytes, 512, 128);
}

// Overwrites K S by R = strength.xy V - strength.zw K S. Rows past the end become 0: their values may be NaN.
template <class Element>
__device__ __forceinline__ void subtract_prediction(float (&product)[16], const Fragment (&value)[2],
                                                    const float4 (&strength)[4], int column, int valid) {
  using Two = Pair<Element>;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float4 f = strength[n];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t pair = value[n / 2].reg[2 * (n % 2) + r];
      float &low = product[4 * n + 2 * r], &high = product[4 * n + 2 * r + 1];
      low *= -f.z, high *= -f.w;
      low = fmaf(f.x, Two::low(pair), low), high = fmaf(f.y, Two::high(pair), high);
    }
  }
  if (valid < kFusedChunk) select_tokens(product, column, valid);
}

// Clears rows past the end in two tiles, `first` and `second` bytes behind the start of a stage, by a state group.
// These rows belong to another sequence and may hold NaN, and NaN times a zero is NaN.
__device__ __forceinline__ void clear_rows(uint8_t* stage, int first, int second, int valid, int group, int thread) {
  for (int i = thread; i < (kFusedChunk - max(valid, 0)) * 16; i += kWarpgroup) {
    *reinterpret_cast<uint4*>(stage + (i % 16 < 8 ? first : second) + (max(valid, 0) + i / 16) * kRowBytes +
                              i % 8 * 16) = make_uint4(0, 0, 0, 0);
  }
  ptx::fence_proxy_async(ptx::space_shared);
  named_barrier(kStateBarrier + group, kWarpgroup);
}

// Releases stage `stage`, which has been read: one arrival here, and one at the CTA that makes its chunks.
template <Form kForm, class Shared>
__device__ __forceinline__ void release_stage(Shared& shared, int stage, int rank) {
  ptx::mbarrier_arrive(&shared.free[stage]);
  if (ctas(kForm) > 1 && stage % 2 != rank) arrive_in_block(&shared.free[stage], 1 - rank);
}

// Destination of an item's outputs. Kept in registers: the storing thread would wait for shared memory, and its group
// for that thread.
struct OutputPlace {
  int token, strip, sequence;
  __device__ __forceinline__ explicit OutputPlace(const Item& item)
      : token(uniform(static_cast<int>(item.token))), strip(uniform(item.strip)), sequence(uniform(item.sequence_at)) {}
};

// Stores the output of a chunk from its v tile, by `threads` threads. The whole output must lie there. kWholeChunk: no
// token is past the end.
template <class Element, bool kWholeChunk = false>
__device__ __forceinline__ void send_tile(const FusedMaps& maps, const WalkArgs& args, const OutputPlace& place,
                                          const uint8_t* tile, int chunk, int tokens, int half, int thread,
                                          int threads) {
  const int token = place.token + chunk * kFusedChunk, valid = tokens - chunk * kFusedChunk;
  if (kWholeChunk || valid >= kFusedChunk) {
    if (thread == 0) {
      ptx::fence_proxy_async(ptx::space_shared);  // behind a barrier it orders the stores of all, as in produce.cuh
      const int32_t at[5] = {0, token, half, place.strip, place.sequence};
      ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &maps.o, at, tile);
      ptx::cp_async_bulk_commit_group();
    }
  } else {  // a box would overwrite the next sequence
    Element* out = static_cast<Element*>(args.o.data) + place.sequence * args.o.sequence + token * args.o.token +
                   place.strip * args.o.head + half * kHalfWidth;
#pragma unroll 1
    for (int i = thread; i < valid * 8; i += threads) {
      const int row = i / 8, piece = i % 8;
      *reinterpret_cast<uint4*>(out + row * args.o.token + piece * 8) =
          *reinterpret_cast<const uint4*>(tile + swizzled_offset(row, piece));
    }
  }
}

// The same, by the state group that wrote the output to shared memory.
template <class Element, bool kWholeChunk = false>
__device__ __forceinline__ void send_output(const FusedMaps& maps, const WalkArgs& args, const OutputPlace& place,
                                            const uint8_t* tile, int chunk, int tokens, int half, int group,
                                            int thread) {
  named_barrier(kStateBarrier + group, kWarpgroup);
  send_tile<Element, kWholeChunk>(maps, args, place, tile, chunk, tokens, half, thread, kWarpgroup);
}

// Stores all outputs of a CTA of a pair, by one warp of its second state group, which has no rows to walk. The first
// group signals in `done` that an output lies in its v tile, at byte `tile` of a stage. So the chain of the state
// contains neither a barrier nor a fence for outputs.
template <class Element, int kStages, class Shared>
__device__ __forceinline__ void send_outputs(const FusedMaps& maps, const WalkArgs& args, const Item& item,
                                             Shared& shared, int tile, int rank) {
  const int lane = threadIdx.x % 32;
  const OutputPlace place(item);
  RingPosition<kStages> position;
#pragma unroll 1
  for (int chunk = 0; chunk < item.row.chunks; ++chunk) {
    const int stage = position.stage;
    wait_parity(&shared.done[stage], position.parity);
    __syncwarp();
    // The other CTA, which makes this stage's chunks, may write into the stage now: it does not write over the output.
    if (lane == 0 && stage % 2 != rank) arrive_in_block(&shared.free[stage], 1 - rank);
    send_tile<Element>(maps, args, place, shared.ring[stage] + tile, chunk, item.tokens, rank, lane, 32);
    __syncwarp();
    if (lane == 0) {
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      ptx::mbarrier_arrive(&shared.free[stage]);
    }
    position.advance();
  }
}

// In a summary of GDN, after the first product of a chunk, by the group of X: waits until all its warps are done with
// the previous chunk, and releases its stage.
template <Form kForm, class Shared>
__device__ __forceinline__ void release_summarized(Shared& shared, int previous, int rank, int thread) {
  named_barrier(kStateBarrier, kWarpgroup);
  if (thread == 0) release_stage<kForm>(shared, previous, rank);
}

// The workspace slot with the state of a row of this strip.
__device__ __forceinline__ float* slot_at(const WalkArgs& args, const Item& item, int slot) {
  return args.slot_state + (static_cast<int64_t>(slot) * args.strips.all + item.strip) * (kWidth * kWidth);
}

// A state that is handed from one CTA to another (relay.h).
__device__ __forceinline__ float* relay_state(const WalkArgs& args, int place) {
  return args.relay.states + place * (kWidth * kWidth);
}

// Loads the state that enters a row, by the state group with half `half` of the values; kFours as in load_state.
template <bool kFours>
__device__ __forceinline__ void load_entry(float (&state)[64], const WalkArgs& args, const Item& item, int half) {
  const StatePlace at(half);
  const Row& row = item.row;
  if (row.slot_in >= 0) {
    load_slot(state, slot_at(args, item, row.slot_in), at.value_row, at.lane_row, at.lane_column);
  } else {
    const int64_t slot = initial_slot(args.initial, args.has_initial, row.sequence, args.report);
    load_state<kFours>(state, args.initial, slot, item.head, item.first_value + at.value_row, at.lane_row,
                       at.lane_column);
  }
}

// Prefetches that state into the L2, by one thread.
__device__ __forceinline__ void prefetch_entry(const WalkArgs& args, const Item& item) {
  const Row& row = item.row;
  const uint8_t* data = nullptr;
  uint32_t bytes = kWidth * kWidth * sizeof(float);
  if (item.takes_over >= 0) {
    data = reinterpret_cast<const uint8_t*>(relay_state(args, item.takes_over));
  } else if (row.slot_in >= 0) {
    data = reinterpret_cast<const uint8_t*>(slot_at(args, item, row.slot_in));
  } else {
    const StateView& pool = args.initial;
    const int64_t slot = initial_slot(pool, args.has_initial, row.sequence);
    if (slot < 0) return;
    const bool value_major = pool.layout == StateLayout::kValueMajor;
    if (!value_major && pool.columns > kWidth) return;  // the strip is not contiguous
    data = state_data(pool, slot, item.head) + item.first_value * (kWidth * float_bytes(pool.dtype));
    if (pool.dtype != DType::kFp32) bytes /= 2;
  }
  if (reinterpret_cast<uintptr_t>(data) % 16 == 0) prefetch_bytes(data, bytes);
}

// What the state groups of a walk without checkpoints have in place of DueCheckpoints (fused/checkpoints.cuh).
struct NoCheckpoints {
  static constexpr bool kStores = false;
  __device__ __forceinline__ NoCheckpoints(const WalkArgs& /*args*/, const auto& /*shared*/) {}
};

// Stores the state that leaves a row where it is wanted: in a slot, as a checkpoint, as the final state. kFours as in
// store_state.
template <bool kFours, class Due>
__device__ __forceinline__ void store_exit(float (&state)[64], const WalkArgs& args, const Item& item, int half,
                                           Due& due) {
  const StatePlace at(half);
  const Row& row = item.row;
  if (row.slot_out >= 0)
    store_slot(state, slot_at(args, item, row.slot_out), at.value_row, at.lane_row, at.lane_column);
  if (row.slot_folded >= 0 && (Due::kStores || item.ends_sequence))
    load_slot(state, slot_at(args, item, row.slot_folded), at.value_row, at.lane_row, at.lane_column);
  if constexpr (Due::kStores) due.store_last(state, item, half);
  if (item.ends_sequence) {
    store_state<kFours>(state, args.final, slot_of(args.final, row.sequence, args.report), item.head,
                        item.first_value + at.value_row, at.lane_row, at.lane_column);
  }
}

}  // namespace deltarelay::cuda::sm90
