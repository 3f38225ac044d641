// Shared memory of the fused walk of KDA, and the barriers by which its roles and CTAs hand chunks to each other.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/sm90/fused/adjoint.cuh"
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
  static constexpr int kNorms = kLate;             // fp16 data: float[32][2], scale rq and rk (ends.cuh)
  static constexpr int kTokens = kLate + 512;      // TokenFactors
  static constexpr int kTilesEnd = kTokens + 512;  // up to here: copied to the other CTA once it has been scaled
  // 32 x 32 in 8 x 8 core matrices, as in KdaRecord. The block above the diagonal is cleared once and never written.
  static constexpr int kTriangleBytes = kFusedChunk * kFusedChunk * 2;
  static constexpr int kAqk = kTilesEnd;                  // Aqk~, without its diagonal
  static constexpr int kInverse = kAqk + kTriangleBytes;  // inverse - I, of I + Akk~
  // The halves of the values that this CTA has.
  static constexpr int kV = (kInverse + kTriangleBytes + 1023) / 1024 * 1024;
  // A summary has no q. In its place lie Z, as fragments of a warp, and the second half of the values; at kV the first.
  static constexpr int kZ = kQ;
  static constexpr int kOtherValues = kQ + kHalfBytes;
};
static_assert(sizeof(TokenFactors) == 512 && FusedStage::kV % 1024 == 0);

// Data of this type has tiles in the frames of the chunk's ends, and score operands of their own (ends.cuh).
template <class Element>
constexpr bool kEndFrames = std::is_same_v<Element, __half>;

// A pair shares the work of making chunks: CTA c % 2 makes chunk c. Then the number of stages is even, so that a stage
// always belongs to the same CTA.
template <Form kForm, class Element = __nv_bfloat16>
struct FusedRing {
  // Score operands of fp16 data (ScoreWords) take the place of stages.
  static constexpr int kStages = kEndFrames<Element> ? 4 : kForm == Form::kSingle ? 5 : 6;
  static constexpr int kHalves = halves_a_cta(kForm);
  static constexpr int kBytes = FusedStage::kV + kHalves * FusedStage::kTileBytes;
  static_assert(kForm != Form::kTwins && kStages % ctas(kForm) == 0);
};

// How a summary ends (summary.cuh).
struct LimitedEnd : SummaryEnd {
  int limit;            // chunks that are made: all, or fewer if both CTAs have vanished before
  uint32_t stopped[2];  // written by the other CTA: 1 + the first chunk that it had not loaded by then
  bool empty[8];        // of a stage: nobody reads its chunk any more, so it is handed on as it is

  __device__ __forceinline__ void begin(int chunks) {
    SummaryEnd::begin(chunks);
    limit = chunks;
    stopped[0] = stopped[1] = 0;
  }
  __device__ __forceinline__ bool limit_reached(int chunk) const {
    return chunk >= *static_cast<const volatile int*>(&limit);
  }
};
// In a summary chunks are counted from the row's end.
__device__ __forceinline__ int chunk_from_end(int chunk, int chunks) { return chunks - 1 - chunk; }

// Score operands of fp16 data, of the one chunk between the scale group and the score group: q_from_mid, k_from_mid and
// k_to_mid as words of tf32, [32 tokens][128 bytes], swizzled. A tile has the 32 channels of a quarter. Rows of q and k
// are one operand.
struct ScoreWords {
  static constexpr int kQ = 0, kK = FusedStage::kTileBytes, kTo = 2 * FusedStage::kTileBytes;  // of a quarter
  static constexpr int kQuarterBytes = 3 * FusedStage::kTileBytes;
  uint8_t tiles[4 * kQuarterBytes];
  float2 sides[2][2][kWidth / 2];  // log2 of the decays over the earlier and the later side, of two chunks in turns
  uint64_t written, taken;         // by the warps of the scale group, and of the score group

  __device__ __forceinline__ void init_barriers() {
    ptx::mbarrier_init(&written, kWarpgroup / 32);
    ptx::mbarrier_init(&taken, kWarpgroup / 32);
  }
};

// The stages, and for fp16 data the score operands of one chunk (ends.cuh).
template <Form kForm, class Element>
struct FusedStages {
  uint8_t ring[FusedRing<kForm, Element>::kStages][FusedRing<kForm, Element>::kBytes];
};
template <Form kForm>
struct FusedStages<kForm, __half> {
  uint8_t ring[FusedRing<kForm, __half>::kStages][FusedRing<kForm, __half>::kBytes];
  ScoreWords words;
};

// Barriers of a stage. A CTA makes the chunks of its own stages; the other CTA copies those of the others.
template <Form kForm, class Type = __nv_bfloat16>
struct FusedShared : FusedStages<kForm, Type> {
  using Element = Type;  // of the data
  static constexpr int kStages = FusedRing<kForm, Element>::kStages;
  static constexpr int kItems = kMostItems;
  NegatedAkk negated;         // -Akk~ of the chunk in the score group
  uint64_t loaded[kStages];   // own: q, k, g have arrived
  uint64_t summed[kStages];   // own: the norms are summed, so the scale group may overwrite q and k
  uint64_t scaled[kStages];   // tiles and factors are complete; of a single CTA v too
  uint64_t solved[kStages];   // Aqk~ and inverse - I are complete
  uint64_t brought[kStages];  // pair: v is complete
  uint64_t done[kStages];     // emit of a pair: the output lies over v; of a summary: Z lies there
  // All states have read the stage (own: of both CTAs), and the output has been stored. Emit of a pair: read it but for
  // values and output.
  uint64_t free[kStages];
  Item item;               // the first; the only one of a pair
  Item later[kItems - 1];  // the others (fused/items.cuh)
  int items;               // number of items; 0: this CTA has none
  LimitedEnd end;
  uint64_t again;  // q, k, g of a chunk have arrived a second time (scale.cuh)
};
static_assert(sizeof(FusedShared<Form::kSingle, __nv_bfloat16>) <= kRoomForL1 &&
              sizeof(FusedShared<Form::kPair, __nv_bfloat16>) <= kMostShared &&
              sizeof(FusedShared<Form::kSingle, __half>) <= kMostShared);

