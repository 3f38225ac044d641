// The bf16 engine: bf16 instructions compute the products of q, k, state and V_new, with operands rounded to bf16 and
// sums in fp32. Gates and the solve stay fp32. Factors per token multiply the rows of products, not the operands. So
// keys and queries without a decay of their own (GDN) enter the products as the caller gave them, without rounding.
//
// `Panel` is one family of instructions:
//   kChannelStep, kTransposedTokens  multiples to which channels and tokens of operands are padded with zeros
//   kPrefetches                      the engine prefetches the rows of the next chunk
//   kReadsAhead                      Reading multiplies with the state of a panel between steps of the panel before
//   kOnePass                         one_pass writes rows directly to left operands; needs kLeftIsRows
//   kLeftIsRows                      a left operand is rows [token][channel], so bare rows are copied directly
//   Session                          held while an item is walked
//   pack_left                        packs four rows of fp32 numbers times factor[channel] into a left operand
//   pack_transposed                  transposes a chunk of fp32 rows into the left operand of the update
//   pack_bare                        left operands and scores of a chunk of bf16 rows, [token][channel] each
//   enter, leave                     load and store the state of a panel from and to rows
//   read_state, round_values, update_state
//                                    the products of a chunk; with kPrefetches, update_state calls meanwhile()
#pragma once
#include "kernels/cpu/walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

template <class Panel>
class Bf16Engine : public WholeChunk {
 public:
  using Value = uint16_t;
  static constexpr bool kPrefetches = Panel::kPrefetches;
  static constexpr bool kOnePass = Panel::kOnePass;
  static constexpr int32_t kTogether = 1;
  static constexpr bool kWritesBf16 = kCols * sizeof(uint16_t) >= 64;

  Bf16Engine(const Problem& problem, int32_t panels, Carver& carver)
      : problem_(problem),
        panels_(panels),
        channels_(padded_channels(problem.dk)),
        wide_((channels_ + Panel::kChannelStep - 1) / Panel::kChannelStep * Panel::kChannelStep),
        state_(carver.take(panels * panel_numbers())),
        rounded_(carver.take<uint16_t>(panels * panel_numbers())),
        decay_(carver.take(Panel::decay_floats(wide_))),
        keys_(carver.take<uint16_t>(kChunk * int64_t{wide_})),
        queries_(carver.take<uint16_t>(kChunk * int64_t{wide_})),
        transposed_(carver.take<uint16_t>(Panel::kTransposedTokens * int64_t{wide_})),
        values_(carver.take<uint16_t>(Panel::kTransposedTokens * int64_t{kCols})),
        bare_k_(Panel::kLeftIsRows ? keys_ : carver.take<uint16_t>(kChunk * int64_t{wide_})),
        bare_q_(Panel::kLeftIsRows ? queries_ : carver.take<uint16_t>(kChunk * int64_t{wide_})) {}

  void enter(const float* panels) {
    for (int32_t p = 0; p < panels_; ++p) {
      const int64_t at = p * panel_numbers(), used = int64_t{channels_} * kCols;
      Panel::enter(panels + p * used, channels_, state_ + at, rounded_ + at);
      std::fill(state_ + at + used, state_ + at + panel_numbers(), 0.0f);
      std::fill(rounded_ + at + used, rounded_ + at + panel_numbers(), uint16_t{0});
    }
    // Padding is zeroed once and never written again.
    std::fill(decay_, decay_ + Panel::decay_floats(wide_), 0.0f);
    std::fill(keys_, keys_ + kChunk * wide_, uint16_t{0});
    std::fill(queries_, queries_ + kChunk * wide_, uint16_t{0});
    std::fill(transposed_, transposed_ + Panel::kTransposedTokens * wide_, uint16_t{0});
    std::fill(values_, values_ + Panel::kTransposedTokens * kCols, uint16_t{0});
  }

  void leave(float* panels) {
    for (int32_t p = 0; p < panels_; ++p)
      Panel::leave(state_ + p * panel_numbers(), channels_, panels + p * int64_t{channels_} * kCols);
  }

  void prepare(const HeadInputs& in, const GateTerms& gate, const ChunkShape& shape, const WalkScratch& s,
               RowsAhead& ahead) {
    ahead_ = &ahead;
    if (problem_.rule == Rule::kKda) {
      const RowFactors factors = prepare_kda(problem_, in, gate, shape, s.staging, s.operands, *this);
      std::copy_n(factors.minus_beta_k, kChunk, scales_.keys);
      std::copy_n(factors.q, kChunk, scales_.queries);
      std::copy_n(factors.k, kChunk, scales_.to_end);
      Panel::pack_transposed(s.operands.k_to_end, channels_, transposed_);
    } else {
      prepare_bare(in, gate, shape, s.operands);
    }
    Panel::pack_decay(s.operands.decay_chunk, channels_, decay_);
  }

