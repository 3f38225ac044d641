// Products of bf16 numbers with AVX512-BF16: every lane of an fp32 accumulator gains the products of two pairs.
//
// A register tile is 8 rows x 32 columns, two vectors per row. A left operand is [step][row][2] (a pair is broadcast),
// a right operand is [step][column][2]. A step has 2 numbers of the summed axis.
#pragma once
#include <immintrin.h>

#include "kernels/cpu/prepare-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE __m512bh as_bf16(__m512i v) {
  __m512bh out;
  __builtin_memcpy(&out, &v, sizeof(out));
  return out;
}
HWY_INLINE __m512i as_bits(__m512bh v) {
  __m512i out;
  __builtin_memcpy(&out, &v, sizeof(out));
  return out;
}
HWY_INLINE __m256i as_bits(__m256bh v) {
  __m256i out;
  __builtin_memcpy(&out, &v, sizeof(out));
  return out;
}

// Transposes 16 x 16 numbers of 32 bits: lane j of vector i and lane i of vector j are swapped.
HWY_INLINE void transpose(__m512i (&v)[16]) {
  __m512i w[16];
  DR_UNROLL
  for (int32_t i = 0; i < 16; i += 2) {  // inside blocks of 2 x 2
    w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  DR_UNROLL
  for (int32_t i = 0; i < 16; i += 4) {  // inside blocks of 4 x 4: vector i + n then holds column n of each four lanes
    v[i] = _mm512_unpacklo_epi64(w[i], w[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(w[i], w[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(w[i + 1], w[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(w[i + 1], w[i + 3]);
  }
  DR_UNROLL
  for (int32_t i = 0; i < 4; ++i) {  // swap the blocks of 4 x 4
    const __m512i even_low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xDD);
    w[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    w[i + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    w[i + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xDD);
    w[i + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD);
  }
  DR_UNROLL
  for (int32_t i = 0; i < 16; ++i) v[i] = w[i];
}

struct Avx512Tiles {
  static constexpr int32_t kDepth = 2;  // numbers of the summed axis per step
  static constexpr int32_t kTileRows = 8;
  static constexpr int32_t kTileCols = 32;
  static constexpr int32_t kLeftStep = 16;  // bf16 numbers per step
  static constexpr int32_t kRightStep = 64;
  static constexpr int32_t kScaleFloats = 8;  // floats of a packed row scale
  static constexpr bool kLeftIsRows = false;

  struct Tile {
    __m512 lo[kTileRows];
    __m512 hi[kTileRows];
  };

  // Position of (token, channel) in an operand of row tiles: the row inside the step that holds `channel`.
  static int64_t place(int32_t token, int32_t channel, int32_t channels) {
    return (static_cast<int64_t>(token / kTileRows) * channels + channel) * kTileRows + token % kTileRows * kDepth;
  }

  static HWY_INLINE void clear(Tile& tile) {
    DR_UNROLL
    for (int32_t r = 0; r < kTileRows; ++r) tile.lo[r] = tile.hi[r] = _mm512_setzero_ps();
  }

  static HWY_INLINE void multiply(Tile& tile, const uint16_t* HWY_RESTRICT left, const uint16_t* HWY_RESTRICT right,
                                  int32_t depth) {
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

  // In memory a tile is stored by rows.
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

  // Rounds lanes {first[i], second[i]} to pairs of bf16.
  static HWY_INLINE __m512i round_pairs(__m512 first, __m512 second) {
    const __m512i low = _mm512_cvtepu16_epi32(as_bits(_mm512_cvtneps_pbh(first)));
    const __m512i high = _mm512_cvtepu16_epi32(as_bits(_mm512_cvtneps_pbh(second)));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }

  // Stores the tile as a right operand that is summed over the tile's rows: kTileRows / kDepth steps.
  static HWY_INLINE void to_right(const Tile& tile, uint16_t* HWY_RESTRICT to) {
    DR_UNROLL
    for (int32_t r = 0; r < kTileRows; r += 2) {
      _mm512_storeu_si512(to + r / 2 * kRightStep, round_pairs(tile.lo[r], tile.lo[r + 1]));
      _mm512_storeu_si512(to + r / 2 * kRightStep + 32, round_pairs(tile.hi[r], tile.hi[r + 1]));
    }
  }

  // Packs the four rows of a sub-chunk, times factor[column], into a left operand that is summed over columns. `left`
  // is the position of the first row.
  static HWY_INLINE void pack_left(const float* HWY_RESTRICT rows, int64_t stride, const float* HWY_RESTRICT factor,
                                   int32_t columns, int32_t, uint16_t* HWY_RESTRICT left) {
    for (int32_t c = 0; c < columns; c += 16) {
      const __m512 f = _mm512_loadu_ps(factor + c);
      alignas(64) uint32_t pairs[kSubChunk][8];
      for (int32_t r = 0; r < kSubChunk; ++r) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(rows + r * stride + c), f);
        const __m256i rounded = as_bits(_mm512_cvtneps_pbh(x));  // neighbours in a row form the pairs
        __builtin_memcpy(pairs[r], &rounded, sizeof(rounded));
      }
      auto* to = reinterpret_cast<uint32_t*>(left + c / kDepth * kLeftStep);
      for (int32_t step = 0; step < 8; ++step)
        for (int32_t r = 0; r < kSubChunk; ++r) to[step * kLeftStep / 2 + r] = pairs[r][step];
    }
  }

  // Transposes a chunk of rows [token][channel] to left operands [channel tile][step over tokens], summed over tokens.
  static HWY_INLINE void pack_transposed(const float* HWY_RESTRICT rows, int32_t channels,
                                         uint16_t* HWY_RESTRICT left) {
    for (int32_t c = 0; c < channels; c += 16)
      for (int32_t t = 0; t < kChunk; t += kDepth)
        store_transposed(
            round_pairs(_mm512_loadu_ps(rows + t * channels + c), _mm512_loadu_ps(rows + (t + 1) * channels + c)),
            left + static_cast<int64_t>(c) * kChunk + t / kDepth * kLeftStep, kTileRows * kChunk);
  }

  // From bare rows (without decay): left operands of keys and queries, transposed keys, and scores. Eight columns of a
  // right operand have the layout of a left one, so the scores need no further packing.
  static HWY_INLINE void pack_bare(const uint16_t* k, const uint16_t* q, int32_t channels, uint16_t* keys,
                                   uint16_t* queries, uint16_t* transposed, Scores& scores) {
    pack_rows(k, channels, keys);
    pack_rows(q, channels, queries);
    for (int32_t c = 0; c < channels; c += 16) {
      for (int32_t t = 0; t < kChunk; t += kDepth) {
        const uint16_t* from = k + t * channels + c;
        const __m512i first = _mm512_cvtepu16_epi32(load_half(from));
        const __m512i second = _mm512_cvtepu16_epi32(load_half(from + channels));
        store_transposed(_mm512_or_si512(first, _mm512_slli_epi32(second, 16)),
                         transposed + static_cast<int64_t>(c) * kChunk + t / kDepth * kLeftStep, kTileRows * kChunk);
      }
    }
    for (int32_t j = 0; j < kChunk; j += kTileRows) {
      for (int32_t i = j; i < kChunk; i += kTileRows) {
        score(keys + j * channels, keys + i * channels, channels, scores.kk + j * kChunk + i);
        score(keys + j * channels, queries + i * channels, channels, scores.qk + j * kChunk + i);
      }
    }
  }

 private:
  static HWY_INLINE __m256i load_half(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  // Stores the lower eight lanes at `left` and the upper eight `apart` further on.
  static HWY_INLINE void store_transposed(__m512i lanes, uint16_t* left, int32_t apart) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(left), _mm512_castsi512_si256(lanes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(left + apart), _mm512_extracti64x4_epi64(lanes, 1));
  }

  static HWY_INLINE void pack_rows(const uint16_t* HWY_RESTRICT rows, int32_t channels, uint16_t* HWY_RESTRICT left) {
    for (int32_t c = 0; c < channels; c += 16) {  // eight pairs of channels of 16 tokens
      __m512i v[16];
      DR_UNROLL
      for (int32_t t = 0; t < 16; ++t) v[t] = _mm512_castsi256_si512(load_half(rows + t * channels + c));
      transpose(v);
      DR_UNROLL
      for (int32_t pair = 0; pair < 8; ++pair)
        store_transposed(v[pair], left + (c / kDepth + pair) * kLeftStep, kTileRows * channels);
    }
  }

  // to[column][row] = product of `rows` and `columns`, both packed as left operands
  static HWY_INLINE void score(const uint16_t* HWY_RESTRICT columns, const uint16_t* HWY_RESTRICT rows,
                               int32_t channels, float* HWY_RESTRICT to) {
    __m256 sum[kTileRows];
    DR_UNROLL
    for (int32_t j = 0; j < kTileRows; ++j) sum[j] = _mm256_setzero_ps();
    for (int32_t c = 0; c < channels; c += kDepth) {
      const __m256i b = load_half(rows);
      DR_UNROLL
      for (int32_t j = 0; j < kTileRows; ++j) {
        int32_t pair;
        __builtin_memcpy(&pair, columns + 2 * j, sizeof(pair));
        const __m256i a = _mm256_set1_epi32(pair);
        __m256bh left, right;
        __builtin_memcpy(&left, &a, sizeof(left));
        __builtin_memcpy(&right, &b, sizeof(right));
        sum[j] = _mm256_dpbf16_ps(sum[j], left, right);
      }
      columns += kLeftStep;
      rows += kLeftStep;
    }
    DR_UNROLL
    for (int32_t j = 0; j < kTileRows; ++j) _mm256_storeu_ps(to + j * kChunk, sum[j]);
  }
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
