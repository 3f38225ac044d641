// Scores of a chunk: sum_c k_ic k_jc E_ijc for j < i and sum_c q_ic k_jc E_ijc for j <= i, with E_ij the decay from
// token j to token i, for gates of any size.
//
// A chunk has blocks of 16 tokens. Inside a block, keys are decayed from token to token. Between block J and a later
// block I, E is a product of three decays: of the column to the end of J, of the blocks between, and of the row from
// the start of I. The first and the last go into the tiles of a product, the middle one into its left operand.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/stages/gates.cuh"
#include "kernels/cuda/sm80/stages/products.cuh"
#include "kernels/cuda/tile/warp_sum.cuh"

namespace deltarelay::cuda::sm80 {

struct Square {
  float row[kStageTokens][kSquareRow];
};

struct SlabTile {
  float row[kStageTokens][kSlabRow];
};

// Tiles of one slab of channels.
struct ScoreTiles {
  SlabTile k, q;
  SlabTile decay;  // of each token; then keys, decayed to the end of their block
  BlockSums blocks;
  float decays[BlockSums::kBlocks][kSlab];  // of whole blocks
};

// What the scores are made of.
struct ScoreInputs {
  Rows k, q;
  const float *k_norms, *q_norms;  // factors of tokens, in shared memory
  GateSource gates;
  int dk, tokens, blocks;
  bool wants_kk, wants_qk;
};

// Scores of block `block` within itself, from one slab. Thread (column j, four channels) decays its key through the
// block; eight lanes share a column.
__device__ __forceinline__ void score_block(const ScoreTiles& tiles, const ScoreInputs& in, int block, Square& kk,
                                            Square& qk, int thread) {
  const int j = thread / 8, lane = thread % 32, base = block * kBlock, channel = thread % 8 * 4;
  auto four = [channel](const SlabTile& tile, int row) {
    return *reinterpret_cast<const float4*>(&tile.row[row][channel]);
  };
  float4 key = four(tiles.k, base + j);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == 0 && thread >= 64) continue;  // columns 8 to 15 have no rows before 8
    float of_k[8], of_q[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const int i = 8 * half + u;
      const float4 decay = four(tiles.decay, base + i), k = four(tiles.k, base + i), q = four(tiles.q, base + i);
      if (i > j) key = make_float4(key.x * decay.x, key.y * decay.y, key.z * decay.z, key.w * decay.w);
      of_k[u] = i >= j ? key.x * k.x + key.y * k.y + key.z * k.z + key.w * k.w : 0.0f;
      of_q[u] = i >= j ? key.x * q.x + key.y * q.y + key.z * q.z + key.w * q.w : 0.0f;
    }
    const float sum_k = sum_over_lanes<8, 8>(of_k, lane), sum_q = sum_over_lanes<8, 8>(of_q, lane);
    const int i = 8 * half + thread % 8;
    if (i < j) continue;
    if (in.wants_kk) kk.row[base + i][base + j] += sum_k;
    if (in.wants_qk) qk.row[base + i][base + j] += sum_q;
  }
}

// Pairs of blocks (row, column), column < row: of 6 pairs in a chunk of 64 tokens, each with two matrices, a warp has
// three.
struct BlockPair {
  int row, column;
  bool of_q;
  __device__ __forceinline__ explicit BlockPair(int item) : of_q(item % 2 != 0) {
    const int pair = item / 2;
    row = pair < 1 ? 1 : pair < 3 ? 2 : 3;
    column = pair - row * (row - 1) / 2;
  }
};

