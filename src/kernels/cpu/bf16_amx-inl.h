// Products of bf16 numbers with AMX: a tile register of 16 x 16 sums gains (16 rows x 32) (32 x 16 columns) in one instruction.
//
// A tile here is 16 rows x 32 columns in memory, two tile registers while it is multiplied. A left operand is plain rows, a
// right one [pair of the summed axis][column][2], as for AVX512-BF16.
#pragma once
#include "kernels/cpu/bf16_avx512-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

struct AmxProduct : Bf16Product {
  static constexpr int32_t kTileRows = 16;
  static constexpr int32_t kScaleFloats = 16;
  struct Tile {
    alignas(64) float rows[kTileRows * kTileCols];
  };

  // The shapes of the tile registers: 0, 1 sums; 2 left and 3, 4 right of 32 terms; 5 left and 6, 7 right of 16 terms.
  // A thread's registers are its own, so every item sets and releases them.
  struct Session {
    Session() {
      alignas(64) uint8_t config[64] = {};
      config[0] = 1;
      const auto shape = [&](int32_t tile, int32_t rows, int32_t bytes) {
        config[16 + 2 * tile] = static_cast<uint8_t>(bytes);
        config[48 + tile] = static_cast<uint8_t>(rows);
      };
      shape(0, 16, 64), shape(1, 16, 64);
      shape(2, 16, 64), shape(3, 16, 64), shape(4, 16, 64);
      shape(5, 16, 32), shape(6, 8, 64), shape(7, 8, 64);
      _tile_loadconfig(config);
    }
    ~Session() { _tile_release(); }
  };

  static int64_t place(int32_t token, int32_t channel, int32_t channels) {
    return static_cast<int64_t>(token) * channels + channel;
  }

  static HWY_INLINE void clear(Tile& tile) {
    for (int32_t i = 0; i < kTileRows * kTileCols; i += 16) _mm512_store_ps(tile.rows + i, _mm512_setzero_ps());
  }

  static HWY_INLINE void multiply(Tile& tile, const uint16_t* left, int32_t left_row, const uint16_t* right,
                                  int32_t depth) {
    constexpr int32_t kRowBytes = kTileCols * 4;
    const int64_t left_bytes = static_cast<int64_t>(left_row) * 2;
    constexpr int32_t kPairBytes = kTileCols * 4;  // of a right operand
    _tile_loadd(0, tile.rows, kRowBytes);
    _tile_loadd(1, tile.rows + 16, kRowBytes);
    int32_t k = 0;
    for (; k + 32 <= depth; k += 32) {
      _tile_loadd(2, left + k, left_bytes);
      _tile_loadd(3, right + k * kTileCols, kPairBytes);
      _tile_loadd(4, right + k * kTileCols + 32, kPairBytes);
      _tile_dpbf16ps(0, 2, 3);
      _tile_dpbf16ps(1, 2, 4);
    }
    for (; k < depth; k += 16) {
      _tile_loadd(5, left + k, left_bytes);
      _tile_loadd(6, right + k * kTileCols, kPairBytes);
      _tile_loadd(7, right + k * kTileCols + 32, kPairBytes);
      _tile_dpbf16ps(0, 5, 6);
      _tile_dpbf16ps(1, 5, 7);
    }
    _tile_stored(0, tile.rows, kRowBytes);
    _tile_stored(1, tile.rows + 16, kRowBytes);
  }

  static HWY_INLINE void from_rows(Tile& tile, const float* rows, int64_t stride) {
    for (int32_t r = 0; r < kTileRows; ++r) {
      _mm512_store_ps(tile.rows + r * kTileCols, _mm512_loadu_ps(rows + r * stride));
      _mm512_store_ps(tile.rows + r * kTileCols + 16, _mm512_loadu_ps(rows + r * stride + 16));
    }
  }

  static HWY_INLINE void to_rows(const Tile& tile, float* rows, int64_t stride) {
    for (int32_t r = 0; r < kTileRows; ++r) {
      _mm512_storeu_ps(rows + r * stride, _mm512_load_ps(tile.rows + r * kTileCols));
      _mm512_storeu_ps(rows + r * stride + 16, _mm512_load_ps(tile.rows + r * kTileCols + 16));
    }
  }

  static HWY_INLINE void load(Tile& tile, const float* from) { from_rows(tile, from, kTileCols); }
  static HWY_INLINE void store(const Tile& tile, float* to) { to_rows(tile, to, kTileCols); }

  static HWY_INLINE void pack_scale(const float* scale, float* to) { _mm512_storeu_ps(to, _mm512_loadu_ps(scale)); }

  static HWY_INLINE void scale_rows(Tile& tile, const float* packed_scale) {
    for (int32_t r = 0; r < kTileRows; ++r) {
      const __m512 s = _mm512_set1_ps(packed_scale[r]);
      float* row = tile.rows + r * kTileCols;
      _mm512_store_ps(row, _mm512_mul_ps(_mm512_load_ps(row), s));
      _mm512_store_ps(row + 16, _mm512_mul_ps(_mm512_load_ps(row + 16), s));
    }
  }

  static HWY_INLINE void to_right(const Tile& tile, uint16_t* to) {
    for (int32_t r = 0; r < kTileRows; r += 2) {
      const float* upper = tile.rows + r * kTileCols;
      const float* lower = upper + kTileCols;
      _mm512_storeu_si512(to + r / 2 * kRightStep, round_pairs(_mm512_load_ps(upper), _mm512_load_ps(lower)));
      _mm512_storeu_si512(to + r / 2 * kRightStep + 32,
                          round_pairs(_mm512_load_ps(upper + 16), _mm512_load_ps(lower + 16)));
    }
  }

  // Four rows times factor[column] (nullptr: 1) and scale[row]; `left` is the first row's place, rows `left_row` apart.
  static HWY_INLINE void pack_left(const float* rows, int64_t stride, const float* factor, const float* scale,
                                   int32_t columns, int32_t left_row, uint16_t* left) {
    for (int32_t r = 0; r < kSubChunk; ++r) {
      const __m512 s = _mm512_set1_ps(scale[r]);
      for (int32_t c = 0; c < columns; c += 16) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(rows + r * stride + c), s);
        if (factor != nullptr) x = _mm512_mul_ps(x, _mm512_loadu_ps(factor + c));
        const __m256bh rounded = _mm512_cvtneps_pbh(x);
        __builtin_memcpy(left + static_cast<int64_t>(r) * left_row + c, &rounded, sizeof(rounded));
      }
    }
  }

  // A chunk of rows [token][channel], turned: rows [channel][token].
  static HWY_INLINE void pack_left_turned(const float* rows, int32_t channels, uint16_t* left) {
    for (int32_t c = 0; c < channels; c += 16) {
      alignas(64) uint32_t pairs[kChunk / 2][16];  // two tokens of 16 channels
      for (int32_t t = 0; t < kChunk; t += 2)
        _mm512_store_si512(pairs[t / 2], round_pairs(_mm512_loadu_ps(rows + t * channels + c),
                                                     _mm512_loadu_ps(rows + (t + 1) * channels + c)));
      for (int32_t i = 0; i < 16; ++i) {
        auto* to = reinterpret_cast<uint32_t*>(left + static_cast<int64_t>(c + i) * kChunk);
        for (int32_t t = 0; t < kChunk / 2; ++t) to[t] = pairs[t][i];
      }
    }
  }
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
