// KDA `prepare`: one CTA per (chunk of 32 tokens, value head) turns raw q, k, g, beta into a KdaRecord.
//
// A warp owns 8 tokens (a quarter of the chunk), a lane 4 channels of them. So sums of gates and of squares stay inside
// a warp; only the totals of the quarters cross warps. Let c be the inclusive sum of log2 decays inside a half of the
// chunk and c_last the sum over that half:
//     late half:   G - G_mid = c        early half:  G_mid - G = c_last - c
// Both are <= 0. So the block of scores between late rows and early columns needs no exponent above 0, whatever the
// gates are. Scores inside a half come in one of two ways:
//   mid frame    one product in the frame of the chunk's middle. Exponents reach 16 times the largest decay:
//                gates >= -5 (natural log) give e^{+-80}, finite in bf16 and fp32. Above the diagonal there may be inf
//                or NaN; a select removes them.
//   levels       the half is halved again (8, then 4). At each level later tokens are rows and earlier ones columns, in
//                the frame of the boundary between them, so no exponent exceeds 0. The last 4 x 4 blocks are summed
//                pair by pair in fp32.
#pragma once
#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/records/triangle.cuh"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/cuda/tile/descriptor.cuh"
#include "kernels/cuda/tile/scores.cuh"
#include "kernels/cuda/tile/slow_decay.cuh"
#include "kernels/cuda/tile/warp_sum.cuh"

namespace deltarelay::cuda::sm90 {

constexpr int kPrepareThreads = 128;
constexpr int kQuarter = 8;   // tokens of a warp
constexpr int kChannels = 4;  // channels of a lane
constexpr int kLast = KdaRecord::kChunk - 1;

struct KdaPrepareShared {
  static constexpr int kTile = 32 * kRowBytes;  // one half of the channels
  // Score operands, for each half of the channels: rows of q, rows of k, columns of k.
  static constexpr int kHalf = 3 * kTile;
  uint8_t tiles[2 * kHalf];
  Triangle akk;                    // Akk~
  float quarter_total[4][kWidth];  // sums of log2 decays
  float norm[2][32];               // powers of two of scale rq and of rk,
  float rest[2][32];               // and their rests sq and sk (record.h)
  float beta[32];
  float gate_bias[kWidth];            // of the head's gate
  float pair_q[8][10], pair_k[8][6];  // levels: [block of 4 tokens][pair]
};

// Index of (row, column) of a 4 x 4 block in the list of its pairs: with the diagonal (q) and without it (k).
__device__ __forceinline__ constexpr int pair_with_diagonal(int i, int j) { return i * (i + 1) / 2 + j; }
__device__ __forceinline__ constexpr int pair_below_diagonal(int i, int j) { return i * (i - 1) / 2 + j; }

// Which rows of a warp exist. For a row past the end the last existing row is loaded, and a select drops it afterwards:
// no load waits behind a branch.
struct Rows {
  int valid;  // may be <= 0
  int last;   // last row that may be read, relative to the warp's first; may be < 0
  bool all;   // all tokens of the warp exist
};

// Calls load(t, row) for this lane's piece of each row. `stride` is in bytes.
template <class Load>
__device__ __forceinline__ void for_each_row(const void* first, int64_t stride, const Rows& rows, Load load) {
  const uint8_t* row = static_cast<const uint8_t*>(first);
  asm volatile("" : "+l"(stride));
  if (rows.all) {
#pragma unroll
    for (int t = 0; t < kQuarter; ++t, row += stride) load(t, row);
  } else {
#pragma unroll
    for (int t = 0; t < kQuarter; ++t) load(t, row + (t < rows.last ? t : rows.last) * stride);
  }
}

__device__ __forceinline__ void load_rows(uint2 (&words)[kQuarter], const void* first, int64_t stride,
                                          const Rows& rows) {
  for_each_row(first, stride, rows,
               [&](int t, const uint8_t* row) { words[t] = *reinterpret_cast<const uint2*>(row); });
  if (!rows.all) {
#pragma unroll
    for (int t = 0; t < kQuarter; ++t) words[t] = t < rows.valid ? words[t] : make_uint2(0, 0);
  }
}

// A common gate is raw bounded, in bf16, with rows aligned to 8 bytes. It has a kernel of its own, without the branches
// and registers of the other gates.
template <bool kCommonGate>
__device__ __forceinline__ bool is_bf16(DType dtype) {
  return kCommonGate || dtype == DType::kBf16;
}

// Loads gates as they are stored: fp32, or two 16-bit numbers in the bits of x and of y. Does not wait for the loads.
template <bool kCommonGate>
__device__ __forceinline__ void load_gates(float4 (&raw)[kQuarter], const void* first, int64_t stride, DType dtype,
                                           const Rows& rows) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(first) | static_cast<uintptr_t>(stride);
  if (!kCommonGate && dtype == DType::kFp32) {
    if (bits % 16 == 0) {
      for_each_row(first, stride, rows,
                   [&](int t, const uint8_t* row) { raw[t] = *reinterpret_cast<const float4*>(row); });
    } else {
      for_each_row(first, stride, rows, [&](int t, const uint8_t* row) {
        const float* g = reinterpret_cast<const float*>(row);
        raw[t] = {g[0], g[1], g[2], g[3]};
      });
    }
  } else if (kCommonGate || bits % 8 == 0) {
    for_each_row(first, stride, rows, [&](int t, const uint8_t* row) {
      const float2 pairs = *reinterpret_cast<const float2*>(row);
      raw[t].x = pairs.x, raw[t].y = pairs.y;
    });
  } else {
    for_each_row(first, stride, rows, [&](int t, const uint8_t* row) {
      const uint16_t* g = reinterpret_cast<const uint16_t*>(row);
      raw[t].x = __uint_as_float(uint32_t{g[0]} | uint32_t{g[1]} << 16);
      raw[t].y = __uint_as_float(uint32_t{g[2]} | uint32_t{g[3]} << 16);
    });
  }
}

