// Shared memory of the chunk-local kernel, and where its CTA works.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/stages/gate_sums.cuh"
#include "kernels/cuda/sm90/stages/local.h"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90::local {

constexpr int kGroup = 128, kThreads = 2 * kGroup;
constexpr int kTokens = kStageChunk;
constexpr int kHalfTile = kTokens * kRowBytes;  // 64 tokens, 64 numbers, swizzled
constexpr int kTile = 2 * kHalfTile;            // two of them: 64 tokens of a head
constexpr float kL2NormEpsilon = 1e-6f;

// Where a CTA works.
struct Place {
  ChunkPlace chunk;
  int64_t token_of_call;
  int head, key_head;
};

// A 64 x 64 matrix in fp32. Rows are padded: float4 stays aligned, and rows fall into different banks.
struct Square {
  float row[kTokens][kTokens + 4];
};

// Operands of one level of scores (local_levels.cuh), for each half of the channels: rows of q and k, columns of k.
struct LevelTile {
  uint8_t rows[2][kHalfTile];
  uint8_t columns[2][kHalfTile / 2];
};

// Numbers of the chunk's tokens.
struct alignas(16) PerToken {
  float beta[kTokens];
  float norm_q[kTokens], norm_k[kTokens];
  float diagonal[kTokens];  // of Aqk, GDN
  float sums[kTokens];      // GDN: G in base 2
  // KDA: beta times the norm of k, which makes rows of w's keys of k. GDN: that times e^G, of a column of the inverse,
  // over `power_w`.
  float weight_w[kTokens];
  float power_w;
};

// Where scores go: Aqk in the type of the data, and Akk, which becomes its inverse.
struct Scores {
  uint8_t* aqk;
  Square& lower;
};

// Operands of scores in frames (local_frames.cuh), and what lies over them: Aqk over `far`, levels over all before it.
struct FrameTiles {
  uint8_t q[kTile], k[kTile];  // as loaded, then rows
  uint8_t columns[kTile];
  uint8_t far[kTile / 2];
  uint8_t keys[kTile];  // beta rk e^G k, then w
};
struct TokenTiles {
  uint8_t q[kTile], k[kTile];
};
struct SquareTiles {
  uint8_t aqk[kHalfTile];
  Square lower;
};
struct LowerTile {
  Square lower;
};
struct GivenInverse {
  uint8_t inverse[kHalfTile];
};

template <bool kScalar, bool kScores>
struct Shared {
  alignas(1024) std::conditional_t<kScores && !kScalar, FrameTiles, TokenTiles> tokens;
  uint8_t v[kTile];  // then u
  std::conditional_t<!kScores, GivenInverse, std::conditional_t<kScalar, SquareTiles, LowerTile>> squares;
  PerToken per_token;
  std::conditional_t<kScalar, float[4], float[4][kWidth]> products;  // KDA: decay over 16 tokens
  uint64_t tokens_ready, v_ready;

  __device__ __forceinline__ uint8_t* q() { return tokens.q; }
  __device__ __forceinline__ uint8_t* k() { return tokens.k; }
  // What the inverse is multiplied by, then w: k (GDN, with a weighed inverse), beta rk e^G k (KDA).
  __device__ __forceinline__ uint8_t* keys() {
    if constexpr (kScores && !kScalar)
      return tokens.keys;
    else
      return tokens.k;
  }
  using Levels = LevelTile[2];
  __device__ __forceinline__ Levels& levels() { return *reinterpret_cast<Levels*>(tokens.q); }
  __device__ __forceinline__ Scores scores() {
    if constexpr (kScalar)
      return {squares.aqk, squares.lower};
    else
      return {tokens.far, squares.lower};
  }
  // The inverse times beta, for u: KDA with scores has it over k, which has been read by then.
  static constexpr bool kWeighs = kScores && !kScalar;
  __device__ __forceinline__ uint8_t* weighed() { return kWeighs ? tokens.k : nullptr; }
  // The inverse in its type. An inverse that is made here lies over q, which has been read by then.
  __device__ __forceinline__ uint8_t* inverse() {
    if constexpr (kScores)
      return tokens.q;
    else
      return squares.inverse;
  }
};
template <bool kScalar, bool kScores>
constexpr int kResident = kScalar || !kScores ? 3 : 2;
template <bool kScalar, bool kScores>
constexpr bool kFits = kResident<kScalar, kScores>*(sizeof(Shared<kScalar, kScores>) + 1024) <= 228 * 1024;
static_assert(kFits<false, false> && kFits<false, true> && kFits<true, false> && kFits<true, true>);
static_assert(2 * sizeof(LevelTile) == offsetof(FrameTiles, far) && kTile / 2 == kHalfTile);

// The rows of a contiguous tensor [T, heads, width] of 16-bit numbers, as pieces of 8.
__device__ __forceinline__ uint4* pieces_of(void* data, const Place& at, int64_t heads, int width, int64_t token = 0) {
  return reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) +
                                  ((at.token_of_call + token) * heads + at.head) * width);
}

}  // namespace deltarelay::cuda::sm90::local
