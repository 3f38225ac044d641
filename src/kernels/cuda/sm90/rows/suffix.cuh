// A summary by its suffix. Where gates forget, the transition M of a segment's last few chunks is all 0; then so is that of the whole segment, and B of
// those chunks is its B: no number of what came before has a part in either. So a pair walks only the last chunks first, as many as the gates
// of the very last one promise to be enough, and the whole row when M has not vanished by then. What is promised decides the time alone.
//
// Kernels that try it have the code of a summary twice, and loops so far apart that the instruction cache holds them less well: a pair's emit beside it
// takes 1.5 % longer. So there are kernels that do not, for calls that have nothing to gain (enqueue.cu).
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/tile/vanished.cuh"

namespace deltarelay::cuda::sm90 {

// A suffix is so many times what the last chunk says: a row whose suffix is not enough is walked whole behind it,
// and phase 1 waits for it (docs/kernels/sm90-walk.md).
constexpr float kSuffixSlack = 2.0f;
__device__ __forceinline__ int suffix_of(const Item& item, float decay) {
  return suffix_chunks(decay, kSuffixSlack, item.row.chunks / kSuffixShare);
}
// Suffixes of so few chunks, or of such a part of the row, hold what they promise. The longer they are, the more what came of one chunk is off.
constexpr int kSureChunks = 8, kSureShare = 16;
__device__ __forceinline__ bool is_sure(int chunks, int of_row) {
  return chunks > 0 && chunks <= max(kSureChunks, of_row / kSureShare);
}

// By one thread, ahead of all others: makes the item that of its last `chunks`; 0: leaves it whole.
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

// By all threads of both CTAs, when the item has been walked; `lives` asks the group of M. False: the row has to be walked whole; then barriers
// have been made anew by `init`.
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

// A role's part in a summary: walk(shared, rank, stands) walks the item, and hands on what stands(lives) says. With `kSuffix` its suffix, and the
// whole row where that does not stand. Twice the code and not a loop, whose count the compiler would take to differ between lanes: no
// operand would stay in uniform registers. Shared memory and rank are found anew, or they and what follows from them would be kept from one
// walk to the next. `init(shared, rank)` makes barriers anew.
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