template <GateForm kForm, bool kCommonGate>
__device__ __forceinline__ void activate_as(float (&decay)[kQuarter][kChannels], const float4 (&raw)[kQuarter],
                                            DType dtype, const GateParams (&params)[kChannels]) {
  auto one = [](float x, const GateParams& gate) {
    if constexpr (kCommonGate) {
      return gate.bound * reciprocal_approx(1.0f + exp2_approx(fmaf(gate.slope, x, gate.slope * gate.bias)));
    } else {
      return clamp_decay(log2_decay<kForm>(x, gate), gate);
    }
  };
  auto activate = [&](int t, float x, float y, float z, float w) {
    decay[t][0] = one(x, params[0]), decay[t][1] = one(y, params[1]);
    decay[t][2] = one(z, params[2]), decay[t][3] = one(w, params[3]);
  };
  auto activate_pairs = [&](auto pair) {
    using Half = decltype(pair);
#pragma unroll
    for (int t = 0; t < kQuarter; ++t) {
      const uint32_t xy = __float_as_uint(raw[t].x), zw = __float_as_uint(raw[t].y);
      activate(t, Half::low(xy), Half::high(xy), Half::low(zw), Half::high(zw));
    }
  };
  if (is_bf16<kCommonGate>(dtype)) {
    activate_pairs(Pair<__nv_bfloat16>{});
  } else if (dtype == DType::kFp16) {
    activate_pairs(Pair<__half>{});
  } else {
#pragma unroll
    for (int t = 0; t < kQuarter; ++t) activate(t, raw[t].x, raw[t].y, raw[t].z, raw[t].w);
  }
}

// log2 decays. Tokens past the end do not decay.
template <bool kCommonGate>
__device__ __forceinline__ void activate_gates(float (&decay)[kQuarter][kChannels], const float4 (&raw)[kQuarter],
                                               const Activation& activation, GateParams common, const float* biases,
                                               const Rows& rows) {
  const float4 bias = *reinterpret_cast<const float4*>(biases);
  GateParams params[kChannels] = {common, common, common, common};
  params[0].bias = bias.x, params[1].bias = bias.y, params[2].bias = bias.z, params[3].bias = bias.w;
  switch (kCommonGate ? GateForm::kRawBounded : activation.gate_form) {
    case GateForm::kLog:
      activate_as<GateForm::kLog, kCommonGate>(decay, raw, activation.g.dtype, params);
      break;
    case GateForm::kLinear:
      activate_as<GateForm::kLinear, kCommonGate>(decay, raw, activation.g.dtype, params);
      break;
    case GateForm::kRawSoftplus:
      activate_as<GateForm::kRawSoftplus, kCommonGate>(decay, raw, activation.g.dtype, params);
      break;
    case GateForm::kRawBounded:
      activate_as<GateForm::kRawBounded, kCommonGate>(decay, raw, activation.g.dtype, params);
      break;
  }
  if (!rows.all) {
#pragma unroll
    for (int t = 0; t < kQuarter; ++t) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) decay[t][c] = t < rows.valid ? decay[t][c] : 0.0f;
    }
  }
}

