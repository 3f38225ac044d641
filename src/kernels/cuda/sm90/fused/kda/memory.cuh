// Shared memory of the fused walk of KDA, and the barriers by which its roles and CTAs hand chunks to each other.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/sm90/fused/inverse.cuh"
#include "kernels/cuda/sm90/fused/items.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/tile/descriptor.cuh"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90 {

constexpr int kFusedSide = kFusedChunk / 2;  // tokens on one side of the chunk's middle
using KdaRegisters = FusedRegisters<168>;    // with 160 ptxas serialises the products of the state

// Factors of a chunk's tokens, for the state. rk and rq are the inverse norms (1 without l2norm).
struct TokenFactors {
  float strength[kFusedChunk / 2][4];  // of tokens 2 p, 2 p + 1: beta rk twice, beta rk^2 twice
  float query[kFusedChunk];            // scale rq
  float diagonal[kFusedChunk];         // q . k of the raw rows: the diagonal of Aqk~
};

// One stage of the ring. Tiles are [32 tokens][128 bytes], swizzled. q_from_mid, k_from_mid and k_to_mid overwrite q, k
// and g (a thread overwrites the very numbers it read); o overwrites v. q_from_mid and k_from_mid are neighbours:
// together they are the 64-row operand of the scores.
struct FusedStage {
  static constexpr int kTileBytes = kFusedChunk * kRowBytes;
  static constexpr int kQ = 0;  // q, k, g of one half of the channels, then of the other
  static constexpr int kK = kTileBytes;
  static constexpr int kGate = 2 * kTileBytes;
  static constexpr int kHalfBytes = 3 * kTileBytes;
  static constexpr int kEarly = 2 * kHalfBytes;    // float[128]: e^{G_mid}, in the order of pairs_at
  static constexpr int kLate = kEarly + 512;       // float[128]: e^{G_last-G_mid}, likewise
  static constexpr int kTokens = kLate + 512;      // TokenFactors
  static constexpr int kTilesEnd = kTokens + 512;  // up to here: copied to the other CTA once it has been scaled
  // 32 x 32 in 8 x 8 core matrices, as in KdaRecord. The block above the diagonal is cleared once and never written.
  static constexpr int kTriangleBytes = kFusedChunk * kFusedChunk * 2;
  static constexpr int kAqk = kTilesEnd;                  // Aqk~, without its diagonal
  static constexpr int kInverse = kAqk + kTriangleBytes;  // inverse - I, of I + Akk~
  // The halves of the values that this CTA has.
  static constexpr int kV = (kInverse + kTriangleBytes + 1023) / 1024 * 1024;
};
static_assert(sizeof(TokenFactors) == 512 && FusedStage::kV % 1024 == 0);

// A pair shares the work of making chunks: CTA c % 2 makes chunk c. Then the number of stages is even, so that a stage
// always belongs to the same CTA.
template <Form kForm>
struct FusedRing {
  static constexpr int kStages = kForm == Form::kSingle ? 5 : 6;
  static constexpr int kHalves = halves_a_cta(kForm);
  static constexpr int kBytes = FusedStage::kV + kHalves * FusedStage::kTileBytes;
  static_assert(kForm != Form::kTwins && kStages % ctas(kForm) == 0);
};

// Barriers of a stage. A CTA makes the chunks of its own stages; the other CTA copies those of the others.
template <Form kForm>
struct FusedShared {
  static constexpr int kStages = FusedRing<kForm>::kStages;
  static constexpr int kItems = kMostItems;
  uint8_t ring[kStages][FusedRing<kForm>::kBytes];
  NegatedAkk negated;        // -Akk~ of the chunk in the score group
  uint64_t loaded[kStages];  // own: q, k, g have arrived
  uint64_t summed[kStages];  // own: the norms are summed, so the scale group may overwrite q and k
  uint64_t scaled[kStages];  // tiles, factors and v are complete
  uint64_t solved[kStages];  // Aqk~ and inverse - I are complete
  uint64_t done[kStages];    // emit of a pair: the state has read the stage, and its output lies over v
  uint64_t free[kStages];    // all states have read it (own: of both CTAs), and the output has been stored
  Item item;                 // the first; the only one of a pair
  Item later[kItems - 1];    // the others (fused/items.cuh)
  int items;                 // number of items; 0: this CTA has none
  Suffix suffix;
  float weakest[kFusedThreads / 32];  // per warp, log2 of the weakest decay of its channels over the last chunk
  uint64_t again;                     // q, k, g of a chunk have arrived a second time (scale.cuh)
};
static_assert(sizeof(FusedShared<Form::kSingle>) <= kRoomForL1 && sizeof(FusedShared<Form::kPair>) <= kMostShared);

// Gates in fp32: a tile has the 32 channels of a quarter. The first quarter of each half of the channels lies at kGate
// of its stage, where k_to_mid overwrites it. The second has a place behind FusedShared until the chunk has been
// scaled. There is one place fewer than a CTA has stages of its own. So the chunk that had a place before lies in the
// next stage of its own, and has mostly been scaled when that of the new chunk is free.
template <Form kForm>
struct SecondQuarters {
  static constexpr int kPlaces = FusedRing<kForm>::kStages / ctas(kForm) - 1;
  static constexpr int kBytes = 2 * FusedStage::kTileBytes;
  static constexpr int kBegin = (sizeof(FusedShared<kForm>) + 1023) / 1024 * 1024;
  static constexpr int kEnd = kBegin + kPlaces * kBytes;

  // Of a chunk that this CTA makes, numbered through its items: bytes behind the begin of FusedShared.
  static __device__ __forceinline__ int at(int chunk) { return kBegin + chunk / ctas(kForm) % kPlaces * kBytes; }
};
static_assert(SecondQuarters<Form::kSingle>::kEnd <= kMostShared && SecondQuarters<Form::kPair>::kEnd <= kMostShared);

// Shared memory of a CTA.
template <Form kForm, GateSource kSource>
constexpr size_t fused_shared_bytes() {
  return kSource == GateSource::kTiles ? sizeof(FusedShared<kForm>) : SecondQuarters<kForm>::kEnd;
}

// Position in the ring of the chunks that one CTA makes.
template <Form kForm>
using OwnPosition = SteppedPosition<FusedRing<kForm>::kStages, ctas(kForm)>;

__device__ __forceinline__ TokenFactors& tokens_of(uint8_t* stage) {
  return *reinterpret_cast<TokenFactors*>(stage + FusedStage::kTokens);
}

// Place of the channel pair 2 p, 2 p + 1 in a vector over the channels. The two pairs that a lane of an accumulator has
// in 16 channels are neighbours, so that one load takes both.
__device__ __forceinline__ int pairs_at(int pair) { return (pair / 8) * 16 + (pair % 4) * 4 + (pair / 4 % 2) * 2; }

// Copies 32 tokens of one half of the channels of a tensor into a tile.
__device__ __forceinline__ void copy_tile(const CUtensorMap& map, int token, int half, int head, int sequence,
                                          uint8_t* to, uint64_t* barrier) {
  const int32_t at[5] = {0, token, half, head, sequence};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, barrier);
}
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, bytes);
}

// Named barriers beside those of the state groups.
constexpr int kScaleBarrier = 3;
constexpr int kTriangleBarrier = 4;
constexpr int kScoreBarrier = 5;

}  // namespace deltarelay::cuda::sm90