// Gates in fp32: a tile has the 32 channels of a quarter. The first quarter of each half of the channels lies at kGate
// of its stage, where k_to_mid overwrites it. The second has a place behind FusedShared until the chunk has been
// scaled. There is one place fewer than a CTA has stages of its own. So the chunk that had a place before lies in the
// next stage of its own, and has mostly been scaled when that of the new chunk is free.
template <Form kForm, class Element = __nv_bfloat16>
struct SecondQuarters {
  static constexpr int kPlaces = FusedRing<kForm, Element>::kStages / ctas(kForm) - 1;
  static constexpr int kBytes = 2 * FusedStage::kTileBytes;
  static constexpr int kBegin = (sizeof(FusedShared<kForm, Element>) + 1023) / 1024 * 1024;
  static constexpr int kEnd = kBegin + kPlaces * kBytes;

  // Of a chunk that this CTA makes, numbered through its items: bytes behind the begin of FusedShared.
  static __device__ __forceinline__ int at(int chunk) { return kBegin + chunk / ctas(kForm) % kPlaces * kBytes; }
};
static_assert(SecondQuarters<Form::kSingle, __nv_bfloat16>::kEnd <= kMostShared &&
              SecondQuarters<Form::kPair, __nv_bfloat16>::kEnd <= kMostShared);

// Sums of log-decays that the scale group keeps between two passes over a chunk (frames.cuh), where second quarters
// would lie. A row has a number for each side and channel; there are 17, for the 16 tokens outwards from the middle and
// what is before them. A single CTA leaves the L1 28 KB instead of 60 by it, through which go the states of rows. So it
// keeps none where rows are short: its launch has no room for them (launch.h).
constexpr int kKeptRow = kWarpgroup * static_cast<int>(sizeof(float2));
template <Form kForm>
struct KeptSums {
  static constexpr int kBegin = SecondQuarters<kForm>::kBegin;
  static constexpr int kEnd = kBegin + (kFusedSide + 1) * kKeptRow;
};
static_assert(KeptSums<Form::kSingle>::kEnd <= kMostShared && KeptSums<Form::kPair>::kEnd <= kMostShared);
constexpr bool may_keep_sums(GateSource source) { return source == GateSource::kTiles; }
template <Form kForm>
__device__ __forceinline__ bool has_kept_sums() {
  return kForm == Form::kPair || dynamic_shared_bytes() >= KeptSums<kForm>::kEnd;
}

// Shared memory of a CTA.
template <Form kForm, GateSource kSource, bool kMidFrame, class Element = __nv_bfloat16>
constexpr size_t fused_shared_bytes(bool long_rows) {
  if (is_wide(kSource)) return SecondQuarters<kForm, Element>::kEnd;
  const bool keeps = !kMidFrame && may_keep_sums(kSource) && (kForm == Form::kPair || long_rows);
  return keeps ? size_t{KeptSums<kForm>::kEnd} : sizeof(FusedShared<kForm, Element>);
}

// Position in the ring of the chunks that one CTA makes.
template <Form kForm, class Element = __nv_bfloat16>
using OwnPosition = SteppedPosition<FusedRing<kForm, Element>::kStages, ctas(kForm)>;

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

// Gates of a chunk that a CTA of a pair makes: their bytes, and their copies. `ring`: of this CTA.
template <GateSource kSource>
constexpr uint32_t gate_bytes() {
  return (is_wide(kSource) ? 4 : 2) * FusedStage::kTileBytes;
}
template <GateSource kSource, class Element>
__device__ __forceinline__ void copy_gates(const FusedMaps& maps, int token, int head, int sequence, uint8_t* ring,
                                           uint8_t* stage, int chunk, uint64_t* loaded) {
  constexpr bool kWide = is_wide(kSource);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    copy_tile(maps.g, token, kWide ? 2 * half : half, head, sequence,
              stage + half * FusedStage::kHalfBytes + FusedStage::kGate, loaded);
    if constexpr (kWide)
      copy_tile(maps.g, token, 2 * half + 1, head, sequence,
                ring + SecondQuarters<Form::kPair, Element>::at(chunk) + half * FusedStage::kTileBytes, loaded);
  }
}
// Where a pair's chunk lies that had the place of another one's second quarters before: in the next stage of this CTA.
// That chunk must have been scaled.
template <class Element>
struct SecondPlace {
  bool used;  // is there one?
  int stage;
  uint32_t parity;
  __device__ __forceinline__ SecondPlace(const RingPosition<FusedRing<Form::kPair, Element>::kStages>& of, int chunk)
      : used(chunk >= SecondQuarters<Form::kPair, Element>::kPlaces * ctas(Form::kPair)) {
    constexpr int kStages = FusedRing<Form::kPair, Element>::kStages;
    const int next = of.stage + ctas(Form::kPair);
    const bool around = next >= kStages;
    stage = around ? next - kStages : next;
    parity = of.parity ^ !around;
  }
};

// Named barriers beside those of the state groups.
constexpr int kScaleBarrier = 3;
constexpr int kTriangleBarrier = 4;
constexpr int kScoreBarrier = 5;
constexpr int kListedBarrier = 6;

}  // namespace deltarelay::cuda::sm90