template <class Element>
__device__ __forceinline__ void unpack(float (&numbers)[kChannels], uint2 words) {
  numbers[0] = Pair<Element>::low(words.x), numbers[1] = Pair<Element>::high(words.x);
  numbers[2] = Pair<Element>::low(words.y), numbers[3] = Pair<Element>::high(words.y);
}
template <class Element>
__device__ __forceinline__ uint2 pack(const float (&numbers)[kChannels]) {
  return make_uint2(Pair<Element>::pack(numbers[0], numbers[1]), Pair<Element>::pack(numbers[2], numbers[3]));
}

// Byte offset of this lane's channels of row `row` in a tile of two halves, `half_bytes` apart.
__device__ __forceinline__ uint32_t lane_offset(int row, int lane, int half_bytes) {
  return (lane / 16) * half_bytes + swizzled_offset(row, lane % 16 / 2) + lane % 2 * 8;
}

// Writes the operands of this warp's tokens: those of the walk to the record, those of the scores to shared memory.
// `sum`: inclusive sums inside the half; `total`: sum of the half; `other`: sum of the other half.
template <class Element, bool kMidFrame, bool kLate>
__device__ __forceinline__ void write_operands(const uint2 (&q)[kQuarter], const uint2 (&k)[kQuarter],
                                               const float (&sum)[kQuarter][kChannels], const float (&total)[kChannels],
                                               const float (&other)[kChannels], float norm_q, float norm_k,
                                               uint8_t* tiles, uint8_t* record, int token, int lane) {
  constexpr int kRowsQ = 0, kRowsK = KdaPrepareShared::kTile, kColumns = 2 * KdaPrepareShared::kTile;
  float far[kChannels];  // decay over the other half, which lies between this half and the far end of the chunk
#pragma unroll
  for (int c = 0; c < kChannels; ++c) far[c] = exp2_approx(other[c]);
#pragma unroll
  for (int t = 0; t < kQuarter; ++t) {
    float qs[kChannels], ks[kChannels];
    unpack<Element>(qs, q[t]);
    unpack<Element>(ks, k[t]);
    const float scale_q = __shfl_sync(~0u, norm_q, t), scale_k = __shfl_sync(~0u, norm_k, t + 8);
    float start_q[kChannels], start_k[kChannels], end_k[kChannels], rows_q[kChannels], rows_k[kChannels],
        columns_k[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      qs[c] *= scale_q;
      ks[c] *= scale_k;
      // Factors to the middle (<= 1), to this half's outer end (<= 1), and back from the middle (>= 1).
      const float gap = total[c] - sum[t][c];
      const float middle = exp2_approx(kLate ? sum[t][c] : gap), edge = exp2_approx(kLate ? gap : sum[t][c]);
      const float back = kMidFrame ? exp2_approx(kLate ? -sum[t][c] : -gap) : 0.0f;
      if constexpr (kLate) {
        rows_q[c] = qs[c] * middle;
        rows_k[c] = ks[c] * middle;
        start_q[c] = rows_q[c] * far[c];
        start_k[c] = rows_k[c] * far[c];
        end_k[c] = ks[c] * edge;
        columns_k[c] = kMidFrame ? ks[c] * back : 0.0f;
      } else {
        columns_k[c] = ks[c] * middle;
        start_q[c] = qs[c] * edge;
        start_k[c] = ks[c] * edge;
        end_k[c] = columns_k[c] * far[c];
        rows_q[c] = kMidFrame ? qs[c] * back : 0.0f;
        rows_k[c] = kMidFrame ? ks[c] * back : 0.0f;
      }
    }
    const uint32_t out = lane_offset(token + t, lane, KdaPrepareShared::kTile),
                   in = lane_offset(token + t, lane, KdaPrepareShared::kHalf);
    *reinterpret_cast<uint2*>(record + KdaRecord::kQuery + out) = pack<Element>(start_q);
    *reinterpret_cast<uint2*>(record + KdaRecord::kRead + out) = pack<Element>(start_k);
    *reinterpret_cast<uint2*>(record + KdaRecord::kUpdate + out) = pack<Element>(end_k);
    *reinterpret_cast<uint2*>(tiles + kRowsQ + in) = pack<Element>(rows_q);
    *reinterpret_cast<uint2*>(tiles + kRowsK + in) = pack<Element>(rows_k);
    *reinterpret_cast<uint2*>(tiles + kColumns + in) = pack<Element>(columns_k);
  }
}

