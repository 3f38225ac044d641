// Shared memory of the fused walk, and how its roles and its two CTAs hand chunks to each other.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/sm90/form.h"
#include "kernels/cuda/sm90/fused/inverse.cuh"
#include "kernels/cuda/sm90/fused/items.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90 {

constexpr int kFusedSide = kFusedChunk / 2;  // tokens on one side of the chunk's middle
using KdaRegisters = FusedRegisters<168>;    // with 160 ptxas puts the products of the state one after the other

// Numbers over the tokens of a chunk, for the state. With r the inverse norm of k (1 without l2norm):
struct TokenFactors {
  float strength[kFusedChunk / 2][4];  // of tokens 2 p, 2 p + 1: beta r, beta r; beta r^2, beta r^2
  float query[kFusedChunk];            // scale / |q|
  float diagonal[kFusedChunk];         // q . k as they are
};

// One stage of the ring. Tiles are [32 tokens][128 bytes], swizzled; q, k and g are overwritten by q+, k+ and k- (a thread rewrites the
// very numbers it read), v by o. q+ and k+ are neighbours: together they are the 64-row operand of the scores.
struct FusedStage {
  static constexpr int kTileBytes = kFusedChunk * kRowBytes;
  static constexpr int kQ = 0;  // q, k, g of one half of the channels, then of the other
  static constexpr int kK = kTileBytes;
  static constexpr int kGate = 2 * kTileBytes;
  static constexpr int kHalfBytes = 3 * kTileBytes;
  static constexpr int kEarly = 2 * kHalfBytes;    // float[128]: e^{Gmid}, in the order of pairs_at
  static constexpr int kLate = kEarly + 512;       // float[128]: e^{Glast-Gmid}
  static constexpr int kTokens = kLate + 512;      // TokenFactors
  static constexpr int kTilesEnd = kTokens + 512;  // what is sent to the other CTA when it has been scaled
  // 32 x 32 in 8 x 8 core matrices, as KdaRecord has them; the block above the diagonal is 0 from the start and never written.
  static constexpr int kTriangleBytes = kFusedChunk * kFusedChunk * 2;
  static constexpr int kAqk = kTilesEnd;
  static constexpr int kInverse = kAqk + kTriangleBytes;
  static constexpr int kV =
      (kInverse + kTriangleBytes + 1023) / 1024 * 1024;  // the halves of the values that this CTA has
};
static_assert(sizeof(TokenFactors) == 512 && FusedStage::kV % 1024 == 0);

// One CTA, or a pair that shares the making of chunks: CTA c % 2 makes chunk c. Then the number of stages is even, so that a stage always
// belongs to the same CTA.
template <Form kForm>
struct FusedRing {
  static constexpr int kStages = kForm == Form::kSingle ? 5 : 6;
  static constexpr int kHalves = halves_a_cta(kForm);
  static constexpr int kBytes = FusedStage::kV + kHalves * FusedStage::kTileBytes;
  static_assert(kForm != Form::kTwins && kStages % ctas(kForm) == 0);
};

// Barriers of a stage. An own stage is one whose chunks this CTA makes; the others arrive by copies of the other CTA.
template <Form kForm>
struct FusedShared {
  static constexpr int kStages = FusedRing<kForm>::kStages;
  static constexpr int kItems = kMostItems;
  uint8_t ring[kStages][FusedRing<kForm>::kBytes];
  FusedLower lower;          // -L of the chunk whose scores are at work
  uint64_t loaded[kStages];  // own: q, k, g are there
  uint64_t summed[kStages];  // own: score -> scale: norms are taken, q and k may be overwritten
  uint64_t scaled[kStages];  // tiles and factors are there, and v
  uint64_t solved[kStages];  // P and T
  uint64_t done[kStages];    // of a pair's emit: the state has read it, and its output lies over v
  uint64_t free[kStages];    // read by all states (own: of both CTAs), and the output has left
  Item item;                 // the first, and of a pair the only one
  Item later[kItems - 1];    // (fused/items.cuh)
  int items;                 // how many; 0: this CTA has none
  Suffix suffix;
  float weakest[kFusedThreads / 32];  // log2 of the decay of each warp's channels over the last chunk
};
static_assert(sizeof(FusedShared<Form::kSingle>) <= kRoomForL1 && sizeof(FusedShared<Form::kPair>) <= kMostShared);

// Place in the ring of the chunks that one CTA makes.
template <Form kForm>
using OwnPosition = SteppedPosition<FusedRing<kForm>::kStages, ctas(kForm)>;

__device__ __forceinline__ TokenFactors& tokens_of(uint8_t* stage) {
  return *reinterpret_cast<TokenFactors*>(stage + FusedStage::kTokens);
}

// Place of the channel pair 2 p, 2 p + 1 in a vector over the channels: the two pairs that a lane of an accumulator has in 16 channels lie
// together, so that it reads them at once.
__device__ __forceinline__ int pairs_at(int pair) { return (pair / 8) * 16 + (pair % 4) * 4 + (pair / 4 % 2) * 2; }

// Named barriers, beside those of the state groups.
constexpr int kScaleBarrier = 3;
constexpr int kTriangleBarrier = 4;
constexpr int kScoreBarrier = 5;

}  // namespace deltarelay::cuda::sm90
