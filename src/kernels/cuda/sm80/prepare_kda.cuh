// KDA prepare: one CTA per (chunk of 32 tokens, value head) turns q, k, g and beta of the caller into a record.
//
// A team of lanes, a warp or half a warp, owns 4 tokens. A lane has 2 or 4 channels of them. So sums of gates and of
// squares stay inside a team, and only totals of 4 tokens cross teams. Half a warp has the 64 channels of narrow heads:
// with 2 channels per lane, the work per token would cost as much as at 128 channels. Wide heads are processed in slabs
// of channels. Let G be the inclusive sum of log2 decays, and G_mid its value after the first half of the tokens. Then
//     late half:   G - G_mid     early half:  G_mid - G
// are both <= 0. So scores between late rows and early columns need no exponent above 0, for every gate. (For 16-bit
// data read H of record.h for G, and 2^-2 for 0: the common decay of the chunk's tokens is left out of tiles and
// scores. Channels that decay late in the chunk are then above 0 in between.) Scores inside a half are computed in one
// of two ways:
//   mid frame    one product relative to the chunk's middle. Exponents reach 16 times the largest decay: gates >= -5
//                (natural log) give e^{+-80}, finite in bf16. Above the diagonal there may be inf or NaN: masked.
//   levels       the half is halved again (8, then 4 tokens). At each level, later tokens are rows and earlier tokens
//                are columns, relative to the boundary between them, so no exponent is above 0. The last 4 x 4 blocks
//                are summed pair by pair in fp32.
// Where the caller promises no bound (kMidFrame = false), whole bf16 chunks whose gates fit the mid frame take it, and
// the others take levels. Short chunks keep levels, which are more exact: outputs of a few tokens may nearly cancel.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/chunk_grid.cuh"
#include "kernels/cuda/sm80/gate_sum.cuh"
#include "kernels/cuda/sm80/invert.cuh"
#include "kernels/cuda/sm80/kda_slab.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/rows.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm80 {

constexpr int kTeams = kChunk / kRows;

template <class Number, int kWidth, bool kMidFrame>
struct KdaPrepare {
  using Element = typename ElementOf<Number>::Type;
  using Numbers = TileArithmetic<Number>;
  using Sum = GateSum<Numbers::kExactSums>;
  static constexpr int kElement = sizeof(Number);
  static constexpr RecordPlaces kRecord = record_places(Rule::kKda, kElement, kWidth, kIsFine<Number>);
  static constexpr bool kNarrow = kElement == 2 && kWidth <= 64;
  static constexpr bool kTriesMid = !kMidFrame && std::is_same_v<Element, __nv_bfloat16>;
  // Is the common decay left out of tiles and scores? fp32 data has digits for it.
  static constexpr bool kLeavesOut = kElement == 2;
  static constexpr int kChannels = kElement == 2 ? 4 : 2;  // per lane
  static constexpr int kLanes = kNarrow ? 16 : 32;         // per team
  static constexpr int kThreads = kTeams * kLanes, kWarps = kThreads / 32;
  static constexpr int kShares = 8 / kWarps;  // blocks of scores per warp
  // The warp that does the work of one lane per token: of 4 warps, the one without scores.
  static constexpr int kSpareWarp = kNarrow ? 1 : 0;
  // CTAs per multiprocessor that registers must allow.
  static constexpr int kCtas = kNarrow ? (kMidFrame ? 7 : 5) : (kMidFrame && kWidth <= 128 ? 3 : 2);
  static constexpr int kSlab = kLanes * kChannels, kSlabs = (kWidth + kSlab - 1) / kSlab;
  static constexpr int kRowBytes = kSlab * kElement + 16, kTile = kChunk * kRowBytes;
  using Cell = Cells<Element, kChannels>;

  struct Shared {
    alignas(16) uint8_t tiles[3 * kTile];  // operands of scores: rows of q, rows of k, columns of k
    SwizzledSquare akk;
    // Sums of the gates of 4 tokens. Mid frame: later, the sums before each group of 4 tokens and, last, of all tokens.
    alignas(16) Sum total[kTeams + (kMidFrame ? 1 : 0)][kSlab];
    alignas(16) float norm[kChunk][2];  // powers of two 2^a, 2^b of scale rq and rk
    float rest[kChunk][2];              // sq, sk (record.h)
    float dot[kChunk];                  // q.k of the token
    float beta[kChunk];
    float pair_q[8][kPairsQ], pair_k[8][kPairsK];  // levels: [block of 4 tokens][pair]
    float common;                                  // kLeavesOut: the common decay d of record.h, in log2
  };

