// The bf16 engine: products of q, k, state and corrected values with the processor's bf16 instructions, operands rounded to
// bf16 and sums kept in fp32; gates, scores and the solve stay fp32. `Product` is one family of instructions.
#pragma once
#include "kernels/cpu/walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

template <class Product>
class Bf16Engine {
  static constexpr int32_t kTileRows = Product::kTileRows;
  static_assert(Product::kTileCols == kCols && kTileRows % kRows == 0 && kChunk % kTileRows == 0);

 public:
  Bf16Engine(const Problem& problem, int32_t panels, Carver& carver)
      : problem_(problem),
        panels_(panels),
        channels_(padded_channels(problem.dk)),
        state_(carver.take(static_cast<int64_t>(panels) * channels_ * kCols)),
        decay_(carver.take(static_cast<int64_t>(channels_ / kTileRows) * Product::kScaleFloats)),
        rounded_(carver.take<uint16_t>(static_cast<int64_t>(panels) * channels_ * kCols)),
        keys_(carver.take<uint16_t>(static_cast<int64_t>(kChunk) * channels_)),
        queries_(carver.take<uint16_t>(static_cast<int64_t>(kChunk) * channels_)),
        to_end_(carver.take<uint16_t>(static_cast<int64_t>(kChunk) * channels_)) {}

  void enter(const float* panels) {
    for (int32_t p = 0; p < panels_; ++p) {
      for (int32_t c = 0; c < channels_; c += kTileRows) {
        const int64_t at = (static_cast<int64_t>(p) * channels_ + c) * kCols;
        typename Product::Tile tile;
        Product::from_rows(tile, panels + at, kCols);
        Product::store(tile, state_ + at);
        Product::to_right(tile, rounded_ + at);
      }
    }
  }

  void leave(float* panels) {
    for (int64_t at = 0; at < static_cast<int64_t>(panels_) * channels_ * kCols; at += kTileRows * kCols) {
      typename Product::Tile tile;
      Product::load(tile, state_ + at);
      Product::to_rows(tile, panels + at, kCols);
    }
  }

  void prepare(const HeadInputs& in, const GateTerms& gate, const ChunkShape& shape, const WalkScratch& s) {
    if (problem_.op == Op::kKda)
      prepare_kda(problem_, in, gate, shape, s.staging, s.operands, *this);
    else
      prepare_gdn(problem_, in, gate, shape, s.staging, s.operands, *this);
    Product::pack_left_turned(s.operands.to_end, channels_, to_end_);
    for (int32_t c = 0; c < channels_; c += kTileRows)
      Product::pack_scale(s.operands.decay + c, decay_ + c / kTileRows * Product::kScaleFloats);
  }

  HWY_INLINE void keys(const float* rows, int64_t stride, const float* factor, const float* scale, int32_t token,
                       int32_t channel, int32_t width) const {
    Product::pack_left(rows, stride, factor, scale + token, width, channels_,
                       keys_ + Product::place(token, channel, channels_));
  }
  HWY_INLINE void queries(const float* rows, int64_t stride, const float* factor, const float* scale, int32_t token,
                          int32_t channel, int32_t width) const {
    Product::pack_left(rows, stride, factor, scale + token, width, channels_,
                       queries_ + Product::place(token, channel, channels_));
  }

  HWY_INLINE void advance(int32_t p, int32_t tokens, const float* HWY_RESTRICT values, int64_t value_stride,
                          float* HWY_RESTRICT outputs, int64_t output_stride, const WalkScratch& s) {
    const ChunkOperands& in = s.operands;
    const int64_t at = static_cast<int64_t>(p) * channels_ * kCols;
    float* HWY_RESTRICT state = state_ + at;
    uint16_t* HWY_RESTRICT rounded = rounded_ + at;
    const int32_t row_tiles = (tokens + kRows - 1) / kRows;
    const int32_t product_tiles = (tokens + kTileRows - 1) / kTileRows;
    alignas(64) float x[kChunk * kCols], read[kChunk * kCols];
    alignas(64) uint16_t x_right[kChunk * kCols];
    read_state(keys_, rounded, product_tiles, read);
    for (int32_t t = 0; t < row_tiles; ++t) {
      Tile tile;
      load(tile, read + t * kRows * kCols, kCols);
      if (values != nullptr) add_scaled(tile, values + t * kRows * value_stride, value_stride, in.beta + t * kRows);
      multiply(tile, in.solve + t * kChunk * kRows, kRows, x, t * kRows);
      substitute(tile, in.solve + (t * kChunk + t * kRows) * kRows);
      store(tile, x + t * kRows * kCols, kCols);
    }
    std::fill(x + row_tiles * kRows * kCols, x + product_tiles * kTileRows * kCols, 0.0f);
    typename Product::Tile product;
    for (int32_t t = 0; t < product_tiles * kTileRows; t += kTileRows) {
      Product::from_rows(product, x + t * kCols, kCols);
      Product::to_right(product, x_right + t * kCols);
    }
    if (outputs != nullptr) {
      read_state(queries_, rounded, product_tiles, read);
      for (int32_t t = 0; t < row_tiles; ++t) {
        // What the chunk's own tokens add stays fp32: in short sequences it is all there is, and it is cheap.
        Tile tile;
        load(tile, read + t * kRows * kCols, kCols);
        multiply(tile, in.mix + t * kChunk * kRows, kRows, x, (t + 1) * kRows);
        store(tile, outputs + t * kRows * output_stride, output_stride);
      }
    }
    for (int32_t c = 0; c < channels_; c += kTileRows) {
      Product::load(product, state + c * kCols);
      Product::scale_rows(product, decay_ + c / kTileRows * Product::kScaleFloats);
      Product::multiply(product, to_end_ + c * kChunk, kChunk, x_right, product_tiles * kTileRows);
      Product::store(product, state + c * kCols);
      Product::to_right(product, rounded + c * kCols);
    }
  }

 private:
  // rows = left * state, for the tokens of a chunk.
  HWY_INLINE void read_state(const uint16_t* HWY_RESTRICT left, const uint16_t* HWY_RESTRICT rounded,
                             int32_t product_tiles, float* HWY_RESTRICT rows) const {
    for (int32_t t = 0; t < product_tiles * kTileRows; t += kTileRows) {
      typename Product::Tile product;
      Product::clear(product);
      Product::multiply(product, left + static_cast<int64_t>(t) * channels_, channels_, rounded, channels_);
      Product::to_rows(product, rows + t * kCols, kCols);
    }
  }

  // Row r of the tile plus scale[r] times row r of `rows`.
  static HWY_INLINE void add_scaled(Tile& tile, const float* HWY_RESTRICT rows, int64_t stride,
                                    const float* HWY_RESTRICT scale) {
    const F32 d;
    DR_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      const Vec s = hn::Set(d, scale[r]);
      tile.lo[r] = hn::MulAdd(hn::LoadU(d, rows + r * stride), s, tile.lo[r]);
      tile.hi[r] = hn::MulAdd(hn::LoadU(d, rows + r * stride + kLanes), s, tile.hi[r]);
    }
  }

  [[no_unique_address]] typename Product::Session session_;
  const Problem& problem_;
  int32_t panels_;
  int32_t channels_;
  float* state_;       // [panel][channel tile][tile] in the product's own order
  float* decay_;       // [channel tile][packed scale]
  uint16_t* rounded_;  // the state as right operands, [panel][channel step]
  uint16_t* keys_;     // left operands [row tile][channel step]: k from the start, times -beta
  uint16_t* queries_;  // left operands [row tile][channel step]: q from the start
  uint16_t* to_end_;   // left operands [channel tile][token step]
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
