// A summary by its suffix (GDN). Where gates forget, M of a segment's last few chunks is 0 in fp32; then so is that of the whole segment, and B of
// those chunks is its B. Tiles of B and of M belong to CTAs that do not know of each other, so none of them waits for what M turns out to be:
// `prepare` leaves a bound on what each chunk does to a state, and where the product of the last ones is below every fp32 number, all CTAs of
// the row and head know it by themselves, from the same numbers. Those of B walk the last chunks, those of M none.
//
// KDA has no such bound. A token's norm is its largest decay, but that of a chunk is not the largest of its channels: keys hand on from channel to
// channel, and what moves to the one that is about to be kept is never forgotten. Where a CTA walks both B and M, though, it may walk the last
// chunks first, as many as the last one's decays promise to be enough, and sees what has become of M; where it lives, the row is walked whole.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/stage.cuh"
#include "kernels/cuda/tile/vanished.cuh"

namespace deltarelay::cuda::sm80 {

// KDA: so many of the last chunks say how many are tried. A row whose suffix is not enough is walked whole behind it, and phase 1 waits for it; each
// row that is not tried is as long (docs/kernels/sm80.md).
constexpr int kSampledChunks = 4;
constexpr float kSuffixSlack = 1.0f;

// Of the last chunks of a row, as many as it takes for M to vanish; 0: more than a share of the row. By every warp: chunks are looked
// at 32 at a time, the last first. Bounds are summed in one order, so every CTA finds the same. NaN is never enough.
template <class Stage>
__device__ __forceinline__ int bounded_chunks(const WalkArgs& args, const Item& item) {
  const int most = item.row.chunks / kSuffixShare, lane = static_cast<int>(threadIdx.x % 32);
  float sum = 0.0f;  // of the chunks behind
  for (int behind = 0; behind < most; behind += 32) {
    const int64_t chunk = item.chunk + item.row.chunks - 1 - (behind + lane);
    float own = 0.0f;
    if (behind + lane < most)
      own = *reinterpret_cast<const float*>(args.prepared + (chunk * args.heads_v + item.head) * Stage::kRecord.bytes +
                                            Stage::kRecord.bound);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(~0u, own, step);
      if (lane >= step) own += before;
    }
    sum += own;
    const uint32_t enough = __ballot_sync(~0u, sum <= kVanishedLog2);
    if (enough != 0) return behind + __ffs(static_cast<int>(enough));
    sum = __shfl_sync(~0u, sum, 31);
  }
  return 0;
}

// Makes the item of a summary that of its suffix, where there is one: M is 0 then. By every warp.
template <class Stage>
__device__ __forceinline__ bool keep_suffix(const WalkArgs& args, Item& item) {
  const int chunks = bounded_chunks<Stage>(args, item);
  if (chunks == 0) return false;
  const int skipped = item.row.chunks - chunks;
  item.token += static_cast<int64_t>(skipped) * kChunk;
  item.tokens -= skipped * kChunk;
  item.chunk += skipped;
  item.row.chunks = chunks;
  return true;
}

// All that is left of a transition known to be 0: the word that it is, for all its rows (state.cuh). Each of its CTAs says the same.
__device__ __forceinline__ void leave_no_transition(const WalkArgs& args, const Item& item) {
  const int64_t slot_head = static_cast<int64_t>(item.row.slot_out) * args.heads_v + item.head;
  if (threadIdx.x == 0) args.slot_lives[2 * slot_head] = 0;
}

// Of the last chunks of a row of KDA, as many as are worth a try; 0: none. By every warp.
template <class Stage>
__device__ __forceinline__ int promising_chunks(const WalkArgs& args, const Item& item) {
  constexpr int kEach = Stage::kWidth / 32;  // channels of a lane
  const int sampled = min(item.row.chunks, kSampledChunks), lane = static_cast<int>(threadIdx.x % 32);
  float sums[kEach] = {};
  for (int i = 0; i < sampled; ++i) {
    const int64_t chunk = item.chunk + item.row.chunks - 1 - i;
    const float* decays = reinterpret_cast<const float*>(
        args.prepared + (chunk * args.heads_v + item.head) * Stage::kRecord.bytes + Stage::kRecord.decay);
#pragma unroll
    for (int e = 0; e < kEach; ++e) sums[e] += __log2f(decays[e * 32 + lane]);
  }
  float most = sums[0];
#pragma unroll
  for (int e = 1; e < kEach; ++e) most = max_or_nan(most, sums[e]);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) most = max_or_nan(most, __shfl_xor_sync(~0u, most, step));
  return suffix_chunks(most / static_cast<float>(sampled), kSuffixSlack, item.row.chunks / kSuffixShare);
}

}  // namespace deltarelay::cuda::sm80