  using Slab = KdaSlab<Cell, Sum, kChannels>;

  static __device__ __forceinline__ void put(uint8_t* to, const float (&numbers)[kChannels]) {
    if constexpr (kChannels == 4)
      *reinterpret_cast<uint2*>(to) =
          make_uint2(Pair<Element>::pack(numbers[0], numbers[1]), Pair<Element>::pack(numbers[2], numbers[3]));
    else
      put_pair<Element>(to, numbers[0], numbers[1]);
  }

  // Adds this lane's channels to q.k, q.q and k.k of the team's tokens. All at once, so that each number is unpacked
  // once.
  template <bool kDots, bool kSquares>
  static __device__ __forceinline__ void add_products(float (&dots)[kRows], float (&squares)[2 * kRows],
                                                      const Cell (&q)[kRows], const Cell (&k)[kRows]) {
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float of_q = q[t].get(c), of_k = k[t].get(c);
        if constexpr (kDots) dots[t] = fmaf(of_q, of_k, dots[t]);
        if constexpr (kSquares) {
          squares[t] = fmaf(of_q, of_q, squares[t]);
          squares[kRows + t] = fmaf(of_k, of_k, squares[kRows + t]);
        }
      }
    }
  }

  // Stores the pair that sum_pairs returned.
  static __device__ __forceinline__ void put_pair_sum(Shared& shared, float sum, int team, int lane) {
    if (lane < kPairsQ)
      shared.pair_q[team][lane] = sum;
    else if (lane < 16)
      shared.pair_k[team][lane - kPairsQ] = sum;
  }

  // Sums of the totals of the first `blocks` groups of 4 tokens, added in order.
  static __device__ __forceinline__ void sum_totals(Sum (&sums)[kChannels], const Shared& shared, int blocks,
                                                    int lane) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sums[c] = shared.total[0][lane * kChannels + c];