// Writes the score operands of one finer level: 8 (inside a half, between quarters) or 4 (inside a quarter).
template <class Element, int kLevel>
__device__ __forceinline__ void write_level(const uint2 (&q)[kQuarter], const uint2 (&k)[kQuarter],
                                            const float (&sum)[kQuarter][kChannels],
                                            const float (&first_total)[kChannels], float norm_q, float norm_k,
                                            uint8_t* tiles, int token, int lane) {
#pragma unroll
  for (int t = 0; t < kQuarter; ++t) {
    const bool is_row = kLevel == 8 ? (token & 8) != 0 : (t & 4) != 0;
    float qs[kChannels], ks[kChannels];
    unpack<Element>(qs, q[t]);
    unpack<Element>(ks, k[t]);
    const float scale_q = __shfl_sync(~0u, norm_q, t), scale_k = __shfl_sync(~0u, norm_k, t + 8);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float boundary = kLevel == 8 ? first_total[c] : sum[3][c];
      const float factor = exp2_approx(is_row ? sum[t][c] - boundary : boundary - sum[t][c]);
      qs[c] *= scale_q * factor;
      ks[c] *= scale_k * factor;
    }
    const uint2 zero = make_uint2(0, 0), packed_k = pack<Element>(ks);
    uint8_t* at = tiles + lane_offset(token + t, lane, KdaPrepareShared::kHalf);
    *reinterpret_cast<uint2*>(at) = is_row ? pack<Element>(qs) : zero;
    *reinterpret_cast<uint2*>(at + KdaPrepareShared::kTile) = is_row ? packed_k : zero;
    *reinterpret_cast<uint2*>(at + 2 * KdaPrepareShared::kTile) = is_row ? zero : packed_k;
  }
}

// Sums the scores of the 4 x 4 diagonal blocks of this warp's tokens, pair by pair, without norms.
template <class Element>
__device__ __forceinline__ void sum_pairs(KdaPrepareShared& shared, const uint2 (&q)[kQuarter],
                                          const uint2 (&k)[kQuarter], const float (&decay)[kQuarter][kChannels],
                                          int token, int lane) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    float pairs[16] = {};
    float qs[4][kChannels], ks[4][kChannels];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      unpack<Element>(qs[t], q[4 * block + t]);
      unpack<Element>(ks[t], k[4 * block + t]);
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      float forget[4];
#pragma unroll
      for (int t = 1; t < 4; ++t) forget[t] = exp2_approx(decay[4 * block + t][c]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float decayed = ks[j][c];
#pragma unroll
        for (int i = j; i < 4; ++i) {
          if (i > j) {
            decayed *= forget[i];
            pairs[10 + pair_below_diagonal(i, j)] = fmaf(ks[i][c], decayed, pairs[10 + pair_below_diagonal(i, j)]);
          }
          pairs[pair_with_diagonal(i, j)] = fmaf(qs[i][c], decayed, pairs[pair_with_diagonal(i, j)]);
        }
      }
    }
    const float total = sum_over_lanes<16>(pairs, lane);
    if (lane < 10)
      shared.pair_q[token / 4 + block][lane] = total;
    else if (lane < 16)
      shared.pair_k[token / 4 + block][lane - 10] = total;
  }
}

// Multiplies the score tiles.
template <class Element>
__device__ __forceinline__ void score_tiles(float (&scores)[16], const KdaPrepareShared& shared) {
  const uint64_t rows = swizzled_operand(shared_address(shared.tiles));
  multiply_scores<Element>(scores, rows, rows + operand_step(2 * KdaPrepareShared::kTile), KdaPrepareShared::kHalf);
  wgmma_wait<0>();
  pin(scores);
}

// Inclusive sums over the warp's tokens, in place.
__device__ __forceinline__ void sum_up(float (&sum)[kQuarter][kChannels]) {
#pragma unroll
  for (int t = 1; t < kQuarter; ++t) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sum[t][c] += sum[t - 1][c];
  }
}
__device__ __forceinline__ void subtract(float (&sum)[kQuarter][kChannels], float common) {
#pragma unroll
  for (int t = 0; t < kQuarter; ++t) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sum[t][c] = fmaf(-static_cast<float>(t + 1), common, sum[t][c]);
  }
}
__device__ __forceinline__ void add_to_all(float (&sum)[kQuarter][kChannels], const float (&first)[kChannels]) {
#pragma unroll
  for (int t = 0; t < kQuarter; ++t) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sum[t][c] += first[c];
  }
}

