// Shared by both kernels of carry: the order of additions, numbers split for tensor cores, and the state that enters a
// fold.
//
// The amount of work decides which kernel folds a sequence, and with how many value rows per CTA. The bits must not
// depend on this choice. So every number of S_next is summed in one order, and its products stand in the same places of
// the same mma.sync:
//
//     block(h, b)   channels 64 h + 16 m + 4 b + {0..3}, member m = 0..3: two products, added by tensor cores, b = 0..3
//     span(h, p)    (block(h, 2 p) + block(h, 2 p + 1)) + (low high + high low of both blocks, each by tensor cores)
//     half(h)       span(h, 0) + span(h, 1)
//     S_next        (half(0) + half(1)) + B
//
// In product j of a block, columns m and m + 4 of A are channels 2 j and 2 j + 1 of the four channels of member m.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda {

constexpr int kColumns = 16;  // key columns of a warp
constexpr int kHalfWidth = kStateWidth / 2;

// Steps of a fold, or 0 if all its transitions are 0. Gates that forget a whole segment leave nothing to carry across
// it, and B in its slot already is the state. Called by all threads of the CTA.
__device__ __forceinline__ int live_steps(const CarryArgs& args, const Fold& fold, int strip) {
  bool lives = false;
  for (int step = static_cast<int>(threadIdx.x); step < fold.count; step += static_cast<int>(blockDim.x)) {
    const int64_t slot = fold.slot + 1 + step;
    const uint32_t* halves = args.slot_lives + 2 * (slot * args.strips.all + strip);
    lives = lives || halves[0] != 0 || halves[1] != 0;
  }
  return __syncthreads_or(static_cast<int>(lives)) != 0 ? fold.count : 0;
}

// x = high + low + at most 2^-23 |x|. `high` is rounded to 11 bits (half away from zero). `low` is exact and has 12
// bits, of which the product drops the last. A NaN ends up in `low`. as_tf32 would keep infinities, for two more
// instructions.
__device__ __forceinline__ void split(float x, uint32_t& high, uint32_t& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// A block of M^T as A operands of two products j. Rows quad and quad + 8 are columns 2 quad and 2 quad + 1 of the warp.
// m[2 j + e] holds them at the channels of column member + 4 e.
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

// Sums of one span. Tensor cores truncate when they add, so at most two products of the high parts are added there. The
// cross products are 2^-11 of these: their truncation error is negligible.
template <int kValueTiles>
struct SpanSums {
  float upper[2][kValueTiles][4];  // high high, of each block
  float low_high[kValueTiles][4];
  float high_low[kValueTiles][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) upper[0][n][i] = upper[1][n][i] = low_high[n][i] = high_low[n][i] = 0.0f;
    }
  }
  __device__ __forceinline__ float total(int n, int i) const {
    return (upper[0][n][i] + upper[1][n][i]) + (low_high[n][i] + high_low[n][i]);
  }
};

// Adds block `block`, 0 or 1, of kSpans spans; m[i] and s[i] belong to span i. A product waits about 33 cycles for the
// previous one of its sum, so the products of kSpans * kValueTiles * 3 sums interleave: at least four sums are needed,
// six are better.
template <int kSpans, int kValueTiles>
__device__ __forceinline__ void add_block(SpanSums<kValueTiles> (&sums)[kSpans], const Transition* m,
                                          const float4 (&s)[kSpans][kValueTiles], int block) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint32_t high[kSpans][kValueTiles][2], low[kSpans][kValueTiles][2];
#pragma unroll
    for (int i = 0; i < kSpans * kValueTiles; ++i) {
      const int p = i / kValueTiles, n = i % kValueTiles;
      split(j == 0 ? s[p][n].x : s[p][n].z, high[p][n][0], low[p][n][0]);
      split(j == 0 ? s[p][n].y : s[p][n].w, high[p][n][1], low[p][n][1]);
    }
#pragma unroll
    for (int i = 0; i < kSpans * kValueTiles; ++i) {
      const int p = i / kValueTiles, n = i % kValueTiles;
      mma_tf32(sums[p].upper[block][n], m[p].high[j], high[p][n][0], high[p][n][1]);
    }
#pragma unroll
    for (int i = 0; i < kSpans * kValueTiles; ++i) {
      const int p = i / kValueTiles, n = i % kValueTiles;
      mma_tf32(sums[p].low_high[n], m[p].low[j], high[p][n][0], high[p][n][1]);
    }
#pragma unroll
    for (int i = 0; i < kSpans * kValueTiles; ++i) {
      const int p = i / kValueTiles, n = i % kValueTiles;
      mma_tf32(sums[p].high_low[n], m[p].high[j], low[p][n][0], low[p][n][1]);
    }
  }
}

// half = the first span of a half, or half + the second span.
template <int kValueTiles>
__device__ __forceinline__ void add_span(float (&half)[kValueTiles][4], const SpanSums<kValueTiles>& sums, int span) {
#pragma unroll
  for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) half[n][i] = span == 0 ? sums.total(n, i) : half[n][i] + sums.total(n, i);
  }
}

// Results of a lane: 0 and 2 of value tile n are row 8 n + 2 member, columns k0 + 2 quad and + 1; 1 and 3 are the next
// row.
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

// kSliceRows value rows times kSliceChannels channels (all, or a half) of a state in shared memory, moved by
// kSliceThreads threads. Pieces of four channels are permuted so that two accesses are free of bank conflicts: reads of
// B operands (16 bytes: channels 16 member + 4 b .. of row quad), and writes of results (8 bytes: columns 2 quad .. of
// a warp, rows 2 member or 2 member + 1). An odd row and an odd b flip the same bit of a place: 16 floats.
template <int kSliceRows, int kSliceChannels, int kSliceThreads>
struct StateSlice {
  static constexpr int kRows = kSliceRows, kChannels = kSliceChannels, kThreads = kSliceThreads;
  static constexpr int kFloats = kRows * kChannels;
  static __device__ __forceinline__ int place(int row, int channel) {
    const int block = (channel >> 2 & 3) ^ (row & 1), quarter = (channel >> 4 & 3) ^ (row >> 1 & 3);
    return row * kChannels + (channel & kHalfWidth) + (block * 4 + quarter) * 4 + (channel & 3);
  }
};

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

// The slice begins at value_row0 of a strip and at channel0 of the caller's state. slot < 0 gives zeros.
template <class Slice>
__device__ __forceinline__ void fill_from_initial(float* state, const StateView& pool, int64_t slot,
                                                  const Strips& strips, int strip, int value_row0, int channel0,
                                                  int thread) {
  constexpr int kEach = Slice::kRows * Slice::kChannels / Slice::kThreads;
  const int head = strips.head_of(strip);
  const StateMatrix matrix = slot < 0 ? StateMatrix{} : state_matrix(pool, slot, head);
  // Neighbouring threads take neighbouring numbers. The distance between the numbers of a thread follows from that.
  const bool value_major = matrix.key_step == 1;
  const int row = value_major ? thread / Slice::kChannels : thread % Slice::kRows;
  const int row_step = value_major ? Slice::kThreads / Slice::kChannels : 0;
  const int channel = value_major ? thread % Slice::kChannels : thread / Slice::kRows;
  const int channel_step = value_major ? 0 : Slice::kThreads / Slice::kRows;
  const int first_value = (strip - head * strips.a_head) * kStateWidth + value_row0;
  const int first = (first_value + row) * matrix.value_step + (channel0 + channel) * matrix.key_step;
  const int step = row_step * matrix.value_step + channel_step * matrix.key_step;
  float numbers[kEach];  // all loads are in flight before the first is used
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
