// prepare: everything of a chunk that does not depend on the state, for one value head.
//
//   from_start  k and q (scaled) times the decay from the chunk's start up to and including the token
//   to_end      k times the decay from after the token to the chunk's end
//   Akk, Aqk    lower triangles of key-key (times beta of the row) and query-key products with the decay between the tokens
//
// No decay is ever divided out: for tokens j < i the product over j+1..i is formed as (product from the start of i's
// sub-chunk to i) x (product from after j to that start), or pair by pair inside a sub-chunk. All factors are <= 1, so any
// gate is safe, -infinity included, and tokens past the end of a sequence are rows of zeros with decay 1.
//
// Norms, scale and beta are numbers per row: they multiply packed operands and 16 x 16 scores, never the rows themselves, so
// rows of fp32 data are read where the caller keeps them.
#if defined(DELTARELAY_CPU_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_PREPARE_INL_H_
#undef DELTARELAY_CPU_PREPARE_INL_H_
#else
#define DELTARELAY_CPU_PREPARE_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this text with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Rows of fp32 numbers, in the caller's memory or staged.
struct RowView {
  const float* base;
  int64_t stride;
  HWY_INLINE const float* row(int32_t t) const { return base + t * stride; }
};

// What a chunk's panels read. from_start is handed out sub-chunk by sub-chunk, to be packed as the products want it.
struct ChunkOperands {
  float* to_end;  // [token][channel]
  float* decay;   // [channel]
  float* solve;   // [row tile][token][kRows]: -beta Akk
  float* mix;     // [row tile][token][kRows]: Aqk
  float* beta;    // [token]
};

// Channels are prepared in blocks whose rows stay in L1 (64 KiB on the machine this was tuned on; whole rows of 128 channels
// take 80 KiB).
inline constexpr int32_t kChannelBlock = 64;
static_assert(kChannelBlock % kChannelPad == 0);

// Row-major staging of one chunk.
struct Staging {
  float* k;       // [token][channel] unless the caller's rows can be read in place
  float* q;       // [token][channel]
  float* g;       // [token][channel]
  float* decay;   // [token][channel of a block]
  float* rows_k;  // [token][channel of a block] from the start of the sub-chunk
  float* rows_q;  // [token][channel of a block]
  float* starts;  // [sub-chunk][channel of a block] decay from the start of the chunk to the start of the sub-chunk
  float* bias;    // one row, padded
};

struct HeadInputs {  // addresses of one (sequence, head), strides in elements
  const void* q;
  const void* k;
  const void* g;
  const void* beta;
  int64_t stride_q, stride_k, stride_g, stride_beta;
};

// What a chunk is: `tokens` tokens from `first` of its sequence, channels padded to `channels`.
struct ChunkShape {
  int64_t first;
  int32_t tokens;
  int32_t channels;
};

// Rows as fp32: in place when they are whole, else staged with zeros in padded channels and rows past the end.
HWY_INLINE RowView view_rows(const void* base, DType type, int64_t stride, const ChunkShape& shape, int32_t count,
                             float* staging) {
  const void* start = at(base, type, shape.first * stride);
  if (type == DType::kFp32 && shape.tokens == kChunk && count == shape.channels)
    return {static_cast<const float*>(start), stride};
  for (int32_t t = 0; t < kChunk; ++t) {
    float* row = staging + t * shape.channels;
    const int32_t given = t < shape.tokens ? count : 0;
    if (given > 0) load_row(at(start, type, t * stride), type, count, row);
    std::fill(row + given, row + shape.channels, 0.0f);
  }
  return {staging, shape.channels};
}

