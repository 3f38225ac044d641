// The bf16 engine: products of q, k, state and corrected values with the processor's bf16 instructions, operands
// rounded to bf16 and sums kept in fp32; gates and the solve stay fp32. Numbers per token multiply the rows of
// products, not the operands, so keys and queries that carry no decay of their own (GDN) are multiplied as they were
// given, without rounding.
//
// `Panel` is one family of instructions:
//   kChannelStep, kTurnedTokens     multiples to which channels and tokens of operands are padded with zeros
//   kAsks                           the engine asks for the next chunk's rows
//   kReadsAhead                     Reading reads the state of a panel in parts, between the steps of the panel before
//   kOnePass                        vectors of rows go to left operands straight from the pass that makes them: needs
//   kLeftIsRows kLeftIsRows                     a left operand is rows [token][channel], so bare rows are copied
//   straight there Session                         held while an item is walked pack_left                       four
//   rows of fp32 numbers times factor[channel] into a left operand pack_turned                     a chunk of fp32
//   rows, turned, as the left operand of the update pack_bare                       left operands and scores of a chunk
//   of bf16 rows, [token][channel] each enter, leave                    the state of a panel, from and to rows
//   read_state, round_values, update_state     the products of a chunk; the last calls meanwhile() now and then if it
//   kAsks
#pragma once
#include "kernels/cpu/walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

template <class Panel>
class Bf16Engine {
 public:
  using Value = uint16_t;
  static constexpr bool kAsks = Panel::kAsks;
  static constexpr bool kOnePass = Panel::kOnePass;
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
        turned_(carver.take<uint16_t>(Panel::kTurnedTokens * int64_t{wide_})),
        values_(carver.take<uint16_t>(Panel::kTurnedTokens * int64_t{kCols})),
        bare_k_(Panel::kLeftIsRows ? keys_ : carver.take<uint16_t>(kChunk * int64_t{wide_})),
        bare_q_(Panel::kLeftIsRows ? queries_ : carver.take<uint16_t>(kChunk * int64_t{wide_})) {}

