// carry: the state that enters every later segment, by folding transitions in order. One step, for some value rows v of the transposed
// state:
//     S'[v][k] = B[v][k] + sum over c of S[v][c] Mt[c][k]           Mt: row c holds M e_c
//
// The chain over steps is serial; rows of the state fold independently. A CTA owns 16 of them and all steps, a warp a quarter of the key
// columns. S passes from step to step through shared memory, Mt through a ring of slabs of 32 channels. Products are 3xTF32, and no more
// than 32 channels are summed by tensor cores, which truncate.
#pragma once
#include <cstdint>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace deltarelay::cuda::sm80 {

constexpr int kCarryRows = 16;

// Steps of a fold, or 0 when none of its transitions has a number but 0: B in its slot is the state already. By all threads of the CTA.
__device__ __forceinline__ int live_steps(const CarryArgs& args, const Fold& fold, int head, int dk) {
  bool lives = false;
  for (int step = static_cast<int>(threadIdx.x); step < fold.count; step += kThreads) {
    const uint8_t* rows =
        row_lives(args.slot_lives, (fold.slot + 1 + step) * static_cast<int64_t>(args.heads_v) + head);
    for (int i = 0; i < whole_tiles(dk); ++i) lives = lives || rows[i] != 0;
  }
  return __syncthreads_or(static_cast<int>(lives)) != 0 ? fold.count : 0;
}

template <int kWidth>
struct CarryShared {
  static constexpr int kSlabRows = 32, kSlabRowBytes = kWidth * 4 + 16, kSlab = kSlabRows * kSlabRowBytes;
  static constexpr int kStateRow = kWidth + 8;  // floats: 8 bytes a lane touch every bank once
  static constexpr int kStages = kWidth <= 128 ? 4 : kWidth == 192 ? 3 : 2;
  alignas(16) uint8_t ring[kStages * kSlab];
  float state[2][kCarryRows][kStateRow];  // S of even and odd steps
};

template <int kWidth>
__device__ __forceinline__ void run_fold(const CarryArgs& args, const Fold& fold, int head, int value_row0,
                                         const Extent& extent, CarryShared<kWidth>& shared) {
  using Shared = CarryShared<kWidth>;
  using Numbers = FloatArithmetic<3>;
  constexpr int kStages = Shared::kStages, kSlabs = kWidth / 32, kBlocks = kWidth / 32;  // key blocks of 8 a warp
  static_assert(kWidth % (8 * kThreads / 32) == 0);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t state_step = static_cast<int64_t>(args.heads_v) * whole_tiles(extent.dv) * kTileValues * kWidth;
  constexpr int64_t kTransition = slot_transition_floats(kWidth);
  const int64_t transition_step = args.heads_v * kTransition;
  const float* transition =
      args.slot_transition + (static_cast<int64_t>(fold.slot + 1) * args.heads_v + head) * kTransition;
  float* const rows = args.slot_state + fold.slot * state_step +
                      static_cast<int64_t>(head) * whole_tiles(extent.dv) * kTileValues * kWidth + value_row0 * kWidth;
  const int steps = live_steps(args, fold, head, extent.dk), slabs = steps * kSlabs;
  const uint32_t ring = shared_address(shared.ring);

  auto load = [&](int slab) {
    if (slab < slabs)
      TileCopy<Shared::kSlabRows, kWidth / 4, Shared::kSlabRowBytes>::load_all(
          ring + slab % kStages * Shared::kSlab,
          reinterpret_cast<const uint8_t*>(transition + slab / kSlabs * transition_step +
                                           slab % kSlabs * (32 * kWidth)));
    close_copies();
  };
#pragma unroll
  for (int slab = 0; slab < kStages - 1; ++slab) load(slab);

  if (fold.from_initial) {  // emit reads it in the slot
    const int64_t slot = initial_slot(args.initial, args.has_initial, fold.sequence);
    const PoolMatrix matrix = slot < 0 ? PoolMatrix{} : pool_matrix(args.initial, slot, head, extent);
    const bool value_major = matrix.key_step == 1;
    for (int i = thread; i < kCarryRows * kWidth; i += kThreads) {  // neighbouring threads take neighbouring numbers
      const int row = value_major ? i / kWidth : i % kCarryRows, k = value_major ? i % kWidth : i / kCarryRows;
      const int v = value_row0 + row;
      float number = 0.0f;
      if (slot >= 0 && v < extent.dv && k < extent.dk)
        number = load_number(matrix.data, matrix.dtype, v * matrix.value_step + k * matrix.key_step);
      shared.state[0][row][k] = number;
      rows[row * kWidth + k] = number;
    }
  } else {
    for (int i = thread; i < kCarryRows * kWidth; i += kThreads) shared.state[0][i / kWidth][i % kWidth] = rows[i];
  }

  const int row = lane / 4, column = warp * kBlocks * 8 + lane % 4 * 2;
  float* result = rows + state_step + row * kWidth + column;
  const uint32_t take = shared_address(shared.state) + Numbers::left_place(lane, Shared::kStateRow * 4);
  const uint32_t part = ring + Numbers::columns_place(lane, Shared::kSlabRowBytes) + warp * kBlocks * 32;
  int slab = 0, stage = 0;
  for (int step = 0; step < steps; ++step) {
    float2 entering[kBlocks][2];  // B
    float sums[kBlocks][4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r) entering[b][r] = *reinterpret_cast<const float2*>(result + 8 * b + 8 * r * kWidth);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[b][i] = 0.0f;
    }
    const uint32_t state = take + step % 2 * (kCarryRows * Shared::kStateRow * 4);
#pragma unroll 1
    for (int group = 0; group < kSlabs; ++group, ++slab) {
      wait_for_copies<kStages - 2>();
      __syncthreads();  // the slab is here; S of this step is written; all are done with the slab before
      load(slab + kStages - 1);
      const Numbers::Left left = Numbers::load_left(state + group * 128, Shared::kStateRow * 4);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        Numbers::multiply(sums[b], left,
                          Numbers::load_columns(part + stage * Shared::kSlab + b * 32, Shared::kSlabRowBytes));
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    float(*next)[Shared::kStateRow] = shared.state[(step + 1) % 2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair = make_float2(sums[b][2 * r] + entering[b][r].x, sums[b][2 * r + 1] + entering[b][r].y);
        *reinterpret_cast<float2*>(&next[row + 8 * r][column + 8 * b]) = pair;
        *reinterpret_cast<float2*>(result + 8 * b + 8 * r * kWidth) = pair;
      }
    }
    result += state_step;
  }
}

// CTAs are numbered (fold, head, 16 value rows), the last innermost.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) carry_kernel(const __grid_constant__ CarryArgs args, Extent extent) {
  wait_for_previous_grid();
  allow_next_grid();
  const uint32_t slices = static_cast<uint32_t>(whole_tiles(extent.dv) * kTileValues / kCarryRows);
  const uint32_t item = blockIdx.x / slices, heads = static_cast<uint32_t>(args.heads_v);
  const int index = static_cast<int>(item / heads);
  if (index >= args.tables.counts()[1]) return;
  run_fold<kWidth>(args, args.tables.folds()[index], static_cast<int>(item % heads),
                   static_cast<int>(blockIdx.x % slices) * kCarryRows, extent,
                   *reinterpret_cast<CarryShared<kWidth>*>(dynamic_shared_memory()));
}

}  // namespace deltarelay::cuda::sm80
