// carry: the state that enters every later segment, by folding transitions in order. One step, for value rows v of S^T:
//     S_next^T[v][k] = B^T[v][k] + sum over c of S^T[v][c] M^T[c][k]
//
// The chain over steps is serial, but rows of S^T fold independently. A CTA owns 16 rows and walks all steps. A warp
// has 32 key columns k and all or some of the channels c, in groups of 32. Its numbers of M^T do not depend on the
// chain, so a lane loads them one or two steps ahead. A vanished transition (vanished.cuh) is never read, because its
// memory is undefined: S_next = B. Partial sums over channels are added in shared memory. Products are 3xTF32. Tensor
// cores truncate, so they sum at most 32 channels.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/rows/find_fold.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/grid.h"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm80 {

template <int kWidth>
struct Carry {
  static constexpr int kColumnGroups = kWidth / 32, kChannelGroups = kWidth <= 128 ? kWidth / 32 : 2;
  static constexpr int kSlabs = kWidth / 32 / kChannelGroups;  // groups of 32 channels per warp
  static constexpr int kAllThreads = kColumnGroups * kChannelGroups * 32;
  static constexpr int kRow = kWidth + 8;  // floats per row: accesses of 8 bytes per lane touch every bank once
  static constexpr int kFours = kCarryRows * kWidth / 4, kFoursEach = (kFours + kAllThreads - 1) / kAllThreads;
  static constexpr int kRowFours = kWidth / 4;
  static constexpr int kRowsDown = kAllThreads / kRowFours;  // rows from one float4 of a thread to its next
  static_assert(kAllThreads % kRowFours == 0);
  // Steps by which M and B are loaded ahead: two if shared memory has room.
  static constexpr int kAhead = kWidth < 128 ? 2 : 1;
  using Numbers = FloatArithmetic<3>;
  static constexpr int kPieces = 2 * Numbers::kSteps;  // pieces of 16 bytes per lane for 32 channels of M

  struct Shared {
    float state[kCarryRows][kRow];
    float part[kChannelGroups][kCarryRows][kRow];  // partial sums of S^T M^T
    // M and B of every other step, if two are ahead: 16 bytes per thread, which only that thread writes and reads.
    float4 ahead[kAhead == 2 ? kPieces + kFoursEach : 1][kAhead == 2 ? kAllThreads : 1];
  };

  // Which transitions live (have not vanished), in the order of steps. Every warp reads the flags itself, one lane per
  // 32nd step, so no warp waits for another. All find the same flags, because this kernel does not write them.
  struct Lives {
    const uint32_t* first;  // word of step 0; a word has one byte per tile
    uint32_t tiles;         // mask of the bytes that exist
    int count, lane;
    uint32_t next, mask = 0;  // this lane's word of the next 32 steps; bits of the current 32 steps

    __device__ __forceinline__ Lives(const CarryArgs& args, const Fold& fold, int head, int dk)
        : first(args.slot_lives + 2 * ((fold.slot + 1) * static_cast<int64_t>(args.heads_v) + head)),
          tiles(~0u >> (32 - 8 * whole_tiles(dk))),
          count(fold.count),
          lane(static_cast<int>(threadIdx.x) % 32),
          next(word(args, 0)) {}
    __device__ __forceinline__ uint32_t word(const CarryArgs& args, int step0) const {
      const int step = step0 + lane;
      return step < count ? first[2 * args.heads_v * static_cast<int64_t>(step)] : 0;
    }
    // Number of steps up to the last that lives. After the last one, or if none lives, B in its slot is already the
    // state. Call it before the first `take`.
    __device__ __forceinline__ int steps(const CarryArgs& args) const {
      int steps = (next & tiles) != 0 ? lane + 1 : 0;
      for (int step0 = 32; step0 < count; step0 += 32) {
        if ((word(args, step0) & tiles) != 0) steps = step0 + lane + 1;
      }
      return __reduce_max_sync(~0u, steps);
    }
    // Does this step live? Ask for steps in order, from 0 on. Returns false beyond the last step.
    __device__ __forceinline__ bool take(const CarryArgs& args, int step) {
      if (step % 32 == 0) {
        mask = __ballot_sync(~0u, (next & tiles) != 0);
        next = word(args, step + 32);
      }
      return (mask >> step % 32 & 1) != 0;
    }
  };