// Sums of log2 decays for this lane's channels: of both halves, and of the first quarter of this warp's half.
struct HalfTotals {
  float early[kChannels], later[kChannels], first[kChannels];
  __device__ __forceinline__ HalfTotals(const KdaPrepareShared& shared, int warp, int channel) {
    float totals[4][kChannels];
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const float4 four = *reinterpret_cast<const float4*>(&shared.quarter_total[quarter][channel]);
      totals[quarter][0] = four.x, totals[quarter][1] = four.y;
      totals[quarter][2] = four.z, totals[quarter][3] = four.w;
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      early[c] = totals[0][c] + totals[1][c];
      later[c] = totals[2][c] + totals[3][c];
      first[c] = warp < 2 ? totals[0][c] : totals[2][c];
    }
  }
  __device__ __forceinline__ float common() const {
    float decays[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) decays[c] = fabsf(early[c] + later[c]);
    return common_decay<KdaRecord::kChunk>(decays);
  }
  __device__ __forceinline__ void subtract(float common) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      early[c] = fmaf(-16.0f, common, early[c]);
      later[c] = fmaf(-16.0f, common, later[c]);
      first[c] = fmaf(-8.0f, common, first[c]);
    }
  }
};

// Rows and columns of this lane's scores. Warps 0 and 1 have the rows of q, warps 2 and 3 those of k.
struct ScorePlace {
  int row_block, row, column;
  __device__ __forceinline__ ScorePlace(int warp, int lane)
      : row_block(warp & 1), row(row_block * 16 + lane / 4), column(2 * (lane % 4)) {}
  __device__ __forceinline__ int row_of(int i) const { return row + 4 * (i & 2); }
  __device__ __forceinline__ int column_of(int i) const { return 8 * (i / 4) + column + (i & 1); }
};

// The common decay of so many tokens; of a negative number its inverse.
__device__ __forceinline__ float decay_of(float common, int tokens) {
  return exp2_approx(static_cast<float>(tokens) * common);
}

// Replaces the scores of token pairs that differ at level kLevel by those of the finer tiles, which lie in shared
// memory.
template <class Element, int kLevel>
__device__ __forceinline__ void refine_scores(float (&scores)[16], const KdaPrepareShared& shared,
                                              const ScorePlace& at) {
  float finer[16];
  score_tiles<Element>(finer, shared);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int differ = at.row_of(i) ^ at.column_of(i);
    scores[i] = differ >= kLevel && differ < 2 * kLevel ? finer[i] : scores[i];
  }
}

// Replaces the scores of the 4 x 4 diagonal blocks by those of sum_pairs, with norms and without the common decay.
__device__ __forceinline__ void take_pairs(float (&scores)[16], const KdaPrepareShared& shared, const ScorePlace& at,
                                           int warp, float common) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int r = at.row_of(i), c = at.column_of(i);
    if ((r ^ c) >= 4 || c > r) continue;
    const float norm = shared.norm[1][c] * decay_of(common, c - r);
    if (warp < 2)
      scores[i] = shared.pair_q[r / 4][pair_with_diagonal(r % 4, c % 4)] * shared.norm[0][r] * norm;
    else if (c < r)
      scores[i] = shared.pair_k[r / 4][pair_below_diagonal(r % 4, c % 4)] * shared.norm[1][r] * norm;
  }
}

// Aqk~ below the diagonal to the record, Akk~ to shared memory. Scores above the diagonal may be inf or NaN: select.
template <class Element>
__device__ __forceinline__ void write_scores(const float (&scores)[16], KdaPrepareShared& shared, uint8_t* record,
                                             const ScorePlace& at, int warp, int lane, float common) {
  if (warp < 2) {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 4 * block + 2 * r;
        const float factor = shared.rest[0][at.row_of(i)] * decay_of(common, at.row_of(i) - kLast);
        const float low = at.column_of(i) < at.row_of(i) ? scores[i] * factor : 0.0f,
                    high = at.column_of(i + 1) < at.row_of(i + 1) ? scores[i + 1] * factor : 0.0f;
        *reinterpret_cast<uint32_t*>(record + KdaRecord::kAqk + block * 512 + (at.row_block * 2 + r) * 128 +
                                     (lane / 4) * 16 + at.column * 2) = Pair<Element>::pack(low, high);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const int r = at.row_of(i), c = at.column_of(i);
      const float strength = shared.beta[r] * shared.rest[1][r] * shared.rest[1][r];
      *reinterpret_cast<float2*>(&shared.akk.row[r][c]) = {c < r ? scores[i] * strength : 0.0f,
                                                           c + 1 < r ? scores[i + 1] * strength : 0.0f};
    }
  }
}

