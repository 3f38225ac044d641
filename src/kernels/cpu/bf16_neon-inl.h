// Products of bf16 numbers with BFMMLA: 2 x 2 fp32 accumulators += (2 rows x 4) (2 columns x 4)^T in one instruction.
//
// A register tile is 8 rows x 8 columns, as 4 x 4 blocks [row pair][column pair]; a block is {r0c0, r0c1, r1c0, r1c1}.
// Operands are [step][pair][2][4]; a step has 4 numbers of the summed axis. Left and right operands have the same
// layout.
#pragma once
#include <arm_neon.h>

#include "kernels/cpu/prepare-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {

struct NeonTiles {
  static constexpr int32_t kDepth = 4;  // numbers of the summed axis per step
  static constexpr int32_t kTileRows = 8;
  static constexpr int32_t kTileCols = 8;
  static constexpr int32_t kLeftStep = 32;  // bf16 numbers per step
  static constexpr int32_t kRightStep = 32;
  static constexpr int32_t kScaleFloats = 16;  // floats of a packed row scale
  static constexpr bool kLeftIsRows = false;

  struct Tile {
    float32x4_t block[4][4];
  };

  // Position of (token, channel) in an operand of row tiles: the row inside the step that holds `channel`.
  static int64_t place(int32_t token, int32_t channel, int32_t channels) {
    return (static_cast<int64_t>(token / kTileRows) * channels + channel) * kTileRows + token % kTileRows * kDepth;
  }

  static HWY_INLINE void clear(Tile& tile) {
    DR_UNROLL
    for (int32_t r = 0; r < 4; ++r) {
      DR_UNROLL
      for (int32_t c = 0; c < 4; ++c) tile.block[r][c] = vdupq_n_f32(0.0f);
    }
  }

  static HWY_INLINE void multiply(Tile& tile, const uint16_t* HWY_RESTRICT left, const uint16_t* HWY_RESTRICT right,
                                  int32_t depth) {
    for (int32_t i = 0; i < depth; i += kDepth) {
      bfloat16x8_t a[4], b[4];
      DR_UNROLL
      for (int32_t j = 0; j < 4; ++j) {
        a[j] = vreinterpretq_bf16_u16(vld1q_u16(left + 8 * j));
        b[j] = vreinterpretq_bf16_u16(vld1q_u16(right + 8 * j));
      }
      DR_UNROLL
      for (int32_t r = 0; r < 4; ++r) {
        DR_UNROLL
        for (int32_t c = 0; c < 4; ++c) tile.block[r][c] = vbfmmlaq_f32(tile.block[r][c], a[r], b[c]);
      }
      left += kLeftStep;
      right += kRightStep;
    }
  }

  static HWY_INLINE void load(Tile& tile, const float* HWY_RESTRICT from) {
    DR_UNROLL
    for (int32_t r = 0; r < 4; ++r) {
      DR_UNROLL
      for (int32_t c = 0; c < 4; ++c) tile.block[r][c] = vld1q_f32(from + (r * 4 + c) * 4);
    }
  }

  static HWY_INLINE void store(const Tile& tile, float* HWY_RESTRICT to) {
    DR_UNROLL
    for (int32_t r = 0; r < 4; ++r) {
      DR_UNROLL
      for (int32_t c = 0; c < 4; ++c) vst1q_f32(to + (r * 4 + c) * 4, tile.block[r][c]);
    }
  }

  // Packs factors per row as scale_rows reads them: {s0, s0, s1, s1} for each pair.
  static HWY_INLINE void pack_scale(const float* HWY_RESTRICT scale, float* HWY_RESTRICT to) {
    for (int32_t r = 0; r < 4; ++r) {
      const float32x2_t pair = vld1_f32(scale + 2 * r);
      vst1q_f32(to + 4 * r, vcombine_f32(vdup_lane_f32(pair, 0), vdup_lane_f32(pair, 1)));
    }
  }

  static HWY_INLINE void scale_rows(Tile& tile, const float* HWY_RESTRICT packed_scale) {
    DR_UNROLL
    for (int32_t r = 0; r < 4; ++r) {
      const float32x4_t s = vld1q_f32(packed_scale + 4 * r);
      DR_UNROLL
      for (int32_t c = 0; c < 4; ++c) tile.block[r][c] = vmulq_f32(tile.block[r][c], s);
    }
  }

