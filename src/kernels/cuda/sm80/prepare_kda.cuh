// KDA `prepare`: one CTA per (chunk of 32 tokens, value head) turns raw q, k, g, beta into a record.
//
// A warp owns 8 tokens, a lane 2 or 4 channels of them, so sums of gates and of squares stay inside a warp; only the totals of 8 tokens
// cross warps. Wide heads are worked through in slabs of channels. With G the inclusive sum of log2 decays and Gmid that of the first half:
//     late half:   G - Gmid     early half:  Gmid - G
// are both <= 0, so the block of scores between late rows and early columns needs no exponent above 0, whatever the gates are. Scores
// inside a half come in one of two ways:
//   mid frame    one product in the frame of the chunk's middle. Exponents reach 16 times the largest decay: gates >= -5 (natural log)
//                give e^{+-80}, finite in bf16. Above the diagonal there may be inf or NaN, which is selected away.
//   levels       the half is halved again (8, then 4): at each level, later tokens are rows and earlier ones columns, referenced to the
//                boundary between them, so again no exponent is above 0. The last 4 x 4 blocks are summed pair by pair in fp32.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/args.h"
#include "kernels/cuda/find_sequence.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/gate_sum.cuh"
#include "kernels/cuda/sm80/invert.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/rows.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace deltarelay::cuda::sm80 {

// Index of (row, column) of a 4 x 4 block among its pairs: with the diagonal (q) and without (k).
__device__ __forceinline__ constexpr int pair_with_diagonal(int i, int j) { return i * (i + 1) / 2 + j; }
__device__ __forceinline__ constexpr int pair_below_diagonal(int i, int j) { return i * (i - 1) / 2 + j; }
constexpr int kPairsQ = 10, kPairsK = 6;

template <class Number, int kWidth, bool kMidFrame>
struct KdaPrepare {
  using Numbers = Arithmetic<Number>;
  using Sum = GateSum<Numbers::kExactSums>;
  static constexpr int kElement = sizeof(Number);
  static constexpr RecordPlaces kRecord = record_places(Op::kKda, kElement, kWidth);
  static constexpr int kChannels = kElement == 2 && kWidth > 64 ? 4 : 2;  // of a lane
  static constexpr int kSlab = 32 * kChannels, kSlabs = (kWidth + kSlab - 1) / kSlab;
  static constexpr int kRowBytes = kSlab * kElement + 16, kTile = kChunk * kRowBytes;
  using Cell = Cells<Number, kChannels>;

  struct Shared {
    alignas(16) uint8_t tiles[3 * kTile];  // operands of scores: rows of q, rows of k, columns of k
    Triangle lower;                        // L
    Sum total[4][kSlab];                   // of 8 tokens
    float norm[2][kChunk];                 // scale / |q|, 1 / |k|
    float beta[kChunk];
    float pair_q[8][kPairsQ], pair_k[8][kPairsK];  // levels: [block of 4 tokens][pair]
  };

  // What a warp holds of one slab.
  struct Slab {
    Cell q[kRows], k[kRows];
    Sum sum[kRows][kChannels];  // G
    Sum middle[kChannels];      // of the first half
    Sum end[kChannels];         // of all tokens
  };

  static __device__ __forceinline__ void put(uint8_t* to, const float (&numbers)[kChannels]) {
    if constexpr (kChannels == 4)
      *reinterpret_cast<uint2*>(to) =
          make_uint2(Pair<Number>::pack(numbers[0], numbers[1]), Pair<Number>::pack(numbers[2], numbers[3]));
    else
      put_pair<Number>(to, numbers[0], numbers[1]);
  }

