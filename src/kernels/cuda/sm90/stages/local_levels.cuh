// KDA scores of a chunk of 64 tokens, exact whatever the gates are.
//
// Two tokens i > j differ first in one bit of their numbers: at that level L = 32, 16, ..., 1 token i has the bit and
// is a row, token j has not and is a column, and a border lies between them, at the last multiple of L up to i. In the
// frame of that border
//     Aqk_ij ~ (q_i e^{G_i - G_border}) (k_j e^{G_border - G_j})
// no exponent exceeds 0, so nothing overflows, and what vanishes is 0. Six products of 32 rows (of q, and of k) by 32
// columns give all pairs; the diagonal needs no gate. The factors of a level are running products of the decays of
// single tokens: one exponential for each gate is all there is.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/stages/local_memory.cuh"

namespace deltarelay::cuda::sm90::local {

constexpr int kBlock = 16;  // tokens of a thread, which has two channels of them

// The warps of a CTA: four blocks of tokens by two halves of the channels.
struct WarpPlace {
  int lane, block, half;
  uint32_t word;  // byte of this lane's two channels in a row of a tile, before its swizzle
  __device__ __forceinline__ WarpPlace() {
    const int warp = uniform(static_cast<int>(threadIdx.x / 32));
    lane = static_cast<int>(threadIdx.x % 32);
    block = warp % 4;
    half = warp / 4;
    word = static_cast<uint32_t>(lane) * 4;
  }
  __device__ __forceinline__ int channel() const { return half * kHalfWidth + 2 * lane; }
  __device__ __forceinline__ uint32_t at(int row) const { return row * kRowBytes + (word ^ ((row & 7) << 4)); }
};

// A thread's part of the chunk: 16 tokens, two channels. Tokens past the end have q = k = 0 and do not decay.
struct Part {
  uint32_t q[kBlock], k[kBlock];
  float2 decay[kBlock];

  // Hides the values from the compiler. It would otherwise keep products and unpacked numbers that two steps share in
  // registers between them, and has not enough for that.
  __device__ __forceinline__ void renew() {
#pragma unroll
    for (int t = 0; t < kBlock; ++t) asm volatile("" : "+r"(q[t]), "+r"(k[t]), "+f"(decay[t].x), "+f"(decay[t].y));
  }
  // The same for ptxas, which sees through that. `zero` is 0, and the compiler must not know it.
  __device__ __forceinline__ void renew(uint32_t zero) {
#pragma unroll
    for (int t = 0; t < kBlock; ++t) {
      q[t] ^= zero;
      k[t] ^= zero;
    }
  }
};

__device__ __forceinline__ float2 times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
template <class Element>
__device__ __forceinline__ uint32_t scaled(uint32_t two, float2 by) {
  return Pair<Element>::pack(Pair<Element>::low(two) * by.x, Pair<Element>::high(two) * by.y);
}
__device__ __forceinline__ void put(uint8_t* tile, uint32_t at, uint32_t two) {
  *reinterpret_cast<uint32_t*>(tile + at) = two;
}

// Operands of level kLevel = 1 .. 8: eight rows of q, eight of k and eight columns for each block of tokens.
template <class Element, int kLevel>
__device__ __forceinline__ void write_fine_level(LevelTile& to, const Part& part, const WarpPlace& at) {
  uint8_t* rows = to.rows[at.half] + at.block * 16 * kRowBytes;
  uint8_t* columns = to.columns[at.half] + at.block * 8 * kRowBytes;
#pragma unroll
  for (int first = 0; first < kBlock; first += 2 * kLevel) {
    float2 run = {1.0f, 1.0f};
#pragma unroll
    for (int t = kLevel - 1; t >= 0; --t) {
      const int token = first + t;
      put(columns, at.at(first / 2 + t), t == kLevel - 1 ? part.k[token] : scaled<Element>(part.k[token], run));
      run = t == kLevel - 1 ? part.decay[token] : times(run, part.decay[token]);
    }
#pragma unroll
    for (int t = 0; t < kLevel; ++t) {
      const int token = first + kLevel + t;
      run = t == 0 ? part.decay[token] : times(run, part.decay[token]);
      put(rows, at.at(first / 2 + t), scaled<Element>(part.q[token], run));
      put(rows, at.at(8 + first / 2 + t), scaled<Element>(part.k[token], run));
    }
  }
}

// Operands of levels 16 and 32: the whole block is rows, or columns. `run`: the decay between block and border.
template <class Element>
__device__ __forceinline__ void write_rows(uint8_t* rows_q, uint8_t* rows_k, float2 run, const Part& part,
                                           const WarpPlace& at) {
#pragma unroll
  for (int t = 0; t < kBlock; ++t) {
    run = times(run, part.decay[t]);
    put(rows_q, at.at(t), scaled<Element>(part.q[t], run));
    put(rows_k, at.at(t), scaled<Element>(part.k[t], run));
  }
}
template <class Element>
__device__ __forceinline__ void write_columns(uint8_t* columns, float2 run, const Part& part, const WarpPlace& at) {
#pragma unroll
  for (int t = kBlock - 1; t >= 0; --t) {
    put(columns, at.at(t), scaled<Element>(part.k[t], run));
    run = times(run, part.decay[t]);
  }
}
template <class Element>
__device__ __forceinline__ void write_coarse_levels(LevelTile (&to)[2], const float (&products)[4][kWidth], Part& part,
                                                    const WarpPlace& at) {
  constexpr int kBlockBytes = kBlock * kRowBytes;
  const float2 none = {1.0f, 1.0f};
  auto product = [&](int block) { return *reinterpret_cast<const float2*>(&products[block][at.channel()]); };
  uint8_t* const rows16 = to[0].rows[at.half] + at.block / 2 * kBlockBytes;
  uint8_t* const rows32 = to[1].rows[at.half] + at.block % 2 * kBlockBytes;
  uint8_t* const columns16 = to[0].columns[at.half] + at.block / 2 * kBlockBytes;
  uint8_t* const columns32 = to[1].columns[at.half] + at.block % 2 * kBlockBytes;
  if (at.block % 2 == 1)
    write_rows<Element>(rows16, rows16 + 2 * kBlockBytes, none, part, at);
  else
    write_columns<Element>(columns16, none, part, at);
  part.renew();
  if (at.block >= 2)
    write_rows<Element>(rows32, rows32 + 2 * kBlockBytes, at.block == 3 ? product(2) : none, part, at);
  else
    write_columns<Element>(columns32, at.block == 0 ? product(1) : none, part, at);
}

// Scores on their way to Aqk and Akk.
template <class Element>
struct ScoreWriter {
  Scores scores;
  const PerToken& tokens;
  float scale;

