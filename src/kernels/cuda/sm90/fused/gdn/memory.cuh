// Shared memory of the fused walk of GDN, and how its roles and its two CTAs hand chunks to each other.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/form.h"
#include "kernels/cuda/sm90/fused/inverse.cuh"
#include "kernels/cuda/sm90/fused/items.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace deltarelay::cuda::sm90::fused_gdn {

// One stage of the ring. Tiles are [32 tokens][128 bytes], swizzled, as they come; v is overwritten by o. q and k are neighbours: together
// they are the 64-row operand of the scores. Vectors over the tokens, with G the inclusive sum of log-decays of the chunk, rk and rq the
// inverse norms (1 without l2norm):
struct Stage {
  static constexpr int kTileBytes = kFusedChunk * kRowBytes;
  static constexpr int kQ = 0;  // q and k of one half of the channels, then of the other
  static constexpr int kK = kTileBytes;
  static constexpr int kHalfBytes = 2 * kTileBytes;
  // 32 x 32 in 8 x 8 core matrices; the block above the diagonal is 0 from the start and never written.
  static constexpr int kTriangleBytes = kFusedChunk * kFusedChunk * 2;
  static constexpr int kAqk = 2 * kHalfBytes;
  static constexpr int kInverse = kAqk + kTriangleBytes;
  static constexpr int kPrediction = kInverse + kTriangleBytes;        // float[32]: rk e^G
  static constexpr int kUpdate = kPrediction + 4 * kFusedChunk;        // float[32]: w e^{Glast-G}, where w = beta rk
  static constexpr int kQuery = kUpdate + 4 * kFusedChunk;             // float[32]: scale rq e^G
  static constexpr int kDecay = kQuery + 4 * kFusedChunk;              // float: e^{Glast}, or 0 (kForgotten)
  static constexpr int kMadeBytes = kDecay + 16 - kAqk;                // from kAqk: what is sent to the other CTA
  static constexpr int kV = (kAqk + kMadeBytes + 1023) / 1024 * 1024;  // the halves of the values that this CTA has
};

// log2 of a chunk's decay below which nothing is kept of the state before it: a part in 2^96 of it, of which an output has 8 bits and the state 24.
constexpr float kForgotten = -96.0f;

// Of the makers' 96 those above 88 are addresses that would be found again for every chunk.
using Registers = FusedRegisters<160>;

// One CTA; a pair, which has half of the values in each; or twins, which have a head each. The last two share the making of chunks: CTA c % 2 makes
// chunk c. So a stage always belongs to the same CTA, and its barriers have fixed counts.
template <Form kForm>
struct Ring {
  static constexpr int kHalves = halves_a_cta(kForm);
  static constexpr int kStages = kHalves == 2 ? 6 : 8;
  static constexpr int kOther = Stage::kV + kHalves * Stage::kTileBytes;  // of twins: what is made for the other CTA
  static constexpr int kBytes = kOther + (strips(kForm) - 1) * (Stage::kV - Stage::kAqk);
};

// Gates, then strengths of a chunk as they are copied (FusedMaps::copies_gates): of every token those of four heads.
struct RawGates {
  alignas(128) float number[2][kFusedChunk][kNumbersInRow];
};

// What the warps of a making group need of their chunk's tokens.
struct TokenGates {
  alignas(16) float number[kFusedChunk / 2][4];  // of tokens 2 p, 2 p + 1: G (base 2) twice, w twice
  float beta[kFusedChunk];                       // 0 past the end
  // Of a token's G in `number`; its w is two behind it.
  static __device__ __forceinline__ constexpr int place(int token) { return token / 2 * 4 + token % 2; }
  __device__ __forceinline__ float& sum(int token) { return (&number[0][0])[place(token)]; }
  __device__ __forceinline__ float& w(int token) { return (&number[0][0])[place(token) + 2]; }
};
// Of a token: inverse norm of k, that of q times the scale.
struct TokenNorms {
  float key, query;
};
// Of the tokens of a chunk, each kind by itself: so far apart that the kinds of 8 tokens fall into different banks.
struct alignas(16) ChunkNorms {
  static constexpr int kKindBytes = 4 * (kFusedChunk + 8);
  uint8_t bytes[2 * kKindBytes];
  __device__ __forceinline__ float& of(int kind, int token) {
    return *reinterpret_cast<float*>(bytes + kind * kKindBytes + 4 * token);
  }
  __device__ __forceinline__ TokenNorms of(int token) { return {of(0, token), of(1, token)}; }
};

// Barriers of a stage. An own stage is one whose chunks this CTA makes; the others arrive by copies of the other CTA.
template <Form kForm>
struct Shared {
  static constexpr int kStages = Ring<kForm>::kStages;
  static constexpr int kItems = has_whole_strip(kForm) ? kMostItemsGdn : kMostItems;
  uint8_t ring[kStages][Ring<kForm>::kBytes];
  RawGates raw[kStages / ctas(kForm)];  // of the chunks that this CTA makes
  FusedLower lower[2][strips(kForm)];   // of each making group: of this CTA's head, and of twins of the other's
  TokenGates gates[2][strips(kForm)];   // likewise
  ChunkNorms norms[2];                  // of each making group
  uint64_t loaded[kStages];             // q, k, v are there
  uint64_t made[kStages];               // P, T and the vectors
  uint64_t done[kStages];               // of a pair's emit: the state has read it, and its output lies over v
  uint64_t free[kStages];               // read by all states (own: of both CTAs), and the output has left
  Item item;                            // the first, and of a pair the only one
  Item later[kItems - 1];               // (fused/items.cuh)
  int items;                            // how many; 0: this CTA has none
  Suffix suffix;
};
static_assert(sizeof(Shared<Form::kSingle>) <= kRoomForL1 && sizeof(Shared<Form::kPair>) <= kMostShared &&
              sizeof(Shared<Form::kTwins>) <= kMostShared);

// Place in the ring of the chunks that one making group of one CTA makes.
template <Form kForm>
using MakePosition = SteppedPosition<Ring<kForm>::kStages, 2 * ctas(kForm)>;

// Named barriers, beside those of the state groups: of the two making groups; and of each where P, L and vectors of a chunk are made, and T can be.
constexpr int kMakeBarrier = 3;
constexpr int kLowerBarrier = 5;

}  // namespace deltarelay::cuda::sm90::fused_gdn