  // Numbers of M^T per lane: rows 2 (lane % 4) and the next one of every 8 channels, columns 4 (lane / 4) to +3, one
  // column for each of four products. So column c of product b is column 4 c + b of the group. B of the same step is
  // here too.
  //
  // If two steps are ahead, steps alternate between registers and shared memory. Loads to registers that are in flight
  // at the start of a loop share one scoreboard, so with both in registers the older load would wait for the younger.
  struct InRegisters {
    float4 m[kPieces], b[kFoursEach];
    bool live;
    __device__ __forceinline__ void load(int piece, const float* from) {
      m[piece] = *reinterpret_cast<const float4*>(from);
    }
    __device__ __forceinline__ void load_entering(int i, const float4* from) { b[i] = *from; }
    __device__ __forceinline__ void close() {}
    __device__ __forceinline__ void wait() {}
    __device__ __forceinline__ float4 row(int piece) const { return m[piece]; }
    __device__ __forceinline__ float4 entering(int i) const { return b[i]; }
  };
  struct InShared {
    uint32_t at;  // this thread's address in Shared::ahead
    bool live;
    __device__ __forceinline__ void load(int piece, const float* from) { copy_piece(place(piece), from); }
    __device__ __forceinline__ void load_entering(int i, const float4* from) { copy_piece(place(kPieces + i), from); }
    __device__ __forceinline__ void close() { close_copies(); }
    __device__ __forceinline__ void wait() { wait_for_copies<0>(); }
    __device__ __forceinline__ float4 row(int piece) const { return load_numbers(place(piece)); }
    __device__ __forceinline__ float4 entering(int i) const { return load_numbers(place(kPieces + i)); }

