// GDN `prepare` for chunks of 64 tokens: one CTA per (chunk, q/k head, up to 4 of its value heads) turns raw q, k, g, beta into records.
//
// Squares of tokens are worked on in blocks of 16 x 16, as sums of products hold them. In role r, a warp has block row r of Q K^T and block
// row 3 - r of K K^T, five blocks on or below the diagonal in all; they stay in its registers for all value heads. With G the inclusive sum of
// log2 decays of a head, and start(b), end(b) that sum before and after the tokens of block b:
//     e^{Gi-Gj} = e^{Gi-start(bi)} e^{start(bi)-end(bj)} e^{end(bj)-Gj}        below the diagonal blocks
// has no exponent above 0, so such a block takes a factor for each of its rows and columns. In a diagonal block each pair takes its own.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/args.h"
#include "kernels/cuda/find_sequence.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/prepare_gdn.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/tile.cuh"

namespace deltarelay::cuda::sm80 {

template <class Number, int kWidth>
struct GdnPrepareLong {
  using Numbers = Arithmetic<Number>;
  static constexpr RecordPlaces kRecord = record_places(Op::kGdn, sizeof(Number), kWidth);
  static constexpr int kBlocks = kLongChunk / 16, kElement = sizeof(Number);
  static constexpr int kRowBytes = kWidth * kElement + 16, kTile = kLongChunk * kRowBytes;
  static_assert(kBlocks == kWarps && chunk_of(Op::kGdn, kElement, kWidth) == kLongChunk);

  // L, then X = (I + L)^-1 in its diagonal blocks. With this row length, reads of right operands touch every bank once.
  struct Lower {
    float row[kLongChunk][kLongChunk + 4];
  };
  // What the squares of one value head need. Of tokens past the end, all but `sum` is 0.
  struct Head {
    float sum[kLongChunk];                             // G
    float query[kLongChunk], key[kLongChunk];          // of a row of P (scale rq), of L (beta rk)
    float query_far[kLongChunk], key_far[kLongChunk];  // the same times e^{G-start}
    float column[kLongChunk];                          // rk e^{end-G}
  };
  struct Shared {
    union {
      alignas(16) uint8_t tiles[2 * kTile];  // q, k
      Lower lower[2];                        // of even and odd heads, once the products are formed
    };
    float norm[2][kLongChunk];
    Head head[kHeadsTogether];
  };

  // Sum n of Q K^T stands at n, sum n of K K^T at 9 - n: the two never meet.
  static constexpr int kSums = 2 * kBlocks + 2;
  // `squares`: block (role, role) of Q Q^T, for the norms.
  template <int kRole>
  static __device__ __forceinline__ void form_products(float (&sums)[kSums][4], float (&squares)[2][4],
                                                       const Shared& shared, int lane) {
    constexpr int role = kRole;
    const uint32_t tiles = shared_address(shared.tiles), place = Numbers::left_place(lane, kRowBytes);
    const uint32_t queries = tiles + 16 * role * kRowBytes + place;
    const uint32_t keys = tiles + kTile + 16 * (kBlocks - 1 - role) * kRowBytes + place;
    const uint32_t columns = tiles + Numbers::rows_place(lane, kRowBytes);
#pragma unroll 1  // registers hold the operands of one
    for (int group = 0; group < kWidth / 32; ++group) {
      const int at = group * 32 * kElement;
      const typename Numbers::Left q = Numbers::load_left(queries + at, kRowBytes);
      const typename Numbers::Left k = Numbers::load_left(keys + at, kRowBytes);
#pragma unroll
      for (int n = 0; n < 2; ++n)
        Numbers::multiply(squares[n], q, Numbers::load_rows(columns + at + (16 * role + 8 * n) * kRowBytes));
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) {
        constexpr int kMost = kRole < kBlocks - 1 - kRole ? kBlocks - 1 - kRole : kRole;
        const bool below_q = n / 2 <= role, below_k = n / 2 <= kBlocks - 1 - role;
        if (n / 2 > kMost) continue;
        const typename Numbers::Right right = Numbers::load_rows(columns + kTile + at + n * 8 * kRowBytes);
        if (below_q) Numbers::multiply(sums[n], q, right);
        if (below_k) Numbers::multiply(sums[kSums - 1 - n], k, right);
      }
    }
  }

