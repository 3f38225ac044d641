// carry: the state that enters every later segment, by folding transitions in order. One step, for some value rows v of the transposed
// state:
//     S'[v][k] = B[v][k] + sum over c of S[v][c] Mt[c][k]           Mt: row c holds M e_c
//
// The chain over steps is serial; rows of the state fold independently. A CTA owns 16 of them and all steps. A warp has 32 key columns k and
// every 32 channels c, or a part of them: its numbers of Mt, which do not wait for the chain, come straight into registers while the step before
// is at work. Sums over channels meet in shared memory. Products are 3xTF32, and no more than 32 channels are summed by tensor cores, which
// truncate.
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

template <int kWidth>
struct Carry {
  static constexpr int kColumnGroups = kWidth / 32, kChannelGroups = kWidth <= 128 ? kWidth / 32 : 2;
  static constexpr int kSlabs = kWidth / 32 / kChannelGroups;  // of 32 channels, a warp
  static constexpr int kAllThreads = kColumnGroups * kChannelGroups * 32;
  static constexpr int kRow = kWidth + 8;  // floats: 8 bytes a lane touch every bank once
  static constexpr int kFours = kCarryRows * kWidth / 4, kFoursEach = (kFours + kAllThreads - 1) / kAllThreads;
  using Numbers = FloatArithmetic<3>;

  struct Shared {
    float state[kCarryRows][kRow];
    float part[kChannelGroups][kCarryRows][kRow];  // of S Mt
  };

  // Steps of a fold, or 0 when none of its transitions has a number but 0: B in its slot is the state already. By all threads of the CTA.
  static __device__ __forceinline__ int live_steps(const CarryArgs& args, const Fold& fold, int head, int dk) {
    bool lives = false;
    for (int step = static_cast<int>(threadIdx.x); step < fold.count; step += kAllThreads) {
      const uint8_t* rows =
          row_lives(args.slot_lives, (fold.slot + 1 + step) * static_cast<int64_t>(args.heads_v) + head);
      for (int i = 0; i < whole_tiles(dk); ++i) lives = lives || rows[i] != 0;
    }
    return __syncthreads_or(static_cast<int>(lives)) != 0 ? fold.count : 0;
  }

  // Numbers of Mt that a lane has: rows 2 (lane % 4) and the next of every 8 channels, columns 4 (lane / 4) and the next three, one for each of
  // four products. So column c of product b is column 4 c + b of the group.
  struct Slab {
    float4 row[Numbers::kSteps][2];
    __device__ __forceinline__ void load(const float* transition, int step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) row[step][i] = *reinterpret_cast<const float4*>(transition + (8 * step + i) * kWidth);
    }
  };
  static __device__ __forceinline__ float get(const float4& four, int i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
  }

  // Adds S Mt of 32 channels, as Numbers::multiply does but with four products taking turns. What has been used is loaded anew from `next`.
  static __device__ __forceinline__ void multiply(float (&sums)[4][4], uint32_t state, Slab& slab, const float* next,
                                                  bool more) {
    float upper[2][4][4] = {}, cross[4][4] = {};
#pragma unroll
    for (int step = 0; step < Numbers::kSteps; ++step) {
      uint32_t left_high[4], left_low[4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair = load_pair(state + step * 32 + r * 8 * kRow * 4);
        Numbers::split(pair.x, left_high[r], left_low[r]);
        Numbers::split(pair.y, left_high[r + 2], left_low[r + 2]);
      }
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        uint32_t high[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) Numbers::split(get(slab.row[step][i], b), high[i], low[i]);
        mma_tf32(upper[step / 2][b], left_high, high[0], high[1]);
        mma_tf32(cross[b], left_low, high[0], high[1]);
        mma_tf32(cross[b], left_high, low[0], low[1]);
      }
      if (more) slab.load(next, step);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i)
      sums[i / 4][i % 4] += (upper[0][i / 4][i % 4] + upper[1][i / 4][i % 4]) + cross[i / 4][i % 4];
  }

  static __device__ __forceinline__ void run(const CarryArgs& args, const Fold& fold, int head, int value_row0,
                                             const Extent& extent, Shared& shared) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int column_group = warp % kColumnGroups, channel_group = warp / kColumnGroups;
    const int64_t state_floats = static_cast<int64_t>(whole_tiles(extent.dv)) * kTileValues * kWidth;
    const int64_t state_step = args.heads_v * state_floats;
    constexpr int64_t kTransition = slot_transition_floats(kWidth);
    const int64_t transition_step = args.heads_v * kTransition;
    const float* transition = args.slot_transition +
                              (static_cast<int64_t>(fold.slot + 1) * args.heads_v + head) * kTransition +
                              (channel_group * kSlabs * 32 + lane % 4 * 2) * kWidth + column_group * 32 + lane / 4 * 4;
    float* const rows = args.slot_state + fold.slot * state_step + head * state_floats + value_row0 * kWidth;
    const int steps = live_steps(args, fold, head, extent.dk);

    Slab slab;
    if (steps > 0) {
#pragma unroll
      for (int step = 0; step < Numbers::kSteps; ++step) slab.load(transition, step);
    }
    enter(args, fold, head, value_row0, extent, rows, shared);

    float4* result[kFoursEach];
    int row[kFoursEach], column[kFoursEach];
    float4 entering[kFoursEach];  // B