   private:
    __device__ __forceinline__ uint32_t place(int piece) const { return at + piece * kAllThreads * 16; }
    static __device__ __forceinline__ float4 load_numbers(uint32_t address) {
      const uint4 four = load_four(address);
      return make_float4(__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z),
                         __uint_as_float(four.w));
    }
  };
  // Loads M of 8 channels (one step of a product), or of all 32.
  template <class Turn>
  static __device__ __forceinline__ void load(Turn& turn, const float* transition, int step) {
#pragma unroll
    for (int i = 0; i < 2; ++i) turn.load(2 * step + i, transition + (8 * step + i) * kWidth);
  }
  template <class Turn>
  static __device__ __forceinline__ void load(Turn& turn, const float* transition) {
#pragma unroll
    for (int step = 0; step < Numbers::kSteps; ++step) load(turn, transition, step);
  }
  static __device__ __forceinline__ float get(const float4& four, int i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
  }

  // Adds S^T M^T of 32 channels, as Numbers::multiply does, but alternating between four products. Operands that have
  // been used are replaced by loads from `next`.
  template <class Turn>
  static __device__ __forceinline__ void multiply(float (&sums)[4][4], uint32_t state, Turn& turn, const float* next,
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
      const float4 right[2] = {turn.row(2 * step), turn.row(2 * step + 1)};
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        uint32_t high[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) Numbers::split(get(right[i], b), high[i], low[i]);
        mma_tf32(upper[step / 2][b], left_high, high[0], high[1]);
        mma_tf32(cross[b], left_low, high[0], high[1]);
        mma_tf32(cross[b], left_high, low[0], low[1]);
      }
      if (more) load(turn, next, step);
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

    // Load the flags and the state before waiting for either. Do not load M yet: with one gate per head all transitions
    // have often vanished, and then the load takes longer (at 64 channels 6.2 us instead of 4.0 us).
    Lives lives(args, fold, head, extent.dk);
    const Entering state(args, fold, head, value_row0, extent, rows);
    const int steps = lives.steps(args);
    InRegisters even;
    InShared odd{shared_address(&shared.ahead[0][kAhead == 2 ? thread : 0]), false};
    float4* result = reinterpret_cast<float4*>(rows + state_step) + thread;
    auto load_first = [&](auto& turn, int step) {
      turn.live = lives.take(args, step);
      if (turn.live) load(turn, transition + step * transition_step);
      if (step < steps) {
#pragma unroll
        for (int i = 0; i < kFoursEach; ++i) {
          if (exists(i)) turn.load_entering(i, result + step * (state_step / 4) + i * kAllThreads);
        }
      }
      turn.close();
    };
    load_first(even, 0);
    if constexpr (kAhead == 2) load_first(odd, 1);
    state.store(fold.from_initial, even.live, rows, shared);

    const uint32_t take =
        shared_address(shared.state) + Numbers::left_place(lane, kRow * 4) + channel_group * kSlabs * 128;
    const int first_row = thread / kRowFours, column = thread % kRowFours * 4;
    float* const put = &shared.part[channel_group][lane / 4][column_group * 32 + lane % 4 * 8];
    // If M has vanished, S_next = B: B is already in its slot, and the slot of M is undefined. Such a step needs no
    // barrier. A thread writes the same part of S in every step, and the readers of S have passed the second barrier of
    // the step before. Ahead of a vanished first step, `state.store` writes nothing.
    auto fold_step = [&](int step, auto& turn) {
      const bool live = turn.live, more = lives.take(args, step + kAhead);
      const float* const next = transition + kAhead * transition_step;
      turn.wait();
      if (live) {
        __syncthreads();  // S of this step is written
        float sums[4][4] = {};
#pragma unroll
        for (int i = 0; i < kSlabs; ++i) {
          const bool last = i + 1 == kSlabs;
          multiply(sums, take + i * 128, turn, last ? next : transition + (i + 1) * 32 * kWidth, !last || more);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          *reinterpret_cast<float4*>(put + i / 2 * 8 * kRow + i % 2 * 4) =
              make_float4(sums[0][i], sums[1][i], sums[2][i], sums[3][i]);
        __syncthreads();
      } else if (more) {
        load(turn, next);
      }
      transition += transition_step;
#pragma unroll
      for (int i = 0; i < kFoursEach; ++i) {
        if (!exists(i)) continue;
        const int row = first_row + i * kRowsDown;
        const float4 entering = turn.entering(i);
        float4 sum = entering;
        if (live) {
          sum = *reinterpret_cast<const float4*>(&shared.part[0][row][column]);
#pragma unroll
          for (int group = 1; group < kChannelGroups; ++group)
            add(sum, *reinterpret_cast<const float4*>(&shared.part[group][row][column]));
          add(sum, entering);
          result[i * kAllThreads] = sum;
        }
        *reinterpret_cast<float4*>(&shared.state[row][column]) = sum;
        if (step + kAhead < steps) turn.load_entering(i, result + kAhead * (state_step / 4) + i * kAllThreads);
      }
      turn.close();
      result += state_step / 4;
      turn.live = more;
    };
    for (int step = 0; step < steps; step += kAhead) {
      fold_step(step, even);
      if constexpr (kAhead == 2) {
        if (step + 1 < steps) fold_step(step + 1, odd);
      }
    }
    if constexpr (kAhead == 2) odd.wait();  // if no step was left to wait for it
  }

 private:
  // The float4 numbers of a state that belong to a thread.
  static __device__ __forceinline__ int place(int i) { return i * kAllThreads + static_cast<int>(threadIdx.x); }
  static __device__ __forceinline__ bool exists(int i) { return kFours % kAllThreads == 0 || place(i) < kFours; }
  static __device__ __forceinline__ void add(float4& sum, const float4& x) {
    sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
  }

  // The state that enters the fold, on its way to shared memory. The caller's initial state also goes to its slot,
  // where emit reads it. Keeps raw bits and converts them after they have arrived.
  struct Entering {
    uint32_t bits[kFoursEach * 4];
    DType dtype = DType::kFp32;
    bool value_major = true;

    __device__ __forceinline__ Entering(const CarryArgs& args, const Fold& fold, int head, int value_row0,
                                        const Extent& extent, const float* rows) {
      if (!fold.from_initial) {
#pragma unroll
        for (int i = 0; i < kFoursEach; ++i) {
          if (!exists(i)) continue;
          const uint4 four = reinterpret_cast<const uint4*>(rows)[place(i)];
          bits[4 * i] = four.x, bits[4 * i + 1] = four.y, bits[4 * i + 2] = four.z, bits[4 * i + 3] = four.w;
        }
        return;
      }
      const int64_t slot = initial_slot(args.initial, args.has_initial, fold.sequence);
      const PoolMatrix matrix = slot < 0 ? PoolMatrix{} : pool_matrix(args.initial, slot, head, extent);
      dtype = matrix.dtype;
      value_major = matrix.key_step == 1;
#pragma unroll
      for (int i = 0; i < kFoursEach * 4; ++i) {
        const int v = value_row0 + row(i), k = column(i);
        bits[i] = 0;
        if (slot >= 0 && row(i) < kCarryRows && v < extent.dv && k < extent.dk)
          bits[i] = load_bits(matrix.data, dtype, v * matrix.value_step + k * matrix.key_step);
      }
    }
    // In the caller's layout, neighbouring threads read neighbouring numbers.
    __device__ __forceinline__ int row(int i) const { return value_major ? place(i) / kWidth : place(i) % kCarryRows; }
    __device__ __forceinline__ int column(int i) const {
      return value_major ? place(i) % kWidth : place(i) / kCarryRows;
    }
    // `needed`: the first step reads the state from shared memory.
    __device__ __forceinline__ void store(bool from_initial, bool needed, float* rows, Shared& shared) const {
      if (!from_initial) {
#pragma unroll
        for (int i = 0; i < kFoursEach; ++i) {
          if (needed && exists(i))
            *reinterpret_cast<uint4*>(&shared.state[place(i) / kRowFours][place(i) % kRowFours * 4]) =
                make_uint4(bits[4 * i], bits[4 * i + 1], bits[4 * i + 2], bits[4 * i + 3]);
        }
        return;
      }
#pragma unroll
      for (int i = 0; i < kFoursEach * 4; ++i) {
        if (place(i) >= kCarryRows * kWidth) continue;
        const float number = number_of(bits[i], dtype);
        if (needed) shared.state[row(i)][column(i)] = number;
        rows[row(i) * kWidth + column(i)] = number;
      }
    }
  };
};

// CTAs are numbered (fold, head, group of 16 value rows), the last innermost.
template <int kWidth>
__global__ void __launch_bounds__(Carry<kWidth>::kAllThreads)
    carry_kernel(const __grid_constant__ CarryArgs args, Extent extent) {
  using Carry = sm80::Carry<kWidth>;
  const uint32_t slices = static_cast<uint32_t>(whole_tiles(extent.dv) * kTileValues / kCarryRows);
  const uint32_t item = blockIdx.x / slices, heads = static_cast<uint32_t>(args.heads_v);
  allow_next_grid();
  Fold fold;
  const bool found = find_fold(args.tables, item / heads, fold, [] { wait_for_previous_grid(); });
  if (!found) return;
  Carry::run(args, fold, static_cast<int>(item % heads), static_cast<int>(blockIdx.x % slices) * kCarryRows, extent,
             *reinterpret_cast<typename Carry::Shared*>(dynamic_shared_memory()));
}

}  // namespace deltarelay::cuda::sm80
