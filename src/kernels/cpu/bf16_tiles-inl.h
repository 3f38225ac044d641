// Products of a panel for bf16 instructions whose tiles live in vector registers (`Tiles`: BFMMLA, VDPBF16PS).
#pragma once
#include "kernels/cpu/prepare-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

template <class Tiles>
struct TilePanel : Tiles {
  using Tile = typename Tiles::Tile;
  static constexpr int32_t kTileRows = Tiles::kTileRows;
  static_assert(Tiles::kTileCols == kCols && kTileRows % kRows == 0 && kChunk % kTileRows == 0);
  static constexpr int32_t kChannelStep = kChannelPad;
  static constexpr int32_t kTransposedTokens = kChunk;

  static constexpr bool kPrefetches = false;
  static constexpr bool kReadsAhead = false;
  static constexpr bool kOnePass = false;

  struct Session {};  // nothing to set up
  struct Reading {
    Reading(const uint16_t*, const uint16_t*, const uint16_t*, int32_t) {}
    void read(int32_t, int32_t) {}
    void store(float*, float*) const {}
  };

  static constexpr int64_t decay_floats(int32_t channels) {
    return int64_t{channels} / kTileRows * Tiles::kScaleFloats;
  }

  static HWY_INLINE void pack_decay(const float* HWY_RESTRICT decay, int32_t channels, float* HWY_RESTRICT to) {
    for (int32_t c = 0; c < channels; c += kTileRows)
      Tiles::pack_scale(decay + c, to + c / kTileRows * Tiles::kScaleFloats);
  }

  static HWY_INLINE void enter(const float* HWY_RESTRICT panel, int32_t channels, float* HWY_RESTRICT state,
                               uint16_t* HWY_RESTRICT rounded) {
    for (int32_t c = 0; c < channels; c += kTileRows) {
      Tile tile;
      Tiles::from_rows(tile, panel + c * kCols, kCols);
      Tiles::store(tile, state + c * kCols);
      Tiles::to_right(tile, rounded + c * kCols);
    }
  }

  static HWY_INLINE void leave(const float* HWY_RESTRICT state, int32_t channels, float* HWY_RESTRICT panel) {
    for (int32_t c = 0; c < channels; c += kTileRows) {
      Tile tile;
      Tiles::load(tile, state + c * kCols);
      Tiles::to_rows(tile, panel + c * kCols, kCols);
    }
  }

  static HWY_INLINE void read_state(const uint16_t* HWY_RESTRICT keys, const uint16_t* HWY_RESTRICT queries,
                                    const uint16_t* HWY_RESTRICT rounded, int32_t channels, int32_t tokens,
                                    float* HWY_RESTRICT read_keys, float* HWY_RESTRICT read_queries) {
    for (int32_t t = 0; t < tokens; t += kTileRows)
      read_rows(keys + static_cast<int64_t>(t) * channels, rounded, channels, read_keys + t * kCols);
    for (int32_t t = 0; t < tokens && queries != nullptr; t += kTileRows)
      read_rows(queries + static_cast<int64_t>(t) * channels, rounded, channels, read_queries + t * kCols);
  }

  static HWY_INLINE void round_values(const float* HWY_RESTRICT x, const float* HWY_RESTRICT scale, int32_t tokens,
                                      uint16_t* HWY_RESTRICT values) {
    for (int32_t t = 0; t < tokens; t += kTileRows) {
      alignas(64) float packed[Tiles::kScaleFloats];
      Tiles::pack_scale(scale + t, packed);
      Tile tile;
      Tiles::from_rows(tile, x + t * kCols, kCols);
      Tiles::scale_rows(tile, packed);
      Tiles::to_right(tile, values + t * kCols);
    }
  }

  template <class Meanwhile>
  static HWY_INLINE void update_state(const float* HWY_RESTRICT decay, const uint16_t* HWY_RESTRICT transposed,
                                      const uint16_t* HWY_RESTRICT values, int32_t channels, int32_t tokens,
                                      float* HWY_RESTRICT state, uint16_t* HWY_RESTRICT rounded, const Meanwhile&) {
    const int32_t depth = (tokens + kTileRows - 1) / kTileRows * kTileRows;
    for (int32_t c = 0; c < channels; c += kTileRows) {
      Tile tile;
      Tiles::load(tile, state + c * kCols);
      Tiles::scale_rows(tile, decay + c / kTileRows * Tiles::kScaleFloats);
      Tiles::multiply(tile, transposed + c * kChunk, values, depth);
      Tiles::store(tile, state + c * kCols);
      Tiles::to_right(tile, rounded + c * kCols);
    }
  }

 private:
  static HWY_INLINE void read_rows(const uint16_t* HWY_RESTRICT left, const uint16_t* HWY_RESTRICT rounded,
                                   int32_t channels, float* HWY_RESTRICT rows) {
    Tile tile;
    Tiles::clear(tile);
    Tiles::multiply(tile, left, rounded, channels);
    Tiles::to_rows(tile, rows, kCols);
  }
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