  // q.k of token lane % 8 of this warp, over the channels of the slab.
  static __device__ __forceinline__ float sum_dots(const Cell (&q)[kRows], const Cell (&k)[kRows], int lane) {
    float dots[kRows] = {};
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) dots[t] = fmaf(q[t].get(c), k[t].get(c), dots[t]);
    }
    return sum_over_lanes<kRows>(dots, lane);
  }

  // Scores of the 4 x 4 diagonal blocks of this warp's tokens, pair by pair, before norms. Adds pair lane % 16 of either block.
  static __device__ __forceinline__ void add_pairs(float (&sums)[2], const Cell (&q)[kRows], const Cell (&k)[kRows],
                                                   const float (&decay)[kRows][kChannels], int lane) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      float pairs[16] = {};
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float forget[4];
#pragma unroll
        for (int t = 1; t < 4; ++t) forget[t] = exp2_approx(decay[4 * block + t][c]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float decayed = k[4 * block + j].get(c);
#pragma unroll
          for (int i = j; i < 4; ++i) {
            if (i > j) {
              decayed *= forget[i];
              float& pair = pairs[kPairsQ + pair_below_diagonal(i, j)];
              pair = fmaf(k[4 * block + i].get(c), decayed, pair);
            }
            float& pair = pairs[pair_with_diagonal(i, j)];
            pair = fmaf(q[4 * block + i].get(c), decayed, pair);
          }
        }
      }
      sums[block] += sum_over_lanes<16>(pairs, lane);
    }
  }

  // Operands of this warp's tokens: those of the walk go straight to memory (where the lane's channels belong to the record), those of
  // the scores between the halves, or in the mid frame of all scores, to shared memory.
  template <bool kLate>
  static __device__ __forceinline__ void write_operands(const Slab& slab, float norm, uint8_t* tiles, uint8_t* record,
                                                        bool inside, int warp, int lane) {
    float far[kChannels];  // the other half's whole decay, which separates this half from the chunk's far end
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
      far[c] = exp2_approx(kLate ? slab.middle[c].rounded() : slab.end[c] - slab.middle[c]);
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const float scale_q = __shfl_sync(~0u, norm, t), scale_k = __shfl_sync(~0u, norm, t + 8);
      float start_q[kChannels], start_k[kChannels], end_k[kChannels], rows_q[kChannels], rows_k[kChannels],
          columns_k[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float q = slab.q[t].get(c) * scale_q, k = slab.k[t].get(c) * scale_k;
        // Factors to the middle (<= 1), to this half's outer end (<= 1), and back from the middle (>= 1).
        const float gap = kLate ? slab.sum[t][c] - slab.middle[c] : slab.middle[c] - slab.sum[t][c];
        const float middle = exp2_approx(gap), beyond = middle * far[c];
        const float edge = exp2_approx(kLate ? slab.end[c] - slab.sum[t][c] : slab.sum[t][c].rounded());
        const float back = kMidFrame ? exp2_approx(-gap) : 0.0f;
        const float start = kLate ? beyond : edge, row = kLate ? middle : back;
        start_q[c] = q * start;
        start_k[c] = k * start;
        end_k[c] = k * (kLate ? edge : beyond);
        rows_q[c] = kMidFrame || kLate ? q * row : 0.0f;
        rows_k[c] = kMidFrame || kLate ? k * row : 0.0f;
        columns_k[c] = kMidFrame || !kLate ? k * (kLate ? back : middle) : 0.0f;
      }
      const int token = warp * kRows + t, out = (token * kWidth + lane * kChannels) * kElement;
      if (inside) {
        put(record + kRecord.query + out, start_q);
        put(record + kRecord.read + out, start_k);
        put(record + kRecord.update + out, end_k);
      }
      uint8_t* in = tiles + token * kRowBytes + lane * kChannels * kElement;
      put(in, rows_q);
      put(in + kTile, rows_k);
      put(in + 2 * kTile, columns_k);
    }
  }

  // Operands of the scores at one finer level: 8 (inside a half) or 4 (inside the tokens of a warp).
  template <int kLevel>
  static __device__ __forceinline__ void write_level(const Slab& slab, float norm, Shared& shared, int warp, int lane) {
    Sum boundary[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      boundary[c] = slab.sum[3][c];
      if constexpr (kLevel == 8) {
        const int channel = lane * kChannels + c;
        boundary[c] = warp < 2 ? shared.total[0][channel] : slab.middle[c] + shared.total[2][channel];
      }
    }
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const bool is_row = kLevel == 8 ? warp % 2 == 1 : t >= 4;
      const float scale_q = __shfl_sync(~0u, norm, t), scale_k = __shfl_sync(~0u, norm, t + 8);
      float rows_q[kChannels], rows_k[kChannels], columns_k[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float factor = exp2_approx(is_row ? slab.sum[t][c] - boundary[c] : boundary[c] - slab.sum[t][c]);
        const float k = slab.k[t].get(c) * (scale_k * factor);
        rows_q[c] = is_row ? slab.q[t].get(c) * (scale_q * factor) : 0.0f;
        rows_k[c] = is_row ? k : 0.0f;
        columns_k[c] = is_row ? 0.0f : k;
      }
      uint8_t* in = shared.tiles + (warp * kRows + t) * kRowBytes + lane * kChannels * kElement;
      put(in, rows_q);
      put(in + kTile, rows_k);
      put(in + 2 * kTile, columns_k);
    }
  }

  // Adds [q; k] (64 rows) times k^T (32 columns) from the tiles: warps 0, 1 have rows of q, warps 2, 3 rows of k, 16 each.
  static __device__ __forceinline__ void add_scores(float (&scores)[4][4], const Shared& shared, int groups, int warp,
                                                    int lane) {
    const uint32_t tiles = shared_address(shared.tiles);
    const uint32_t rows = tiles + warp / 2 * kTile + warp % 2 * 16 * kRowBytes + Numbers::left_place(lane, kRowBytes);
    const uint32_t columns = tiles + 2 * kTile + Numbers::rows_place(lane, kRowBytes);
#pragma unroll
    for (int group = 0; group < kSlab / 32; ++group) {
      if (group >= groups) break;
      const int at = group * 32 * kElement;
      const typename Numbers::Left left = Numbers::load_left(rows + at, kRowBytes);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n < 2 || warp % 2 == 1)  // the rest is right of the diagonal
          Numbers::multiply(scores[n], left, Numbers::load_rows(columns + at + n * 8 * kRowBytes));
      }
    }
  }

  static __device__ __forceinline__ void prepare(const PrepareArgs& args, const ChunkPlace& place, int chunk, int head,
                                                 int dk, Shared& shared) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const Activation& activation = args.activation;
    const int key_head = head / (args.heads_v / args.heads_qk), channel0 = lane * kChannels;
    auto first_of = [&](const TensorView& tensor, int h, int channel) {
      return place.sequence_at * tensor.sequence + (place.token + warp * kRows) * tensor.token + h * tensor.head +
             channel;
    };
    auto rows_of = [&](int slab) { return Rows{place.valid - warp * kRows, dk - slab * kSlab - channel0}; };
    Slab slab;
    auto load_keys = [&](int s) {
      const Rows rows = rows_of(s);
      load_cells(slab.k, args.k, first_of(args.k, key_head, s * kSlab + channel0), rows);
      load_cells(slab.q, args.q, first_of(args.q, key_head, s * kSlab + channel0), rows);
    };
    float gates[kRows][kChannels];
    auto load_slab_gates = [&](int s) {
      load_gates(gates, activation.g, first_of(activation.g, head, s * kSlab + channel0), rows_of(s));
    };

    if constexpr (kSlabs == 1) {
      load_slab_gates(0);
      load_keys(0);
    }
    if (warp == 0) {
      const TensorView& beta = activation.beta;
      const int64_t token = place.token + (lane < place.valid ? lane : 0);
      const float raw =
          load_number(beta.data, beta.dtype, place.sequence_at * beta.sequence + token * beta.token + head * beta.head);
      shared.beta[lane] = lane < place.valid ? write_strength(raw, activation.beta_form) : 0.0f;
    }
    float norm = 1.0f;  // lanes 0-7: of q, 8-15: of k
    if (activation.l2norm) {
      float squares[2 * kRows] = {};
#pragma unroll 1
      for (int s = 0; s < kSlabs; ++s) {
        if constexpr (kSlabs > 1) load_keys(s);
#pragma unroll
        for (int t = 0; t < kRows; ++t) {
#pragma unroll
          for (int c = 0; c < kChannels; ++c) {
            squares[t] = fmaf(slab.q[t].get(c), slab.q[t].get(c), squares[t]);
            squares[kRows + t] = fmaf(slab.k[t].get(c), slab.k[t].get(c), squares[kRows + t]);
          }
        }
      }
      norm = rsqrtf(sum_over_lanes<16>(squares, lane) + kL2NormEpsilon);
    }
    if (lane % 16 < 8) norm *= activation.scale;
    if (lane < 16) shared.norm[lane / 8][warp * kRows + lane % 8] = norm;

    uint8_t* const record = args.prepared + (static_cast<int64_t>(chunk) * args.heads_v + head) * kRecord.bytes;
    GateParams common = gate_params(activation, gate_slope(activation, head), 0.0f);
    float scores[4][4] = {}, dot = 0.0f, pair_sum[2] = {};  // the last two: sums of this lane's token, of its pair
    const int row = warp % 2 * 16 + lane / 4, column = lane % 4 * 2;
    auto row_of = [&](int i) { return row + i / 2 * 8; };
    auto column_of = [&](int n, int i) { return 8 * n + column + i % 2; };

