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
#include "kernels/cuda/sm90/stage.cuh"

namespace deltarelay::cuda::sm90 {

// log2 of a decay after which no number of M is left: 2^-149 is the least of fp32, and M begins with 1.
constexpr float kVanishedLog2 = 156.0f;
// A suffix that was walked in vain costs at most this part of the row.
constexpr int kSuffixShare = 4;

// Chunks that a row of `chunks` chunks has to end with so that M vanishes, when each decays as the last one does, by log2 `decay`; 0: too many.
__device__ __forceinline__ int suffix_chunks(float decay, int chunks) {
  if (!(decay * static_cast<float>(chunks) <= -kSuffixShare * kVanishedLog2)) return 0;  // also NaN
  const int needed = static_cast<int>(kVanishedLog2 / -decay) + 2;
  return needed * kSuffixShare <= chunks ? needed : 0;
}

// By one thread, ahead of all others: makes the item that of its suffix.
template <int kChunk>
__device__ __forceinline__ void begin_suffix(Suffix& suffix, Item& item, float decay) {
  const int chunks = suffix_chunks(decay, item.row.chunks);
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

}  // namespace deltarelay::cuda::sm90