  // Neighbouring columns of one row.
  __device__ __forceinline__ void query(int row, int column, float low, float high) const {
    const float by = scale * tokens.norm_q[row];
    const float2 of = *reinterpret_cast<const float2*>(&tokens.norm_k[column]);
    *reinterpret_cast<uint32_t*>(scores.aqk + swizzled_offset(row, column / 8) + column % 8 * 2) =
        Pair<Element>::pack(low * by * of.x, high * by * of.y);
  }
  __device__ __forceinline__ void key(int row, int column, float low, float high) const {
    const float by = tokens.beta[row] * tokens.norm_k[row];
    const float2 of = *reinterpret_cast<const float2*>(&tokens.norm_k[column]);
    *reinterpret_cast<float2*>(&scores.lower.row[row][column]) = {low * by * of.x, high * by * of.y};
  }
  // The pair (row, row - 1), whose row is odd, with what lies on the diagonal.
  __device__ __forceinline__ void neighbours(int row, float query, float key) const {
    const float by_k = tokens.norm_k[row - 1];
    *reinterpret_cast<uint32_t*>(scores.aqk + swizzled_offset(row, row / 8) + (row - 1) % 8 * 2) =
        Pair<Element>::pack(query * scale * tokens.norm_q[row] * by_k, tokens.diagonal[row]);
    *reinterpret_cast<uint32_t*>(scores.aqk + swizzled_offset(row - 1, row / 8) + (row - 1) % 8 * 2) =
        Pair<Element>::pack(tokens.diagonal[row - 1], 0.0f);
    scores.lower.row[row][row - 1] = key * tokens.beta[row] * tokens.norm_k[row] * by_k;
  }
};

// One block of tokens at level kLevel = 1 .. 8 by one warp: rows of q in d[0], d[1], of k in d[2], d[3].
template <class Element, int kLevel>
__device__ __forceinline__ void multiply_fine_level(const LevelTile& from, const ScoreWriter<Element>& to, int block,
                                                    int lane) {
  const uint32_t rows = shared_address(from.rows[0]) + swizzled_offset(16 * block + lane % 16, lane / 16);
  const uint32_t columns = shared_address(from.columns[0]) + swizzled_offset(8 * block + lane % 8, lane / 8);
  float d[2][4] = {};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const Fragment two = load_matrix((columns ^ (k % 2 * 64)) + k / 2 * sizeof(from.columns[0]));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const Fragment a = load_matrix((rows ^ (k % 2 * 64 + e * 32)) + k / 2 * sizeof(from.rows[0]));
      mma<Element>(d[e], a, two.reg[2 * e], two.reg[2 * e + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) d[0][i] += d[1][i];
  const int r = lane / 4, c = 2 * (lane % 4);
  auto token = [block](int index) { return block * kBlock + index / kLevel * 2 * kLevel + index % kLevel; };
  if constexpr (kLevel == 1) {
    const bool odd = r % 2 == 1;
    if (r / 2 == c / 2) to.neighbours(token(r) + 1, odd ? d[0][1] : d[0][0], odd ? d[0][3] : d[0][2]);
  } else if (r / kLevel == c / kLevel) {
    to.query(token(r) + kLevel, token(c), d[0][0], d[0][1]);
    to.key(token(r) + kLevel, token(c), d[0][2], d[0][3]);
  }
}

// Levels 32 (warps 0-3: 16 rows by 32 columns) and 16 (warps 4-7: 16 rows by 16 columns).
template <class Element, int kLevel>
__device__ __forceinline__ void multiply_coarse_level(const LevelTile& from, const ScoreWriter<Element>& to,
                                                      int row_block, int lane) {
  constexpr int kPairs = kLevel / 16;  // of blocks of 8 columns
  const int group = kLevel == 16 ? row_block % 2 : 0;
  const uint32_t rows = shared_address(from.rows[0]) + swizzled_offset(16 * row_block + lane % 16, lane / 16);
  const uint32_t columns =
      shared_address(from.columns[0]) + swizzled_offset(16 * group + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  float d[2 * kPairs][4] = {};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const Fragment a = load_matrix((rows ^ (k % 4 * 32)) + k / 4 * sizeof(from.rows[0]));
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const Fragment b = load_matrix((columns ^ (k % 4 * 32)) + n * 16 * kRowBytes + k / 4 * sizeof(from.columns[0]));
      mma<Element>(d[2 * n], a, b.reg[0], b.reg[1]);
      mma<Element>(d[2 * n + 1], a, b.reg[2], b.reg[3]);
    }
  }
  const int first = kLevel == 16 ? 16 + 32 * group : 32 + 16 * (row_block % 2);
#pragma unroll
  for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + lane / 4 + 8 * r, column = 32 * group + 8 * n + 2 * (lane % 4);
      if (row_block < 2)
        to.query(row, column, d[n][2 * r], d[n][2 * r + 1]);
      else
        to.key(row, column, d[n][2 * r], d[n][2 * r + 1]);
    }
  }
}

