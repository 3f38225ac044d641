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

// Row-major staging of one chunk, rows of `channels` numbers.
struct Staging {
  float* k;        // [token] unless the caller's rows can be read in place
  float* q;        // [token]
  float* decay;    // [token]
  float* rows_k;   // [token] from the start of the sub-chunk
  float* rows_q;   // [token]
  float* columns;  // [token] up to the start of the sub-chunk at hand
  float* starts;   // [sub-chunk] decay from the start of the chunk to the start of the sub-chunk
  float* bias;     // one row, padded
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

// out[i * kChunk + j] = dot(rows[i], columns[j]) for a kSubChunk x kSubChunk block.
HWY_INLINE void dot_block(const float* HWY_RESTRICT rows, int64_t row_stride, const float* HWY_RESTRICT columns,
                          int64_t column_stride, int32_t channels, float* HWY_RESTRICT out) {
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
    for (int32_t c = 0; c < channels; c += kLanes) {
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
    for (int32_t i = 0; i < kSubChunk; ++i) {
      DR_UNROLL
      for (int32_t j = 0; j < kWide; ++j) out[i * kChunk + j0 + j] = hn::GetLane(hn::SumOfLanes(d, sum[i][j]));
    }
  }
}

// Products inside one sub-chunk, pair by pair.
HWY_INLINE void pair_block(const RowView& k, const RowView& q, const float* HWY_RESTRICT decay, int32_t channels,
                           int32_t block, float* HWY_RESTRICT akk, float* HWY_RESTRICT aqk) {
  const F32 d;
  static_assert(kSubChunk == 4);
  const float* keys = k.row(block);
  const float* queries = q.row(block);
  const int64_t key_stride = k.stride, query_stride = q.stride;
  Vec kk[4][4], qk[4][4];  // the strict lower triangles, and the diagonal of qk
  DR_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    DR_UNROLL
    for (int32_t j = 0; j <= i; ++j) kk[i][j] = qk[i][j] = hn::Zero(d);
  }
  for (int32_t c = 0; c < channels; c += kLanes) {
    DR_UNROLL
    for (int32_t j = 0; j < 4; ++j) {
      Vec key = hn::LoadU(d, keys + j * key_stride + c);
      qk[j][j] = hn::MulAdd(hn::LoadU(d, queries + j * query_stride + c), key, qk[j][j]);
      DR_UNROLL
      for (int32_t i = j + 1; i < 4; ++i) {
        key = hn::Mul(key, hn::LoadU(d, decay + (block + i) * channels + c));
        kk[i][j] = hn::MulAdd(hn::LoadU(d, keys + i * key_stride + c), key, kk[i][j]);
        qk[i][j] = hn::MulAdd(hn::LoadU(d, queries + i * query_stride + c), key, qk[i][j]);
      }
    }
  }
  akk += block * kChunk + block;
  aqk += block * kChunk + block;
  DR_UNROLL
  for (int32_t i = 0; i < 4; ++i) {
    DR_UNROLL
    for (int32_t j = 0; j < i; ++j) akk[i * kChunk + j] = hn::GetLane(hn::SumOfLanes(d, kk[i][j]));
    DR_UNROLL
    for (int32_t j = 0; j <= i; ++j) aqk[i * kChunk + j] = hn::GetLane(hn::SumOfLanes(d, qk[i][j]));
  }
}

// Triangles to packed operands, with the factors of their rows and columns: -beta Akk for the solve, Aqk for the outputs.
HWY_INLINE void pack_scores(const float* HWY_RESTRICT akk, const float* HWY_RESTRICT aqk, const RowFactors& factors,
                            const ChunkOperands& out) {
  for (int32_t i = 0; i < kChunk; ++i) {
    float* HWY_RESTRICT solve = out.solve + (i / kRows) * kChunk * kRows + i % kRows;
    float* HWY_RESTRICT mix = out.mix + (i / kRows) * kChunk * kRows + i % kRows;
    for (int32_t j = 0; j < kChunk; ++j) {
      solve[j * kRows] = j < i ? factors.minus_beta_k[i] * (factors.k[j] * akk[i * kChunk + j]) : 0.0f;
      mix[j * kRows] = j <= i ? factors.q[i] * (factors.k[j] * aqk[i * kChunk + j]) : 0.0f;
    }
  }
}

// Rows of a KDA chunk times their decays: from the start of the sub-chunk, and to the end of the chunk.
HWY_INLINE void decay_rows(const RowView& keys, const RowView& queries, const RowFactors& factors, const Staging& s,
                           float* HWY_RESTRICT to_end, int32_t channels) {
  const F32 d;
  const float* HWY_RESTRICT k = keys.base;
  const float* HWY_RESTRICT q = queries.base;
  const int64_t k_stride = keys.stride, q_stride = queries.stride;
  const float* HWY_RESTRICT decay = s.decay;
  float* HWY_RESTRICT rows_k = s.rows_k;
  float* HWY_RESTRICT rows_q = s.rows_q;
  float* HWY_RESTRICT starts = s.starts;
  const Vec one = hn::Set(d, 1.0f);
  for (int32_t c = 0; c < channels; c += kLanes) {
    Vec end = one;
    DR_UNROLL
    for (int32_t t = kChunk - 1; t >= 0; --t) {
      const Vec key = hn::Mul(hn::LoadU(d, k + t * k_stride + c), hn::Set(d, factors.k[t]));
      hn::StoreU(hn::Mul(key, end), d, to_end + t * channels + c);
      end = hn::Mul(end, hn::LoadU(d, decay + t * channels + c));
    }
    Vec start = one;
    DR_UNROLL
    for (int32_t block = 0; block < kChunk; block += kSubChunk) {
      hn::StoreU(start, d, starts + block / kSubChunk * channels + c);
      Vec sub = one;
      DR_UNROLL
      for (int32_t t = block; t < block + kSubChunk; ++t) {
        sub = hn::Mul(sub, hn::LoadU(d, decay + t * channels + c));
        hn::StoreU(hn::Mul(hn::LoadU(d, k + t * k_stride + c), sub), d, rows_k + t * channels + c);
        hn::StoreU(hn::Mul(hn::LoadU(d, q + t * q_stride + c), sub), d, rows_q + t * channels + c);
      }
      start = hn::Mul(start, sub);
    }
  }
}