  void enter(const float* panels) {
    for (int32_t p = 0; p < panels_; ++p) {
      const int64_t at = p * panel_numbers(), used = int64_t{channels_} * kCols;
      Panel::enter(panels + p * used, channels_, state_ + at, rounded_ + at);
      std::fill(state_ + at + used, state_ + at + panel_numbers(), 0.0f);
      std::fill(rounded_ + at + used, rounded_ + at + panel_numbers(), uint16_t{0});
    }
    // What is not written again is padding.
    std::fill(decay_, decay_ + Panel::decay_floats(wide_), 0.0f);
    std::fill(keys_, keys_ + kChunk * wide_, uint16_t{0});
    std::fill(queries_, queries_ + kChunk * wide_, uint16_t{0});
    std::fill(turned_, turned_ + Panel::kTurnedTokens * wide_, uint16_t{0});
    std::fill(values_, values_ + Panel::kTurnedTokens * kCols, uint16_t{0});
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
      Panel::pack_turned(s.operands.to_end, channels_, turned_);
    } else {
      prepare_bare(in, gate, shape, s.operands);
    }
    Panel::pack_decay(s.operands.decay, channels_, decay_);
  }

  HWY_INLINE void keys(const float* rows, int64_t stride, const float* factor, const float*, int32_t token,
                       int32_t channel, int32_t width) const {
    if constexpr (kAsks) ahead_->ask(kAskedWithRows);
    Panel::pack_left(rows, stride, factor, width, wide_, keys_ + Panel::place(token, channel, wide_));
  }
  HWY_INLINE void queries(const float* rows, int64_t stride, const float* factor, const float*, int32_t token,
                          int32_t channel, int32_t width) const {
    if constexpr (kAsks) ahead_->ask(kAskedWithRows);
    Panel::pack_left(rows, stride, factor, width, wide_, queries_ + Panel::place(token, channel, wide_));
  }

  HWY_INLINE LeftRows left(int32_t token, int32_t channel) const {
    const int64_t at = Panel::place(token, channel, wide_);
    return {keys_ + at, queries_ + at, wide_};
  }
  HWY_INLINE void meanwhile() const {
    if constexpr (kAsks) ahead_->ask(kAskedWithRows);
  }

  HWY_INLINE void advance(int32_t p, int32_t tokens, const uint16_t* HWY_RESTRICT values, int64_t value_stride,
                          const OutputRows& outputs, const WalkScratch& s, RowsAhead& ahead) {
    const ChunkOperands& in = s.operands;
    float* HWY_RESTRICT state = state_ + p * panel_numbers();
    uint16_t* HWY_RESTRICT rounded = rounded_ + p * panel_numbers();
    const int32_t row_tiles = (tokens + kRows - 1) / kRows;
    alignas(64) float x[kChunk * kCols];
    const uint16_t* queries = outputs.wanted() ? queries_ : nullptr;
    // What the matrix unit reads for the next panel is under way while vectors solve this one.
    const bool ahead_of_next = Panel::kReadsAhead && p + 1 < panels_;
    float *read_keys = read_keys_[p % 2], *read_queries = read_queries_[p % 2];
    if (!Panel::kReadsAhead || p == 0)
      Panel::read_state(keys_, queries, rounded, wide_, tokens, read_keys, read_queries);
    typename Panel::Reading reading(keys_, queries, rounded + panel_numbers(), wide_);
    const int32_t places = 2 * row_tiles + 2 * (wide_ / Panel::kChannelStep);
    const int32_t asked = kAsks ? (ahead.left() + (panels_ - p) * places - 1) / ((panels_ - p) * places) : 0;
    const auto meanwhile = [&]() HWY_ATTR {
      if constexpr (kAsks) ahead.ask(asked);
    };
    Tile tile;
    for (int32_t t = 0; t < row_tiles; ++t) {
      meanwhile();
      load(tile, read_keys + t * kRows * kCols, kCols);
      scale_rows(tile, scales_.keys + t * kRows);
      if (values != nullptr) add_scaled(tile, values + t * kRows * value_stride, value_stride, in.beta + t * kRows);
      multiply(tile, in.solve + t * kChunk * kRows, kRows, x, t * kRows);
      substitute(tile, in.solve + (t * kChunk + t * kRows) * kRows);
      store(tile, x + t * kRows * kCols, kCols);
      if (ahead_of_next) reading.read(t, 2 * kRowTiles);
    }
    std::fill(x + row_tiles * kRows * kCols, x + kChunk * kCols, 0.0f);
    Panel::round_values(x, scales_.to_end, tokens, values_);
    for (int32_t t = 0; t < row_tiles && outputs.wanted(); ++t) {
      meanwhile();
      // What the chunk's own tokens add stays fp32: in short sequences it is all there is, and it is cheap.
      load(tile, read_queries + t * kRows * kCols, kCols);
      scale_rows(tile, scales_.queries + t * kRows);
      multiply(tile, in.mix + t * kChunk * kRows, kRows, x, (t + 1) * kRows);
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
    Panel::update_state(decay_, turned_, values_, wide_, tokens, state, rounded, meanwhile);
  }

 private:
  // Of the 80 rows of a chunk, with four rows of keys or queries: no more lines than miss buffers.
  static constexpr int32_t kAskedWithRows = 4;

  int64_t panel_numbers() const { return int64_t{wide_} * kCols; }

  // A chunk's rows as they are, zeros in padded channels and past its end.
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

  // GDN's chunk: keys and queries stay bare, scores of them are exact products, and numbers per row do the rest.
  HWY_NOINLINE void prepare_bare(const HeadInputs& in, const GateTerms& gate, const ChunkShape& shape,
                                 const ChunkOperands& out) {
    const auto k = copy_rows(in.k, in.layout_k, shape, bare_k_);
    if constexpr (kAsks) ahead_->ask(kAskedWithRows);
    const auto q = copy_rows(in.q, in.layout_q, shape, bare_q_);
    RowFactors factors;
    row_factors(problem_, in, shape, k, q, out.beta, factors);
    alignas(64) float decay[kChunk];
    token_decays(problem_, in, gate, shape, decay, out.decay);
    Scores scores;
    Panel::pack_bare(k.base, q.base, wide_, keys_, queries_, turned_, scores);
    if constexpr (kAsks) ahead_->ask(kAskedWithRows);
    decay_scores(decay, scores);
    pack_scores(scores, factors, out);
    row_scales(factors, decay, scales_);
  }

  // Row r of the tile plus scale[r] times row r of `rows`.
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
  int32_t wide_;       // channels of operands
  float* state_;       // [panel][channel][column] in the family's own order
  uint16_t* rounded_;  // the state as right operands, [panel]
  float* decay_;       // of the channels, as update_state reads it
  uint16_t* keys_;     // left operand: k from the start
  uint16_t* queries_;  // left operand: q from the start
  uint16_t* turned_;   // left operand: k to the end, turned
  uint16_t* values_;   // right operand: corrected values of one panel
  uint16_t* bare_k_;   // [token][channel]
  uint16_t* bare_q_;   // [token][channel]
  RowsAhead* ahead_ = nullptr;
  RowScales scales_;  // of what comes out of keys_ and queries_ and what goes into values_
  alignas(64) float read_keys_[2][kChunk * kCols];  // what keys and queries read, of this panel and the next
  alignas(64) float read_queries_[2][kChunk * kCols];
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