  HWY_INLINE void keys(const float* rows, int64_t stride, const float* factor, const float*, int32_t token,
                       int32_t channel, int32_t width) const {
    if constexpr (kPrefetches) ahead_->prefetch(kPrefetchedWithRows);
    Panel::pack_left(rows, stride, factor, width, wide_, keys_ + Panel::place(token, channel, wide_));
  }
  HWY_INLINE void queries(const float* rows, int64_t stride, const float* factor, const float*, int32_t token,
                          int32_t channel, int32_t width) const {
    if constexpr (kPrefetches) ahead_->prefetch(kPrefetchedWithRows);
    Panel::pack_left(rows, stride, factor, width, wide_, queries_ + Panel::place(token, channel, wide_));
  }

  HWY_INLINE LeftRows left(int32_t token, int32_t channel) const {
    const int64_t at = Panel::place(token, channel, wide_);
    return {keys_ + at, queries_ + at, wide_};
  }
  HWY_INLINE void meanwhile() const {
    if constexpr (kPrefetches) ahead_->prefetch(kPrefetchedWithRows);
  }

  template <int32_t>
  HWY_INLINE void advance(int32_t p, int32_t tokens, const uint16_t* HWY_RESTRICT values, int64_t value_stride,
                          const OutputRows& outputs, const WalkScratch& s, RowsAhead& ahead) {
    const ChunkOperands& in = s.operands;
    float* HWY_RESTRICT state = state_ + p * panel_numbers();
    uint16_t* HWY_RESTRICT rounded = rounded_ + p * panel_numbers();
    const int32_t row_tiles = (tokens + kRows - 1) / kRows;
    alignas(64) float v_new[kChunk * kCols];
    const uint16_t* queries = outputs.wanted() ? queries_ : nullptr;
    // While vectors solve this panel, the matrix unit already multiplies with the state of the next panel.
    const bool ahead_of_next = Panel::kReadsAhead && p + 1 < panels_;
    float *read_keys = read_keys_[p % 2], *read_queries = read_queries_[p % 2];
    if (!Panel::kReadsAhead || p == 0)
      Panel::read_state(keys_, queries, rounded, wide_, tokens, read_keys, read_queries);
    typename Panel::Reading reading(keys_, queries, rounded + panel_numbers(), wide_);
    const int32_t places = 2 * row_tiles + 2 * (wide_ / Panel::kChannelStep);
    const int32_t prefetched = kPrefetches ? (ahead.left() + (panels_ - p) * places - 1) / ((panels_ - p) * places) : 0;
    const auto meanwhile = [&]() HWY_ATTR {
      if constexpr (kPrefetches) ahead.prefetch(prefetched);
    };
    Tile tile;
    for (int32_t t = 0; t < row_tiles; ++t) {
      meanwhile();
      load(tile, read_keys + t * kRows * kCols, kCols);
      scale_rows(tile, scales_.keys + t * kRows);
      if (values != nullptr) add_scaled(tile, values + t * kRows * value_stride, value_stride, in.beta + t * kRows);
      multiply(tile, in.minus_akk + t * kChunk * kRows, kRows, v_new, t * kRows);
      substitute(tile, in.minus_akk + (t * kChunk + t * kRows) * kRows);
      store(tile, v_new + t * kRows * kCols, kCols);
      if (ahead_of_next) reading.read(t, 2 * kRowTiles);
    }
    std::fill(v_new + row_tiles * kRows * kCols, v_new + kChunk * kCols, 0.0f);
    Panel::round_values(v_new, scales_.to_end, tokens, values_);
    for (int32_t t = 0; t < row_tiles && outputs.wanted(); ++t) {
      meanwhile();
      // The products of the chunk's own tokens stay fp32: they are cheap, and in a short sequence they are the whole
      // result.
      load(tile, read_queries + t * kRows * kCols, kCols);
      scale_rows(tile, scales_.queries + t * kRows);
      multiply(tile, in.aqk + t * kChunk * kRows, kRows, v_new, (t + 1) * kRows);
      if (outputs.half != nullptr)
        store_rounded(tile, outputs.half + t * kRows * outputs.stride, outputs.stride);
      else
        store(tile, outputs.full + t * kRows * outputs.stride, outputs.stride);
      if (ahead_of_next) reading.read(kRowTiles + t, 2 * kRowTiles);
    }
    if (ahead_of_next) {
      reading.read(0, 1);
      reading.store(read_keys_[(p + 1) % 2], read_queries_[(p + 1) % 2]);
    }
    Panel::update_state(decay_, transposed_, values_, wide_, tokens, state, rounded, meanwhile);
  }

