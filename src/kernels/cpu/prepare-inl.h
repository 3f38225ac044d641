// prepare: everything of a chunk that does not depend on the state, for one value head.
//
//   k_from_start, q_from_start   k and q (scaled) times the decay from the chunk's start up to and including the token
//   k_to_end                     k times the decay from after the token to the chunk's end
//   Akk, Aqk                     lower triangles of the key-key products (times beta of the row) and the query-key
//                                products, each with the decay between the two tokens
//
// No decay is ever divided out. For tokens j < i in different sub-chunks, the decay over j+1..i is the product of two
// factors: from the start of i's sub-chunk to i, and from after j to that start. Inside a sub-chunk it is formed pair
// by pair. All factors are <= 1, so every gate is safe, -infinity included. Tokens past the end of a sequence are rows
// of zeros with decay 1.
//
// Norms, scale and beta are one number per row. They multiply packed operands and 16 x 16 scores, never the rows, so
// rows of fp32 data are read from the caller's memory.
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
#include "kernels/cpu/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Rows of numbers, in the caller's memory or in a staging buffer.
template <class Number>
struct RowsOf {
  const Number* base;
  int64_t stride;
  HWY_INLINE const Number* row(int32_t t) const { return base + t * stride; }
};
using RowView = RowsOf<float>;

// Operands of a chunk that all panels read. k_from_start and q_from_start are not here: `pack` takes them per
// sub-chunk.
struct ChunkOperands {
  float* k_to_end;     // [token][channel]
  float* decay_chunk;  // [channel]
  float* minus_akk;    // -Akk, [row tile][token][kRows]
  float* aqk;          // [row tile][token][kRows]
  float* beta;         // [token]
};

// What the walks of whole chunks ask of `prepare` (see `Pack` below).
struct WholeChunk {
  static constexpr int32_t kTokens = kChunk;
  static constexpr bool wants_scores() { return true; }
  static constexpr bool wants_columns() { return true; }
};

// Channels per block. The rows of a block stay in L1. Sums over lanes are reduced once per block, and with longer
// vectors that reduction costs more relative to the products.
inline constexpr int32_t kChannelBlock = kLanes < 16 ? 64 : 128;
static_assert(kChannelBlock % kChannelPad == 0);

// Row-major staging buffers of one chunk.
struct Staging {
  float* k;       // [token][channel], unless the caller's rows can be read directly
  float* q;       // [token][channel]
  float* g;       // [token][channel]
  float* decay;   // [token][channel of a block]
  float* rows_k;  // [token of a sub-chunk][channel of a block]: k times the decay from the start of the sub-chunk
  float* rows_q;  // [token of a sub-chunk][channel of a block]: the same for q
  float* starts;  // two of [channel of a block]: decay from the chunk's start to this and to the next sub-chunk
  float* bias;    // one row, padded with zeros
};

struct HeadInputs {  // addresses of one (sequence, head), strides in elements
  const void* q;
  const void* k;
  const void* g;
  const void* beta;
  int64_t layout_q, layout_k, layout_g, layout_beta;
  DType dtype_g;
  float scale;  // factor on q
};

// A chunk: `tokens` tokens of a sequence, the first at `first`; channels are padded to `channels`.
struct ChunkShape {
  int64_t first;
  int32_t tokens;
  int32_t channels;
};

// Rows as fp32: the caller's memory if they need no padding, else a staging buffer with zeros in padded channels and
// rows.
template <int32_t kTokens = kChunk>
HWY_INLINE RowView view_rows(const void* base, DType type, int64_t stride, const ChunkShape& shape, int32_t count,
                             float* staging) {
  const void* start = at(base, type, shape.first * stride);
  if (type == DType::kFp32 && shape.tokens == kTokens && count == shape.channels)
    return {static_cast<const float*>(start), stride};
  for (int32_t t = 0; t < kTokens; ++t) {
    float* row = staging + t * shape.channels;
    const int32_t given = t < shape.tokens ? count : 0;
    if (given > 0) load_row(at(start, type, t * stride), type, count, row);
    std::fill(row + given, row + shape.channels, 0.0f);
  }
  return {staging, shape.channels};
}