#pragma unroll 1
    for (int block = 1; block < blocks; ++block) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sums[c] = sums[c] + shared.total[block][lane * kChannels + c];
    }
  }

  // Stores the operands of a token: tiles of the walk to the record (if the lane's channels belong to it), operands of
  // scores to shared memory.
  static __device__ __forceinline__ void put_walk(uint8_t* record, int token, int lane, const float (&query)[kChannels],
                                                  const float (&read)[kChannels], const float (&update)[kChannels]) {
    uint8_t* out = record + (token * kWidth + lane * kChannels) * kElement;
    put(out + kRecord.q_from_start, query);
    put(out + kRecord.k_from_start, read);
    put(out + kRecord.k_to_end, update);
  }
  static __device__ __forceinline__ void put_scores(Shared& shared, int token, int lane,
                                                    const float (&rows_q)[kChannels], const float (&rows_k)[kChannels],
                                                    const float (&columns_k)[kChannels]) {
    uint8_t* in = shared.tiles + token * kRowBytes + lane * kChannels * kElement;
    put(in, rows_q);
    put(in + kTile, rows_k);
    put(in + 2 * kTile, columns_k);
  }

  // Mid frame: operands of all scores. The tiles of the walk differ from them by a factor per channel.
  static __device__ __forceinline__ void write_mid(const Slab& slab, Shared& shared, uint8_t* record, bool inside,
                                                   int team, int lane) {
    float early[kChannels], late[kChannels];  // decay of each half
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      early[c] = exp2_approx(slab.middle[c].rounded());
      late[c] = exp2_approx(slab.end[c] - slab.middle[c]);
    }
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const int token = team * kRows + t;
      const float2 scale = *reinterpret_cast<const float2*>(shared.norm[token]);
      float rows_q[kChannels], rows_k[kChannels], columns_k[kChannels], query[kChannels], read[kChannels],
          update[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float later = slab.sum[t][c].rounded(), from = exp2_approx(later), to = exp2_approx(-later);
        const float k = slab.k[t].get(c) * scale.y;
        rows_q[c] = slab.q[t].get(c) * scale.x * from;
        rows_k[c] = k * from;
        columns_k[c] = k * to;
        query[c] = rows_q[c] * early[c];
        read[c] = rows_k[c] * early[c];
        update[c] = columns_k[c] * late[c];
      }
      put_scores(shared, token, lane, rows_q, rows_k, columns_k);
      if (inside) put_walk(record, token, lane, query, read, update);
    }
  }

  // Levels: operands of the scores between the halves, and tiles of the walk.
  template <bool kLate>
  static __device__ __forceinline__ void write_halves(const Slab& slab, Shared& shared, uint8_t* record, bool inside,
                                                      int team, int lane) {
    float far[kChannels];  // decay of the other half, between this half and the far end of the chunk
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
      far[c] = exp2_approx(kLate ? slab.middle[c].rounded() : slab.end[c] - slab.middle[c]);
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const int token = team * kRows + t;
      const float2 scale = *reinterpret_cast<const float2*>(shared.norm[token]);
      float query[kChannels], read[kChannels], update[kChannels], rows_q[kChannels], rows_k[kChannels],
          columns_k[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float q = slab.q[t].get(c) * scale.x, k = slab.k[t].get(c) * scale.y;
        // Decay to the middle, and decay to this half's outer end.
        const float middle = exp2_approx(kLate ? slab.sum[t][c] - slab.middle[c] : slab.middle[c] - slab.sum[t][c]);
        const float edge = exp2_approx(kLate ? slab.end[c] - slab.sum[t][c] : slab.sum[t][c].rounded());
        const float start = kLate ? middle * far[c] : edge;
        query[c] = q * start;
        read[c] = k * start;
        update[c] = k * (kLate ? edge : middle * far[c]);
        rows_q[c] = kLate ? q * middle : 0.0f;
        rows_k[c] = kLate ? k * middle : 0.0f;
        columns_k[c] = kLate ? 0.0f : k * middle;
      }
      put_scores(shared, token, lane, rows_q, rows_k, columns_k);
      if (inside) put_walk(record, token, lane, query, read, update);
    }
  }

  // The common decay of so many tokens; of a negative number of tokens its inverse.
  static __device__ __forceinline__ float common_of(const Shared& shared, int tokens) {
    return kLeavesOut ? exp2_approx(static_cast<float>(tokens) * shared.common) : 1.0f;
  }

  // Operands of the scores at a finer level: 8 or 4 tokens on each side of a boundary.
  template <int kLevel>
  static __device__ __forceinline__ void write_level(const Slab& slab, Shared& shared, int team, int lane) {
    constexpr int kSide = kLevel / kRows;  // teams
    const bool is_row = team / kSide % 2 == 1;
    Sum boundary[kChannels];
    const int blocks = team / (2 * kSide) * 2 * kSide + kSide;
    sum_totals(boundary, shared, blocks, lane);
    if constexpr (kLeavesOut) {
      const Sum common = Sum::of(static_cast<float>(-kRows * blocks) * shared.common);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) boundary[c] = boundary[c] + common;
    }
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const float2 scale = *reinterpret_cast<const float2*>(shared.norm[team * kRows + t]);
      float rows_q[kChannels], rows_k[kChannels], columns_k[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float factor = exp2_approx(is_row ? slab.sum[t][c] - boundary[c] : boundary[c] - slab.sum[t][c]);
        const float k = slab.k[t].get(c) * (scale.y * factor);
        rows_q[c] = is_row ? slab.q[t].get(c) * (scale.x * factor) : 0.0f;
        rows_k[c] = is_row ? k : 0.0f;
        columns_k[c] = is_row ? 0.0f : k;
      }
      put_scores(shared, team * kRows + t, lane, rows_q, rows_k, columns_k);
    }
  }

  // Matrix of a warp's first share of rows: q (0) or k (1). With 4 warps each has both, and the compiler must know
  // that.
  static __device__ __forceinline__ int first_matrix(int warp) { return kShares == 2 ? 0 : warp / 4; }

  // Adds [q; k] (64 rows) times k^T (32 columns) from the tiles. A warp has 16 rows, of q or k or of each, and 16
  // columns. Warps above the diagonal have no work.
  static __device__ __forceinline__ void add_scores(float (&scores)[kShares][2][4], const Shared& shared, int groups,
                                                    int warp, int lane) {
    if (warp % 2 > warp / 2 % 2) return;
    const uint32_t tiles = shared_address(shared.tiles);
    const uint32_t rows =
        tiles + first_matrix(warp) * kTile + warp / 2 % 2 * 16 * kRowBytes + Numbers::left_place(lane, kRowBytes);
    const uint32_t columns = tiles + 2 * kTile + warp % 2 * 16 * kRowBytes + Numbers::rows_place(lane, kRowBytes);
#pragma unroll
    for (int group = 0; group < kSlab / 32; ++group) {
      if (group >= groups) break;
      const int at = group * 32 * kElement;
      typename Numbers::Left left[kShares];
#pragma unroll
      for (int share = 0; share < kShares; ++share)
        left[share] = Numbers::load_left(rows + share * kTile + at, kRowBytes);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const typename Numbers::Right right = Numbers::load_rows(columns + at + n * 8 * kRowBytes);
#pragma unroll
        for (int share = 0; share < kShares; ++share) Numbers::multiply(scores[share][n], left[share], right);
      }
    }
  }

  // Computed again at each use, so that no register keeps the value.
  static __device__ __forceinline__ uint8_t* record_of(const PrepareArgs& args) {
    const uint32_t record = ChunkGrid::chunk() * static_cast<uint32_t>(args.heads_v) + opaque(blockIdx.x);
    return args.prepared + static_cast<int64_t>(record) * kRecord.bytes;
  }

  // Fills slab.sum, slab.middle and slab.end from the log2 decays in `gates`. Contains barriers.
  static __device__ __forceinline__ void sum_gates(Slab& slab, const float (&gates)[kRows][kChannels], Shared& shared,
                                                   int team, int channel0) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      slab.sum[0][c] = Sum::of(gates[0][c]);
