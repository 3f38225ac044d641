// Shared memory of the fused walk of GDN, and how its roles and its two CTAs hand chunks to each other.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/fused_inverse.cuh"
#include "kernels/cuda/sm90/fused_row.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/stage.cuh"

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
  static constexpr int kP = 2 * kHalfBytes;
  static constexpr int kT = kP + kTriangleBytes;
  static constexpr int kStrength =
      kT + kTriangleBytes;  // float[16][4], of tokens 2 p, 2 p + 1: beta rk twice, beta rk^2 e^G twice
  static constexpr int kQuery = kStrength + 256;                     // float[32]: scale rq e^G
  static constexpr int kDiagonal = kQuery + 128;                     // float[32]: scale rq q.k
  static constexpr int kUpdate = kDiagonal + 128;                    // float[32]: e^{Glast-G}
  static constexpr int kDecay = kUpdate + 128;                       // float: e^{Glast}
  static constexpr int kMadeBytes = kDecay + 16 - kP;                // from kP: what is sent to the other CTA
  static constexpr int kV = (kP + kMadeBytes + 1023) / 1024 * 1024;  // the halves of the values that this CTA has
};

// One CTA, or a pair that shares the making of chunks: CTA c % 2 makes chunk c. A stage always belongs to the same making group of the same
// CTA: its barriers have fixed counts then, and who waits for one sees every use of it.
template <int kCtas>
struct Ring {
  static constexpr int kStages = kCtas == 1 ? 6 : 8;
  static constexpr int kHalves = 2 / kCtas;  // halves of the values in one CTA
  static constexpr int kBytes = Stage::kV + kHalves * Stage::kTileBytes;
};

// What the warps of a making group need of their chunk's gates.
struct TokenGates {
  float sum[kFusedChunk];   // G, base 2
  float beta[kFusedChunk];  // 0 past the end
};

// A single CTA walks so many items, one after the other: the chunks of the next are loaded and made while the last state of the one before is
// stored. No more, so that where a multiprocessor is busy with other work, not all that would have been walked on it comes late.
constexpr int kMostItems = 8;

// Barriers of a stage. An own stage is one whose chunks this CTA makes; the others arrive by copies of the other CTA.
template <int kCtas>
struct Shared {
  static constexpr int kStages = Ring<kCtas>::kStages;
  uint8_t ring[kStages][Ring<kCtas>::kBytes];
  FusedLower lower[2];       // of each making group
  TokenGates gates[2];       // likewise
  uint64_t loaded[kStages];  // q, k, v are there
  uint64_t made[kStages];    // P, T and the vectors
  uint64_t done[kStages];    // of a pair's emit: the state has read it, and its output lies over v
  uint64_t free[kStages];    // read by all states (own: of both CTAs), and the output has left
  Item item;                 // the first, and of a pair the only one
  Item later[kMostItems - 1];
  int items;  // of them all; 0: this CTA has none
  Suffix suffix;

  __device__ __forceinline__ Item& item_at(int index) { return index == 0 ? item : later[index - 1]; }
};
static_assert(sizeof(Shared<1>) <= 232448 && sizeof(Shared<2>) <= 232448, "227 KB a CTA");

// Place in the ring of the chunks that one making group of one CTA makes.
template <int kCtas>
using MakePosition = SteppedPosition<Ring<kCtas>::kStages, 2 * kCtas>;

// The same among the items: every so many chunks of all of them, as if they were one row. A pair has one item.
template <int kCtas>
class MakeCursor {
 public:
  __device__ __forceinline__ MakeCursor(Shared<kCtas>& shared, int first)
      : shared_(shared),
        number_(first),
        chunk_(first),
        chunks_(uniform(shared.item.row.chunks)),
        items_(uniform(shared.items)) {
    settle();
  }
  __device__ __forceinline__ bool ends() const { return kCtas == 1 ? index_ == items_ : chunk_ >= chunks_; }
  __device__ __forceinline__ int index() const { return index_; }
  __device__ __forceinline__ Item& item() const { return kCtas == 1 ? shared_.item_at(index_) : shared_.item; }
  __device__ __forceinline__ int chunk() const { return chunk_; }                          // of its item
  __device__ __forceinline__ int chunks() const { return chunks_; }                        // likewise
  __device__ __forceinline__ int number() const { return kCtas == 1 ? number_ : chunk_; }  // through all items
  __device__ __forceinline__ void advance() {
    number_ += 2 * kCtas;
    chunk_ += 2 * kCtas;
    settle();
  }

 private:
  __device__ __forceinline__ void settle() {
#pragma unroll 1
    while (kCtas == 1 && chunk_ >= chunks_ && ++index_ < items_) {
      chunk_ -= chunks_;
      chunks_ = uniform(item().row.chunks);
    }
  }

  Shared<kCtas>& shared_;
  int index_ = 0, number_, chunk_, chunks_, items_;
};

// Named barriers, beside those of the state groups: of the two making groups, and of the warps in each that make L.
constexpr int kMakeBarrier = 3;
constexpr int kLowerBarrier = 5;

}  // namespace deltarelay::cuda::sm90::fused_gdn
