// What `prepare` leaves for `summarize` and `emit`: one record per (chunk, value head), laid out as the image that the walk wants in
// shared memory, so that a flat bulk copy brings it in. Parts that only `emit` needs come first: a summary copies from `kSummary` on.
#pragma once
#include <cstdint>

namespace deltarelay::cuda::sm90 {

constexpr int kWidth = 128;     // DK of this backend, and the values of a strip (args.h)
constexpr int kHalfWidth = 64;  // channels in one 128-byte row of a swizzled tile
constexpr int kRowBytes = 128;

// GDN: 64 tokens. The walk reads raw q, k, v tiles; the record holds what depends on gates, beta and norms. G is the inclusive sum of
// log-decays in the chunk, rq and rk the inverse norms (1 without l2norm). Vectors are 0 for tokens past the end of the sequence.
//   P_ij = scale rq_i rk_j e^{Gi-Gj} q_i.k_j for j < i, else 0; the diagonal in fp32 beside it
//   T    = (I + L)^-1 - I,  L_ij = beta_i rk_i rk_j e^{Gi-Gj} k_i.k_j for j < i
// So U = R + T R and O = query Q S + P U + diagonal U, where R and U on their own are still in fp32: what 16 bits would add to the largest
// terms falls away. Against P, T and beta all in bf16 the error of o is halved (docs/numerics.md).
// P and T are 64 x 64 in the data type of q, row i = output token, 128-byte rows, swizzled as TMA would (16-byte piece p of row r lies at
// p ^ (r % 8)): B operands of wgmma, K-major.
struct GdnRecord {
  static constexpr int kChunk = 64;
  static constexpr int kP = 0;
  static constexpr int kT = 8192;
  static constexpr int kReadFactor = 16384;  // float[64]: beta_i e^{Gi} rk_i, factor of K S
  static constexpr int kUpdate =
      kReadFactor + 256;  // float[64]: e^{Glast-Gi} rk_i, factor of U in the update of the state
  static constexpr int kQueryFactor = kUpdate + 256;  // float[64]: scale rq_i e^{Gi}, factor of Q S
  static constexpr int kDecay = kQueryFactor + 256;   // float: e^{Glast}
  static constexpr int kBeta = kDecay + 16;           // float[64]: beta_i, factor of V
  static constexpr int kDiagonal = kBeta + 256;       // float[64]: P_ii
  static constexpr int kBytes = kDiagonal + 256;
  static constexpr int kSummary = kT;
};

// KDA: 32 tokens, everything in the frame of the chunk's ends, so that no factor exceeds 1 whatever the gates are.
// Norms are taken apart into a power of two, which rounds nothing in a tile, and the rest, which is left to factors of tokens in fp32:
// scale rq = 2^a sq, rk = 2^b sk with 1 <= sq, sk < 2. U stands for sk U.
//   q+ = q 2^a e^{G},  k+ = k 2^b e^{G},  k^ = k 2^b e^{Glast-G}        32 x 128 tiles in the data type of q: two halves of 64 channels,
//                                                                      each [32 tokens][128 bytes], swizzled as above
//   P_ij = sq_i sum_c 2^a_i q_ic 2^b_j k_jc e^{Gic-Gjc} for j < i,  T = (I + L)^-1 - I,  L_ij = beta_i sk_i^2 sum_c 2^b_i k_ic 2^b_j k_jc e^{Gic-Gjc}
// P and T are 32 x 32 in 8 x 8 core matrices without swizzle: element (i, j) at (j/8) * 512 + (i/8) * 128 + (i%8) * 16 + (j%8) * 2.
// Rows of tokens past the end are 0 in the tiles and in P, beta is 0 there.
struct KdaRecord {
  static constexpr int kChunk = 32;
  static constexpr int kQuery = 0;  // q+
  static constexpr int kP = 8192;
  static constexpr int kRead = 10240;    // k+
  static constexpr int kUpdate = 18432;  // k^
  static constexpr int kT = 26624;
  static constexpr int kDecay = 28672;                    // float[128]: e^{Glast} per channel
  static constexpr int kBeta = kDecay + 512;              // float[32]: beta sk, factor of V
  static constexpr int kDiagonal = kBeta + 128;           // float[32]: P_ii
  static constexpr int kReadFactor = kDiagonal + 128;     // float[32]: beta sk^2, factor of K S
  static constexpr int kQueryFactor = kReadFactor + 128;  // float[32]: sq, factor of Q S
  static constexpr int kBytes = kQueryFactor + 128;
  static constexpr int kSummary = kRead;
};
static_assert(GdnRecord::kBytes % 16 == 0 && KdaRecord::kBytes % 16 == 0 && KdaRecord::kRead % 1024 == 0 &&
              KdaRecord::kUpdate % 1024 == 0);

}  // namespace deltarelay::cuda::sm90