HWY_INLINE float square_sum(const float* HWY_RESTRICT row, int32_t channels) {
  const F32 d;
  Vec sum = hn::Zero(d);
  for (int32_t c = 0; c < channels; c += kLanes) {
    const Vec x = hn::LoadU(d, row + c);
    sum = hn::MulAdd(x, x, sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Numbers per row: norm of k; scale and norm of q; betas.
struct RowFactors {
  alignas(64) float k[kChunk];
  alignas(64) float q[kChunk];
  alignas(64) float minus_beta_k[kChunk];
};

HWY_INLINE void row_factors(const Problem& problem, const HeadInputs& in, const ChunkShape& shape, const RowView& k,
                            const RowView& q, float* beta, RowFactors& out) {
  for (int32_t t = 0; t < kChunk; ++t)
    beta[t] = t < shape.tokens ? load_one(in.beta, problem.dtype_beta, (shape.first + t) * in.stride_beta) : 0.0f;
  activate_betas(problem.beta_form, beta, kChunk);
  std::fill(beta + shape.tokens, beta + kChunk, 0.0f);
  for (int32_t t = 0; t < kChunk; ++t) {
    out.k[t] = 1.0f;
    out.q[t] = problem.scale;
    if (problem.l2norm) {
      out.k[t] = 1.0f / std::sqrt(square_sum(k.row(t), shape.channels) + kL2NormEpsilon);
      out.q[t] = problem.scale / std::sqrt(square_sum(q.row(t), shape.channels) + kL2NormEpsilon);
    }
    out.minus_beta_k[t] = -beta[t] * out.k[t];
  }
}

// Sums of products of rows i and columns j as they are gathered: scores[j][i], so that four rows lie side by side.
struct Scores {
  alignas(64) float kk[kChunk * kChunk] = {};
  alignas(64) float qk[kChunk * kChunk] = {};
};

// to[i] += sum of the lanes of s_i
HWY_INLINE void add_sums(Vec s0, Vec s1, Vec s2, Vec s3, float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_NEON
  const float32x4_t sums = vpaddq_f32(vpaddq_f32(s0.raw, s1.raw), vpaddq_f32(s2.raw, s3.raw));
  vst1q_f32(to, vaddq_f32(vld1q_f32(to), sums));
#else
  const F32 d;
  to[0] += hn::GetLane(hn::SumOfLanes(d, s0));
  to[1] += hn::GetLane(hn::SumOfLanes(d, s1));
  to[2] += hn::GetLane(hn::SumOfLanes(d, s2));
  to[3] += hn::GetLane(hn::SumOfLanes(d, s3));
#endif
}

// out[j][i] += dot(rows[i], columns[j]) for a kSubChunk x kSubChunk block.
HWY_INLINE void dot_block(const float* HWY_RESTRICT rows, int64_t row_stride, const float* HWY_RESTRICT columns,
                          int64_t column_stride, int32_t width, float* HWY_RESTRICT out) {
  const F32 d;
  // As many accumulators as a tile of the micro-kernel has.
  constexpr int32_t kWide = 2 * kRows / kSubChunk;
  for (int32_t j0 = 0; j0 < kSubChunk; j0 += kWide) {
    Vec sum[kSubChunk][kWide];
    DR_UNROLL
    for (int32_t i = 0; i < kSubChunk; ++i) {
      DR_UNROLL
      for (int32_t j = 0; j < kWide; ++j) sum[i][j] = hn::Zero(d);
    }
    for (int32_t c = 0; c < width; c += kLanes) {
      Vec b[kWide];
      DR_UNROLL
      for (int32_t j = 0; j < kWide; ++j) b[j] = hn::LoadU(d, columns + (j0 + j) * column_stride + c);
      DR_UNROLL
      for (int32_t i = 0; i < kSubChunk; ++i) {
        const Vec a = hn::LoadU(d, rows + i * row_stride + c);
        DR_UNROLL
        for (int32_t j = 0; j < kWide; ++j) sum[i][j] = hn::MulAdd(a, b[j], sum[i][j]);
      }
    }
    DR_UNROLL
    for (int32_t j = 0; j < kWide; ++j) add_sums(sum[0][j], sum[1][j], sum[2][j], sum[3][j], out + (j0 + j) * kChunk);
  }
}

// Products inside one sub-chunk, pair by pair; entries above the diagonal are left alone.
HWY_INLINE void pair_block(const float* HWY_RESTRICT keys, int64_t key_stride, const float* HWY_RESTRICT queries,
                           int64_t query_stride, const float* HWY_RESTRICT decay, int32_t width,
                           float* HWY_RESTRICT out_kk, float* HWY_RESTRICT out_qk) {
  const F32 d;
  static_assert(kSubChunk == 4);
  const Vec zero = hn::Zero(d);
  Vec kk10 = zero, kk20 = zero, kk21 = zero, kk30 = zero, kk31 = zero, kk32 = zero;
  Vec qk00 = zero, qk10 = zero, qk11 = zero, qk20 = zero, qk21 = zero, qk22 = zero;
  Vec qk30 = zero, qk31 = zero, qk32 = zero, qk33 = zero;
  for (int32_t c = 0; c < width; c += kLanes) {
    const Vec d1 = hn::LoadU(d, decay + width + c);
    const Vec d2 = hn::LoadU(d, decay + 2 * width + c);
    const Vec d3 = hn::LoadU(d, decay + 3 * width + c);
    const Vec k1 = hn::LoadU(d, keys + key_stride + c);
    const Vec k2 = hn::LoadU(d, keys + 2 * key_stride + c);
    const Vec k3 = hn::LoadU(d, keys + 3 * key_stride + c);
    const Vec q1 = hn::LoadU(d, queries + query_stride + c);
    const Vec q2 = hn::LoadU(d, queries + 2 * query_stride + c);
    const Vec q3 = hn::LoadU(d, queries + 3 * query_stride + c);
    Vec key = hn::LoadU(d, keys + c);  // column 0, decayed row by row
    qk00 = hn::MulAdd(hn::LoadU(d, queries + c), key, qk00);
    key = hn::Mul(key, d1);
    kk10 = hn::MulAdd(k1, key, kk10), qk10 = hn::MulAdd(q1, key, qk10);
    key = hn::Mul(key, d2);
    kk20 = hn::MulAdd(k2, key, kk20), qk20 = hn::MulAdd(q2, key, qk20);
    key = hn::Mul(key, d3);
    kk30 = hn::MulAdd(k3, key, kk30), qk30 = hn::MulAdd(q3, key, qk30);
    key = k1;
    qk11 = hn::MulAdd(q1, key, qk11);
    key = hn::Mul(key, d2);
    kk21 = hn::MulAdd(k2, key, kk21), qk21 = hn::MulAdd(q2, key, qk21);
    key = hn::Mul(key, d3);
    kk31 = hn::MulAdd(k3, key, kk31), qk31 = hn::MulAdd(q3, key, qk31);
    key = k2;
    qk22 = hn::MulAdd(q2, key, qk22);
    key = hn::Mul(key, d3);
    kk32 = hn::MulAdd(k3, key, kk32), qk32 = hn::MulAdd(q3, key, qk32);
    qk33 = hn::MulAdd(q3, k3, qk33);
  }
  add_sums(zero, kk10, kk20, kk30, out_kk);
  add_sums(zero, zero, kk21, kk31, out_kk + kChunk);
  add_sums(zero, zero, zero, kk32, out_kk + 2 * kChunk);
  add_sums(qk00, qk10, qk20, qk30, out_qk);
  add_sums(zero, qk11, qk21, qk31, out_qk + kChunk);
  add_sums(zero, zero, qk22, qk32, out_qk + 2 * kChunk);
  add_sums(zero, zero, zero, qk33, out_qk + 3 * kChunk);
}

// Scores to packed operands, with the factors of their rows and columns: -beta Akk for the solve, Aqk for the outputs. The
// upper triangle is selected away, not multiplied: what stands there may be anything.
HWY_INLINE void pack_scores(const Scores& scores, const RowFactors& factors, const ChunkOperands& out) {
  for (int32_t tile = 0; tile < kRowTiles; ++tile) {
    for (int32_t j = 0; j < kChunk; ++j) {
      float* HWY_RESTRICT solve = out.solve + (tile * kChunk + j) * kRows;
      float* HWY_RESTRICT mix = out.mix + (tile * kChunk + j) * kRows;
      const float column = factors.k[j];
      for (int32_t r = 0; r < kRows; ++r) {
        const int32_t i = tile * kRows + r;
        const float kk = factors.minus_beta_k[i] * (column * scores.kk[j * kChunk + i]);
        const float qk = factors.q[i] * (column * scores.qk[j * kChunk + i]);
        solve[r] = j < i ? kk : 0.0f;
        mix[r] = j <= i ? qk : 0.0f;
      }
    }
  }
}

// Rows of a block of KDA channels times their decays from the start of the sub-chunk.
HWY_INLINE void decay_rows(const float* HWY_RESTRICT k, int64_t k_stride, const float* HWY_RESTRICT q, int64_t q_stride,
                           int32_t width, const Staging& s) {
  const F32 d;
  const float* HWY_RESTRICT decay = s.decay;
  float* HWY_RESTRICT rows_k = s.rows_k;
  float* HWY_RESTRICT rows_q = s.rows_q;
  float* HWY_RESTRICT starts = s.starts;
  const Vec one = hn::Set(d, 1.0f);
  for (int32_t c = 0; c < width; c += kLanes) {
    Vec start = one;
    DR_UNROLL
    for (int32_t block = 0; block < kChunk; block += kSubChunk) {
      hn::StoreU(start, d, starts + block / kSubChunk * width + c);
      Vec sub = one;
      DR_UNROLL
      for (int32_t t = block; t < block + kSubChunk; ++t) {
        sub = hn::Mul(sub, hn::LoadU(d, decay + t * width + c));
        hn::StoreU(hn::Mul(hn::LoadU(d, k + t * k_stride + c), sub), d, rows_k + t * width + c);
        hn::StoreU(hn::Mul(hn::LoadU(d, q + t * q_stride + c), sub), d, rows_q + t * width + c);
      }
      start = hn::Mul(start, sub);
    }
  }
}

// Moves the columns of earlier sub-chunks on from the start of sub-chunk `block` to the start of the next one, and adds its
// own keys. After the last sub-chunk the columns are what to_end is.
HWY_INLINE void advance_columns(const float* HWY_RESTRICT k, int64_t k_stride, const float* HWY_RESTRICT decay,
                                int32_t width, int32_t block, float* HWY_RESTRICT columns, int64_t stride) {
  const F32 d;
  for (int32_t c = 0; c < width; c += kLanes) {
    Vec end = hn::Set(d, 1.0f);
    DR_UNROLL
    for (int32_t t = kSubChunk - 1; t >= 0; --t) {
      hn::StoreU(hn::Mul(hn::LoadU(d, k + (block + t) * k_stride + c), end), d, columns + (block + t) * stride + c);
      end = hn::Mul(end, hn::LoadU(d, decay + (block + t) * width + c));
    }
    for (int32_t t = 0; t < block; ++t) {
      float* column = columns + t * stride + c;
      hn::StoreU(hn::Mul(hn::LoadU(d, column), end), d, column);
    }
  }
}

HWY_INLINE void scale_row(float* HWY_RESTRICT row, float factor, int32_t channels) {
  const F32 d;
  const Vec f = hn::Set(d, factor);
  for (int32_t c = 0; c < channels; c += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, row + c), f), d, row + c);
}

// `pack` has keys(rows, stride, factor, scale, token, channel, width) and queries(...), which take the four rows of a
// sub-chunk, `width` channels from `channel` on, times factor[channel] (nullptr: 1) and scale[token].

// KDA: a decay per token and channel.
template <class Pack>
HWY_NOINLINE void prepare_kda(const Problem& problem, const HeadInputs& in, const GateTerms& gate,
                              const ChunkShape& shape, const Staging& s, const ChunkOperands& out, const Pack& pack) {
  const int32_t channels = shape.channels;
  const RowView k = view_rows(in.k, problem.dtype, in.stride_k, shape, problem.dk, s.k);
  const RowView q = view_rows(in.q, problem.dtype, in.stride_q, shape, problem.dk, s.q);
  RowFactors factors;
  row_factors(problem, in, shape, k, q, out.beta, factors);

  const RowView g = view_rows(in.g, problem.dtype_gate, in.stride_g, shape, problem.dk, s.g);
  Scores scores;
  for (int32_t c = 0; c < channels; c += kChannelBlock) {
    const int32_t width = std::min(kChannelBlock, channels - c);
    GateTerms terms = gate;
    if (terms.bias != nullptr) terms.bias += c;
    activate_gates(terms, g.base + c, g.stride, shape.tokens, width, s.decay, out.decay + c);
    std::fill(s.decay + shape.tokens * width, s.decay + kChunk * width, 1.0f);
    decay_rows(k.base + c, k.stride, q.base + c, q.stride, width, s);
    float* columns = out.to_end + c;
    for (int32_t block = 0; block < kChunk; block += kSubChunk) {
      const float* rows_k = s.rows_k + block * width;
      const float* rows_q = s.rows_q + block * width;
      const float* starts = s.starts + block / kSubChunk * width;
      pack.keys(rows_k, width, starts, factors.minus_beta_k, block, c, width);
      pack.queries(rows_q, width, starts, factors.q, block, c, width);
      pair_block(k.row(block) + c, k.stride, q.row(block) + c, q.stride, s.decay + block * width, width,
                 scores.kk + block * kChunk + block, scores.qk + block * kChunk + block);
      for (int32_t j = 0; j < block; j += kSubChunk) {
        dot_block(rows_k, width, columns + j * channels, channels, width, scores.kk + j * kChunk + block);
        dot_block(rows_q, width, columns + j * channels, channels, width, scores.qk + j * kChunk + block);
      }
      advance_columns(k.base + c, k.stride, s.decay, width, block, columns, channels);
    }
  }
  if (problem.l2norm)
    for (int32_t t = 0; t < kChunk; ++t) scale_row(out.to_end + t * channels, factors.k[t], channels);
  pack_scores(scores, factors, out);
}

// GDN: one decay per token, so products of keys and queries are taken bare and the decays multiply 16 x 16 numbers.
template <class Pack>
HWY_NOINLINE void prepare_gdn(const Problem& problem, const HeadInputs& in, const GateTerms& gate,
                              const ChunkShape& shape, const Staging& s, const ChunkOperands& out, const Pack& pack) {
  const F32 d;
  const int32_t channels = shape.channels;
  const RowView k = view_rows(in.k, problem.dtype, in.stride_k, shape, problem.dk, s.k);
  const RowView q = view_rows(in.q, problem.dtype, in.stride_q, shape, problem.dk, s.q);
  RowFactors factors;
  row_factors(problem, in, shape, k, q, out.beta, factors);

  alignas(64) float gates[kChunk * kLanes] = {}, whole[kLanes] = {};  // a vector a token; the first lane counts
  for (int32_t t = 0; t < shape.tokens; ++t)
    gates[t * kLanes] = load_one(in.g, problem.dtype_gate, (shape.first + t) * in.stride_g);
  activate_gates(gate, gates, kLanes, shape.tokens, kLanes, gates, whole);
  std::fill(out.decay, out.decay + channels, whole[0]);
  float decay[kChunk];
  for (int32_t t = 0; t < kChunk; ++t) decay[t] = t < shape.tokens ? gates[t * kLanes] : 1.0f;

  Scores scores;
  for (int32_t i = 0; i < shape.tokens; i += kSubChunk) {
    for (int32_t j = 0; j <= i; j += kSubChunk) {
      dot_block(k.row(i), k.stride, k.row(j), k.stride, channels, scores.kk + j * kChunk + i);
      dot_block(q.row(i), q.stride, k.row(j), k.stride, channels, scores.qk + j * kChunk + i);
    }
  }
  for (int32_t j = 0; j < kChunk; ++j) {
    float between = 1.0f;  // product of decays after token j up to token i
    for (int32_t i = j; i < kChunk; ++i) {
      scores.kk[j * kChunk + i] *= between;
      scores.qk[j * kChunk + i] *= between;
      if (i + 1 < kChunk) between *= decay[i + 1];
    }
  }
  pack_scores(scores, factors, out);

  alignas(64) float k_start[kChunk], q_start[kChunk], k_end[kChunk];
  float start = 1.0f, end = 1.0f;
  for (int32_t t = 0; t < kChunk; ++t) {
    start *= decay[t];
    k_start[t] = factors.minus_beta_k[t] * start;
    q_start[t] = factors.q[t] * start;
  }
  for (int32_t t = kChunk - 1; t >= 0; --t) {
    k_end[t] = factors.k[t] * end;
    end *= decay[t];
  }
  for (int32_t t = 0; t < kChunk; t += kSubChunk) {
    pack.keys(k.row(t), k.stride, nullptr, k_start, t, 0, channels);
    pack.queries(q.row(t), q.stride, nullptr, q_start, t, 0, channels);
  }
  for (int32_t t = 0; t < kChunk; ++t) {
    const Vec factor = hn::Set(d, k_end[t]);
    const float* HWY_RESTRICT key = k.row(t);
    float* HWY_RESTRICT to = out.to_end + t * channels;
    for (int32_t c = 0; c < channels; c += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, key + c), factor), d, to + c);
  }
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