#pragma unroll
      for (int t = 1; t < kRows; ++t) slab.sum[t][c] = slab.sum[t - 1][c] + Sum::of(gates[t][c]);
      shared.total[team][channel0 + c] = slab.sum[kRows - 1][c];
    }
    __syncthreads();  // also: all warps are done with the tiles of the slab before
    Sum before[kChannels] = {};
    if constexpr (kMidFrame) {
      // One thread per channel: a team would spend more on selecting its own sum than on the sums.
      static_assert(kThreads >= kSlab);
      if (threadIdx.x < kSlab) {
        Sum total[kTeams], sum;
#pragma unroll
        for (int block = 0; block < kTeams; ++block) total[block] = shared.total[block][threadIdx.x];
#pragma unroll
        for (int block = 0; block <= kTeams; ++block) {
          shared.total[block][threadIdx.x] = sum;
          if (block < kTeams) sum = block == 0 ? total[0] : sum + total[block];
        }
      }
      __syncthreads();
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        before[c] = shared.total[team][channel0 + c];
        slab.middle[c] = shared.total[kTeams / 2][channel0 + c];
        slab.end[c] = shared.total[kTeams][channel0 + c];
      }
    } else {
#pragma unroll
      for (int block = 0; block < kTeams; ++block) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          if (block > 0 && block == team) before[c] = slab.end[c];
          if (block == kTeams / 2) slab.middle[c] = slab.end[c];
          const Sum total = shared.total[block][channel0 + c];
          slab.end[c] = block == 0 ? total : slab.end[c] + total;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows * kChannels; ++i) {
      Sum& sum = slab.sum[i / kChannels][i % kChannels];
      const Sum& first = before[i % kChannels];
      sum = (kMidFrame ? Sum::of(first - slab.middle[i % kChannels]) : first) + sum;
    }
  }

  static __device__ __forceinline__ void store_decay_chunk(const Slab& slab, uint8_t* record, int channel) {
#pragma unroll
    for (int c = 0; c < kChannels; c += 2)
      *reinterpret_cast<float2*>(record + kRecord.decay_chunk + vector_place(channel + c) * 4) =
          make_float2(exp2_approx(slab.end[c].rounded()), exp2_approx(slab.end[c + 1].rounded()));
  }

  // Where a lane's numbers of a block of scores lie.
  struct ScorePlace {
    int row, column;
    __device__ __forceinline__ ScorePlace(int warp, int warp_lane)
        : row(warp / 2 % 2 * 16 + warp_lane / 4), column(warp % 2 * 16 + warp_lane % 4 * 2) {}
    __device__ __forceinline__ int row_of(int i) const { return row + i / 2 * 8; }
    __device__ __forceinline__ int column_of(int n, int i) const { return 8 * n + column + i % 2; }
  };

  // Levels: adds the scores inside a half that one finer level gives.
  template <int kLevel>
  static __device__ __forceinline__ void refine(float (&scores)[kShares][2][4], const Slab& slab, Shared& shared,
                                                const ScorePlace& at, int groups, int team, int lane, int warp,
                                                int warp_lane) {
    __syncthreads();
    write_level<kLevel>(slab, shared, team, lane);
    __syncthreads();
    float finer[kShares][2][4] = {};
    add_scores(finer, shared, groups, warp, warp_lane);
#pragma unroll
    for (int i = 0; i < 8 * kShares; ++i) {
      const int n = i / 4 % 2, differ = at.row_of(i % 4) ^ at.column_of(n, i % 4);
      if (differ >= kLevel && differ < 2 * kLevel) scores[i / 8][n][i % 4] += finer[i / 8][n][i % 4];
    }
  }

  // Stores the factors per token, one lane per token.
  static __device__ __forceinline__ void store_factors(const Shared& shared, uint8_t* record, int token) {
    constexpr int kLast = kChunk - 1;
    const float rest_q = shared.rest[token][0], rest_k = shared.rest[token][1], beta = shared.beta[token] * rest_k;
    auto put_factor = [&](int vector, float x) { reinterpret_cast<float*>(record + vector)[vector_place(token)] = x; };
    put_factor(kRecord.diagonal, shared.dot[token] * shared.norm[token][0] * shared.norm[token][1] * rest_q *
                                     common_of(shared, token - kLast));
    put_factor(kRecord.beta, beta * common_of(shared, kLast - token));
    put_factor(kRecord.read_factor, beta * rest_k * common_of(shared, kChunk));
    put_factor(kRecord.query_factor, rest_q * common_of(shared, token + 1));
  }

  // Masks the scores and applies the factors of their rows. Aqk goes to the record, Akk to shared memory.
  static __device__ __forceinline__ void store_scores(float (&scores)[kShares][2][4], Shared& shared, uint8_t* record,
                                                      const ScorePlace& at, int warp, int warp_lane) {
    uint8_t* const aqk = record + kRecord.aqk;
#pragma unroll
    for (int share = 0; share < kShares; ++share) {
      const bool of_q = first_matrix(warp) + share == 0;
      if (warp % 2 > warp / 2 % 2) {
        if (of_q) store_zeros<Number>(aqk, warp_lane);
        continue;
      }
      float(&block)[2][4] = scores[share];
      float factor[2];  // of the rows
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = at.row_of(2 * i);
        factor[i] = of_q ? shared.rest[r][0] * common_of(shared, r - (kChunk - 1))
                         : shared.beta[r] * shared.rest[r][1] * shared.rest[r][1];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int r = at.row_of(i % 4), c = at.column_of(i / 4, i);
        float score = block[i / 4][i % 4];
        // Levels leave nothing in these blocks, the mid frame no pairs. Pairs have the whole decay.
        if (!kMidFrame && (r ^ c) < 4 && c < r)
          score +=
              (of_q ? shared.pair_q[r / 4][pair_with_diagonal(r % 4, c % 4)] * shared.norm[r][0] * shared.norm[c][1]
                    : shared.pair_k[r / 4][pair_below_diagonal(r % 4, c % 4)] * shared.norm[r][1] * shared.norm[c][1]) *
              common_of(shared, c - r);
        score *= factor[i % 4 / 2];
        // Mask what is above the diagonal. Only a difference is compared, so a few comparisons serve all numbers.
        const int below = at.row - at.column;
        block[i / 4][i % 4] = below > 8 * (i / 4) + i % 2 - i % 4 / 2 * 8 ? score : 0.0f;
      }
      if (of_q) {
        store_block<Number>(aqk, warp / 2, warp % 2, block[0], block[1], warp_lane);
      } else {
        const uint32_t akk_at = shared.akk.place(at.row, at.column);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          SwizzledSquare::beyond<float2>(akk_at, i % 2 * 8, i / 2 * 8) =
              make_float2(block[i / 2][i % 2 * 2], block[i / 2][i % 2 * 2 + 1]);
      }
    }
  }

  static __device__ __forceinline__ void prepare(const PrepareArgs& args, const ChunkPlace& place, int head,
                                                 int key_head, int dk, Shared& shared) {
    // Unsigned quotients: a signed quotient needs a correction.
    const int team = static_cast<int>(threadIdx.x / kLanes), lane = static_cast<int>(threadIdx.x % kLanes);
    const int warp = static_cast<int>(threadIdx.x / 32), warp_lane = static_cast<int>(threadIdx.x % 32);
    const bool spare = warp == kSpareWarp;
    const Activation& activation = args.activation;
    const int channel0 = lane * kChannels;
    auto first_of = [&](const TensorView& tensor, int h, int channel) {
      return static_cast<uint32_t>(place.sequence_at) * tensor.sequence + (place.token + team * kRows) * tensor.token +
             static_cast<uint32_t>(h) * tensor.head + channel;
    };
    auto rows_of = [&](int slab) { return Rows{place.valid - team * kRows, dk - slab * kSlab - channel0}; };
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
    float bias[kChannels];
    auto load_bias = [&](int s) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c)
        bias[c] = c < rows_of(s).channels ? gate_bias(activation, head, s * kSlab + channel0 + c, dk) : 0.0f;
    };

    // Load gates last. A branch on their type waits for them, and by then all other loads are in flight.
    if constexpr (kSlabs == 1) load_keys(0);
    uint32_t beta_bits = 0;
    if (spare) {
      const TensorView& beta = activation.beta;
      const int64_t token = place.token + (warp_lane < place.valid ? warp_lane : 0);
      beta_bits =
          load_bits(beta.data, beta.dtype, place.sequence_at * beta.sequence + token * beta.token + head * beta.head);
    }
    if constexpr (kSlabs == 1) {
      load_bias(0);
      load_slab_gates(0);
    }
    if (spare) {
      const float raw = number_of(beta_bits, activation.beta.dtype);
      shared.beta[warp_lane] = warp_lane < place.valid ? write_strength(raw, activation.beta_form) : 0.0f;
    }
    float norm = 1.0f;  // lanes 0-3: scale rq, lanes 4-7: rk
    float& token_dot = shared.dot[team * kRows + lane % kRows];
    float dots[kRows] = {}, squares[2 * kRows] = {};
    if constexpr (kSlabs == 1) {
      if (activation.l2norm)
        add_products<true, true>(dots, squares, slab.q, slab.k);
      else
        add_products<true, false>(dots, squares, slab.q, slab.k);
      const float dot = sum_over_lanes<kRows, kLanes>(dots, lane);
      if (lane < kRows) token_dot = dot;
    } else if (activation.l2norm) {
#pragma unroll 1
      for (int s = 0; s < kSlabs; ++s) {
        load_keys(s);
        add_products<false, true>(dots, squares, slab.q, slab.k);
      }
    }
    if (activation.l2norm) norm = rsqrtf(sum_over_lanes<2 * kRows, kLanes>(squares, lane) + kL2NormEpsilon);
    if constexpr (kSlabs == 1) slab.stay_packed();
    if (lane % (2 * kRows) < kRows) norm *= activation.scale;
    if (lane < 2 * kRows) {
      const int token = team * kRows + lane % kRows;
      const PowerAndRest parts = power_and_rest(norm);
      shared.norm[token][lane / kRows] = parts.power;
      shared.rest[token][lane / kRows] = parts.rest;
    }

    GateParams common = gate_params(activation, gate_slope(activation, head), 0.0f);
    float scores[kShares][2][4] = {}, pair_sum = 0.0f;  // pair_sum: this lane's pair
    const ScorePlace at(warp, warp_lane);

