// DR_OUTPUTS: o = scale q_from_start S + Aqk V_new. A CTA has one chunk of one value head, and takes its value columns
// 128 at a time.
#pragma once
#include "kernels/cuda/sm80/stages/inputs.cuh"

namespace deltarelay::cuda::sm80 {

constexpr int kOutputColumns = 128;

struct OutputsShared {
  struct StateTiles {
    SlabTile q;                             // q_from_start
    float state[kOutputColumns][kSlabRow];  // S^T
    BlockSums blocks;
  };
  static constexpr int kRow = kOutputColumns + 4;
  union {
    ScoreTiles scores;
    StateTiles of_state;
    float v_new[32][kRow];
    float o[kStageTokens][kRow];
  };
  Square qk;
  TokenFactors factors;
};

template <int kProducts>
struct Outputs {
  using Numbers = SlabNumbers<kProducts>;
  static constexpr int kSums = kOutputColumns / 8, kRowBytes = kSlabRow * 4;
  using Sums = float[kSums][4];

  // 32 channels of q_from_start.
  static __device__ __forceinline__ void load_queries(const ChunkInputs& in, OutputsShared& shared, int slab) {
    const Intermediates& stage = in.args.stage;
    const int dk = in.args.dk, first = in.warp * kBlock, channel = slab + in.lane;
    const bool given = stage.gives(DR_Q_FROM_START), works = in.warp < in.blocks;
    auto& tiles = shared.of_state;
    float x[kBlock], step[kBlock];
    if (works) {
      load_column(x, given ? in.stage_rows(stage.q_from_start, dk) : in.q(), channel, channel < dk, first, in.tokens);
      if (!given) {
        load_steps(step, in.gates(), channel, first, in.tokens);
        tiles.blocks.sum[in.warp][in.lane] = sum_of(step);
      }
    }
    if (!given) __syncthreads();
    if (!works) return;
    float from_start = given ? 0.0f : tiles.blocks.before(in.warp, in.lane);
#pragma unroll
    for (int t = 0; t < kBlock; ++t) {
      if (!given) {
        from_start += step[t];
        x[t] *= shared.factors.q_norm[first + t] * exp2_approx(from_start);
      }
      tiles.q.row[first + t][in.lane] = x[t];
    }
  }

  // 32 channels of the state at value columns from `column` on, as rows of S^T.
  static __device__ __forceinline__ void load_state(const ChunkInputs& in, OutputsShared& shared, int64_t chunk,
                                                    int column, int slab) {
    const Intermediates& stage = in.args.stage;
    const int dk = in.args.dk, dv = in.args.dv;
    const int64_t matrix = (chunk * in.args.heads_v + in.chunk.head) * dk * dv;
    auto& state = shared.of_state.state;
    const bool value_major = stage.states_layout == StateLayout::kValueMajor;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[kBlock];
      if (value_major) {  // a warp has 32 rows of S^T, a lane one channel
        const int first = in.warp * 32 + half * kBlock;
        const Rows rows{stage.states, stage.dtype_states, matrix + static_cast<int64_t>(column) * dk + slab, dk};
        load_column(x, rows, in.lane, slab + in.lane < dk, first, dv - column);
#pragma unroll
        for (int i = 0; i < kBlock; ++i) state[first + i][in.lane] = x[i];
      } else {  // a thread has a row of S^T
        const int first = half * kBlock;
        const Rows rows{stage.states, stage.dtype_states, matrix + static_cast<int64_t>(slab) * dv + column, dv};
        load_column(x, rows, in.thread, column + in.thread < dv, first, dk - slab);
#pragma unroll
        for (int i = 0; i < kBlock; i += 4)
          *reinterpret_cast<float4*>(&state[in.thread][first + i]) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
      }
    }
  }