#pragma unroll 1
    for (int s = 0; s < kSlabs; ++s) {
      if constexpr (kSlabs > 1) {
        load_slab_gates(s);
        load_keys(s);
      }
      const Rows rows = rows_of(s);
      const int channel = s * kSlab + channel0;
      GateParams params[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        params[c] = common;
        if (c < rows.channels) params[c].bias = gate_bias(activation, head, channel + c, dk);
      }
      activate_gates(gates, activation, params, rows);
      dot += sum_dots(slab.q, slab.k, lane);
      if constexpr (!kMidFrame) add_pairs(pair_sum, slab.q, slab.k, gates, lane);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        slab.sum[0][c] = Sum::of(gates[0][c]);
#pragma unroll
        for (int t = 1; t < kRows; ++t) slab.sum[t][c] = slab.sum[t - 1][c] + Sum::of(gates[t][c]);
        shared.total[warp][channel0 + c] = slab.sum[kRows - 1][c];
      }
      __syncthreads();  // also: all are done with the tiles of the slab before
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const Sum first = shared.total[0][channel0 + c];
        slab.middle[c] = first + shared.total[1][channel0 + c];
        const Sum third = slab.middle[c] + shared.total[2][channel0 + c];
        slab.end[c] = third + shared.total[3][channel0 + c];
        const Sum before = warp == 1 ? first : warp == 2 ? slab.middle[c] : third;
