// A chunk of 16, 32 or 64 tokens of a stage: its inputs, the matrices that are given or wanted, and the products of its
// triangle. A matrix of C rows lies in panels, [panel][token][kCols], with zeros past its last column and past the last
// token.
#if defined(DELTARELAY_CPU_STAGES_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_STAGES_CHUNK_INL_H_
#undef DELTARELAY_CPU_STAGES_CHUNK_INL_H_
#else
#define DELTARELAY_CPU_STAGES_CHUNK_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/fp32_engine-inl.h"
#include "kernels/cpu/stages/stages.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

constexpr int32_t kMostStageTokens = 64;

struct StageScratch {
  ChunkOperands operands;
  Staging staging;
  float* gates;     // [token][channel]: log-decays, from given sums
  float* sums;      // [token][channel]: wanted sums of log-decays
  float* zeros;     // one row of zeros, in place of rows that a stage does not read
  float* queries;   // panels of q_from_start
  float* keys;      // panels of beta k_from_start
  float* square;    // panels of the inverse, or of given scores
  float* triangle;  // left operand: the inverse, or scores with scale
  float* left;      // left operand, [row tile][channel][kRows]
  float* values;    // one panel of values
  float* panels;    // panels of states, [panel][channel][kCols]
  float* lines;     // kLineFloats
};

inline StageScratch carve_stage(const Problem& problem, int32_t panels, Carver& carver) {
  const int64_t chunk = problem.chunks.chunk, channels = padded_channels(problem.dk);
  const int64_t key_floats = int64_t{panels_for(static_cast<int32_t>(channels), kCols)} * chunk * kCols;
  const int64_t square_floats = int64_t{panels_for(static_cast<int32_t>(chunk), kCols)} * chunk * kCols;
  StageScratch s;
  carve_chunk(channels, chunk, carver, s.operands, s.staging);
  s.gates = carver.take(chunk * channels);
  s.sums = carver.take(chunk * channels);
  s.zeros = carver.take(channels);
  s.queries = carver.take(key_floats);
  s.keys = carver.take(key_floats);
  s.square = carver.take(square_floats);
  s.triangle = carver.take(chunk * chunk);
  s.left = carver.take(chunk * channels);
  s.values = carver.take(chunk * kCols);
  s.panels = carver.take(panels * channels * kCols);
  s.lines = carver.take(kLineFloats);
  return s;
}

// Rows of one head in the caller's memory, from the first token of a chunk on.
template <class Pointer>  // const void*, or void*
struct HeadRows {
  Pointer base;
  DType type;
  int64_t stride;
};

// Row of a chunk's first token in tensors of all tokens.
inline int64_t first_row(const StageArgs& args, const StageChunk& chunk) {
  const Sequences& all = args.sequences;
  return (all.seq_len > 0 ? chunk.sequence * all.seq_len : all.offsets[chunk.sequence]) + chunk.begin;
}

// Rows of a dr_intermediates tensor, [T, HV, width].
template <class Pointer>
inline HeadRows<Pointer> rows_of(const StageArgs& args, const StageChunk& chunk, Pointer base, int32_t width,
                                 DType type) {
  const int64_t heads = args.problem.heads_v;
  return {at(base, type, (first_row(args, chunk) * heads + chunk.head) * width), type, heads * width};
}
template <class Pointer>
inline HeadRows<Pointer> rows_of(const StageArgs& args, const StageChunk& chunk, Pointer base, int32_t width) {
  return rows_of(args, chunk, base, width, args.problem.chunks.dtype);
}

// Rows of a tensor with strides.
template <class Pointer>
inline HeadRows<Pointer> rows_of(const StageArgs& args, const StageChunk& chunk, Pointer base, DType type,
                                 const Strides& strides, int32_t head) {
  const int64_t start = args.sequences.start(chunk.sequence, strides);
  return {at(base, type, start + chunk.begin * strides.token + head * strides.head), type, strides.token};
}

// Columns [column, column + kCols) of rows with `columns` numbers, as one panel.
inline void load_columns(const HeadRows<const void*>& rows, int32_t column, int32_t columns, int32_t tokens,
                         int32_t chunk, float* panel) {
  const int32_t count = std::clamp(columns - column, 0, kCols);
  for (int32_t t = 0; t < chunk; ++t, panel += kCols) {
    const int32_t given = t < tokens ? count : 0;
    if (given > 0) load_row(at(rows.base, rows.type, t * rows.stride + column), rows.type, given, panel);
    std::fill(panel + given, panel + kCols, 0.0f);
  }
}