  static __device__ __forceinline__ void add_state(const ChunkInputs& in, OutputsShared& shared, int64_t chunk,
                                                   int column, Sums& sums) {
#pragma unroll 1
    for (int slab = 0; slab < in.args.dk; slab += kSlab) {
      __syncthreads();
      load_state(in, shared, chunk, column, slab);
      load_queries(in, shared, slab);
      __syncthreads();
      if (in.warp >= in.blocks) continue;
      const auto left = Numbers::load_left(
          shared_address(shared.of_state.q.row[in.warp * kBlock]) + Numbers::left_place(in.lane, kRowBytes), kRowBytes);
      const uint32_t right = shared_address(shared.of_state.state) + Numbers::rows_place(in.lane, kRowBytes);
#pragma unroll
      for (int n = 0; n < kSums; ++n) Numbers::multiply(sums[n], left, Numbers::load_rows(right + n * 8 * kRowBytes));
    }
  }

  static __device__ __forceinline__ void add_values(const ChunkInputs& in, OutputsShared& shared, int column,
                                                    Sums& sums) {
    constexpr int kTileRowBytes = OutputsShared::kRow * 4;
    const Rows v_new = in.stage_rows(in.args.stage.v_new, in.args.dv);
    for (int group = 0; group * 32 < in.tokens; ++group) {
      __syncthreads();
      const int value = column + in.thread;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[kBlock];
        load_column(x, v_new, value, value < in.args.dv, group * 32 + half * kBlock, in.tokens);
#pragma unroll
        for (int t = 0; t < kBlock; ++t) shared.v_new[half * kBlock + t][in.thread] = x[t];
      }
      __syncthreads();
      if (in.warp >= in.blocks || in.warp / 2 < group) continue;
      const auto left = Numbers::load_left(
          shared_address(&shared.qk.row[in.warp * kBlock][group * 32]) + Numbers::left_place(in.lane, kSquareRow * 4),
          kSquareRow * 4);
      const uint32_t right = shared_address(shared.v_new) + Numbers::columns_place(in.lane, kTileRowBytes);
#pragma unroll
      for (int n = 0; n < kSums; ++n)
        Numbers::multiply(sums[n], left, Numbers::load_columns(right + n * 32, kTileRowBytes));
    }
  }

  static __device__ __forceinline__ void run(const ChunkInputs& in, OutputsShared& shared, int64_t chunk) {
    const Intermediates& stage = in.args.stage;
    const float scale = in.args.activation.scale;
    in.load_factors(shared.factors, false);
    if (stage.gives(DR_AQK)) {
      load_lower(shared.qk, in.stage_rows(stage.aqk, stage.chunk), stage.chunk, in.tokens, in.thread);
    } else {
      clear(shared.qk, in.thread);
      find_scores<kProducts>(shared.scores, in.scores(shared.factors, false, true), shared.qk, shared.qk, in.thread);
      for (int i = in.thread; i < kStageTokens * kSquareRow; i += kStageThreads) (&shared.qk.row[0][0])[i] *= scale;
    }
    const Rows o = rows_of(in.args.o, in.chunk, in.chunk.head);
#pragma unroll 1
    for (int column = 0; column < in.args.dv; column += kOutputColumns) {
      Sums sums = {};
      add_state(in, shared, chunk, column, sums);
#pragma unroll
      for (int i = 0; i < kSums * 4; ++i) sums[i / 4][i % 4] *= scale;
      add_values(in, shared, column, sums);
      __syncthreads();
      if (in.warp < in.blocks) {
        put_sums(sums, &shared.o[0][0], OutputsShared::kRow, in.warp * kBlock, in.lane);
        __syncwarp();
        const int first = in.warp * kBlock;
#pragma unroll
        for (int c = in.lane; c < kOutputColumns; c += 32) {
          float x[kBlock];
#pragma unroll
          for (int t = 0; t < kBlock; ++t) x[t] = shared.o[first + t][c];
          store_column(x, o, column + c, column + c < in.args.dv, first, in.tokens);
        }
      }
    }
  }
};

template <int kProducts>
__global__ void __launch_bounds__(kStageThreads, 3) outputs_kernel(const __grid_constant__ ChunkArgs args) {
  allow_next_grid();
  wait_for_previous_grid();
  ChunkPlace place;
  if (!ChunkInputs::find(args, place)) return;
  Outputs<kProducts>::run(ChunkInputs(args, place), *reinterpret_cast<OutputsShared*>(dynamic_shared_memory()),
                          ChunkGrid::chunk());
}

}  // namespace deltarelay::cuda::sm80
