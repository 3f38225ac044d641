// A summary by its suffix. If gates forget, the transition M of a segment's last few chunks is all 0. Then M of the
// whole segment is 0 and B of those chunks is its B, exactly: nothing before them contributes. So a pair first walks
// the last chunks only, as many as the gates of the very last chunk suggest. If M has not vanished by then, it walks
// the whole row. The estimate changes the time, never the result.
//
// A kernel that tries a suffix contains the code of a summary twice, in loops so far apart that the instruction cache
// holds them less well: the emit of a pair takes 1.5 % longer in it. So calls with nothing to gain use kernels without
// it (enqueue.cu).
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/tile/vanished.cuh"

namespace deltarelay::cuda::sm90 {

// A suffix has this many times the chunks that the decay of the last chunk suggests. If it is too short, the whole row
// is walked after it, and phase 1 waits (docs/kernels/sm90-walk.md).
constexpr float kSuffixSlack = 2.0f;
__device__ __forceinline__ int suffix_of(const Item& item, float decay) {
  return suffix_chunks(decay, kSuffixSlack, item.row.chunks / kSuffixShare);
}
// Called by one thread before all others use the item. Reduces the item to its last `chunks` chunks; 0 leaves it whole.
template <int kChunk>
__device__ __forceinline__ void begin_suffix(Suffix& suffix, Item& item, int chunks) {
  if (chunks == 0) return;
  suffix = {.skipped = item.row.chunks - chunks, .lives = 0};
  item.token += suffix.skipped * kChunk;
  item.tokens -= suffix.skipped * kChunk;
  item.chunk += suffix.skipped;
  item.row.chunks = chunks;
}
template <int kChunk>
__device__ __forceinline__ void end_suffix(Suffix& suffix, Item& item) {
  item.token -= suffix.skipped * kChunk;
  item.tokens += suffix.skipped * kChunk;
  item.chunk -= suffix.skipped;
  item.row.chunks += suffix.skipped;
  suffix.skipped = 0;
}

// Called by all threads of both CTAs when the item has been walked. `lives` asks the group of M. Returns false if the
// whole row must be walked; then `init` has initialised the barriers again.
template <int kChunk, class Shared, class Lives, class Init>
__device__ __forceinline__ bool summary_stands(Shared& shared, int rank, Lives&& lives, Init&& init) {
  if (uniform(shared.suffix.skipped) == 0) return true;
  if (lives() && threadIdx.x % kWarpgroup == 0) {
    store_in_block(&shared.suffix.lives, 1, rank);
    store_in_block(&shared.suffix.lives, 1, 1 - rank);
  }
  cluster_meet();
  if (uniform(static_cast<int>(shared.suffix.lives)) == 0) return true;
  if (threadIdx.x == 0) {
    end_suffix<kChunk>(shared.suffix, shared.item);
    init();
  }
  cluster_meet();
  return false;
}

// One role of a summary. walk(shared, rank, stands) walks the item and returns what stands(lives) returns. With
// `kSuffix` this walks the suffix, then the whole row if the suffix was not enough. The code appears twice instead of
// in a loop: the compiler would assume that the trip count differs between lanes, and keep no operand in uniform
// registers. Each walk reads the shared address and the rank again; otherwise they and all that follows from them stay
// in registers from one walk to the next. `init(shared, rank)` initialises the barriers again.
template <bool kSuffix, int kChunk, class Shared, class Init, class Walk>
__device__ __forceinline__ void walk_by_suffix(Shared& shared, Init&& init, Walk&& walk) {
  if constexpr (!kSuffix) {
    walk(shared, cluster_rank(), [](auto&&) { return true; });
  } else {
    auto once = [&] {
      auto& here = *reinterpret_cast<Shared*>(dynamic_shared_memory());
      const int rank = cluster_rank();
      return walk(here, rank,
                  [&](auto&& lives) { return summary_stands<kChunk>(here, rank, lives, [&] { init(here, rank); }); });
    };
    if (!once()) once();
  }
}

}  // namespace deltarelay::cuda::sm90
