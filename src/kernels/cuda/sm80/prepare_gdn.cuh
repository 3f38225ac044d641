// GDN `prepare` for chunks of 32 tokens: one CTA per (chunk, q/k head, up to 4 of its value heads) turns raw q, k, g, beta into records.
//
// K K^T and Q K^T are formed once, by all warps, and left in shared memory in fp32. Then a warp has one value head to itself.
#pragma once
#include <cstdint>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/args.h"
#include "kernels/cuda/find_sequence.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/gate_sum.cuh"
#include "kernels/cuda/sm80/invert.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/tile.cuh"

namespace deltarelay::cuda::sm80 {

constexpr int kWarps = kThreads / 32;
constexpr int kHeadsTogether = kWarps;  // value heads of a CTA

template <class Number, int kWidth>
struct GdnPrepareShared {
  static constexpr int kElement = sizeof(Number), kRowBytes = kWidth * kElement + 16;
  static constexpr int kTile = kChunk * kRowBytes;
  union {
    alignas(16) uint8_t tiles[2 * kTile];  // q, k
    Triangle lower[kWarps];                // once the products are formed
  };
  Triangle products[2];  // Q K^T, K K^T, all of them
  float norm[2][kChunk];
  // Of tokens, for each warp's head: G, and the factors of a row of P, a row of L, a column of both.
  GateSum<Arithmetic<Number>::kExactSums> sum[kWarps][kChunk];
  float query[kWarps][kChunk], key[kWarps][kChunk], column[kWarps][kChunk];
};

// 1 / |row| of both tiles: four lanes a token, each with every fourth piece.
template <class Number, int kWidth>
__device__ __forceinline__ void find_norms(GdnPrepareShared<Number, kWidth>& shared, bool l2norm) {
  using Shared = GdnPrepareShared<Number, kWidth>;
  const int thread = static_cast<int>(threadIdx.x), token = thread / 4, quarter = thread % 4;
#pragma unroll 1
  for (int tensor = 0; tensor < 2; ++tensor) {
    float norm = 1.0f;
    if (l2norm) {
      const uint32_t row = shared_address(shared.tiles) + tensor * Shared::kTile + token * Shared::kRowBytes;
      float sum = 0.0f;
#pragma unroll
      for (int piece = 0; piece < kWidth * Shared::kElement / 16; piece += 4) {
        const uint4 four = load_four(row + (piece + quarter) * 16);
        const uint32_t word[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (Shared::kElement == 2) {
            using Two = Pair<typename ElementOf<Number>::Type>;
            const float low = Two::low(word[i]), high = Two::high(word[i]);
            sum = fmaf(low, low, fmaf(high, high, sum));
          } else {
            const float x = __uint_as_float(word[i]);
            sum = fmaf(x, x, sum);
          }
        }
      }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      norm = rsqrtf(sum + kL2NormEpsilon);
    }
    if (quarter == 0) shared.norm[tensor][token] = norm;
  }
}

// Warps 0, 1: rows of Q K^T, warps 2, 3: rows of K K^T, 16 each.
template <class Number, int kWidth>
__device__ __forceinline__ void form_products(GdnPrepareShared<Number, kWidth>& shared) {
  using Shared = GdnPrepareShared<Number, kWidth>;
  using Numbers = TileArithmetic<Number>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int matrix = warp / 2, first_row = warp % 2 * 16;
  const uint32_t tiles = shared_address(shared.tiles);
  const uint32_t rows =
      tiles + matrix * Shared::kTile + first_row * Shared::kRowBytes + Numbers::left_place(lane, Shared::kRowBytes);
  const uint32_t columns = tiles + Shared::kTile + Numbers::rows_place(lane, Shared::kRowBytes);
  float sums[4][4] = {};
#pragma unroll
  for (int group = 0; group < kWidth / 32; ++group) {
    const int at = group * 32 * Shared::kElement;
    const typename Numbers::Left left = Numbers::load_left(rows + at, Shared::kRowBytes);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      Numbers::multiply(sums[n], left, Numbers::load_rows(columns + at + n * 8 * Shared::kRowBytes));
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      *reinterpret_cast<float2*>(&shared.products[matrix].row[first_row + lane / 4 + 8 * r][8 * n + lane % 4 * 2]) =
          make_float2(sums[n][2 * r], sums[n][2 * r + 1]);
  }
}

// One value head by one warp.
template <class Number, int kWidth>
__device__ __forceinline__ void prepare_head(GdnPrepareShared<Number, kWidth>& shared, const Activation& activation,
                                             const ChunkPlace& place, int head, uint8_t* record, int warp) {
  constexpr RecordPlaces kRecord = record_places(Op::kGdn, sizeof(Number), kWidth, kIsFine<Number>);
  using Sum = GateSum<Arithmetic<Number>::kExactSums>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const TensorView &g = activation.g, &b = activation.beta;
  const bool exists = lane < place.valid;
  const int64_t token = place.token + (exists ? lane : 0);
  const float raw_g = load_number(g.data, g.dtype, place.sequence_at * g.sequence + token * g.token + head * g.head);
  const float raw_b = load_number(b.data, b.dtype, place.sequence_at * b.sequence + token * b.token + head * b.head);
  // Tokens past the end: no decay, no update.
  const float decay = exists ? log2_decay(raw_g, gate_params(activation, head, 0, 1)) : 0.0f;
  const float beta = exists ? write_strength(raw_b, activation.beta_form) : 0.0f;

  Sum sum = Sum::of(decay);  // inclusive, over lanes
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Sum below = shift_up(sum, step);
    if (lane >= step) sum = below + sum;
  }
  const Sum last = broadcast(sum, 31);  // that of the last token which exists
  const float norm_q = exists ? activation.scale * shared.norm[0][lane] : 0.0f;
  const float norm_k = exists ? shared.norm[1][lane] : 0.0f;
  const float from_start = exp2_approx(sum.rounded());
  auto put = [&](int vector, float x) { reinterpret_cast<float*>(record + vector)[vector_place(lane)] = x; };
  put(kRecord.beta, beta);
  put(kRecord.diagonal, norm_q * norm_k * shared.products[0].row[lane][lane]);
  put(kRecord.read_factor, beta * from_start * norm_k);
  put(kRecord.query_factor, from_start * norm_q);
  put(kRecord.update_factor, exp2_approx(last - sum) * norm_k);
  // With zeros up to the end, so that a copy of the record reads nothing unwritten.
  if (lane < 4) reinterpret_cast<float*>(record + kRecord.decay)[lane] = lane == 0 ? exp2_approx(last.rounded()) : 0.0f;