  // 1 / |row| of 16 rows of q (times the scale) and of k, from the diagonals of Q Q^T and K K^T: lane 4 g + g / 2 has those of rows g and g + 8.
  static __device__ __forceinline__ void find_norms(Shared& shared, const Activation& activation,
                                                    const float (&sums)[kSums][4], const float (&squares)[2][4],
                                                    int valid, int role, int lane) {
    const int g = lane / 4, key_row = kBlocks - 1 - role;
    if (lane % 4 != g / 2) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float q = squares[r][2 * r + 1], k = 0.0f;
      if (g % 2 == 0) q = squares[r][2 * r];
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const float(&block)[4] = sums[kSums - 1 - (2 * j + r)];
        if (j == key_row) k = g % 2 == 0 ? block[2 * r] : block[2 * r + 1];
      }
      const int token_q = 16 * role + g + 8 * r, token_k = 16 * key_row + g + 8 * r;
      const float norm_q = activation.l2norm ? rsqrtf(q + kL2NormEpsilon) : 1.0f;
      const float norm_k = activation.l2norm ? rsqrtf(k + kL2NormEpsilon) : 1.0f;
      shared.norm[0][token_q] = token_q < valid ? activation.scale * norm_q : 0.0f;
      shared.norm[1][token_k] = token_k < valid ? norm_k : 0.0f;
    }
  }

  // Gates and betas of one head, by one warp: a lane has tokens 2 l and 2 l + 1.
  struct Tokens {
    float sum[2], beta[2];
  };
  static __device__ __forceinline__ Tokens load_tokens(const Activation& activation, const ChunkPlace& place, int head,
                                                       int lane) {
    const TensorView &g = activation.g, &b = activation.beta;
    const GateParams params = gate_params(activation, head, 0, 1);
    const int64_t first_g = place.sequence_at * g.sequence + head * g.head;
    const int64_t first_b = place.sequence_at * b.sequence + head * b.head;
    float raw_g[2], raw_b[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t token = place.token + (2 * lane + e < place.valid ? 2 * lane + e : 0);
      raw_g[e] = load_number(g.data, g.dtype, first_g + token * g.token);
      raw_b[e] = load_number(b.data, b.dtype, first_b + token * b.token);
    }
    Tokens tokens;
#pragma unroll
    for (int e = 0; e < 2; ++e) {  // past the end: no decay, no update
      const bool exists = 2 * lane + e < place.valid;
      tokens.sum[e] = exists ? log2_decay(raw_g[e], params) : 0.0f;
      tokens.beta[e] = exists ? write_strength(raw_b[e], activation.beta_form) : 0.0f;
    }
    tokens.sum[1] += tokens.sum[0];
    float all = tokens.sum[1];  // of this lane's pair and those before it
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float below = __shfl_up_sync(~0u, all, step);
      if (lane >= step) all += below;
    }
    const float before = __shfl_up_sync(~0u, all, 1);
    tokens.sum[0] += lane > 0 ? before : 0.0f;
    tokens.sum[1] = all;
    return tokens;
  }

  // Vectors of the record but the diagonal, and what the squares need.
  static __device__ __forceinline__ void make_factors(Shared& shared, Head& head, const Tokens& tokens, uint8_t* record,
                                                      int lane) {
    const float last = __shfl_sync(~0u, tokens.sum[1], 31);
    const float end = __shfl_sync(~0u, tokens.sum[1], lane / 8 * 8 + 7);
    const float before = __shfl_sync(~0u, tokens.sum[1], lane < 8 ? 0 : lane / 8 * 8 - 1);
    const float start = lane < 8 ? 0.0f : before;
    float read[2], query[2], update[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = 2 * lane + e;
      const float sum = tokens.sum[e], rq = shared.norm[0][token], rk = shared.norm[1][token];
      const float from_start = exp2_approx(sum), near = exp2_approx(sum - start), strength = tokens.beta[e] * rk;
      head.sum[token] = sum;
      head.query[token] = rq;
      head.key[token] = strength;
      head.query_far[token] = rq * near;
      head.key_far[token] = strength * near;
      head.column[token] = rk * exp2_approx(end - sum);
      read[e] = strength * from_start;
      query[e] = rq * from_start;
      update[e] = rk * exp2_approx(last - sum);
    }
    auto put = [&](int vector, const float(&pair)[2]) {
      reinterpret_cast<float2*>(record + vector)[vector_place(2 * lane) / 2] = make_float2(pair[0], pair[1]);
    };
    put(kRecord.beta, tokens.beta);
    put(kRecord.read_factor, read);
    put(kRecord.query_factor, query);
    put(kRecord.update_factor, update);
    // With zeros up to the end, so that a copy of the record reads nothing unwritten.
    if (lane < 4) reinterpret_cast<float*>(record + kRecord.decay)[lane] = lane == 0 ? exp2_approx(last) : 0.0f;
  }

  // Block (i, j) of P or L in place of the products. rows, rows_far: of P or of L.
  static __device__ __forceinline__ void scale_block(float (&block)[2][4], const Shared& shared, const Head& head,
                                                     const float* rows, const float* rows_far, int i, int j, int lane) {
    const int row = 16 * i + lane / 4, column = 16 * j + lane % 4 * 2;
    if (j < i) {
      const float far = exp2_approx(head.sum[16 * i - 1] - head.sum[16 * j + 15]);
      const float upper = rows_far[row] * far, lower = rows_far[row + 8] * far;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 c = *reinterpret_cast<const float2*>(&head.column[column + 8 * n]);
        block[n][0] *= upper * c.x, block[n][1] *= upper * c.y;
        block[n][2] *= lower * c.x, block[n][3] *= lower * c.y;
      }
      return;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = column + 8 * n + e;
        const float rk = shared.norm[1][c], sum = head.sum[c];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = row + 8 * r;
          const float scaled = block[n][2 * r + e] * (rows[at] * rk) * exp2_approx(head.sum[at] - sum);
          block[n][2 * r + e] = c < at ? scaled : 0.0f;  // right of the diagonal the exponent may be anything: select
        }
      }
    }
  }

  // X = (I + L)^-1 of a diagonal block, in its place, by substitution in fp32: repeated keys (L near 1 everywhere) make powers of L grow while
  // the inverse stays bounded, so no series will do. A lane solves a row, x (I + L) = e_row, from the last column back; lanes 16 to 31 repeat.
  static __device__ __forceinline__ void invert_block(Lower& lower, int first, int lane) {
    float x[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) x[j] = j == lane % 16 ? 1.0f : 0.0f;
#pragma unroll
    for (int m = 15; m >= 1; --m) {
#pragma unroll
      for (int j = 0; j < m; j += 4) {
        const float4 l = *reinterpret_cast<const float4*>(&lower.row[first + m][first + j]);
        x[j] = fmaf(-x[m], l.x, x[j]);
        if (j + 1 < m) x[j + 1] = fmaf(-x[m], l.y, x[j + 1]);
        if (j + 2 < m) x[j + 2] = fmaf(-x[m], l.z, x[j + 2]);
        if (j + 3 < m) x[j + 3] = fmaf(-x[m], l.w, x[j + 3]);
      }
    }
    __syncwarp();
    if (lane < 16) {
#pragma unroll
      for (int j = 0; j < 16; j += 4)
        *reinterpret_cast<float4*>(&lower.row[first + lane][first + j]) =
            make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
    }
    __syncwarp();
  }

  // A block of sums as left operands of TF32 (arithmetic.cuh says which column is which). bf16 keeps fewer bits of T than one product of
  // upper parts has, fp16 as many: it takes three products.
  static constexpr bool kThree = std::is_same_v<Number, __half>;
  struct Left {
    uint32_t high[2][4], low[kThree ? 2 : 1][4];
  };
  static __device__ __forceinline__ Left left_block(const float (&block)[2][4]) {
    Left left;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = block[i / 4][i % 2 * 2 + i / 2 % 2];
      if constexpr (kThree)
        FloatArithmetic<3>::split(x, left.high[i / 4][i % 4], left.low[i / 4][i % 4]);
      else
        left.high[i / 4][i % 4] = as_tf32(x);
    }
    return left;
  }
  // Adds left times block (i, j) of `lower`.
  static __device__ __forceinline__ void add_product(float (&sum)[2][4], const Left& left, const Lower& lower, int i,
                                                     int j, int lane) {
    const float* right = &lower.row[16 * i + lane % 4 * 2][16 * j + lane / 4];
    constexpr int kRow = kLongChunk + 4;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float x = right[8 * step * kRow + 8 * n], y = right[(8 * step + 1) * kRow + 8 * n];
        if constexpr (kThree) {
          uint32_t high[2], low[2];
          FloatArithmetic<3>::split(x, high[0], low[0]);
          FloatArithmetic<3>::split(y, high[1], low[1]);
          mma_tf32(sum[n], left.low[step], high[0], high[1]);
          mma_tf32(sum[n], left.high[step], low[0], low[1]);
          mma_tf32(sum[n], left.high[step], high[0], high[1]);
        } else {
          mma_tf32(sum[n], left.high[step], as_tf32(x), as_tf32(y));
        }
      }
    }
  }

  // Block row `row` of T. With X_ii the inverses of diagonal blocks: X_ij = -(sum over j < m <= i of X_im L_mj) X_jj, from the diagonal back,
  // so that a row needs no other.
  static __device__ __forceinline__ void store_inverse_row(const Lower& lower, uint8_t* t, int row, int lane) {
    Left left[kBlocks];  // X of this row; [kBlocks - 1] is the diagonal block, whatever the row
    float x[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair =
            *reinterpret_cast<const float2*>(&lower.row[16 * row + lane / 4 + 8 * r][16 * row + lane % 4 * 2 + 8 * n]);
        x[n][2 * r] = pair.x, x[n][2 * r + 1] = pair.y;
      }
    }
    left[kBlocks - 1] = left_block(x);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[n][i] = lane % 4 * 2 + 8 * n + i % 2 < lane / 4 + i / 2 * 8 ? x[n][i] : 0.0f;  // without the identity
    }
    store_block<Number>(t, row, row, x[0], x[1], lane);
