// The fp32 engine: the fp32 micro-kernel computes every product. 16-bit data is widened on load.
#if defined(DELTARELAY_CPU_FP32_ENGINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_FP32_ENGINE_INL_H_
#undef DELTARELAY_CPU_FP32_ENGINE_INL_H_
#else
#define DELTARELAY_CPU_FP32_ENGINE_INL_H_
#endif

#include "kernels/cpu/walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Transposes the rows of a sub-chunk, [token][channel] -> [channel][kRows], times factor[channel] (nullptr: 1) and
// scale[token].
HWY_INLINE void pack_rows(const float* HWY_RESTRICT rows, int64_t stride, const float* HWY_RESTRICT factor,
                          const float* HWY_RESTRICT scale, int32_t width, float* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  for (int32_t t = 0; t < kSubChunk; ++t)
    for (int32_t c = 0; c < width; ++c)
      to[c * kRows + t] = rows[t * stride + c] * (factor != nullptr ? factor[c] : 1.0f) * scale[t];
#else
  const hn::FixedTag<float, kSubChunk> d;
  const auto scales = hn::LoadU(d, scale);
  for (int32_t c = 0; c < width; c += 4) {
    auto r0 = hn::LoadU(d, rows + c);
    auto r1 = hn::LoadU(d, rows + stride + c);
    auto r2 = hn::LoadU(d, rows + 2 * stride + c);
    auto r3 = hn::LoadU(d, rows + 3 * stride + c);
    if (factor != nullptr) {
      const auto f = hn::LoadU(d, factor + c);
      r0 = hn::Mul(r0, f), r1 = hn::Mul(r1, f), r2 = hn::Mul(r2, f), r3 = hn::Mul(r3, f);
    }
    const auto lo02 = hn::InterleaveLower(d, r0, r2), hi02 = hn::InterleaveUpper(d, r0, r2);
    const auto lo13 = hn::InterleaveLower(d, r1, r3), hi13 = hn::InterleaveUpper(d, r1, r3);
    hn::StoreU(hn::Mul(scales, hn::InterleaveLower(d, lo02, lo13)), d, to + (c + 0) * kRows);
    hn::StoreU(hn::Mul(scales, hn::InterleaveUpper(d, lo02, lo13)), d, to + (c + 1) * kRows);
    hn::StoreU(hn::Mul(scales, hn::InterleaveLower(d, hi02, hi13)), d, to + (c + 2) * kRows);
    hn::StoreU(hn::Mul(scales, hn::InterleaveUpper(d, hi02, hi13)), d, to + (c + 3) * kRows);
  }
#endif
}

// Panels that share the packed rows of a tile while these are in L1. With tiles of 4 rows, 24 KB of packed rows would
// come from L2 for each panel of 8 KB: an L1 of 32 KB holds either. AVX2, AMD EPYC (family 25), 2026-11-19: one panel
// 0.47 to 0.51 of the FMA peak (GDN), two 0.52 to 0.64, four 0.55 to 0.68. Tiles of 8 rows were measured with one.
inline constexpr int32_t kPanelsTogether = HWY_TARGET == HWY_AVX2 ? 4 : 1;

class Fp32Engine : public WholeChunk {
 public:
  using Value = float;
  static constexpr bool kPrefetches = false;
  static constexpr bool kWritesBf16 = false;
  static constexpr bool kOnePass = false;
  static constexpr int32_t kTogether = kPanelsTogether;

  Fp32Engine(const Problem& problem, int32_t, Carver& carver)
      : problem_(problem),
        channels_(padded_channels(problem.dk)),
        keys_(carver.take(kChunk * static_cast<int64_t>(channels_))),
        queries_(carver.take(kChunk * static_cast<int64_t>(channels_))) {}

  void enter(const float*) {}
  void leave(float*) {}

  void prepare(const HeadInputs& in, const GateTerms& gate, const ChunkShape& shape, const WalkScratch& s, RowsAhead&) {
    prepare_chunk(problem_, in, gate, shape, s.staging, s.operands, *this);
  }

  HWY_INLINE void keys(const float* rows, int64_t stride, const float* factor, const float* scale, int32_t token,
                       int32_t channel, int32_t width) const {
    pack_rows(rows, stride, factor, scale + token, width, keys_ + place(token, channel));
  }
  HWY_INLINE void queries(const float* rows, int64_t stride, const float* factor, const float* scale, int32_t token,
                          int32_t channel, int32_t width) const {
    pack_rows(rows, stride, factor, scale + token, width, queries_ + place(token, channel));
  }

  // Advances panels from `p` on by one chunk. `values` and `outputs` point at the first one's columns. `values` is
  // nullptr for the columns of M, `outputs` is nullptr in summarize.
  template <int32_t kPanels>
  HWY_INLINE void advance(int32_t p, int32_t tokens, const float* HWY_RESTRICT values, int64_t value_stride,
                          const OutputRows& outputs, const WalkScratch& s, RowsAhead&) {
    const ChunkOperands& in = s.operands;
    const int32_t dk = problem_.dk;
    const int32_t channels = channels_;
    const int64_t panel_floats = static_cast<int64_t>(channels) * kCols;
    float* HWY_RESTRICT panels = s.panels + p * panel_floats;
    alignas(64) float v_new[kPanels][kChunk * kCols];
    const int32_t row_tiles = (tokens + kRows - 1) / kRows;
    const int64_t tile_floats = static_cast<int64_t>(channels) * kRows;
    Tile tile;
    for (int32_t t = 0; t < row_tiles; ++t) {
      for (int32_t i = 0; i < kPanels; ++i) {
        if (values != nullptr) {
          load(tile, values + t * kRows * value_stride + i * kCols, value_stride);
          scale_rows(tile, in.beta + t * kRows);
        } else {
          clear(tile);
        }
        multiply(tile, keys_ + t * tile_floats, kRows, panels + i * panel_floats, dk);
        multiply(tile, in.minus_akk + t * kChunk * kRows, kRows, v_new[i], t * kRows);
        substitute(tile, in.minus_akk + (t * kChunk + t * kRows) * kRows);
        store(tile, v_new[i] + t * kRows * kCols, kCols);
      }
    }
    if (outputs.full != nullptr) {
      for (int32_t t = 0; t < row_tiles; ++t) {
        for (int32_t i = 0; i < kPanels; ++i) {
          clear(tile);
          multiply(tile, queries_ + t * tile_floats, kRows, panels + i * panel_floats, dk);
          multiply(tile, in.aqk + t * kChunk * kRows, kRows, v_new[i], (t + 1) * kRows);
          store(tile, outputs.full + t * kRows * outputs.stride + i * kCols, outputs.stride);
        }
      }
    }
    for (int32_t c = 0; c < channels; c += kRows) {
      for (int32_t i = 0; i < kPanels; ++i) {
        float* HWY_RESTRICT panel = panels + i * panel_floats;
        load(tile, panel + c * kCols, kCols);
        scale_rows(tile, in.decay_chunk + c);
        multiply(tile, in.k_to_end + c, channels, v_new[i], tokens);
        store(tile, panel + c * kCols, kCols);
      }
    }
  }

 private:
  // Index of (token, channel) in an operand packed by row tiles.
  int64_t place(int32_t token, int32_t channel) const {
    return (static_cast<int64_t>(token / kRows) * channels_ + channel) * kRows + token % kRows;
  }

  const Problem& problem_;
  int32_t channels_;
  float* keys_;     // [row tile][channel][kRows]: -beta k_from_start
  float* queries_;  // [row tile][channel][kRows]: q_from_start
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