inline void store_columns(const float* panel, int32_t column, int32_t columns, int32_t tokens,
                          const HeadRows<void*>& rows) {
  const int32_t count = std::min(columns - column, kCols);
  for (int32_t t = 0; t < tokens && count > 0; ++t)
    store_row(panel + t * kCols, count, at(rows.base, rows.type, t * rows.stride + column), rows.type);
}

// Panels of `padded` columns, from rows of `columns` numbers.
inline void load_panels(const HeadRows<const void*>& rows, int32_t columns, int32_t padded, int32_t tokens,
                        int32_t chunk, float* panels) {
  for (int32_t c = 0; c < padded; c += kCols)
    load_columns(rows, c, columns, tokens, chunk, panels + int64_t{c} * chunk);
}

inline void store_panels(const float* panels, int32_t columns, int32_t tokens, int32_t chunk,
                         const HeadRows<void*>& rows) {
  for (int32_t c = 0; c < columns; c += kCols) store_columns(panels + int64_t{c} * chunk, c, columns, tokens, rows);
}

// Packs panels as a left operand, [row tile][column][kRows], times `factor`. `columns` is a multiple of 4.
inline void pack_panels(const float* panels, int32_t columns, int32_t chunk, float factor, float* to) {
  alignas(16) float scale[kSubChunk];
  std::fill(scale, scale + kSubChunk, factor);
  for (int32_t c = 0; c < columns; c += kCols) {
    for (int32_t t = 0; t < chunk; t += kSubChunk)
      pack_rows(panels + (int64_t{c} * chunk + t * kCols), kCols, nullptr, scale, std::min(kCols, columns - c),
                to + (int64_t{t / kRows} * columns + c) * kRows + t % kRows);
  }
}

// The lower triangle of a given C x C matrix. What stands above the diagonal or past the last token is not read.
inline void load_triangle(const HeadRows<const void*>& rows, int32_t tokens, int32_t chunk, float* panels) {
  for (int32_t c = 0; c < chunk; c += kCols, panels += chunk * kCols) {
    for (int32_t t = 0; t < chunk; ++t) {
      float* row = panels + t * kCols;
      const int32_t given = t < tokens ? std::clamp(t + 1 - c, 0, kCols) : 0;
      if (given > 0) load_row(at(rows.base, rows.type, t * rows.stride + c), rows.type, given, row);
      std::fill(row + given, row + kCols, 0.0f);
    }
  }
}

// Stores the lower triangle of a C x C matrix that is a left operand, times `factor`, and zeros above it.
inline void store_triangle(const float* left, float factor, int32_t tokens, int32_t chunk,
                           const HeadRows<void*>& rows) {
  alignas(64) float line[kMostStageTokens];
  for (int32_t t = 0; t < tokens; ++t) {
    const float* numbers = left + int64_t{t / kRows} * chunk * kRows + t % kRows;
    for (int32_t j = 0; j < chunk; ++j) line[j] = j <= t ? numbers[j * kRows] * factor : 0.0f;
    store_row(line, chunk, at(rows.base, rows.type, t * rows.stride), rows.type);
  }
}

// T = (I + Akk)^-1 in panels, by blocked forward substitution on the columns of I. Columns are 0 above their diagonal.
inline void invert(const float* minus_akk, int32_t tokens, int32_t chunk, float* panels) {
  for (int32_t c = 0; c < chunk; c += kCols, panels += chunk * kCols) {
    std::fill(panels, panels + chunk * kCols, 0.0f);
    for (int32_t i = c; i < std::min(c + kCols, chunk); ++i) panels[i * kCols + (i - c)] = 1.0f;
    const int32_t first = c / kRows;  // the row tile of the first diagonal entry
    for (int32_t t = first; t * kRows < tokens; ++t) {
      Tile tile;
      const float* left = minus_akk + t * chunk * kRows;
      load(tile, panels + t * kRows * kCols, kCols);
      multiply(tile, left + first * kRows * kRows, kRows, panels + first * kRows * kCols, (t - first) * kRows);
      substitute(tile, left + t * kRows * kRows);
      store(tile, panels + t * kRows * kCols, kCols);
    }
  }
}