  shared.sum[warp][lane] = sum;
  shared.query[warp][lane] = norm_q;
  shared.key[warp][lane] = norm_k * beta;
  shared.column[warp][lane] = norm_k;
  __syncwarp();
  // Right of the diagonal the exponent may be anything: whoever takes a pair selects.
  auto pair_of = [&](const Triangle& products, const float* rows) {
    return [&shared, &products, rows, warp](int i, int j) {
      const float2 product = *reinterpret_cast<const float2*>(&products.row[i][j]);
      const Sum at = shared.sum[warp][i];
      const float *column = &shared.column[warp][j], row = rows[i];
      return make_float2(product.x * (row * column[0]) * exp2_approx(at - shared.sum[warp][j]),
                         product.y * (row * column[1]) * exp2_approx(at - shared.sum[warp][j + 1]));
    };
  };
  store_square<Number>(record + kRecord.p, lane, pair_of(shared.products[0], shared.query[warp]));
  Triangle& lower = shared.lower[warp];
  const auto pair_k = pair_of(shared.products[1], shared.key[warp]);
#pragma unroll
  for (int i = 0; i < 12; ++i) {  // blocks of 16 x 16, in four parts each
    const int row = (i / 4 + 1) / 2 * 16 + lane / 4 + i % 2 * 8, column = i / 8 * 16 + lane % 4 * 2 + i / 2 % 2 * 8;
    const float2 pair = pair_k(row, column);
    *reinterpret_cast<float2*>(&lower.row[row][column]) =
        make_float2(column < row ? pair.x : 0.0f, column + 1 < row ? pair.y : 0.0f);
  }
  __syncwarp();
  store_inverse<Number>(lower, record + kRecord.t, lane);
}

// CTAs are numbered (chunk, q/k head, share of its value heads), the last innermost.
template <class Number, int kWidth>
__global__ void __launch_bounds__(kThreads)
    prepare_gdn_kernel(const __grid_constant__ PrepareArgs args, int dk, int shares) {
  using Shared = GdnPrepareShared<Number, kWidth>;
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  wait_for_previous_grid();
  allow_next_grid();
  const uint32_t line = blockIdx.x / static_cast<uint32_t>(shares);
  const int share = static_cast<int>(blockIdx.x % static_cast<uint32_t>(shares));
  const int key_head = static_cast<int>(line % static_cast<uint32_t>(args.heads_qk));
  const int chunk = static_cast<int>(line / static_cast<uint32_t>(args.heads_qk));
  ChunkPlace place;
  if (!find_chunk(args.tables, chunk, kChunk, place)) return;

  auto load = [&](const TensorView& tensor, int tile) {
    const uint8_t* from =
        static_cast<const uint8_t*>(tensor.data) +
        (place.sequence_at * tensor.sequence + place.token * tensor.token + key_head * tensor.head) * Shared::kElement;
    TileCopy<kChunk, kWidth * Shared::kElement / 16, Shared::kRowBytes>::load(
        shared_address(shared.tiles) + tile * Shared::kTile, from, tensor.token * Shared::kElement, place.valid,
        dk * Shared::kElement, access_of(tensor, Shared::kElement), static_cast<int>(threadIdx.x));
  };
  load(args.q, 0);
  load(args.k, 1);
  close_copies();
  wait_for_copies<0>();
  __syncthreads();
  find_norms(shared, args.activation.l2norm);
  form_products(shared);
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = args.heads_v / args.heads_qk, of_group = share * kHeadsTogether + warp;
  if (of_group >= group) return;
  const int head = key_head * group + of_group;
  constexpr int kBytes = record_places(Op::kGdn, sizeof(Number), kWidth, kIsFine<Number>).bytes;
  prepare_head(shared, args.activation, place, head,
               args.prepared + (static_cast<int64_t>(chunk) * args.heads_v + head) * kBytes, warp);
}

}  // namespace deltarelay::cuda::sm80
