// What prepare leaves for the walk, and what the walk leaves for carry: sizes and offsets, in plain C++.
//
// There is one record per (chunk, value head). G_i is the inclusive sum of log-decays in the chunk to token i, G_last
// its value at the chunk's end; rq and rk are the inverse norms (1 without l2norm). Norms are divided into a power of
// two and a rest: scale rq = 2^a sq and rk = 2^b sk with 1 <= sq, sk < 2. A power of two rounds nothing, so tiles of
// keys without decay are exact. The rest becomes a factor per token in fp32. So does, with 16-bit data, a decay d of
// every token that is common to all channels (tile/slow_decay.cuh; d = 0 with fp32 data). Tiles and scores hold what
// channels decay beyond it, H_i = G_i - (i + 1) d. A tilde marks a quantity with such factors:
//
//   KDA   tiles [token][width] in the data type:
//           q_from_start = q 2^a e^H,   k_from_start = k 2^b e^H,   k_to_end = k 2^b e^{H_last - H}
//         R~_i = t_i R_i,   V_new~_i = t_i V_new_i   with t_i = sk_i e^{(31-i) d}
//         Akk~_ij = Akk_ij t_i / t_j = beta_i sk_i^2 sum_c 2^b_i k_ic 2^b_j k_jc e^{H_ic-H_jc}        for j < i
//         Aqk~_ij = Aqk_ij / t_j     = sq_i e^{(i-31) d} sum_c 2^a_i q_ic 2^b_j k_jc e^{H_ic-H_jc}    for j < i
//         Why: G_i - G_j = (i - j) d + H_i - H_j. In Akk~ the first term cancels against t_i / t_j; in Aqk~ it leaves
//         (i - 31) d. Row i of K S has rk_i e^{G_i} = sk_i e^{(i+1) d} 2^b_i e^{H_i}; t_i beta_i times its scalars is
//         read_factor. In the update, rk_j e^{G_last-G_j} V_new_j = 2^b_j e^{H_last-H_j} V_new~_j.
//   GDN   no tiles: the walk reads q and k of the caller and applies factors per token. No tilde:
//         Akk_ij = beta_i rk_i rk_j E_ij k_i.k_j,   Aqk_ij = scale rq_i rk_j E_ij q_i.k_j  for j < i
//   both  inverse - I = (I + Akk)^-1 - I. Aqk and inverse - I are C x C squares in the data type, without the diagonal.
//         diagonal: Aqk_ii (KDA: Aqk~_ii) in fp32.
//
// Numbers of tokens past the end of a sequence and of channels past DK are 0 (decay_chunk of such channels is 1).
#pragma once
#include <cstdint>
#include <initializer_list>

#include "problem/types.h"