// Aqk and Akk of the chunk. Ends with a barrier of the CTA: the tiles are free again.
template <class Element>
__device__ __forceinline__ void make_channel_scores(LevelTile (&tiles)[2], const float (&products)[4][kWidth],
                                                    Part& part, const ScoreWriter<Element>& to, const WarpPlace& at) {
  auto both_halves_of_block = [&] { named_barrier(1 + at.block, 64); };
  write_fine_level<Element, 1>(tiles[0], part, at);
  part.renew();
  write_fine_level<Element, 2>(tiles[1], part, at);
  both_halves_of_block();
  if (at.half == 0)
    multiply_fine_level<Element, 1>(tiles[0], to, at.block, at.lane);
  else
    multiply_fine_level<Element, 2>(tiles[1], to, at.block, at.lane);
  both_halves_of_block();
  part.renew();
  write_fine_level<Element, 4>(tiles[0], part, at);
  part.renew();
  write_fine_level<Element, 8>(tiles[1], part, at);
  both_halves_of_block();
  if (at.half == 0)
    multiply_fine_level<Element, 4>(tiles[0], to, at.block, at.lane);
  else
    multiply_fine_level<Element, 8>(tiles[1], to, at.block, at.lane);
  __syncthreads();
  part.renew();
  write_coarse_levels<Element>(tiles, products, part, at);
  __syncthreads();
  if (at.half == 0)
    multiply_coarse_level<Element, 32>(tiles[1], to, at.block, at.lane);
  else
    multiply_coarse_level<Element, 16>(tiles[0], to, at.block, at.lane);
  ptx::fence_proxy_async(ptx::space_shared);  // Aqk is stored by TMA
  __syncthreads();
}

}  // namespace deltarelay::cuda::sm90::local