#pragma unroll 1
    for (int s = 0; s < kSlabs; ++s) {
      if constexpr (kSlabs > 1) {
        load_keys(s);
        load_bias(s);
        load_slab_gates(s);
      }
      const int channel = s * kSlab + channel0;
      GateParams params[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        params[c] = common;
        params[c].bias = bias[c];
      }
      activate_gates<kMidFrame>(gates, activation, params, rows_of(s));
      if constexpr (kSlabs > 1) {
        float of_slab[kRows] = {};
        add_products<true, false>(of_slab, squares, slab.q, slab.k);
        const float dot = sum_over_lanes<kRows, kLanes>(of_slab, lane);
        if (lane < kRows) token_dot = s == 0 ? dot : token_dot + dot;
      }
      auto add_pairs = [&] {
        pair_sum += slab.template sum_pairs<kLanes>(gates, lane);
        if constexpr (kSlabs == 1)
          put_pair_sum(shared, pair_sum, team, lane);  // at once, so that no register keeps the sum
      };
      if constexpr (!kMidFrame && !kTriesMid) add_pairs();
      if constexpr (!kMidFrame || kSlabs > 1) slab.stay_packed();
      sum_gates(slab, gates, shared, team, channel0);
      const bool inside = channel < kWidth;
      uint8_t* const record = record_of(args);
      if (team == 0 && inside) store_decay_chunk(slab, record, channel);
      if constexpr (kLeavesOut) {
        // Of several slabs the first, which is full, decides: its tiles are written before gates of others are loaded.
        // Channels of others that decay by less come above 0, by kMostCommon at most.
        float common = slab.common_decay_of(kSlabs == 1 ? rows_of(0).channels : kChannels);
        if (s > 0) common = shared.common;
        if (s == 0 && threadIdx.x == 0) shared.common = common;
        slab.leave_out(common, team * kRows - (kMidFrame ? kChunk / 2 : 0));
      }
      const int groups = (kWidth - s * kSlab) / 32;
      uint8_t* const tiles_out = record + s * kSlab * kElement;
      if constexpr (kTriesMid) {
        if (place.valid == kChunk && slab.fits_mid_frame()) {
          if constexpr (kSlabs == 1) put_pair_sum(shared, 0.0f, team, lane);
          slab.move_to_mid_frame();
          write_mid(slab, shared, tiles_out, inside, team, lane);
          __syncthreads();
          add_scores(scores, shared, groups, warp, warp_lane);
          continue;
        }
        add_pairs();
      }
      if constexpr (kMidFrame)
        write_mid(slab, shared, tiles_out, inside, team, lane);
      else if (team >= kTeams / 2)
        write_halves<true>(slab, shared, tiles_out, inside, team, lane);
      else
        write_halves<false>(slab, shared, tiles_out, inside, team, lane);
      __syncthreads();
      add_scores(scores, shared, groups, warp, warp_lane);
      if constexpr (!kMidFrame) {
        refine<8>(scores, slab, shared, at, groups, team, lane, warp, warp_lane);
        refine<4>(scores, slab, shared, at, groups, team, lane, warp, warp_lane);
      }
    }

    uint8_t* const record = record_of(args);
    if (spare) store_factors(shared, record, warp_lane);
    if constexpr (!kMidFrame && kSlabs > 1) {
      put_pair_sum(shared, pair_sum, team, lane);
      __syncthreads();
    }
    store_scores(scores, shared, record, at, warp, warp_lane);
    __syncthreads();
    if (warp == 0) store_inverse<Number>(shared.akk, record + kRecord.inverse, warp_lane);
  }
};

// The grid is ChunkGrid::of(chunks, heads_v).
template <class Number, int kWidth, bool kMidFrame>
__global__ void __launch_bounds__(KdaPrepare<Number, kWidth, kMidFrame>::kThreads,
                                  KdaPrepare<Number, kWidth, kMidFrame>::kCtas)
    prepare_kda_kernel(const __grid_constant__ PrepareArgs args, int dk) {
  using Prepare = KdaPrepare<Number, kWidth, kMidFrame>;
  wait_for_previous_grid();
  allow_next_grid();
  const uint32_t heads_v = static_cast<uint32_t>(args.heads_v), heads_qk = static_cast<uint32_t>(args.heads_qk);
  const uint32_t head = blockIdx.x;
  const uint32_t key_head =
      heads_v == heads_qk ? head : head / (heads_v / heads_qk);  // avoids a division of 20 instructions
  ChunkPlace place;
  if (!find_chunk(args.tables, static_cast<int>(ChunkGrid::chunk()), kChunk, place)) return;
  Prepare::prepare(args, place, static_cast<int>(head), static_cast<int>(key_head), dk,
                   *reinterpret_cast<typename Prepare::Shared*>(dynamic_shared_memory()));
}

}  // namespace deltarelay::cuda::sm80