#pragma unroll
    for (int j = kBlocks - 2; j >= 0; --j) {
      if (j >= row) continue;
      float y[2][4] = {};
      add_product(y, left[kBlocks - 1], lower, row, j, lane);
#pragma unroll
      for (int m = kBlocks - 2; m > j; --m) {
        if (m < row) add_product(y, left[m], lower, m, j, lane);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) y[i / 4][i % 4] = -y[i / 4][i % 4], x[i / 4][i % 4] = 0.0f;
      add_product(x, left_block(y), lower, j, j, lane);
      left[j] = left_block(x);
      store_block<Number>(t, row, j, x[0], x[1], lane);
    }
  }

  // One value head, by all warps.
  static __device__ __forceinline__ void prepare_head(const float (&sums)[kSums][4], const Shared& shared,
                                                      const Head& head, Lower& lower, uint8_t* record, int role,
                                                      int lane) {
    const int key_row = kBlocks - 1 - role;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      if (j > key_row) break;
      float block[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) block[i / 4][i % 4] = sums[kSums - 1 - (2 * j + i / 4)][i % 4];
      scale_block(block, shared, head, head.key, head.key_far, key_row, j, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<float2*>(&lower.row[16 * key_row + lane / 4 + i % 2 * 8][16 * j + lane % 4 * 2 + i / 2 * 8]) =
            make_float2(block[i / 2][i % 2 * 2], block[i / 2][i % 2 * 2 + 1]);
    }
    __syncwarp();
    invert_block(lower, 16 * key_row, lane);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      if (j > role) break;
      float block[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        block[i / 4][i % 4] = sums[2 * j + i / 4][i % 4];
        const int row = lane / 4 + i / 2 % 2 * 8, token = 16 * role + row;
        if (j == role && row == lane % 4 * 2 + i % 2 + i / 4 * 8)
          reinterpret_cast<float*>(record + kRecord.diagonal)[vector_place(token)] =
              block[i / 4][i % 4] * shared.norm[0][token] * shared.norm[1][token];
      }
      scale_block(block, shared, head, head.query, head.query_far, role, j, lane);
      store_block<Number>(record + kRecord.p, role, j, block[0], block[1], lane);
    }
    __syncthreads();
    store_inverse_row(lower, record + kRecord.t, key_row, lane);
  }

  static __device__ __forceinline__ void prepare(const PrepareArgs& args, const ChunkPlace& place, int chunk,
                                                 int key_head, int share, int dk, Shared& shared) {
    auto load = [&](const TensorView& tensor, int tile) {
      const uint8_t* from =
          static_cast<const uint8_t*>(tensor.data) +
          (place.sequence_at * tensor.sequence + place.token * tensor.token + key_head * tensor.head) * kElement;
      TileCopy<kLongChunk, kWidth * kElement / 16, kRowBytes>::load(shared_address(shared.tiles) + tile * kTile, from,
                                                                    tensor.token * kElement, place.valid, dk * kElement,
                                                                    access_of(tensor, kElement));
    };
    load(args.k, 1);
    load(args.q, 0);
    close_copies();
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    // Rows of T cost 0 to 9 products, and a warp's number decides on which scheduler it runs: CTAs turn their roles against each other.
    const int role = uniform((warp + static_cast<int>(blockIdx.x / 4)) % kWarps);
    const int group = args.heads_v / args.heads_qk, first = share * kHeadsTogether;
    const int heads = group - first < kHeadsTogether ? group - first : kHeadsTogether;
    const int first_head = key_head * group + first;
    uint8_t* const records = args.prepared + (static_cast<int64_t>(chunk) * args.heads_v + first_head) * kRecord.bytes;
    Tokens tokens = {};
    if (warp < heads) tokens = load_tokens(args.activation, place, first_head + warp, lane);
    wait_for_copies<0>();
    __syncthreads();
    float sums[kSums][4] = {}, squares[2][4] = {};
    // Each role apart: loads pass nothing that may be skipped.
    if (role == 0)
      form_products<0>(sums, squares, shared, lane);
    else if (role == 1)
      form_products<1>(sums, squares, shared, lane);
    else if (role == 2)
      form_products<2>(sums, squares, shared, lane);
    else
      form_products<3>(sums, squares, shared, lane);
    find_norms(shared, args.activation, sums, squares, place.valid, role, lane);
    __syncthreads();
    if (warp < heads) make_factors(shared, shared.head[warp], tokens, records + warp * kRecord.bytes, lane);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < heads; ++i) {
      const int same_lane = static_cast<int>(opaque(lane));  // or addresses would stay in registers from head to head
      prepare_head(sums, shared, shared.head[i], shared.lower[i % 2], records + i * kRecord.bytes, role, same_lane);
    }
  }
};

// CTAs are numbered (chunk, q/k head, share of its value heads), the last innermost.
template <class Number, int kWidth>
__global__ void __launch_bounds__(kThreads, 4)
    prepare_gdn_long_kernel(const __grid_constant__ PrepareArgs args, int dk, int shares) {
  using Prepare = GdnPrepareLong<Number, kWidth>;
  wait_for_previous_grid();
  allow_next_grid();
  const uint32_t line = blockIdx.x / static_cast<uint32_t>(shares);
  const int key_head = static_cast<int>(line % static_cast<uint32_t>(args.heads_qk));
  const int chunk = static_cast<int>(line / static_cast<uint32_t>(args.heads_qk));
  ChunkPlace place;
  if (!find_chunk(args.tables, chunk, kLongChunk, place)) return;
  Prepare::prepare(args, place, chunk, key_head, static_cast<int>(blockIdx.x % static_cast<uint32_t>(shares)), dk,
                   *reinterpret_cast<typename Prepare::Shared*>(dynamic_shared_memory()));
}

}  // namespace deltarelay::cuda::sm80