  static HWY_INLINE float32x4_t low_halves(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  static HWY_INLINE float32x4_t high_halves(float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }

  static HWY_INLINE void to_rows(const Tile& tile, float* HWY_RESTRICT rows, int64_t stride) {
    DR_UNROLL
    for (int32_t r = 0; r < 4; ++r) {
      DR_UNROLL
      for (int32_t c = 0; c < 4; c += 2) {
        vst1q_f32(rows + 2 * r * stride + 2 * c, low_halves(tile.block[r][c], tile.block[r][c + 1]));
        vst1q_f32(rows + (2 * r + 1) * stride + 2 * c, high_halves(tile.block[r][c], tile.block[r][c + 1]));
      }
    }
  }

  static HWY_INLINE void from_rows(Tile& tile, const float* HWY_RESTRICT rows, int64_t stride) {
    DR_UNROLL
    for (int32_t r = 0; r < 4; ++r) {
      DR_UNROLL
      for (int32_t c = 0; c < 4; c += 2) {
        const float32x4_t upper = vld1q_f32(rows + 2 * r * stride + 2 * c);
        const float32x4_t lower = vld1q_f32(rows + (2 * r + 1) * stride + 2 * c);
        tile.block[r][c] = low_halves(upper, lower);
        tile.block[r][c + 1] = high_halves(upper, lower);
      }
    }
  }

  static HWY_INLINE uint16x8_t round_pair(float32x4_t low, float32x4_t high) {
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
  }

  // Stores the tile as a right operand that is summed over the tile's rows: kTileRows / kDepth steps.
  static HWY_INLINE void to_right(const Tile& tile, uint16_t* HWY_RESTRICT to) {
    DR_UNROLL
    for (int32_t step = 0; step < 2; ++step) {
      DR_UNROLL
      for (int32_t c = 0; c < 4; ++c) {
        const float32x4_t upper = tile.block[2 * step][c], lower = tile.block[2 * step + 1][c];
        vst1q_u16(to + step * kRightStep + 8 * c, round_pair(vuzp1q_f32(upper, lower), vuzp2q_f32(upper, lower)));
      }
    }
  }

  // Packs the four rows of a sub-chunk, times factor[column], into a left operand that is summed over columns. `left`
  // is the position of the first row.
  static HWY_INLINE void pack_left(const float* HWY_RESTRICT rows, int64_t stride, const float* HWY_RESTRICT factor,
                                   int32_t columns, int32_t, uint16_t* HWY_RESTRICT left) {
    uint16_t* HWY_RESTRICT to = left;
    for (int32_t c = 0; c < columns; c += kDepth) {
      const float32x4_t f = vld1q_f32(factor + c);
      const float32x4_t r0 = vmulq_f32(vld1q_f32(rows + c), f);
      const float32x4_t r1 = vmulq_f32(vld1q_f32(rows + stride + c), f);
      const float32x4_t r2 = vmulq_f32(vld1q_f32(rows + 2 * stride + c), f);
      const float32x4_t r3 = vmulq_f32(vld1q_f32(rows + 3 * stride + c), f);
      vst1q_u16(to, round_pair(r0, r1));
      vst1q_u16(to + 8, round_pair(r2, r3));
      to += kLeftStep;
    }
  }

  // Transposes a chunk of rows [token][channel] to left operands [channel tile][step over tokens], summed over tokens.
  static HWY_INLINE void pack_transposed(const float* HWY_RESTRICT rows, int32_t channels,
                                         uint16_t* HWY_RESTRICT left) {
    for (int32_t c = 0; c < channels; c += 4) {
      uint16_t* HWY_RESTRICT to = left + static_cast<int64_t>(c / kTileRows) * kTileRows * kChunk + c % kTileRows * 4;
      for (int32_t t = 0; t < kChunk; t += kDepth) {
        const float* HWY_RESTRICT from = rows + t * channels + c;
        const float32x4_t r0 = vld1q_f32(from), r1 = vld1q_f32(from + channels);
        const float32x4_t r2 = vld1q_f32(from + 2 * channels), r3 = vld1q_f32(from + 3 * channels);
        const float32x4_t a = vtrn1q_f32(r0, r1), b = vtrn2q_f32(r0, r1);
        const float32x4_t e = vtrn1q_f32(r2, r3), f = vtrn2q_f32(r2, r3);
        vst1q_u16(to, round_pair(low_halves(a, e), low_halves(b, f)));
        vst1q_u16(to + 8, round_pair(high_halves(a, e), high_halves(b, f)));
        to += kLeftStep;
      }
    }
  }

  // From bare rows (without decay): left operands of keys and queries, transposed keys, and scores. Left and right
  // operands have the same layout, so the scores need no further packing.
  static HWY_INLINE void pack_bare(const uint16_t* k, const uint16_t* q, int32_t channels, uint16_t* keys,
                                   uint16_t* queries, uint16_t* transposed, Scores& scores) {
    pack_rows(k, channels, keys);
    pack_rows(q, channels, queries);
    transpose_rows(k, channels, transposed);
    for (int32_t j = 0; j < kChunk; j += kTileRows) {
      for (int32_t i = j; i < kChunk; i += kTileRows) {
        score(keys + j * channels, keys + i * channels, channels, scores.kk + j * kChunk + i);
        score(keys + j * channels, queries + i * channels, channels, scores.qk + j * kChunk + i);
      }
    }
  }

 private:
  static HWY_INLINE void score(const uint16_t* columns, const uint16_t* rows, int32_t channels, float* to) {
    Tile tile;
    clear(tile);
    multiply(tile, columns, rows, channels);
    to_rows(tile, to, kChunk);
  }

  static HWY_INLINE void pack_rows(const uint16_t* HWY_RESTRICT rows, int32_t channels, uint16_t* HWY_RESTRICT left) {
    for (int32_t t = 0; t < kChunk; t += 2) {
      const uint16_t* HWY_RESTRICT from = rows + t * channels;
      uint16_t* HWY_RESTRICT to = left + place(t, 0, channels);
      for (int32_t c = 0; c < channels; c += 2 * kDepth) {
        const uint64x2_t upper = vreinterpretq_u64_u16(vld1q_u16(from + c));
        const uint64x2_t lower = vreinterpretq_u64_u16(vld1q_u16(from + channels + c));
        vst1q_u16(to, vreinterpretq_u16_u64(vtrn1q_u64(upper, lower)));
        vst1q_u16(to + kLeftStep, vreinterpretq_u16_u64(vtrn2q_u64(upper, lower)));
        to += 2 * kLeftStep;
      }
    }
  }

  static HWY_INLINE void transpose_rows(const uint16_t* HWY_RESTRICT rows, int32_t channels,
                                        uint16_t* HWY_RESTRICT left) {
    const auto pairs = [](uint16x8_t v) { return vreinterpretq_u32_u16(v); };
    for (int32_t c = 0; c < channels; c += kTileRows) {
      uint16_t* HWY_RESTRICT to = left + static_cast<int64_t>(c) * kChunk;
      for (int32_t t = 0; t < kChunk; t += kDepth) {
        const uint16_t* HWY_RESTRICT from = rows + t * channels + c;
        const uint16x8_t r0 = vld1q_u16(from), r1 = vld1q_u16(from + channels);
        const uint16x8_t r2 = vld1q_u16(from + 2 * channels), r3 = vld1q_u16(from + 3 * channels);
        // Interleave two tokens of a channel, then four.
        const uint32x4_t a = pairs(vzip1q_u16(r0, r1)), b = pairs(vzip2q_u16(r0, r1));
        const uint32x4_t e = pairs(vzip1q_u16(r2, r3)), f = pairs(vzip2q_u16(r2, r3));
        vst1q_u16(to, vreinterpretq_u16_u32(vzip1q_u32(a, e)));
        vst1q_u16(to + 8, vreinterpretq_u16_u32(vzip2q_u32(a, e)));
        vst1q_u16(to + 16, vreinterpretq_u16_u32(vzip1q_u32(b, f)));
        vst1q_u16(to + 24, vreinterpretq_u16_u32(vzip2q_u32(b, f)));
        to += kLeftStep;
      }
    }
  }
};

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
