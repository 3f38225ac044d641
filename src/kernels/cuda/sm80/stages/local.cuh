// DR_CHUNK_LOCAL: what a chunk has without its state. A CTA has one chunk of one value head.
//
// First the scores and from them the inverse, with passes over the channels. Then the rows: W and U are products of the
// inverse, k_to_end, q_from_start and the sums of gates leave from registers.
#pragma once
#include "kernels/cuda/sm80/stages/inputs.cuh"
#include "kernels/cuda/sm80/stages/inverse.cuh"

namespace deltarelay::cuda::sm80 {

struct LocalShared {
  ScoreTiles tiles;
  Square kk, qk;  // Akk, then the inverse; Aqk
  TokenFactors factors;
};

template <int kProducts>
struct Local {
  using Numbers = SlabNumbers<kProducts>;
  static constexpr int kRowBytes = kSlabRow * 4;

  // Stores inverse x (rows in tiles.k), columns [slab, slab + 32). The rows are on their way.
  static __device__ __forceinline__ void solve(const ChunkInputs& in, LocalShared& shared, const Rows& to, int slab,
                                               int width) {
    __syncthreads();
    float sums[kSlab / 8][4] = {};
    SlabTile& tile = shared.tiles.k;
    if (in.warp < in.blocks)
      multiply_lower<Numbers>(sums, shared_address(&shared.kk), in.warp, shared_address(&tile), kRowBytes, in.lane);
    __syncthreads();
    if (in.warp < in.blocks) {
      put_sums(sums, &tile.row[0][0], kSlabRow, in.warp * kBlock, in.lane);
      __syncwarp();
      const int first = in.warp * kBlock;
      float x[kBlock];
#pragma unroll
      for (int t = 0; t < kBlock; ++t) x[t] = tile.row[first + t][in.lane];
      store_column(x, to, slab + in.lane, slab + in.lane < width, first, in.tokens);
    }
    __syncthreads();
  }

  // W, k_to_end, q_from_start and the sums of gates.
  static __device__ __forceinline__ void key_rows(const ChunkInputs& in, LocalShared& shared) {
    const Intermediates& stage = in.args.stage;
    const bool w = stage.wants(DR_W), k_to_end = stage.wants(DR_K_TO_END);
    const bool q_from_start = stage.wants(DR_Q_FROM_START), sums = stage.wants(DR_GATE_SUMS);
    if (!w && !k_to_end && !q_from_start && !sums) return;
    const int dk = in.args.dk, first = in.warp * kBlock;
    const Rows to_w = in.stage_rows(stage.w, dk), to_k = in.stage_rows(stage.k_to_end, dk);
    const Rows to_q = in.stage_rows(stage.q_from_start, dk);
    const Rows to_sums = rows_of(stage.gate_sums, DType::kFp32, in.chunk, in.args.heads_v, in.is_kda ? dk : 1);
    const float to_unit = stage.sums_base_2 ? 1.0f : 1.0f / kLog2e;
#pragma unroll 1
    for (int slab = 0; slab < dk; slab += kSlab) {
      const int channel = slab + in.lane;
      const bool exists = channel < dk;
      float step[kBlock];
      if (in.warp < in.blocks) {
        load_steps(step, in.gates(), channel, first, in.tokens);
        shared.tiles.blocks.sum[in.warp][in.lane] = sum_of(step);
      } else if (w) {
        for (int t = 0; t < kBlock; ++t) shared.tiles.k.row[first + t][in.lane] = 0.0f;
      }
      __syncthreads();
      if (in.warp < in.blocks) {
        const BlockSums& blocks = shared.tiles.blocks;
        float x[kBlock], y[kBlock];
        if (w || k_to_end) {
          load_column(x, in.k(), channel, exists, first, in.tokens);
#pragma unroll
          for (int t = 0; t < kBlock; ++t) x[t] *= shared.factors.k_norm[first + t];
        }
        if (k_to_end) {
          float to_end = blocks.behind(in.warp, in.blocks, in.lane);
#pragma unroll
          for (int t = kBlock - 1; t >= 0; --t) {
            y[t] = x[t] * exp2_approx(to_end);
            to_end += step[t];
          }
          store_column(y, to_k, channel, exists, first, in.tokens);
        }
        float from_start = blocks.before(in.warp, in.lane);
#pragma unroll
        for (int t = 0; t < kBlock; ++t) {
          from_start += step[t];
          y[t] = from_start * to_unit;
          step[t] = exp2_approx(from_start);
        }
        if (sums && (in.is_kda || channel == 0)) store_column(y, to_sums, channel, exists, first, in.tokens);
        if (w) {
#pragma unroll
          for (int t = 0; t < kBlock; ++t)
            shared.tiles.k.row[first + t][in.lane] = shared.factors.beta[first + t] * (x[t] * step[t]);
        }
        if (q_from_start) {
          load_column(x, in.q(), channel, exists, first, in.tokens);
#pragma unroll
          for (int t = 0; t < kBlock; ++t) x[t] *= shared.factors.q_norm[first + t] * step[t];
          store_column(x, to_q, channel, exists, first, in.tokens);
        }
      }
      if (w)
        solve(in, shared, to_w, slab, dk);
      else
        __syncthreads();
    }
  }