// One chunk of one head by all threads of the CTA.
template <class Element, bool kMidFrame, bool kCommonGate>
__device__ __forceinline__ void prepare_chunk(const PrepareArgs& args, KdaPrepareShared& shared,
                                              const ChunkPlace& place, int chunk, int head, const GateParams& gate) {
  // Opaque. The compiler would otherwise keep every address of a chunk in registers from one chunk to the next.
  const int thread = static_cast<int>(opaque(threadIdx.x)), warp = thread / 32, lane = thread % 32;
  const int token = warp * kQuarter, channel = lane * kChannels;
  const Rows rows = {place.valid - token, place.valid - 1 - token, place.valid - token >= kQuarter};
  auto row_at = [&](const TensorView& tensor, int h) {
    return place.sequence_at * tensor.sequence + (place.token + token) * tensor.token + h * tensor.head + channel;
  };
  const int key_head = head / (args.heads_v / args.heads_qk);
  float4 raw[kQuarter];
  uint2 q[kQuarter], k[kQuarter];
  const TensorView& g = args.activation.g;
  const int64_t gate_bytes = float_bytes(g.dtype);
  load_gates<kCommonGate>(raw, static_cast<const uint8_t*>(g.data) + row_at(g, head) * gate_bytes, g.token * gate_bytes,
                          g.dtype, rows);
  load_rows(k, static_cast<const uint8_t*>(args.k.data) + row_at(args.k, key_head) * 2, args.k.token * 2, rows);
  load_rows(q, static_cast<const uint8_t*>(args.q.data) + row_at(args.q, key_head) * 2, args.q.token * 2, rows);
  if (warp == 0) {
    const TensorView& beta = args.activation.beta;
    const int64_t last = lane < place.valid ? lane : place.valid - 1;
    const int64_t at = place.sequence_at * beta.sequence + (place.token + last) * beta.token + head * beta.head;
    const float strength = write_strength(load_number(beta.data, beta.dtype, at), args.activation.beta_form);
    shared.beta[lane] = lane < place.valid ? strength : 0.0f;
  }
  float sum[kQuarter][kChannels];  // log2 decays, then their inclusive sums
  activate_gates<kCommonGate>(sum, raw, args.activation, gate, shared.gate_bias + channel, rows);
  if constexpr (!kMidFrame) sum_pairs<Element>(shared, q, k, sum, token, lane);
  sum_up(sum);
  *reinterpret_cast<float4*>(&shared.quarter_total[warp][channel]) = {sum[7][0], sum[7][1], sum[7][2], sum[7][3]};

  float squares[2 * kQuarter], dots[kQuarter];
#pragma unroll
  for (int t = 0; t < kQuarter; ++t) {
    float qs[kChannels], ks[kChannels];
    unpack<Element>(qs, q[t]);
    unpack<Element>(ks, k[t]);
    squares[t] = fmaf(qs[0], qs[0], fmaf(qs[1], qs[1], fmaf(qs[2], qs[2], qs[3] * qs[3])));
    squares[kQuarter + t] = fmaf(ks[0], ks[0], fmaf(ks[1], ks[1], fmaf(ks[2], ks[2], ks[3] * ks[3])));
    dots[t] = fmaf(qs[0], ks[0], fmaf(qs[1], ks[1], fmaf(qs[2], ks[2], qs[3] * ks[3])));
  }
  float norm = 1.0f;  // lanes 0-7: of q; lanes 8-15: of k
  if (args.activation.l2norm) norm = rsqrtf(sum_over_lanes<16>(squares, lane) + kL2NormEpsilon);
  if (lane < 8) norm *= args.activation.scale;
  const auto [power, rest] = power_and_rest(norm);
  norm = power;
  const float diagonal =
      sum_over_lanes<8>(dots, lane) * norm * rest * __shfl_sync(~0u, norm, lane % 8 + 8);  // lanes 0-7
  if (!kMidFrame && lane < 16) shared.norm[lane / 8][token + lane % 8] = norm;
  if (lane < 16) shared.rest[lane / 8][token + lane % 8] = rest;
  __syncthreads();

  uint8_t* record = args.prepared + (static_cast<int64_t>(chunk) * args.heads_v + head) * KdaRecord::kBytes;
  HalfTotals total(shared, warp, channel);
  const float common = total.common();
  if (thread < 32) {
    const float rest_k = shared.rest[1][lane], beta = shared.beta[lane] * rest_k;
    auto put = [&](int vector, float x) { *reinterpret_cast<float*>(record + vector + lane * 4) = x; };
    put(KdaRecord::kBeta, beta * decay_of(common, kLast - lane));
    put(KdaRecord::kReadFactor, beta * rest_k * decay_of(common, KdaRecord::kChunk));
    put(KdaRecord::kQueryFactor, shared.rest[0][lane] * decay_of(common, lane + 1));
  }
  if (lane < kQuarter)
    *reinterpret_cast<float*>(record + KdaRecord::kDiagonal + (token + lane) * 4) =
        diagonal * decay_of(common, token + lane - kLast);
  if (warp == 0) {
    *reinterpret_cast<float4*>(record + KdaRecord::kDecay + channel * 4) = {
        exp2_approx(total.early[0] + total.later[0]), exp2_approx(total.early[1] + total.later[1]),
        exp2_approx(total.early[2] + total.later[2]), exp2_approx(total.early[3] + total.later[3])};
  }
  subtract(sum, common);
  total.subtract(common);
  if (warp % 2 == 1) add_to_all(sum, total.first);
  if (warp >= 2) {
    write_operands<Element, kMidFrame, true>(q, k, sum, total.later, total.early, norm, norm, shared.tiles, record,
                                             token, lane);
  } else {
    write_operands<Element, kMidFrame, false>(q, k, sum, total.early, total.later, norm, norm, shared.tiles, record,
                                              token, lane);
  }
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  float scores[16];
  score_tiles<Element>(scores, shared);
  const ScorePlace at(warp, lane);
  if constexpr (!kMidFrame) {
    auto refine = [&](auto level) {
      constexpr int kLevel = decltype(level)::value;
      __syncthreads();
      write_level<Element, kLevel>(q, k, sum, total.first, norm, norm, shared.tiles, token, lane);
      ptx::fence_proxy_async(ptx::space_shared);
      __syncthreads();
      refine_scores<Element, kLevel>(scores, shared, at);
    };
    refine(std::integral_constant<int, 8>{});
    refine(std::integral_constant<int, 4>{});
    take_pairs(scores, shared, at, warp, common);
  }
  write_scores<Element>(scores, shared, record, at, warp, lane, common);
  __syncthreads();
  if (warp == 0) write_inverse<Element>(shared.akk, record + KdaRecord::kInverse, lane);
}