// Moves the columns [0, block) on from the start of sub-chunk `block` to the start of the next one, and adds its own keys.
HWY_INLINE void advance_columns(const RowView& keys, const Staging& s, int32_t block, int32_t channels) {
  const F32 d;
  const float* HWY_RESTRICT k = keys.row(block);
  const int64_t k_stride = keys.stride;
  const float* HWY_RESTRICT decay = s.decay + block * channels;
  float* HWY_RESTRICT columns = s.columns;
  float* HWY_RESTRICT own = s.columns + block * channels;
  for (int32_t c = 0; c < channels; c += kLanes) {
    Vec end = hn::Set(d, 1.0f);
    DR_UNROLL
    for (int32_t t = kSubChunk - 1; t >= 0; --t) {
      hn::StoreU(hn::Mul(hn::LoadU(d, k + t * k_stride + c), end), d, own + t * channels + c);
      end = hn::Mul(end, hn::LoadU(d, decay + t * channels + c));
    }
    for (int32_t t = 0; t < block; ++t) {
      float* column = columns + t * channels + c;
      hn::StoreU(hn::Mul(hn::LoadU(d, column), end), d, column);
    }
  }
}

// `pack` has keys(rows, stride, factor, scale, token) and queries(...), which take the four rows of a sub-chunk times
// factor[channel] (nullptr: 1) and scale[token].

// KDA: a decay per token and channel.
template <class Pack>
HWY_NOINLINE void prepare_kda(const Problem& problem, const HeadInputs& in, const GateTerms& gate,
                              const ChunkShape& shape, const Staging& s, const ChunkOperands& out, const Pack& pack) {
  const int32_t channels = shape.channels;
  const RowView k = view_rows(in.k, problem.dtype, in.stride_k, shape, problem.dk, s.k);
  const RowView q = view_rows(in.q, problem.dtype, in.stride_q, shape, problem.dk, s.q);
  RowFactors factors;
  row_factors(problem, in, shape, k, q, out.beta, factors);

  const RowView g = view_rows(in.g, problem.dtype_gate, in.stride_g, shape, problem.dk, s.decay);
  activate_gates(gate, g.base, g.stride, shape.tokens, channels, s.decay, out.decay);
  std::fill(s.decay + shape.tokens * channels, s.decay + kChunk * channels, 1.0f);

  decay_rows(k, q, factors, s, out.to_end, channels);
  for (int32_t t = 0; t < kChunk; t += kSubChunk) {
    const float* starts = s.starts + t / kSubChunk * channels;
    pack.keys(s.rows_k + t * channels, channels, starts, factors.minus_beta_k, t);
    pack.queries(s.rows_q + t * channels, channels, starts, factors.q, t);
  }

  alignas(64) float akk[kChunk * kChunk] = {}, aqk[kChunk * kChunk] = {};  // rows past the end stay zero
  for (int32_t block = 0; block < shape.tokens; block += kSubChunk) {
    pair_block(k, q, s.decay, channels, block, akk, aqk);
    for (int32_t j = 0; j < block; j += kSubChunk) {
      const float* columns = s.columns + j * channels;
      const int32_t offset = block * kChunk + j;
      dot_block(s.rows_k + block * channels, channels, columns, channels, channels, akk + offset);
      dot_block(s.rows_q + block * channels, channels, columns, channels, channels, aqk + offset);
    }
    if (block + kSubChunk < shape.tokens) advance_columns(k, s, block, channels);
  }
  pack_scores(akk, aqk, factors, out);
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

  alignas(64) float akk[kChunk * kChunk] = {}, aqk[kChunk * kChunk] = {};  // rows past the end stay zero
  for (int32_t i = 0; i < shape.tokens; i += kSubChunk) {
    for (int32_t j = 0; j <= i; j += kSubChunk) {
      dot_block(k.row(i), k.stride, k.row(j), k.stride, channels, akk + i * kChunk + j);
      dot_block(q.row(i), q.stride, k.row(j), k.stride, channels, aqk + i * kChunk + j);
    }
  }
  float between[kChunk];  // product of decays after token j up to token i
  for (int32_t i = 0; i < kChunk; ++i) {
    for (int32_t j = 0; j < i; ++j) between[j] *= decay[i];
    between[i] = 1.0f;
    for (int32_t j = 0; j <= i; ++j) {
      akk[i * kChunk + j] *= between[j];
      aqk[i * kChunk + j] *= between[j];
    }
  }
  pack_scores(akk, aqk, factors, out);

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
    pack.keys(k.row(t), k.stride, nullptr, k_start, t);
    pack.queries(q.row(t), q.stride, nullptr, q_start, t);
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