namespace deltarelay::cuda::sm80 {

constexpr int32_t kChunk = 32;  // tokens
// Value columns per CTA of the walk. States in slots have a multiple of this many rows.
constexpr int32_t kTileValues = 64;
// With this tile a warp takes two row tiles of 16 columns, so each right operand that it reads serves both.
constexpr int32_t kWideTile = 128;
constexpr int32_t kMostWidth = 256;

// Padded number of key channels in tiles and states, for DK channels of the problem.
constexpr int32_t width_of(int32_t dk) {
  for (const int32_t width : {64, 96, 128, 192}) {
    if (dk <= width) return width;
  }
  return kMostWidth;
}

constexpr int32_t tiles_of(int32_t columns, int32_t tile) { return (columns + tile - 1) / tile; }
constexpr int32_t whole_tiles(int32_t columns) { return tiles_of(columns, kTileValues); }

// Floats of a slot at one head: the state S^T [value rows in whole tiles][width], and M^T [width in whole
// tiles][width].
constexpr int64_t slot_state_floats(int32_t dk, int32_t dv) {
  return static_cast<int64_t>(whole_tiles(dv)) * kTileValues * width_of(dk);
}
constexpr int64_t slot_transition_floats(int32_t dk) {
  return static_cast<int64_t>(whole_tiles(width_of(dk))) * kTileValues * width_of(dk);
}

// Offsets in bytes from the start of a record. `element` below is the size of a number of the data type.
struct RecordPlaces {
  int32_t q_from_start = 0, k_from_start = 0, k_to_end = 0;  // KDA: tiles
  int32_t aqk = 0, inverse = 0;                              // squares; `inverse` holds inverse - I
  // Vectors of floats in the order of vector_place. Per token: the factor of V (GDN: beta; KDA: beta sk e^{(31-i) d}),
  // of K S (beta e^G rk; beta sk^2 e^{32 d}), of Q S (scale rq e^G; sq e^{(i+1) d}), the diagonal of Aqk, and for GDN
  // the factor of V_new in the update (e^{G_last - G} rk). decay_chunk = e^{G_last}, per channel (KDA) or one number
  // (GDN).
  int32_t beta = 0, diagonal = 0, read_factor = 0, query_factor = 0, update_factor = 0, decay_chunk = 0;
  int32_t bound = 0;  // GDN: a float, log2 of a bound on the norm of the chunk's transition M
  int32_t bytes = 0;
};

// May a CTA of the walk have 128 value columns? At 128 key channels the state of two row tiles takes half of a lane's
// registers.
constexpr bool has_wide_tiles(int32_t element, int32_t width) { return element == 2 && width <= 128; }

// Format of Aqk and inverse - I. 16-bit numbers: the 8 x 8 blocks on and below the diagonal, as right operands of a
// warp's products (for the transposed matrix). fp32: rows padded to 40 numbers, so that reads of 8 rows touch every
// bank once. In both formats a flat copy brings the square into shared memory.
constexpr int32_t kSquareRowBytes = 160;

// Offsets of 16-bit blocks. Block (i, j) starts at row 8 i and column 8 j; a lane has 4 bytes of each. Blocks that a
// lane loads together are neighbours: two that form one operand of 16 columns, or a single one.
struct SquarePlaces {
  static constexpr int32_t kLower = 0;            // 16 bytes per lane: (1, 0) (1, 1), (3, 2) (3, 3)
  static constexpr int32_t kBetween = 32 * 16;    // 16 bytes per lane: (2, 0) (2, 1), (3, 0) (3, 1)
  static constexpr int32_t kUpper = 2 * 32 * 16;  // 8 bytes per lane: (0, 0), (2, 2)
  static constexpr int32_t kBytes = kUpper + 32 * 8;
};
constexpr int32_t square_bytes(int32_t element, bool fine) {
  return element == 2 ? (fine ? 2 : 1) * SquarePlaces::kBytes : kChunk * kSquareRowBytes;
}

// 16-bit data with fewer key channels than this: the 32 keys of a chunk are close to each other or linearly dependent,
// and the round-off of V_new does not average out (docs/numerics.md). There the state, R, V_new, Aqk and inverse - I
// are operands with an upper and a lower half.
constexpr int32_t kPlainChannels = 64;
constexpr bool is_fine(int32_t element, int32_t dk) { return element == 2 && dk < kPlainChannels; }

// Position of number i of a vector: among 16, the four that a lane of the walk reads (columns 2 member and 2 member + 1
// of two accumulators) are neighbours.
constexpr int32_t vector_place(int32_t i) { return i / 16 * 16 + i % 8 / 2 * 4 + i / 8 % 2 * 2 + i % 2; }

constexpr RecordPlaces record_places(Rule rule, int32_t element, int32_t width, bool fine) {
  RecordPlaces places;
  int32_t at = 0;
  auto take = [&at](int32_t bytes) {
    const int32_t begin = at;
    at += bytes;
    return begin;
  };
  const int32_t square = square_bytes(element, fine), tile = kChunk * width * element, tokens = kChunk * 4;
  if (rule == Rule::kKda) {
    places.q_from_start = take(tile);
    places.k_from_start = take(tile);
    places.k_to_end = take(tile);
  }
  places.aqk = take(square);
  places.inverse = take(square);
  places.beta = take(tokens);
  places.diagonal = take(tokens);
  places.read_factor = take(tokens);
  places.query_factor = take(tokens);
  if (rule == Rule::kGdn) places.update_factor = take(tokens);
  // GDN: padded to a multiple of 32 bytes, so that records start at sector boundaries.
  places.decay_chunk = take(rule == Rule::kKda ? width * 4 : 32);
  if (rule == Rule::kGdn) places.bound = places.decay_chunk + 4;
  places.bytes = at;
  return places;
}

constexpr int64_t record_bytes(Rule rule, DType dtype, int32_t dk) {
  const auto element = static_cast<int32_t>(size_of(dtype));
  return record_places(rule, element, width_of(dk), is_fine(element, dk)).bytes;
}

// Selects an instantiation of the kernels.
struct Shape {
  Rule rule;
  DType dtype;  // of q, k, v
  int32_t dk, dv;
  bool mid_frame;  // KDA: log-decays are at least -5 per token; only bf16 kernels use it
  bool tf32;       // fp32: one product of 11-bit operands instead of three; narrow keys (kPlainChannels) keep three
};

constexpr int64_t record_bytes(const Shape& shape) { return record_bytes(shape.rule, shape.dtype, shape.dk); }
// Widest tile of value columns that the walk may use; a launch may use narrower ones.
constexpr int32_t tile_of(const Shape& shape) {
  const auto element = static_cast<int32_t>(size_of(shape.dtype));
  const bool wide = has_wide_tiles(element, width_of(shape.dk)) && !is_fine(element, shape.dk);
  return wide && shape.dv > kTileValues ? kWideTile : kTileValues;
}

}  // namespace deltarelay::cuda::sm80
