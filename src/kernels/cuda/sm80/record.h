// What `prepare` leaves for the walk, and what the walk leaves for `carry`: sizes and places, in plain C++.
//
// One record per (chunk, value head). G is the inclusive sum of log-decays in the chunk, rq and rk the inverse norms (1 without l2norm).
// Norms are taken apart into a power of two and the rest: scale rq = 2^a sq, rk = 2^b sk with 1 <= sq, sk < 2. A power of two rounds nothing, so
// of keys that do not decay the tiles are exact; the rest is left to factors of tokens in fp32.
//   KDA   q+ = q 2^a e^{G},  k+ = k 2^b e^{G},  k^ = k 2^b e^{Glast-G}          tiles [tokens][width] in the data type; U stands for sk U
//         P_ij = sq_i sum_c 2^a_i q_ic 2^b_j k_jc e^{Gic-Gjc} for j < i         L_ij = beta_i sk_i^2 sum_c 2^b_i k_ic 2^b_j k_jc e^{Gic-Gjc} for j < i
//   GDN   no tiles: the walk reads q and k as they come; factors of tokens instead
//         P_ij = scale rq_i rk_j e^{Gi-Gj} q_i.k_j for j < i                    L_ij = beta_i rk_i rk_j e^{Gi-Gj} k_i.k_j for j < i
//   both  T = (I + L)^-1 - I;  P and T are squares of tokens in the data type;  diagonal: P_ii in fp32 beside P
// Everything of tokens past the end of a sequence, and of channels past DK, is 0 (decay of such channels: 1).
#pragma once
#include <cstdint>
#include <initializer_list>

#include "problem/types.h"

namespace deltarelay::cuda::sm80 {

constexpr int32_t kChunk = 32;  // tokens
// Value columns of a CTA of the walk, and rows to which states in slots are rounded up.
constexpr int32_t kTileValues = 64;
constexpr int32_t kWideTile =
    128;  // where a warp takes two row tiles of 16 columns: each right operand it reads serves both
constexpr int32_t kMostWidth = 256;

// Key channels of tiles and states, for DK channels of the problem.
constexpr int32_t width_of(int32_t dk) {
  for (const int32_t width : {64, 96, 128, 192}) {
    if (dk <= width) return width;
  }
  return kMostWidth;
}

constexpr int32_t tiles_of(int32_t columns, int32_t tile) { return (columns + tile - 1) / tile; }
constexpr int32_t whole_tiles(int32_t columns) { return tiles_of(columns, kTileValues); }

// Floats of a slot at one head: the state [value rows in whole tiles][width], and M transposed [width in whole tiles][width].
constexpr int64_t slot_state_floats(int32_t dk, int32_t dv) {
  return static_cast<int64_t>(whole_tiles(dv)) * kTileValues * width_of(dk);
}
constexpr int64_t slot_transition_floats(int32_t dk) {
  return static_cast<int64_t>(whole_tiles(width_of(dk))) * kTileValues * width_of(dk);
}

// Bytes from the begin of a record. `element`: bytes of a number of the data type.
struct RecordPlaces {
  int32_t query = 0, read = 0, update = 0;  // KDA: tiles q+, k+, k^
  int32_t p = 0, t = 0;
  // Vectors of floats, at vector_place. Of tokens: the factors of V (beta; KDA: beta sk), of K S (beta e^G rk; beta sk^2), of Q S (scale rq e^G; sq),
  // the diagonal, and for GDN the factor of U in the update (e^{Glast-G} rk). decay: e^{Glast}, of channels (KDA) or one (GDN).
  int32_t beta = 0, diagonal = 0, read_factor = 0, query_factor = 0, update_factor = 0, decay = 0;
  int32_t bound = 0;  // GDN: log2 of a bound on the norm of what the chunk does to a state, a float
  int32_t bytes = 0;
};

// May CTAs of the walk have 128 value columns? At 128 key channels the state of two row tiles takes half of a lane's registers.
constexpr bool has_wide_tiles(int32_t element, int32_t width) { return element == 2 && width <= 128; }

// P or T. 16-bit numbers: those of 8 x 8 parts on and below the diagonal, as right operands of a warp's products (for the transposed). fp32: rows
// padded to 40 numbers, so that reads of 8 rows touch every bank once. Either way a flat copy brings it into shared memory.
constexpr int32_t kSquareRowBytes = 160;

// Places of the 16-bit numbers; part (i, j) is the one of rows 8 i and columns 8 j on, a lane has 4 bytes of each. Parts stand beside each other
// for a lane as its loads take them: two that are one operand of 16 columns, or alone.
struct SquarePlaces {
  static constexpr int32_t kLower = 0;            // 16 bytes a lane: (1, 0) (1, 1), (3, 2) (3, 3)
  static constexpr int32_t kBetween = 32 * 16;    // 16 bytes: (2, 0) (2, 1), (3, 0) (3, 1)
  static constexpr int32_t kUpper = 2 * 32 * 16;  // 8 bytes: (0, 0), (2, 2)
  static constexpr int32_t kBytes = kUpper + 32 * 8;
};
constexpr int32_t square_bytes(int32_t element, bool fine) {
  return element == 2 ? (fine ? 2 : 1) * SquarePlaces::kBytes : kChunk * kSquareRowBytes;
}

// 16-bit data with fewer key channels than this: the 32 keys of a chunk lie close to each other, or depend on each other, and what is rounded
// on the way to U is not averaged away (docs/numerics.md). There the state, R, U, P and T are operands with an upper and a lower half.
constexpr int32_t kPlainChannels = 64;
constexpr bool is_fine(int32_t element, int32_t dk) { return element == 2 && dk < kPlainChannels; }

// Where number i of a vector lies: among 16, the four that a lane of the walk takes (columns 2 q, 2 q + 1 of two sums) are neighbours.
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
    places.query = take(tile);
    places.read = take(tile);
    places.update = take(tile);
  }
  places.p = take(square);
  places.t = take(square);
  places.beta = take(tokens);
  places.diagonal = take(tokens);
  places.read_factor = take(tokens);
  places.query_factor = take(tokens);
  if (rule == Rule::kGdn) places.update_factor = take(tokens);
  // GDN: to a multiple of 32 bytes, so that records begin where sectors do.
  places.decay = take(rule == Rule::kKda ? width * 4 : 32);
  if (rule == Rule::kGdn) places.bound = places.decay + 4;
  places.bytes = at;
  return places;
}

constexpr int64_t record_bytes(Rule rule, DType dtype, int32_t dk) {
  const auto element = static_cast<int32_t>(size_of(dtype));
  return record_places(rule, element, width_of(dk), is_fine(element, dk)).bytes;
}

// What selects an instantiation of the kernels.
struct Shape {
  Rule rule;
  DType dtype;  // of q, k, v
  int32_t dk, dv;
  bool mid_frame;  // KDA: gates are bounded by -5 a token; taken by bf16 only, others do without
  bool tf32;       // fp32: one product of 11-bit operands instead of three; narrow keys (kPlainChannels) keep three
};

constexpr int64_t record_bytes(const Shape& shape) { return record_bytes(shape.rule, shape.dtype, shape.dk); }
// The widest tile of value columns that the walk may take; the launch may take narrower ones.
constexpr int32_t tile_of(const Shape& shape) {
  const auto element = static_cast<int32_t>(size_of(shape.dtype));
  const bool wide = has_wide_tiles(element, width_of(shape.dk)) && !is_fine(element, shape.dk);
  return wide && shape.dv > kTileValues ? kWideTile : kTileValues;
}

}  // namespace deltarelay::cuda::sm80