template <class Number>  // float, or uint16_t: bf16
HWY_INLINE float square_sum(const Number* HWY_RESTRICT row, int32_t channels) {
  const F32 d;
  Vec sum = hn::Zero(d);
  for (int32_t c = 0; c < channels; c += kLanes) {
    const Vec x = load_lanes(row + c);
    sum = hn::MulAdd(x, x, sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Factors per token.
template <int32_t kTokens>
struct RowFactorsOf {
  alignas(64) float k[kTokens];             // rk
  alignas(64) float q[kTokens];             // scale rq
  alignas(64) float minus_beta_k[kTokens];  // -beta rk
};
using RowFactors = RowFactorsOf<kChunk>;

// Write strengths of a chunk, 0 past its end.
template <int32_t kTokens>
HWY_INLINE void load_betas(const Problem& problem, const HeadInputs& in, const ChunkShape& shape, float* beta) {
  for (int32_t t = 0; t < kTokens; ++t)
    beta[t] = t < shape.tokens ? load_one(in.beta, problem.dtype_beta, (shape.first + t) * in.layout_beta) : 0.0f;
  activate_betas(problem.beta_form, beta, kTokens);
  std::fill(beta + shape.tokens, beta + kTokens, 0.0f);
}

template <int32_t kTokens, class Rows>  // rows of fp32 or bf16 numbers
HWY_INLINE void row_factors(const Problem& problem, const HeadInputs& in, const ChunkShape& shape, const Rows& k,
                            const Rows& q, float* beta, RowFactorsOf<kTokens>& out) {
  load_betas<kTokens>(problem, in, shape, beta);
  for (int32_t t = 0; t < kTokens; ++t) {
    out.k[t] = 1.0f;
    out.q[t] = in.scale;
    if (problem.l2norm) {
      out.k[t] = 1.0f / std::sqrt(square_sum(k.row(t), shape.channels) + kL2NormEpsilon);
      out.q[t] = in.scale / std::sqrt(square_sum(q.row(t), shape.channels) + kL2NormEpsilon);
    }
    out.minus_beta_k[t] = -beta[t] * out.k[t];
  }
}

// Packs the scores, times the factors of their rows and columns: -Akk for the solve, Aqk for the outputs. The upper
// triangle is masked, not multiplied by 0, because it may hold NaN or inf.
template <int32_t kTokens>
HWY_INLINE void pack_scores(const ScoresOf<kTokens>& scores, const RowFactorsOf<kTokens>& factors,
                            const ChunkOperands& out) {
  const hn::CappedTag<float, kRows> d;
  constexpr auto kStep = static_cast<int32_t>(hn::MaxLanes(d));
  for (int32_t i = 0; i < kTokens; i += kStep) {
    const auto rows = hn::Iota(d, static_cast<float>(i));
    const auto of_k = hn::LoadU(d, factors.minus_beta_k + i);
    const auto of_q = hn::LoadU(d, factors.q + i);
    const int32_t to = i / kRows * kTokens * kRows + i % kRows;
    for (int32_t j = 0; j < kTokens; ++j) {
      const auto token = hn::Set(d, static_cast<float>(j));
      const auto column = hn::Set(d, factors.k[j]);
      const auto kk = hn::Mul(of_k, hn::Mul(column, hn::LoadU(d, scores.kk + j * kTokens + i)));
      const auto qk = hn::Mul(of_q, hn::Mul(column, hn::LoadU(d, scores.qk + j * kTokens + i)));
      hn::StoreU(hn::IfThenElseZero(hn::Lt(token, rows), kk), d, out.minus_akk + to + j * kRows);
      hn::StoreU(hn::IfThenElseZero(hn::Le(token, rows), qk), d, out.aqk + to + j * kRows);
    }
  }
}

// Multiplies the rows of a sub-chunk, for one block of KDA channels, by their decays from the start of the sub-chunk.
// `start` is the decay from the chunk's start to this sub-chunk; `next` receives the decay to the next one.
HWY_INLINE void decay_rows(const float* HWY_RESTRICT k, int64_t k_stride, const float* HWY_RESTRICT q, int64_t q_stride,
                           const float* HWY_RESTRICT decay, int32_t width, float* HWY_RESTRICT rows_k,
                           float* HWY_RESTRICT rows_q, const float* HWY_RESTRICT start, float* HWY_RESTRICT next) {
  const F32 d;
  for (int32_t c = 0; c < width; c += kLanes) {
    Vec sub = hn::Set(d, 1.0f);
    DR_UNROLL
    for (int32_t t = 0; t < kSubChunk; ++t) {
      sub = hn::Mul(sub, hn::LoadU(d, decay + t * width + c));
      hn::StoreU(hn::Mul(hn::LoadU(d, k + t * k_stride + c), sub), d, rows_k + t * width + c);
      hn::StoreU(hn::Mul(hn::LoadU(d, q + t * q_stride + c), sub), d, rows_q + t * width + c);
    }
    hn::StoreU(hn::Mul(hn::LoadU(d, start + c), sub), d, next + c);
  }
}

// Multiplies the columns of the `count` tokens before a sub-chunk by the decay of the sub-chunk.
HWY_INLINE void scale_earlier(float* HWY_RESTRICT columns, int64_t stride, int32_t count, Vec end) {
  const F32 d;
  for (int32_t t = 0; t < count; ++t) {
    float* column = columns + t * stride;
    hn::StoreU(hn::Mul(hn::LoadU(d, column), end), d, column);
  }
}

// Moves the columns of earlier sub-chunks from the start of sub-chunk `block` to the start of the next one, and adds
// the keys of this sub-chunk. After the last sub-chunk the columns are k_to_end.
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
    scale_earlier(columns + c, stride, block, end);
  }
}

// The same without the keys of this sub-chunk, which one_pass has stored. `decay` starts at sub-chunk `block`.
HWY_INLINE void decay_columns(const float* HWY_RESTRICT decay, int32_t width, int32_t block,
                              float* HWY_RESTRICT columns, int64_t stride) {
  const F32 d;
  for (int32_t c = 0; c < width && block > 0; c += kLanes) {
    const Vec end = hn::Mul(hn::Mul(hn::LoadU(d, decay + c), hn::LoadU(d, decay + width + c)),
                            hn::Mul(hn::LoadU(d, decay + 2 * width + c), hn::LoadU(d, decay + 3 * width + c)));
    scale_earlier(columns + c, stride, block, end);
  }
}

// Where one_pass writes the bf16 rows of a sub-chunk.
//
// A `pack` has kTokens (of a whole chunk), wants_scores() (Akk, Aqk), wants_columns() (k_to_end; scores need it too),
// keys(rows, stride, factor, scale, token, channel, width) and queries(...). The last two take the four rows of a
// sub-chunk, `width` channels from `channel` on, times factor[channel] (nullptr: 1) and scale[token]. With kOnePass,
// `pack` has instead left(token, channel), the destination of the bf16 rows, and meanwhile(), which is called between
// passes.
struct LeftRows {
  uint16_t* keys;
  uint16_t* queries;
  int64_t stride;
};

// decay_rows, packing, pair_block and this sub-chunk's part of advance_columns in one pass, so that every number is
// loaded and widened once. Made for 32 registers: 16 sums and the operands.
template <class Number>
HWY_INLINE void one_pass(const Number* HWY_RESTRICT keys, int64_t key_stride, const Number* HWY_RESTRICT queries,
                         int64_t query_stride, const float* HWY_RESTRICT decay, int32_t width,
                         float* HWY_RESTRICT rows_k, float* HWY_RESTRICT rows_q, const float* HWY_RESTRICT start,
                         float* HWY_RESTRICT next, float* HWY_RESTRICT columns, int64_t stride,
                         float* HWY_RESTRICT out_kk, float* HWY_RESTRICT out_qk, const LeftRows left) {
  const F32 d;
  static_assert(kSubChunk == 4);
  const Vec zero = hn::Zero(d);
  Vec kk10 = zero, kk20 = zero, kk21 = zero, kk30 = zero, kk31 = zero, kk32 = zero;
  Vec qk00 = zero, qk10 = zero, qk11 = zero, qk20 = zero, qk21 = zero, qk22 = zero;
  Vec qk30 = zero, qk31 = zero, qk32 = zero, qk33 = zero;
  for (int32_t c = 0; c < width; c += kLanes) {
    const Vec first = hn::LoadU(d, start + c);
    Vec sub, k, q;  // decay from the start of the sub-chunk; rows of the current token
    const auto take = [&](int32_t t, Vec decayed) HWY_ATTR {
      sub = decayed;
      k = load_lanes(keys + t * key_stride + c);
      q = load_lanes(queries + t * query_stride + c);
      const Vec row_k = hn::Mul(k, sub), row_q = hn::Mul(q, sub);
      hn::StoreU(row_k, d, rows_k + t * width + c);
      hn::StoreU(row_q, d, rows_q + t * width + c);
      store_bf16_output(hn::Mul(row_k, first), left.keys + t * left.stride + c);
      store_bf16_output(hn::Mul(row_q, first), left.queries + t * left.stride + c);
    };
    take(0, hn::LoadU(d, decay + c));
    qk00 = hn::MulAdd(q, k, qk00);
    Vec now = hn::LoadU(d, decay + width + c);
    Vec key0 = hn::Mul(k, now);  // keys of earlier tokens, decayed to the current token
    take(1, hn::Mul(sub, now));
    kk10 = hn::MulAdd(k, key0, kk10), qk10 = hn::MulAdd(q, key0, qk10), qk11 = hn::MulAdd(q, k, qk11);
    now = hn::LoadU(d, decay + 2 * width + c);
    key0 = hn::Mul(key0, now);
    Vec key1 = hn::Mul(k, now);
    take(2, hn::Mul(sub, now));
    kk20 = hn::MulAdd(k, key0, kk20), qk20 = hn::MulAdd(q, key0, qk20);
    kk21 = hn::MulAdd(k, key1, kk21), qk21 = hn::MulAdd(q, key1, qk21), qk22 = hn::MulAdd(q, k, qk22);
    now = hn::LoadU(d, decay + 3 * width + c);
    key0 = hn::Mul(key0, now);
    key1 = hn::Mul(key1, now);
    const Vec key2 = hn::Mul(k, now);
    take(3, hn::Mul(sub, now));
    kk30 = hn::MulAdd(k, key0, kk30), qk30 = hn::MulAdd(q, key0, qk30);
    kk31 = hn::MulAdd(k, key1, kk31), qk31 = hn::MulAdd(q, key1, qk31);
    kk32 = hn::MulAdd(k, key2, kk32), qk32 = hn::MulAdd(q, key2, qk32), qk33 = hn::MulAdd(q, k, qk33);
    hn::StoreU(key0, d, columns + c);
    hn::StoreU(key1, d, columns + stride + c);
    hn::StoreU(key2, d, columns + 2 * stride + c);
    hn::StoreU(k, d, columns + 3 * stride + c);
    hn::StoreU(hn::Mul(first, sub), d, next + c);
  }
  add_pairs<kChunk>(kk10, kk20, kk21, kk30, kk31, kk32, out_kk);
  add_sums(qk00, qk10, qk20, qk30, out_qk);
  add_sums(zero, qk11, qk21, qk31, out_qk + kChunk);
  add_sums(zero, zero, qk22, qk32, out_qk + 2 * kChunk);
  add_sums(zero, zero, zero, qk33, out_qk + 3 * kChunk);
}

// KDA: one decay per token and channel. Returns the factors per token; the caller applies those of k_to_end.
template <class Rows, class Pack>
HWY_INLINE auto prepare_kda_rows(const Problem& problem, const HeadInputs& in, const GateTerms& gate,
                                 const ChunkShape& shape, const Rows& k, const Rows& q, const Staging& s,
                                 const ChunkOperands& out, const Pack& pack) {
  constexpr int32_t kTokens = Pack::kTokens;
  const int32_t channels = shape.channels;
  RowFactorsOf<kTokens> factors;
  row_factors(problem, in, shape, k, q, out.beta, factors);

  // Whole rows of bf16 gates are read from the caller's memory, without staging.
  const bool bare = in.dtype_g == DType::kBf16 && shape.tokens == kTokens && problem.dk == channels;
  const auto* bare_g = static_cast<const uint16_t*>(at(in.g, DType::kBf16, shape.first * in.layout_g));
  const RowView g = bare ? RowView{} : view_rows<kTokens>(in.g, in.dtype_g, in.layout_g, shape, problem.dk, s.g);
  ScoresOf<kTokens> scores;
  for (int32_t c = 0; c < channels; c += kChannelBlock) {
    const int32_t width = std::min(kChannelBlock, channels - c);
    GateTerms terms = gate;
    if (terms.bias != nullptr) terms.bias += c;
    if (bare)
      activate_gates(terms, bare_g + c, in.layout_g, kTokens, width, s.decay, out.decay_chunk + c);
    else
      activate_gates(terms, g.base + c, g.stride, shape.tokens, width, s.decay, out.decay_chunk + c);
    std::fill(s.decay + shape.tokens * width, s.decay + kTokens * width, 1.0f);
    float* columns = out.k_to_end + c;
    float *start = s.starts, *next = s.starts + width;
    std::fill(start, start + width, 1.0f);
    for (int32_t block = 0; block < kTokens; block += kSubChunk) {
      const float* decay = s.decay + block * width;
      const auto *keys = k.row(block) + c, *queries = q.row(block) + c;
      float *kk = scores.kk + block * kTokens + block, *qk = scores.qk + block * kTokens + block;
      if constexpr (Pack::kOnePass) {
        pack.meanwhile();
        one_pass(keys, k.stride, queries, q.stride, decay, width, s.rows_k, s.rows_q, start, next,
                 columns + block * channels, channels, kk, qk, pack.left(block, c));
        pack.meanwhile();
      } else {
        decay_rows(keys, k.stride, queries, q.stride, decay, width, s.rows_k, s.rows_q, start, next);
        pack.keys(s.rows_k, width, start, factors.minus_beta_k, block, c, width);
        pack.queries(s.rows_q, width, start, factors.q, block, c, width);
        if (pack.wants_scores()) pair_block<kTokens>(keys, k.stride, queries, q.stride, decay, width, kk, qk);
      }
      std::swap(start, next);
      for (int32_t j = 0; j < block && pack.wants_scores(); j += kSubChunk) {
        dot_block<kTokens>(s.rows_k, width, columns + j * channels, channels, width, scores.kk + j * kTokens + block);
        dot_block<kTokens>(s.rows_q, width, columns + j * channels, channels, width, scores.qk + j * kTokens + block);
      }
      if constexpr (Pack::kOnePass)
        decay_columns(decay, width, block, columns, channels);
      else if (pack.wants_columns())
        advance_columns(k.base + c, k.stride, s.decay, width, block, columns, channels);
    }
  }
  if (pack.wants_scores()) pack_scores(scores, factors, out);
  return factors;
}

template <class Pack>
HWY_NOINLINE RowFactorsOf<Pack::kTokens> prepare_kda(const Problem& problem, const HeadInputs& in,
                                                     const GateTerms& gate, const ChunkShape& shape, const Staging& s,
                                                     const ChunkOperands& out, const Pack& pack) {
  if constexpr (Pack::kOnePass) {
    if (problem.dtype == DType::kBf16 && shape.tokens == Pack::kTokens && problem.dk == shape.channels) {
      const auto rows = [&](const void* base, int64_t stride) {
        return RowsOf<uint16_t>{static_cast<const uint16_t*>(at(base, DType::kBf16, shape.first * stride)), stride};
      };
      return prepare_kda_rows(problem, in, gate, shape, rows(in.k, in.layout_k), rows(in.q, in.layout_q), s, out, pack);
    }
  }
  const RowView k = view_rows<Pack::kTokens>(in.k, problem.dtype, in.layout_k, shape, problem.dk, s.k);
  const RowView q = view_rows<Pack::kTokens>(in.q, problem.dtype, in.layout_q, shape, problem.dk, s.q);
  return prepare_kda_rows(problem, in, gate, shape, k, q, s, out, pack);
}

// GDN: one decay per token. So products use keys and queries without decay, and the decays multiply 16 x 16 scores.

// Decays of the tokens of a chunk, 1 past its end. Fills channel_decay with decay_chunk, the same for all channels.
template <int32_t kTokens = kChunk>
HWY_INLINE void token_decays(const HeadInputs& in, const GateTerms& gate, const ChunkShape& shape,
                             float* HWY_RESTRICT decay, float* HWY_RESTRICT channel_decay) {
  alignas(64) float inputs[kTokens] = {};
  for (int32_t t = 0; t < shape.tokens; ++t) inputs[t] = load_one(in.g, in.dtype_g, (shape.first + t) * in.layout_g);
  const float whole = activate_tokens<kTokens>(gate, inputs, shape.tokens, decay);
  std::fill(decay + shape.tokens, decay + kTokens, 1.0f);
  std::fill(channel_decay, channel_decay + shape.channels, whole);
}

// Multiplies score (i, j) by the decay E_ij from after token j to token i.
template <int32_t kTokens>
HWY_INLINE void decay_scores(const float* HWY_RESTRICT decay, ScoresOf<kTokens>& scores) {
  const F32 d;
  for (int32_t first = 0; first < kTokens; first += kLanes) {  // first of kLanes rows i
    const Vec rows = hn::Iota(d, static_cast<float>(first));
    Vec between = hn::Zero(d);
    for (int32_t j = kTokens - 1; j >= 0; --j) {
      const Vec next = hn::Set(d, j + 1 < kTokens ? decay[j + 1] : 1.0f);
      between =
          hn::IfThenElse(hn::Eq(rows, hn::Set(d, static_cast<float>(j))), hn::Set(d, 1.0f), hn::Mul(between, next));
      float* kk = scores.kk + j * kTokens + first;
      float* qk = scores.qk + j * kTokens + first;
      hn::StoreU(hn::Mul(hn::LoadU(d, kk), between), d, kk);
      hn::StoreU(hn::Mul(hn::LoadU(d, qk), between), d, qk);
    }
  }
}

// Factors per token for the rows of a chunk, or for the rows of their products.
template <int32_t kTokens>
struct RowScalesOf {
  alignas(64) float keys[kTokens];     // of k_from_start, times -beta
  alignas(64) float queries[kTokens];  // of q_from_start
  alignas(64) float to_end[kTokens];   // of k_to_end
};
using RowScales = RowScalesOf<kChunk>;

template <int32_t kTokens>
HWY_INLINE void row_scales(const RowFactorsOf<kTokens>& factors, const float* HWY_RESTRICT decay,
                           RowScalesOf<kTokens>& out) {
  float start = 1.0f, end = 1.0f;
  for (int32_t t = 0; t < kTokens; ++t) {
    start *= decay[t];
    out.keys[t] = factors.minus_beta_k[t] * start;
    out.queries[t] = factors.q[t] * start;
  }
  for (int32_t t = kTokens - 1; t >= 0; --t) {
    out.to_end[t] = factors.k[t] * end;
    end *= decay[t];
  }
}

HWY_INLINE void scale_row(const float* row, float factor, int32_t channels, float* to) {
  const F32 d;
  const Vec f = hn::Set(d, factor);
  for (int32_t c = 0; c < channels; c += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, row + c), f), d, to + c);
}