// Adds the scores to `kk` and `qk`, which are 0, with the whole CTA. Begins and ends with a barrier.
template <int kProducts>
__device__ __forceinline__ void find_scores(ScoreTiles& tiles, const ScoreInputs& in, Square& kk, Square& qk,
                                            int thread) {
  using Numbers = SlabNumbers<kProducts>;
  constexpr int kItems = 3, kRowBytes = kSlabRow * 4;
  const int warp = thread / 32, lane = thread % 32, first = warp * kBlock;
  const int items = in.blocks * (in.blocks - 1);
  float sums[kItems][2][4] = {};
#pragma unroll 1
  for (int slab = 0; slab < in.dk; slab += kSlab) {
    const int channel = slab + lane;
    float k[kBlock], q[kBlock], step[kBlock];
    __syncthreads();
    if (warp < in.blocks) {
      load_column(k, in.k, channel, channel < in.dk, first, in.tokens);
      load_column(q, in.q, channel, in.wants_qk && channel < in.dk, first, in.tokens);
      load_steps(step, in.gates, channel, first, in.tokens);
#pragma unroll
      for (int t = 0; t < kBlock; ++t) {
        k[t] *= in.k_norms[first + t];
        q[t] *= in.q_norms[first + t];
        tiles.k.row[first + t][lane] = k[t];
        tiles.q.row[first + t][lane] = q[t];
        tiles.decay.row[first + t][lane] = exp2_approx(step[t]);
      }
      tiles.decays[warp][lane] = exp2_approx(sum_of(step));
    }
    __syncthreads();
    for (int block = 0; block < in.blocks; ++block) score_block(tiles, in, block, kk, qk, thread);
    if (items == 0) continue;
    __syncthreads();
    if (warp < in.blocks) {
      float from_start = 0.0f, to_end = 0.0f;
#pragma unroll
      for (int t = 0; t < kBlock; ++t) {
        from_start += step[t];
        const float decay = exp2_approx(from_start);
        tiles.k.row[first + t][lane] = k[t] * decay;
        tiles.q.row[first + t][lane] = q[t] * decay;
      }
#pragma unroll
      for (int t = kBlock - 1; t >= 0; --t) {
        tiles.decay.row[first + t][lane] = k[t] * exp2_approx(to_end);
        to_end += step[t];
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kItems; ++n) {
      const int item = warp + 4 * n;
      const BlockPair pair(item);
      if (item >= items || !(pair.of_q ? in.wants_qk : in.wants_kk)) continue;
      float2 between[Numbers::kSteps];
#pragma unroll
      for (int s = 0; s < Numbers::kSteps; ++s) {
        between[s] = make_float2(1.0f, 1.0f);
#pragma unroll
        for (int b = 1; b < 3; ++b) {
          if (b <= pair.column || b >= pair.row) continue;
          const float2 decay = *reinterpret_cast<const float2*>(&tiles.decays[b][8 * s + lane % 4 * 2]);
          between[s] = make_float2(between[s].x * decay.x, between[s].y * decay.y);
        }
      }
      const SlabTile& rows = pair.of_q ? tiles.q : tiles.k;
      const auto left = load_left_scaled<Numbers>(
          shared_address(rows.row[pair.row * kBlock]) + Numbers::left_place(lane, kRowBytes), kRowBytes, between);
      const uint32_t right =
          shared_address(tiles.decay.row[pair.column * kBlock]) + Numbers::rows_place(lane, kRowBytes);
#pragma unroll
      for (int i = 0; i < 2; ++i) Numbers::multiply(sums[n][i], left, Numbers::load_rows(right + i * 8 * kRowBytes));
    }
  }
#pragma unroll
  for (int n = 0; n < kItems; ++n) {
    const int item = warp + 4 * n;
    const BlockPair pair(item);
    if (item >= items || !(pair.of_q ? in.wants_qk : in.wants_kk)) continue;
    Square& to = pair.of_q ? qk : kk;
    put_sums(sums[n], &to.row[0][pair.column * kBlock], kSquareRow, pair.row * kBlock, lane);
  }
  __syncthreads();
}

// Sets a matrix to 0, with the whole CTA.
__device__ __forceinline__ void clear(Square& square, int thread) {
  for (int i = thread; i < kStageTokens * kSquareRow; i += kStageThreads) (&square.row[0][0])[i] = 0.0f;
}

// Loads the lower triangle of a given C x C matrix, whose other numbers are not read; with the whole CTA.
__device__ __forceinline__ void load_lower(Square& square, const Rows& rows, int chunk, int tokens, int thread) {
  const int first = thread / 32 * kBlock;
#pragma unroll
  for (int column = thread % 32; column < kStageTokens; column += 32) {
    float x[kBlock];
    load_column(x, rows, column, column < chunk, first, min(tokens, chunk));
#pragma unroll
    for (int t = 0; t < kBlock; ++t) square.row[first + t][column] = column <= first + t ? x[t] : 0.0f;
  }
}

// Stores the lower triangle times `factor`, and zeros above the diagonal.
__device__ __forceinline__ void store_lower(const Square& square, float factor, const Rows& rows, int chunk, int tokens,
                                            int thread) {
  const int first = thread / 32 * kBlock;
#pragma unroll
  for (int column = thread % 32; column < kStageTokens; column += 32) {
    float x[kBlock];
#pragma unroll
    for (int t = 0; t < kBlock; ++t) x[t] = column <= first + t ? square.row[first + t][column] * factor : 0.0f;
    store_column(x, rows, column, column < chunk, first, tokens);
  }
}

}  // namespace deltarelay::cuda::sm80