// Grid: (head, group of `per_cta` chunks). A CTA that takes several chunks of one head looks up its gate constants
// once.
template <class Element, bool kMidFrame, bool kCommonGate>
__global__ void __launch_bounds__(kPrepareThreads, kCommonGate ? 4 : 3)
    prepare_kda_kernel(const __grid_constant__ PrepareArgs args, int per_cta) {
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  KdaPrepareShared& shared = *reinterpret_cast<KdaPrepareShared*>(dynamic_shared);
  wait_for_previous_grid();
  allow_next_grid();
  const int head = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * per_cta;
  const float bias = ::deltarelay::cuda::gate_bias(args.activation, head, static_cast<int>(threadIdx.x), kWidth);
  const GateParams gate = gate_params(args.activation, gate_slope(args.activation, head), bias);
  shared.gate_bias[threadIdx.x] = bias;
  __syncthreads();
#pragma unroll 1
  for (int chunk = first; chunk < first + per_cta; ++chunk) {
    ChunkPlace place;
    if (!find_chunk(args.tables, chunk, KdaRecord::kChunk, place)) return;
    if (chunk > first) __syncthreads();  // the inverse of the previous chunk reads shared memory
    prepare_chunk<Element, kMidFrame, kCommonGate>(args, shared, place, chunk, head, gate);
  }
}

}  // namespace deltarelay::cuda::sm90