#pragma unroll
        for (int t = 0; t < kRows; ++t) slab.sum[t][c] = warp == 0 ? slab.sum[t][c] : before + slab.sum[t][c];
      }
      const bool inside = channel < kWidth;
      if (warp == 0 && inside) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
          reinterpret_cast<float*>(record + kRecord.decay)[channel + c] = exp2_approx(slab.end[c].rounded());
      }
      const int groups = (kWidth - s * kSlab) / 32;
      uint8_t* const tiles_out = record + s * kSlab * kElement;
      if (warp >= 2)
        write_operands<true>(slab, norm, shared.tiles, tiles_out, inside, warp, lane);
      else
        write_operands<false>(slab, norm, shared.tiles, tiles_out, inside, warp, lane);
      __syncthreads();
      add_scores(scores, shared, groups, warp, lane);
      if constexpr (!kMidFrame) {
        auto refine = [&](auto level) {
          constexpr int kLevel = decltype(level)::value;
          __syncthreads();
          write_level<kLevel>(slab, norm, shared, warp, lane);
          __syncthreads();
          float finer[4][4] = {};
          add_scores(finer, shared, groups, warp, lane);
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            const int differ = row_of(i % 4) ^ column_of(i / 4, i % 4);
            if (differ >= kLevel && differ < 2 * kLevel) scores[i / 4][i % 4] += finer[i / 4][i % 4];
          }
        };
        refine(std::integral_constant<int, 8>{});
        refine(std::integral_constant<int, 4>{});
      }
    }

    const float norm_k = __shfl_sync(~0u, norm, lane % 8 + 8);
    if (lane < 8) reinterpret_cast<float*>(record + kRecord.diagonal)[warp * kRows + lane] = dot * norm * norm_k;
    if (warp == 0) reinterpret_cast<float*>(record + kRecord.beta)[lane] = shared.beta[lane];
    if constexpr (!kMidFrame) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        if (lane < kPairsQ)
          shared.pair_q[warp * 2 + block][lane] = pair_sum[block];
        else if (lane < 16)
          shared.pair_k[warp * 2 + block][lane - kPairsQ] = pair_sum[block];
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        float pair[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int r = row_of(i), c = column_of(n, i + e);
          float score = scores[n][i + e];
          if (!kMidFrame && (r ^ c) < 4 && c < r)
            score =
                warp < 2
                    ? shared.pair_q[r / 4][pair_with_diagonal(r % 4, c % 4)] * shared.norm[0][r] * shared.norm[1][c]
                    : shared.pair_k[r / 4][pair_below_diagonal(r % 4, c % 4)] * shared.norm[1][r] * shared.norm[1][c];
          if (warp >= 2) score *= shared.beta[r];
          pair[e] = c < r ? score : 0.0f;  // above the diagonal anything may stand: select
        }
        if (warp < 2)
          put_pair<Number>(record + kRecord.p + square_offset<Number>(row_of(i), column_of(n, 0)), pair[0], pair[1]);
        else
          *reinterpret_cast<float2*>(&shared.lower.row[row_of(i)][column_of(n, 0)]) = make_float2(pair[0], pair[1]);
      }
    }
    __syncthreads();
    if (warp == 0) store_inverse<Number>(shared.lower, record + kRecord.t, lane);
  }
};

// CTAs are numbered (chunk, head), the last innermost: neighbours in the grid are neighbours in memory.
template <class Number, int kWidth, bool kMidFrame>
__global__ void __launch_bounds__(kThreads, 3) prepare_kda_kernel(const __grid_constant__ PrepareArgs args, int dk) {
  using Prepare = KdaPrepare<Number, kWidth, kMidFrame>;
  wait_for_previous_grid();
  allow_next_grid();
  const int head = static_cast<int>(blockIdx.x % static_cast<uint32_t>(args.heads_v));
  const int chunk = static_cast<int>(blockIdx.x / static_cast<uint32_t>(args.heads_v));
  ChunkPlace place;
  if (!find_chunk(args.tables, chunk, kChunk, place)) return;
  Prepare::prepare(args, place, chunk, head, dk, *reinterpret_cast<typename Prepare::Shared*>(dynamic_shared_memory()));
}

}  // namespace deltarelay::cuda::sm80
