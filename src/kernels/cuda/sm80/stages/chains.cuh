// DR_CARRY: the ordered fold of the summaries of a chain, S <- M S + B.
//
// A CTA has some columns of one chain and head: of the states, from the initial one, or of the composed summary, from
// [0 | I]. The columns are in shared memory, channel by channel. A thread has one channel of eight columns, and the
// numbers of M pass through registers, read by neighbouring threads side by side.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/grid.cuh"
#include "kernels/cuda/sm80/stages/states.cuh"
#include "kernels/cuda/sm80/stages/tiles.h"
#include "kernels/cuda/stage_args.h"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm80 {

struct ChainShared {
  float column[kMostWidth][kChainEach * 2];  // [channel][column]
};

struct Chain {
  const PassArgs& args;
  Extent extent;
  int64_t sequence;
  int head, first, columns;  // columns [first, first + columns) of the thread; first counts from the part's first
  int channel;
  bool composed;

  // Summary `row`: number of column c of [B | M] at this channel.
  __device__ __forceinline__ const float* summary(const float* all, int64_t row) const {
    return all + (row * args.heads_v + head) * (extent.dv + extent.dk) * extent.dk + channel;
  }
  __device__ __forceinline__ void put(const StateView& pool, int64_t slot, const float (&x)[kChainEach]) const {
    if (slot < 0 || channel >= extent.dk) return;
    const PoolMatrix matrix = pool_matrix(pool, slot, head, extent);
#pragma unroll
    for (int i = 0; i < kChainEach; ++i) {
      if (i < columns)
        store_number(matrix.data, matrix.dtype, (first + i) * matrix.value_step + channel * matrix.key_step, x[i]);
    }
  }
  __device__ __forceinline__ void enter(float (&x)[kChainEach]) const {
    const int64_t slot = composed ? -1 : initial_slot(args.initial, args.has_initial, sequence, args.report);
    const PoolMatrix matrix = slot < 0 ? PoolMatrix{} : pool_matrix(args.initial, slot, head, extent);
#pragma unroll
    for (int i = 0; i < kChainEach; ++i) {
      x[i] = composed && first + i - extent.dv == channel ? 1.0f : 0.0f;
      if (slot >= 0 && i < columns && channel < extent.dk)
        x[i] = load_number(matrix.data, matrix.dtype, (first + i) * matrix.value_step + channel * matrix.key_step);
    }
  }
  __device__ __forceinline__ void leave(const float (&x)[kChainEach]) const {
    if (!composed) return put(args.final, slot_of(args.final, sequence, args.report), x);
    if (channel >= extent.dk) return;
    float* const to = args.stage.composed + (sequence * args.heads_v + head) * (extent.dv + extent.dk) * extent.dk;
#pragma unroll
    for (int i = 0; i < kChainEach; ++i) {
      if (i < columns) to[(first + i) * extent.dk + channel] = x[i];
    }
  }

  __device__ __forceinline__ void run(ChainShared& shared, int place) const {
    const StateView states = states_pool(args.stage, args.heads_v, extent);
    const bool stores = !composed && args.stage.wants(DR_STATES);
    const int64_t begin = args.tables.token_begin()[sequence], end = args.tables.token_begin()[sequence + 1];
    float x[kChainEach];
    enter(x);
    for (int64_t row = begin; row < end; ++row) {
      if (stores) put(states, row, x);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kChainEach; ++i) shared.column[channel][place + i] = x[i];
      __syncthreads();
      if (channel >= extent.dk) continue;
      const float* const b = summary(args.stage.summaries, row);
      const float* const m = b + static_cast<int64_t>(extent.dv) * extent.dk;
#pragma unroll
      for (int i = 0; i < kChainEach; ++i)  // columns of M have no B
        x[i] = i < columns && first + i < extent.dv ? b[(first + i) * extent.dk] : 0.0f;
#pragma unroll 8
      for (int c = 0; c < extent.dk; ++c) {
        const float of_m = m[c * extent.dk];
#pragma unroll
        for (int i = 0; i < kChainEach; i += 4) {
          const float4 s = *reinterpret_cast<const float4*>(&shared.column[c][place + i]);
          x[i] = fmaf(of_m, s.x, x[i]), x[i + 1] = fmaf(of_m, s.y, x[i + 1]);
          x[i + 2] = fmaf(of_m, s.z, x[i + 2]), x[i + 3] = fmaf(of_m, s.w, x[i + 3]);
        }
      }
    }
    leave(x);
  }
};

// CTAs are numbered (sequence, head, tile), the last innermost.
__global__ void __launch_bounds__(kChainThreads) chains_kernel(const __grid_constant__ PassArgs args) {
  __shared__ ChainShared shared;
  allow_next_grid();
  wait_for_previous_grid();
  const Intermediates& stage = args.stage;
  const bool states = stage.wants(DR_STATES) || args.final.data != nullptr;
  const ChainTiles tiles = chain_tiles(args.dk, args.dv, states, stage.wants(DR_COMPOSED));
  const uint32_t line = blockIdx.x / static_cast<uint32_t>(tiles.all()), heads = static_cast<uint32_t>(args.heads_v);
  const int tile = static_cast<int>(blockIdx.x % static_cast<uint32_t>(tiles.all()));
  const int64_t sequence = line / heads;
  if (sequence >= args.tables.num_seqs) return;
  const int lanes = chain_lanes(args.dk), thread = static_cast<int>(threadIdx.x);
  const bool composed = tile >= tiles.states;
  const int place = thread / lanes * kChainEach;
  const int first = (tile - (composed ? tiles.states : 0)) * chain_columns(args.dk) + place;
  const int all = composed ? args.dv + args.dk : args.dv;
  const Chain chain{args,  {args.dk, args.dv}, sequence,       static_cast<int>(line % heads),
                    first, all - first,        thread % lanes, composed};
  chain.run(shared, place);
}

}  // namespace deltarelay::cuda::sm80