  static __device__ __forceinline__ void value_rows(const ChunkInputs& in, LocalShared& shared) {
    const int dv = in.args.dv, first = in.warp * kBlock;
    const Rows to = in.stage_rows(in.args.stage.u, dv);
#pragma unroll 1
    for (int slab = 0; slab < dv; slab += kSlab) {
      float x[kBlock];
      load_column(x, in.v(), slab + in.lane, slab + in.lane < dv, first, in.tokens);
#pragma unroll
      for (int t = 0; t < kBlock; ++t) shared.tiles.k.row[first + t][in.lane] = shared.factors.beta[first + t] * x[t];
      solve(in, shared, to, slab, dv);
    }
  }

  static __device__ __forceinline__ void run(const ChunkInputs& in, LocalShared& shared) {
    const Intermediates& stage = in.args.stage;
    const int chunk = stage.chunk;
    const bool solves = stage.wants(DR_INVERSE | DR_W | DR_U), given = stage.gives(DR_INVERSE);
    const bool kk = solves && !given, qk = stage.wants(DR_AQK);
    in.load_factors(shared.factors, solves);
    clear(shared.kk, in.thread);
    clear(shared.qk, in.thread);
    if (kk || qk)
      find_scores<kProducts>(shared.tiles, in.scores(shared.factors, kk, qk), shared.kk, shared.qk, in.thread);
    if (qk)
      store_lower(shared.qk, in.args.activation.scale, in.stage_rows(stage.aqk, chunk), chunk, in.tokens, in.thread);
    if (kk) {
      invert(shared.kk, shared.factors.beta, in.blocks, in.thread);
      if (stage.wants(DR_INVERSE))
        store_lower(shared.kk, 1.0f, in.stage_rows(stage.inverse, chunk), chunk, in.tokens, in.thread);
    } else {
      __syncthreads();
      if (solves && given) load_lower(shared.kk, in.stage_rows(stage.inverse, chunk), chunk, in.tokens, in.thread);
    }
    __syncthreads();
    key_rows(in, shared);
    if (stage.wants(DR_U)) value_rows(in, shared);
  }
};

template <int kProducts>
__global__ void __launch_bounds__(kStageThreads, 3) local_kernel(const __grid_constant__ ChunkArgs args) {
  allow_next_grid();
  wait_for_previous_grid();
  ChunkPlace place;
  if (!ChunkInputs::find(args, place)) return;
  Local<kProducts>::run(ChunkInputs(args, place), *reinterpret_cast<LocalShared*>(dynamic_shared_memory()));
}

}  // namespace deltarelay::cuda::sm80