// panel = T panel. The last rows come first, because row i reads the rows up to i.
inline void apply_inverse(const float* inverse, int32_t tokens, int32_t chunk, float* panel) {
  for (int32_t t = (tokens + kRows - 1) / kRows - 1; t >= 0; --t) {
    Tile tile;
    clear(tile);
    multiply(tile, inverse + t * chunk * kRows, kRows, panel, (t + 1) * kRows);
    store(tile, panel + t * kRows * kCols, kCols);
  }
}

// U of one panel of value columns: T beta V.
inline void values_of_panel(const HeadRows<const void*>& v, int32_t column, const StageArgs& args,
                            const StageScratch& s, int32_t tokens) {
  const int32_t chunk = args.problem.chunks.chunk;
  load_columns(v, column, args.problem.dv, tokens, chunk, s.values);
  for (int32_t t = 0; t < tokens; ++t) scale_row(s.values + t * kCols, s.operands.beta[t], kCols, s.values + t * kCols);
  apply_inverse(s.triangle, tokens, chunk, s.values);
}

// What prepare hands over: operands in panels, as far as they are wanted.
template <int32_t kCount>
class StagePack {
 public:
  static constexpr int32_t kTokens = kCount;
  static constexpr bool kOnePass = false;

  StagePack(bool scores, bool columns, float* keys, float* queries)
      : scores_(scores), columns_(columns), keys_(keys), queries_(queries) {}

  bool wants_scores() const { return scores_; }
  bool wants_columns() const { return scores_ || columns_; }
  HWY_INLINE void keys(const float* rows, int64_t stride, const float* factor, const float* scale, int32_t token,
                       int32_t channel, int32_t width) const {
    // prepare scales by -beta, for a right-hand side that the state is subtracted from.
    if (keys_ != nullptr) to_panels(rows, stride, factor, scale + token, -1.0f, token, channel, width, keys_);
  }
  HWY_INLINE void queries(const float* rows, int64_t stride, const float* factor, const float* scale, int32_t token,
                          int32_t channel, int32_t width) const {
    if (queries_ != nullptr) to_panels(rows, stride, factor, scale + token, 1.0f, token, channel, width, queries_);
  }

 private:
  static HWY_INLINE void to_panels(const float* rows, int64_t stride, const float* factor, const float* scale,
                                   float sign, int32_t token, int32_t channel, int32_t width, float* panels) {
    const F32 d;
    for (int32_t t = 0; t < kSubChunk; ++t) {
      const Vec of_token = hn::Set(d, sign * scale[t]);
      for (int32_t c = 0; c < width; c += kLanes) {
        Vec x = hn::LoadU(d, rows + t * stride + c);
        if (factor != nullptr) x = hn::Mul(x, hn::LoadU(d, factor + c));
        const int32_t column = channel + c;
        hn::StoreU(hn::Mul(x, of_token), d,
                   panels + (int64_t{column / kCols} * kTokens + token + t) * kCols + column % kCols);
      }
    }
  }

  bool scores_, columns_;
  float *keys_, *queries_;
};

// Log-decays from given sums: differences of neighbours. They are not limited to 0: limited, the rounding of the given
// sums would add up over the chunk. Together they give the difference of any two tokens, which is above 0 by that
// rounding at most.
inline void gates_from_sums(const HeadRows<const void*>& sums, int32_t columns, int32_t padded, float to_natural,
                            int32_t tokens, float* gates) {
  const F32 d;
  for (int32_t t = 0; t < tokens; ++t) {
    load_row(at(sums.base, sums.type, t * sums.stride), sums.type, columns, gates + t * padded);
    std::fill(gates + t * padded + columns, gates + (t + 1) * padded, 0.0f);
  }
  const Vec factor = hn::Set(d, to_natural);
  for (int32_t t = tokens - 1; t >= 0; --t) {
    for (int32_t c = 0; c < padded; c += kLanes) {
      Vec x = hn::LoadU(d, gates + t * padded + c);
      if (t > 0) x = hn::Sub(x, hn::LoadU(d, gates + (t - 1) * padded + c));
      hn::StoreU(hn::Mul(x, factor), d, gates + t * padded + c);
    }
  }
}

