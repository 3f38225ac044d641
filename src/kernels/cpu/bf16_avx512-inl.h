// Products of bf16 numbers with AVX512-BF16: every lane of an fp32 accumulator gains the product of two pairs.
//
// A register tile is 8 rows x 32 columns, two vectors a row. A left operand is [step][row][2] (a pair is broadcast), a right
// one [step][column][2], with 2 numbers of the summed axis a step.
#pragma once
#include <immintrin.h>

#include "kernels/cpu/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

struct Bf16Product {
  static constexpr int32_t kDepth = 2;  // numbers of the summed axis a step
  static constexpr int32_t kTileRows = 8;
  static constexpr int32_t kTileCols = 32;
  static constexpr int32_t kLeftStep = 16;  // bf16 numbers a step
  static constexpr int32_t kRightStep = 64;
  static constexpr int32_t kScaleFloats = 8;  // of a packed row scale

  struct Session {};  // nothing to set up

  struct Tile {
    __m512 lo[kTileRows];
    __m512 hi[kTileRows];
  };

  // Where a row stands in its tile's step that holds `channel`, in an operand of row tiles.
  static int64_t place(int32_t token, int32_t channel, int32_t channels) {
    return (static_cast<int64_t>(token / kTileRows) * channels + channel) * kTileRows + token % kTileRows * kDepth;
  }

  static HWY_INLINE void clear(Tile& tile) {
    DR_UNROLL
    for (int32_t r = 0; r < kTileRows; ++r) tile.lo[r] = tile.hi[r] = _mm512_setzero_ps();
  }

  static HWY_INLINE __m512bh as_bf16(__m512i v) {
    __m512bh out;
    __builtin_memcpy(&out, &v, sizeof(out));
    return out;
  }

  static HWY_INLINE void multiply(Tile& tile, const uint16_t* HWY_RESTRICT left, int32_t,
                                  const uint16_t* HWY_RESTRICT right, int32_t depth) {
    for (int32_t i = 0; i < depth; i += kDepth) {
      const __m512bh lo = as_bf16(_mm512_loadu_si512(right));
      const __m512bh hi = as_bf16(_mm512_loadu_si512(right + 32));
      DR_UNROLL
      for (int32_t r = 0; r < kTileRows; ++r) {
        int32_t pair;
        __builtin_memcpy(&pair, left + 2 * r, sizeof(pair));
        const __m512bh a = as_bf16(_mm512_set1_epi32(pair));
        tile.lo[r] = _mm512_dpbf16_ps(tile.lo[r], a, lo);
        tile.hi[r] = _mm512_dpbf16_ps(tile.hi[r], a, hi);
      }
      left += kLeftStep;
      right += kRightStep;
    }
  }

  static HWY_INLINE void from_rows(Tile& tile, const float* HWY_RESTRICT rows, int64_t stride) {
    DR_UNROLL
    for (int32_t r = 0; r < kTileRows; ++r) {
      tile.lo[r] = _mm512_loadu_ps(rows + r * stride);
      tile.hi[r] = _mm512_loadu_ps(rows + r * stride + 16);
    }
  }

  static HWY_INLINE void to_rows(const Tile& tile, float* HWY_RESTRICT rows, int64_t stride) {
    DR_UNROLL
    for (int32_t r = 0; r < kTileRows; ++r) {
      _mm512_storeu_ps(rows + r * stride, tile.lo[r]);
      _mm512_storeu_ps(rows + r * stride + 16, tile.hi[r]);
    }
  }

  // A tile in memory is its rows.
  static HWY_INLINE void load(Tile& tile, const float* HWY_RESTRICT from) { from_rows(tile, from, kTileCols); }
  static HWY_INLINE void store(const Tile& tile, float* HWY_RESTRICT to) { to_rows(tile, to, kTileCols); }

  static HWY_INLINE void pack_scale(const float* HWY_RESTRICT scale, float* HWY_RESTRICT to) {
    for (int32_t r = 0; r < kTileRows; ++r) to[r] = scale[r];
  }