 private:
  // Of the 80 rows of a chunk, prefetch this many with each four rows of keys or queries: no more lines than miss
  // buffers.
  static constexpr int32_t kPrefetchedWithRows = 4;

  int64_t panel_numbers() const { return int64_t{wide_} * kCols; }

  // Copies a chunk's rows unchanged, with zeros in padded channels and past the end of the sequence.
  HWY_INLINE RowsOf<uint16_t> copy_rows(const void* base, int64_t stride, const ChunkShape& shape, uint16_t* to) const {
    const hn::ScalableTag<uint16_t> d;
    constexpr auto kStep = static_cast<int32_t>(hn::MaxLanes(d));
    const auto* from = static_cast<const uint16_t*>(base) + shape.first * stride;
    for (int32_t t = 0; t < kChunk; ++t) {
      uint16_t* row = to + int64_t{t} * wide_;
      const int32_t given = t < shape.tokens ? problem_.dk : 0;
      int32_t c = 0;
      for (; c + kStep <= given; c += kStep) hn::StoreU(hn::LoadU(d, from + c), d, row + c);
      for (; c < given; ++c) row[c] = from[c];
      for (; c < wide_; ++c) row[c] = 0;
      if (t + 1 < shape.tokens) from += stride;
    }
    return {to, wide_};
  }

  // GDN: keys and queries stay without decay, their scores are exact products, and factors per row do the rest.
  HWY_NOINLINE void prepare_bare(const HeadInputs& in, const GateTerms& gate, const ChunkShape& shape,
                                 const ChunkOperands& out) {
    const auto k = copy_rows(in.k, in.layout_k, shape, bare_k_);
    if constexpr (kPrefetches) ahead_->prefetch(kPrefetchedWithRows);
    const auto q = copy_rows(in.q, in.layout_q, shape, bare_q_);
    RowFactors factors;
    row_factors(problem_, in, shape, k, q, out.beta, factors);
    alignas(64) float decay[kChunk];
    token_decays(in, gate, shape, decay, out.decay_chunk);
    Scores scores;
    Panel::pack_bare(k.base, q.base, wide_, keys_, queries_, transposed_, scores);
    if constexpr (kPrefetches) ahead_->prefetch(kPrefetchedWithRows);
    decay_scores(decay, scores);
    pack_scores(scores, factors, out);
    row_scales(factors, decay, scales_);
  }

  // Adds scale[r] times row r of `rows` to row r of the tile.
  static HWY_INLINE void add_scaled(Tile& tile, const uint16_t* HWY_RESTRICT rows, int64_t stride,
                                    const float* HWY_RESTRICT scale) {
    const F32 d;
    DR_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      const Vec s = hn::Set(d, scale[r]);
      tile.lo[r] = hn::MulAdd(load_bf16(rows + r * stride), s, tile.lo[r]);
      tile.hi[r] = hn::MulAdd(load_bf16(rows + r * stride + kLanes), s, tile.hi[r]);
    }
  }

  static HWY_INLINE void store_rounded(const Tile& tile, uint16_t* HWY_RESTRICT to, int64_t stride) {
    DR_UNROLL
    for (int32_t r = 0; r < kRows; ++r) store_bf16_output(tile.lo[r], tile.hi[r], to + r * stride);
  }

  [[no_unique_address]] typename Panel::Session session_;
  const Problem& problem_;
  int32_t panels_;
  int32_t channels_;
  int32_t wide_;          // padded channels of operands
  float* state_;          // [panel][channel][column] in the order of the instruction family
  uint16_t* rounded_;     // state as right operands, [panel]
  float* decay_;          // decay_chunk, as update_state reads it
  uint16_t* keys_;        // left operand: k_from_start
  uint16_t* queries_;     // left operand: q_from_start
  uint16_t* transposed_;  // left operand: k_to_end, transposed
  uint16_t* values_;      // right operand: V_new of one panel
  uint16_t* bare_k_;      // [token][channel]
  uint16_t* bare_q_;      // [token][channel]
  RowsAhead* ahead_ = nullptr;
  RowScales scales_;                                // factors of the products of keys_ and queries_, and of values_
  alignas(64) float read_keys_[2][kChunk * kCols];  // keys_ times the state, of this panel and the next
  alignas(64) float read_queries_[2][kChunk * kCols];
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
