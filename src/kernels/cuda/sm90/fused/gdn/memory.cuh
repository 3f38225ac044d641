// Shared memory of the fused walk of GDN, and the barriers by which its roles and CTAs hand chunks to each other.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/fused/adjoint.cuh"
#include "kernels/cuda/sm90/fused/inverse.cuh"
#include "kernels/cuda/sm90/fused/items.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90::fused_gdn {

// One stage of the ring. Tiles are [32 tokens][128 bytes], swizzled, as TMA loads them; o overwrites v. q and k are
// neighbours: together they are the 64-row operand of the scores. G is the inclusive sum of log-decays of the chunk, rk
// and rq are the inverse norms (1 without l2norm), weight = beta rk.
struct Stage {
  static constexpr int kTileBytes = kFusedChunk * kRowBytes;
  static constexpr int kQ = 0;  // q and k of one half of the channels, then of the other
  static constexpr int kK = kTileBytes;
  static constexpr int kHalfBytes = 2 * kTileBytes;
  // 32 x 32 in 8 x 8 core matrices. The block above the diagonal is cleared once and never written.
  static constexpr int kTriangleBytes = kFusedChunk * kFusedChunk * 2;
  static constexpr int kAqk = 2 * kHalfBytes;                          // Aqk~
  static constexpr int kInverse = kAqk + kTriangleBytes;               // inverse - I, of I + Akk~
  static constexpr int kPrediction = kInverse + kTriangleBytes;        // float[32]: rk e^G
  static constexpr int kUpdate = kPrediction + 4 * kFusedChunk;        // float[32]: weight e^{G_last-G}
  static constexpr int kQuery = kUpdate + 4 * kFusedChunk;             // float[32]: scale rq e^G
  static constexpr int kDecay = kQuery + 4 * kFusedChunk;              // float: decay_chunk, or 0 (kForgotten)
  static constexpr int kMadeBytes = kDecay + 16 - kAqk;                // from kAqk on: copied to the other CTA
  static constexpr int kV = (kAqk + kMadeBytes + 1023) / 1024 * 1024;  // the halves of the values that this CTA has
  // A summary has no q. In its place lie Z, as fragments of a warp, and the second half of the values; at kV the first.
  static constexpr int kZ = kQ;
  static constexpr int kOtherValues = kQ + kHalfBytes;
};

// log2 of a chunk's decay below which the previous state is dropped: it would contribute 2^-96 of itself, while an
// output has 8 significant bits and the state 24.
constexpr float kForgotten = -96.0f;

// Leaves 96 registers for the make groups. They need 88; the others hold addresses that would otherwise be recomputed
// for every chunk.
using Registers = FusedRegisters<160>;

// Pairs and twins share the work of making chunks: CTA c % 2 makes chunk c. So a stage always belongs to the same CTA,
// and its barriers have fixed counts.
template <Form kForm>
struct Ring {
  static constexpr int kHalves = halves_a_cta(kForm);
  static constexpr int kStages = kHalves == 2 ? 6 : 8;
  static constexpr int kOther = Stage::kV + kHalves * Stage::kTileBytes;  // twins: what is made for the other CTA
  static constexpr int kBytes = kOther + (strips(kForm) - 1) * (Stage::kV - Stage::kAqk);
};

// Gates, then strengths of a chunk as TMA copies them (FusedMaps::copies_gates): for every token those of four heads.
struct RawGates {
  alignas(128) float number[2][kFusedChunk][kNumbersInRow];
};

// Per token: what the warps of a make group share.
struct TokenGates {
  alignas(16) float number[kFusedChunk / 2][4];  // of tokens 2 p, 2 p + 1: G (base 2) twice, weight twice
  float beta[kFusedChunk];                       // 0 past the end
  // Index of a token's G in `number`; its weight is two further.
  static __device__ __forceinline__ constexpr int place(int token) { return token / 2 * 4 + token % 2; }
  __device__ __forceinline__ float& sum(int token) { return (&number[0][0])[place(token)]; }
  __device__ __forceinline__ float& weight(int token) { return (&number[0][0])[place(token) + 2]; }
};
// Of a token: rk, and scale rq.
struct TokenNorms {
  float key, query;
};
// Norms of a chunk's tokens, all keys, then all queries. The distance between the two is free of bank conflicts for 8
// tokens of each.
struct alignas(16) ChunkNorms {
  static constexpr int kKindBytes = 4 * (kFusedChunk + 8);
  uint8_t bytes[2 * kKindBytes];
  __device__ __forceinline__ float& of(int kind, int token) {
    return *reinterpret_cast<float*>(bytes + kind * kKindBytes + 4 * token);
  }
  __device__ __forceinline__ TokenNorms of(int token) { return {of(0, token), of(1, token)}; }
};

// How a summary ends (fused/adjoint.cuh).
struct MadeEnd : SummaryEnd {
  uint32_t made[2];  // per make group of the other CTA: the first chunk that it did not make
};

// Barriers of a stage. A CTA makes the chunks of its own stages; the other CTA copies those of the others.
template <Form kForm>
struct Shared {
  static constexpr int kStages = Ring<kForm>::kStages;
  static constexpr int kItems = has_whole_strip(kForm) ? kMostItemsGdn : kMostItems;
  uint8_t ring[kStages][Ring<kForm>::kBytes];
  RawGates raw[kStages / ctas(kForm)];   // of the chunks that this CTA makes
  NegatedAkk negated[2][strips(kForm)];  // of each make group: for this CTA's strip, with twins also for the other's
  TokenGates gates[2][strips(kForm)];    // likewise
  ChunkNorms norms[2];                   // of each make group
  uint64_t loaded[kStages];              // q, k, v have arrived
  uint64_t made[kStages];                // Aqk~, inverse - I and the vectors are complete
  uint64_t done[kStages];                // emit of a pair: the state has read the stage, and its output lies over v;
                                         // of a summary: Z lies there
  uint64_t free[kStages];                // all states have read it (own: of both CTAs), and the output has been stored
  Item item;                             // the first; the only one of a pair
  Item later[kItems - 1];                // the others (fused/items.cuh)
  int items;                             // number of items; 0: this CTA has none
  MadeEnd end;
};
static_assert(sizeof(Shared<Form::kSingle>) <= kRoomForL1 && sizeof(Shared<Form::kPair>) <= kMostShared &&
              sizeof(Shared<Form::kTwins>) <= kMostShared);

// Position in the ring of the chunks that one make group of one CTA makes.
template <Form kForm>
using MakePosition = SteppedPosition<Ring<kForm>::kStages, 2 * ctas(kForm)>;

// Named barriers beside those of the state groups. kMakeBarrier + group: of a make group. kAkkBarrier + group: Aqk~,
// Akk~ and the vectors of a chunk are complete, so its inverse can be computed.
constexpr int kMakeBarrier = 3;
constexpr int kAkkBarrier = 5;

}  // namespace deltarelay::cuda::sm90::fused_gdn