  static HWY_INLINE void scale_rows(Tile& tile, const float* HWY_RESTRICT packed_scale) {
    DR_UNROLL
    for (int32_t r = 0; r < kTileRows; ++r) {
      const __m512 s = _mm512_set1_ps(packed_scale[r]);
      tile.lo[r] = _mm512_mul_ps(tile.lo[r], s);
      tile.hi[r] = _mm512_mul_ps(tile.hi[r], s);
    }
  }

  // Lanes {first[i], second[i]} as pairs of bf16.
  static HWY_INLINE __m512i round_pairs(__m512 first, __m512 second) {
    const __m256bh low = _mm512_cvtneps_pbh(first), high = _mm512_cvtneps_pbh(second);
    __m256i low_bits, high_bits;
    __builtin_memcpy(&low_bits, &low, sizeof(low_bits));
    __builtin_memcpy(&high_bits, &high, sizeof(high_bits));
    return _mm512_or_si512(_mm512_cvtepu16_epi32(low_bits), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high_bits), 16));
  }

  // The tile as a right operand whose summed axis is the tile's rows: kTileRows / kDepth steps.
  static HWY_INLINE void to_right(const Tile& tile, uint16_t* HWY_RESTRICT to) {
    DR_UNROLL
    for (int32_t r = 0; r < kTileRows; r += 2) {
      _mm512_storeu_si512(to + r / 2 * kRightStep, round_pairs(tile.lo[r], tile.lo[r + 1]));
      _mm512_storeu_si512(to + r / 2 * kRightStep + 32, round_pairs(tile.hi[r], tile.hi[r + 1]));
    }
  }

  // Four rows ("sub-chunk") times factor[column] (nullptr: 1) and scale[row], into a left operand whose summed axis is the
  // columns; `left` is the first row's place.
  static HWY_INLINE void pack_left(const float* HWY_RESTRICT rows, int64_t stride, const float* HWY_RESTRICT factor,
                                   const float* HWY_RESTRICT scale, int32_t columns, int32_t,
                                   uint16_t* HWY_RESTRICT left) {
    for (int32_t c = 0; c < columns; c += 16) {
      const __m512 f = factor != nullptr ? _mm512_loadu_ps(factor + c) : _mm512_set1_ps(1.0f);
      alignas(64) uint32_t pairs[kSubChunk][8];
      for (int32_t r = 0; r < kSubChunk; ++r) {
        const __m512 x =
            _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(rows + r * stride + c), f), _mm512_set1_ps(scale[r]));
        const __m256bh rounded = _mm512_cvtneps_pbh(x);  // neighbours in a row are the pairs
        __builtin_memcpy(pairs[r], &rounded, sizeof(rounded));
      }
      auto* to = reinterpret_cast<uint32_t*>(left + c / kDepth * kLeftStep);
      for (int32_t step = 0; step < 8; ++step)
        for (int32_t r = 0; r < kSubChunk; ++r) to[step * kLeftStep / 2 + r] = pairs[r][step];
    }
  }

  // A chunk of rows [token][channel], turned: left operands [channel tile][step over tokens], summed axis the tokens.
  static HWY_INLINE void pack_left_turned(const float* HWY_RESTRICT rows, int32_t channels,
                                          uint16_t* HWY_RESTRICT left) {
    for (int32_t c = 0; c < channels; c += 16) {
      for (int32_t t = 0; t < kChunk; t += kDepth) {
        const __m512i pairs =
            round_pairs(_mm512_loadu_ps(rows + t * channels + c), _mm512_loadu_ps(rows + (t + 1) * channels + c));
        uint16_t* to = left + static_cast<int64_t>(c / kTileRows) * kTileRows * kChunk + t / kDepth * kLeftStep;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(pairs));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kTileRows * kChunk), _mm512_extracti64x4_epi64(pairs, 1));
      }
    }
  }
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
