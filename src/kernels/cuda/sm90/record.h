// Records: what `prepare` leaves for `summarize` and `emit`, one per (chunk, value head). A record is laid out as the
// walk needs it in shared memory, so that one flat bulk copy loads it. What only `emit` needs comes first: a summary
// copies from `kSummary` on.
#pragma once
#include <cstdint>

namespace deltarelay::cuda::sm90 {

constexpr int kWidth = 128;     // DK of this backend, and the values of a strip (args.h)
constexpr int kHalfWidth = 64;  // channels in one 128-byte row of a swizzled tile
constexpr int kRowBytes = 128;

// GDN: 64 tokens. The walk reads raw q, k, v tiles. The record holds what depends on gates, beta and norms. G is the
// inclusive sum of log-decays in the chunk, G_last its last value, rq and rk are the inverse norms (1 without l2norm).
// Vectors are 0 for tokens past the end of the sequence.
//   Aqk_ij = scale rq_i rk_j e^{G_i-G_j} q_i.k_j for j < i, else 0; its diagonal lies beside it in fp32
//   inverse - I = (I + Akk)^-1 - I,  Akk_ij = beta_i rk_i rk_j e^{G_i-G_j} k_i.k_j for j < i
// So V_new = R + (inverse - I) R and O = query Q S + Aqk V_new + diagonal V_new. The terms R and diagonal V_new, the
// largest ones, stay in fp32 and are not rounded to 16 bits. Compared with Aqk, inverse and beta all in bf16, this
// halves the error of o (docs/numerics.md). Both matrices are 64 x 64 in the data type of q. Row i is the output token.
// Rows have 128 bytes, swizzled as TMA does (16-byte piece p of row r lies at p ^ (r % 8)): B operands of wgmma,
// K-major.
struct GdnRecord {
  static constexpr int kChunk = 64;
  static constexpr int kAqk = 0;
  static constexpr int kInverse = 8192;
  static constexpr int kReadFactor = 16384;           // float[64]: beta_i e^{G_i} rk_i, factor of K S
  static constexpr int kUpdate = kReadFactor + 256;   // float[64]: e^{G_last-G_i} rk_i, factor of V_new in the update
  static constexpr int kQueryFactor = kUpdate + 256;  // float[64]: scale rq_i e^{G_i}, factor of Q S
  static constexpr int kDecay = kQueryFactor + 256;   // float: decay_chunk = e^{G_last}
  static constexpr int kBeta = kDecay + 16;           // float[64]: beta_i, factor of V
  static constexpr int kDiagonal = kBeta + 256;       // float[64]: Aqk_ii
  static constexpr int kBytes = kDiagonal + 256;
  static constexpr int kSummary = kInverse;
};

// KDA: 32 tokens. Tiles are in the frames of the chunk's start and end, so no factor exceeds 2^0.25 whatever gates are.
// A norm is a power of two, which rounds nothing in a tile, times a rest, which becomes a factor per token in fp32:
// scale rq = 2^a sq, rk = 2^b sk with 1 <= sq, sk < 2. In the same way a decay d of every token that is common to all
// channels (tile/slow_decay.cuh) is in factors of tokens, and tiles hold what decays beyond it: H_i = G_i - (i + 1) d
// for token i. So the walk solves for V_new~_i = sk_i e^{(31-i) d} V_new_i.
//   q_from_start = q 2^a e^{H_i},  k_from_start = k 2^b e^{H_i},  k_to_end = k 2^b e^{H_last-H_i}
//       32 x 128 tiles in the data type of q: two halves of 64 channels, each [32 tokens][128 bytes], swizzled as above
//   Aqk~_ij = sq_i e^{(i-31) d} sum_c 2^a_i q_ic 2^b_j k_jc e^{H_ic-H_jc} for j < i,  inverse - I = (I + Akk~)^-1 - I,
//       Akk~_ij = beta_i sk_i^2 sum_c 2^b_i k_ic 2^b_j k_jc e^{H_ic-H_jc} for j < i
// Both matrices are 32 x 32 in 8 x 8 core matrices without swizzle: element (i, j) at (j/8) * 512 + (i/8) * 128 + (i%8)
// * 16 + (j%8) * 2. Rows of tokens past the end are 0 in the tiles and in Aqk~; beta is 0 there.
struct KdaRecord {
  static constexpr int kChunk = 32;
  static constexpr int kQuery = 0;  // q_from_start
  static constexpr int kAqk = 8192;
  static constexpr int kRead = 10240;    // k_from_start
  static constexpr int kUpdate = 18432;  // k_to_end
  static constexpr int kInverse = 26624;
  static constexpr int kDecay = 28672;                    // float[128]: decay_chunk = e^{G_last} per channel
  static constexpr int kBeta = kDecay + 512;              // float[32]: beta sk e^{(31-i) d}, factor of V
  static constexpr int kDiagonal = kBeta + 128;           // float[32]: Aqk~_ii
  static constexpr int kReadFactor = kDiagonal + 128;     // float[32]: beta sk^2 e^{32 d}, factor of K S
  static constexpr int kQueryFactor = kReadFactor + 128;  // float[32]: sq e^{(i+1) d}, factor of Q S
  static constexpr int kBytes = kQueryFactor + 128;
  static constexpr int kSummary = kRead;
};
static_assert(GdnRecord::kBytes % 16 == 0 && KdaRecord::kBytes % 16 == 0 && KdaRecord::kRead % 1024 == 0 &&
              KdaRecord::kUpdate % 1024 == 0);

}  // namespace deltarelay::cuda::sm90