// Columns of gates in memory, and rounded up to whole vectors.
inline int32_t gate_columns(const Problem& problem) { return problem.rule == Rule::kKda ? problem.dk : 1; }
inline int32_t padded_gates(const Problem& problem) {
  return problem.rule == Rule::kKda ? padded_channels(problem.dk) : kChannelPad;
}
inline float natural_of(const Chunks& chunks) { return chunks.sums_base_2 ? 0.69314718056f : 1.0f; }

inline HeadRows<const void*> given_sums(const StageArgs& args, const StageChunk& chunk) {
  const void* sums = args.tensors.intermediates->gate_sums;
  return rows_of(args, chunk, sums, gate_columns(args.problem), DType::kFp32);
}

// Inputs and gate of one chunk. Rows that the stage does not read are zeros. ChunkShape.first is 0.
struct StageInputs {
  HeadInputs in;
  GateTerms gate;
};

inline StageInputs stage_inputs(const StageArgs& args, const StageChunk& chunk, int32_t tokens, const StageScratch& s) {
  const Problem& p = args.problem;
  const Reads reads = p.reads();
  const int32_t channels = padded_channels(p.dk);
  std::fill(s.zeros, s.zeros + channels, 0.0f);
  const auto rows = [&](bool read, const void* base, DType type, const Strides& strides, int32_t head) {
    return read ? rows_of(args, chunk, base, type, strides, head) : HeadRows<const void*>{s.zeros, type, 0};
  };
  const int32_t shared = chunk.head / p.group();
  const auto q = rows(reads.q, args.tensors.q, p.dtype, p.q, shared);
  const auto k = rows(reads.k, args.tensors.k, p.dtype, p.k, shared);
  const auto beta = rows(reads.beta, args.tensors.beta, p.dtype_beta, p.beta, chunk.head);
  auto g = rows(reads.g, args.tensors.g, p.dtype_gate, p.g, chunk.head);
  GateTerms gate{GateForm::kLog, 1.0f, 0.0f, -std::numeric_limits<float>::infinity(), 0.0f, nullptr};
  if (reads.g) {
    gate = gate_terms(args, chunk.head, channels, s.staging.bias);
  } else if (p.chunks.gives(DR_GATE_SUMS)) {
    gates_from_sums(given_sums(args, chunk), gate_columns(p), padded_gates(p), natural_of(p.chunks), tokens, s.gates);
    g = {s.gates, DType::kFp32, padded_gates(p)};
  }
  // Without scale: q_from_start has none, and Aqk gets it where it is stored or used.
  return {{q.base, k.base, g.base, beta.base, q.stride, k.stride, g.stride, beta.stride, g.type, 1.0f}, gate};
}

// Calls body with the tokens of a whole chunk as a compile-time constant.
template <class Body>
HWY_INLINE void with_tokens(int32_t chunk, const Body& body) {
  if (chunk == 16) return body(std::integral_constant<int32_t, 16>());
  if (chunk == 32) return body(std::integral_constant<int32_t, 32>());
  body(std::integral_constant<int32_t, 64>());
}

// What a stage wants of prepare.
struct StageWants {
  bool scores = false;       // operands.minus_akk, operands.aqk (without scale)
  bool columns = false;      // operands.k_to_end
  float* keys = nullptr;     // panels of beta k_from_start
  float* queries = nullptr;  // panels of q_from_start
};

inline void prepare_stage(const StageArgs& args, const StageInputs& inputs, int32_t tokens, const StageScratch& s,
                          const StageWants& wants) {
  const Problem& problem = args.problem;
  const int32_t channels = padded_channels(problem.dk), chunk = problem.chunks.chunk;
  for (float* panels : {wants.keys, wants.queries}) {  // columns past the channels
    if (panels == nullptr || channels % kCols == 0) continue;
    float* last = panels + int64_t{channels / kCols} * chunk * kCols;
    std::fill(last, last + chunk * kCols, 0.0f);
  }
  with_tokens(chunk, [&]<int32_t kTokens>(std::integral_constant<int32_t, kTokens>) HWY_ATTR {
    const StagePack<kTokens> pack(wants.scores, wants.columns, wants.keys, wants.queries);
    prepare_chunk(problem, inputs.in, inputs.gate, {0, tokens, channels}, s.staging, s.operands, pack);
  });
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