#pragma unroll
    for (int i = 0; i < kFoursEach; ++i) {
      const int four = i * kAllThreads + thread;
      row[i] = four / (kWidth / 4), column[i] = four % (kWidth / 4) * 4;
      result[i] = reinterpret_cast<float4*>(rows + state_step) + four;
      if (steps > 0 && exists(i)) entering[i] = *result[i];
    }
    const uint32_t take =
        shared_address(shared.state) + Numbers::left_place(lane, kRow * 4) + channel_group * kSlabs * 128;
    float* const put = &shared.part[channel_group][lane / 4][column_group * 32 + lane % 4 * 8];
    for (int step = 0; step < steps; ++step) {
      __syncthreads();  // S of this step is written
      float sums[4][4] = {};
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) {
        const bool last = i + 1 == kSlabs;
        multiply(sums, take + i * 128, slab, transition + (last ? transition_step : (i + 1) * 32 * kWidth),
                 !last || step + 1 < steps);
      }
      transition += transition_step;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<float4*>(put + i / 2 * 8 * kRow + i % 2 * 4) =
            make_float4(sums[0][i], sums[1][i], sums[2][i], sums[3][i]);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kFoursEach; ++i) {
        if (!exists(i)) continue;
        float4 sum = *reinterpret_cast<const float4*>(&shared.part[0][row[i]][column[i]]);
#pragma unroll
        for (int group = 1; group < kChannelGroups; ++group)
          add(sum, *reinterpret_cast<const float4*>(&shared.part[group][row[i]][column[i]]));
        add(sum, entering[i]);
        *reinterpret_cast<float4*>(&shared.state[row[i]][column[i]]) = sum;
        *result[i] = sum;
        result[i] += state_step / 4;
        if (step + 1 < steps) entering[i] = *result[i];
      }
    }
  }

 private:
  static __device__ __forceinline__ bool exists(int i) {
    return kFours % kAllThreads == 0 || i * kAllThreads + static_cast<int>(threadIdx.x) < kFours;
  }
  static __device__ __forceinline__ void add(float4& sum, const float4& x) {
    sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
  }

  // The state that enters the fold, into shared memory; one of the caller's also into its slot, where emit reads it.
  static __device__ __forceinline__ void enter(const CarryArgs& args, const Fold& fold, int head, int value_row0,
                                               const Extent& extent, float* rows, Shared& shared) {
    const int thread = static_cast<int>(threadIdx.x);
    if (!fold.from_initial) {
      for (int i = thread; i < kCarryRows * kWidth; i += kAllThreads) shared.state[i / kWidth][i % kWidth] = rows[i];
      return;
    }
    const int64_t slot = initial_slot(args.initial, args.has_initial, fold.sequence);
    const PoolMatrix matrix = slot < 0 ? PoolMatrix{} : pool_matrix(args.initial, slot, head, extent);
    const bool value_major = matrix.key_step == 1;
    for (int i = thread; i < kCarryRows * kWidth; i += kAllThreads) {  // neighbouring threads take neighbouring numbers
      const int row = value_major ? i / kWidth : i % kCarryRows, k = value_major ? i % kWidth : i / kCarryRows;
      const int v = value_row0 + row;
      float number = 0.0f;
      if (slot >= 0 && v < extent.dv && k < extent.dk)
        number = load_number(matrix.data, matrix.dtype, v * matrix.value_step + k * matrix.key_step);
      shared.state[row][k] = number;
      rows[row * kWidth + k] = number;
    }
  }
};

// CTAs are numbered (fold, head, 16 value rows), the last innermost.
template <int kWidth>
__global__ void __launch_bounds__(Carry<kWidth>::kAllThreads)
    carry_kernel(const __grid_constant__ CarryArgs args, Extent extent) {
  using Carry = sm80::Carry<kWidth>;
  wait_for_previous_grid();
  allow_next_grid();
  const uint32_t slices = static_cast<uint32_t>(whole_tiles(extent.dv) * kTileValues / kCarryRows);
  const uint32_t item = blockIdx.x / slices, heads = static_cast<uint32_t>(args.heads_v);
  const int index = static_cast<int>(item / heads);
  if (index >= args.tables.counts()[1]) return;
  Carry::run(args, args.tables.folds()[index], static_cast<int>(item % heads),
             static_cast<int>(blockIdx.x % slices) * kCarryRows, extent,
             *reinterpret_cast<typename Carry::Shared*>(dynamic_shared_memory()));
}

}  // namespace deltarelay::cuda::sm80