template <class Pack>
HWY_NOINLINE void prepare_gdn(const Problem& problem, const HeadInputs& in, const GateTerms& gate,
                              const ChunkShape& shape, const Staging& s, const ChunkOperands& out, const Pack& pack) {
  constexpr int32_t kTokens = Pack::kTokens;
  const int32_t channels = shape.channels;
  const RowView k = view_rows<kTokens>(in.k, problem.dtype, in.layout_k, shape, problem.dk, s.k);
  const RowView q = view_rows<kTokens>(in.q, problem.dtype, in.layout_q, shape, problem.dk, s.q);
  RowFactorsOf<kTokens> factors;
  row_factors(problem, in, shape, k, q, out.beta, factors);
  alignas(64) float decay[kTokens];
  token_decays<kTokens>(in, gate, shape, decay, out.decay_chunk);

  ScoresOf<kTokens> scores;
  for (int32_t i = 0; i < shape.tokens && pack.wants_scores(); i += kSubChunk) {
    for (int32_t j = 0; j <= i; j += kSubChunk) {
      dot_block<kTokens>(k.row(i), k.stride, k.row(j), k.stride, channels, scores.kk + j * kTokens + i);
      dot_block<kTokens>(q.row(i), q.stride, k.row(j), k.stride, channels, scores.qk + j * kTokens + i);
    }
  }
  if (pack.wants_scores()) {
    decay_scores(decay, scores);
    pack_scores(scores, factors, out);
  }

  RowScalesOf<kTokens> scales;
  row_scales(factors, decay, scales);
  for (int32_t t = 0; t < kTokens; t += kSubChunk) {
    pack.keys(k.row(t), k.stride, nullptr, scales.keys, t, 0, channels);
    pack.queries(q.row(t), q.stride, nullptr, scales.queries, t, 0, channels);
  }
  for (int32_t t = 0; t < kTokens && pack.wants_columns(); ++t)
    scale_row(k.row(t), scales.to_end[t], channels, out.k_to_end + t * channels);
}

// Either rule, with the inverse norms in k_to_end.
template <class Pack>
HWY_INLINE void prepare_chunk(const Problem& problem, const HeadInputs& in, const GateTerms& gate,
                              const ChunkShape& shape, const Staging& s, const ChunkOperands& out, const Pack& pack) {
  if (problem.rule == Rule::kGdn) return prepare_gdn(problem, in, gate, shape, s, out, pack);
  const auto factors = prepare_kda(problem, in, gate, shape, s, out, pack);
  for (int32_t t = 0; t < Pack::kTokens && problem.l2norm && pack.wants_columns(); ++t) {
    float* row = out.k_to_end + t * shape.channels;
    scale_row(row, factors.k[t], shape.channels, row);
  }
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
