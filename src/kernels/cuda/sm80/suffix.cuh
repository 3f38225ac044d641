// A summary from its suffix. If gates forget, M of a segment's last few chunks is 0 in fp32. Then M of the whole
// segment is 0 too, and B of those chunks is B of the segment.
//
// GDN: tiles of B and of M belong to different CTAs, and none waits to see whether M vanishes. Instead prepare leaves a
// bound on the norm of each chunk's transition. If the product of the last bounds is below every fp32 number, all CTAs
// of the row and head find that from the same numbers. The CTAs of B walk only the last chunks, the CTAs of M walk
// none.
//
// KDA has no such bound. The norm of a token's map is its largest decay, but the norm of a chunk's map is not the
// largest decay of its channels: keys move content between channels, and content that moves to a channel before it is
// kept is never forgotten. But a CTA that walks both B and M may walk the last chunks first. The decays of the last
// chunks suggest how many. If M has vanished after them, the row is done; otherwise the CTA walks the whole row.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/stage.cuh"
#include "kernels/cuda/tile/vanished.cuh"

namespace deltarelay::cuda::sm80 {

// KDA: number of last chunks whose decays decide how many chunks are tried. If the suffix is not enough, the whole row
// follows, and phase 1 waits for it. A row that is not tried takes as long as a whole row (docs/kernels/sm80.md).
constexpr int kSampledChunks = 4;
constexpr float kSuffixSlack = 1.0f;

// Returns the number of last chunks after which M vanishes, or 0 if that is more than a given share of the row. Every
// warp computes the same: it looks at 32 chunks at a time, the last first, and adds bounds in one order. NaN is never
// enough.
template <class Stage>
__device__ __forceinline__ int bounded_chunks(const WalkArgs& args, const Item& item) {
  const int most = item.row.chunks / kSuffixShare, lane = static_cast<int>(threadIdx.x % 32);
  float sum = 0.0f;  // of the chunks after these 32
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

// If a suffix is enough, reduces the item of a summary to that suffix and returns true: M is then 0. Call it with every
// warp.
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

// For a transition known to be 0: writes the flag word that says so for all its rows (state.cuh). Each of its CTAs
// writes the same.
__device__ __forceinline__ void leave_no_transition(const WalkArgs& args, const Item& item) {
  const int64_t slot_head = static_cast<int64_t>(item.row.slot_out) * args.heads_v + item.head;
  if (threadIdx.x == 0) args.slot_lives[2 * slot_head] = 0;
}

// KDA: number of last chunks that are worth a try; 0 if none. Call it with every warp.
template <class Stage>
__device__ __forceinline__ int promising_chunks(const WalkArgs& args, const Item& item) {
  constexpr int kEach = Stage::kWidth / 32;  // channels per lane
  const int sampled = min(item.row.chunks, kSampledChunks), lane = static_cast<int>(threadIdx.x % 32);
  float sums[kEach] = {};
  for (int i = 0; i < sampled; ++i) {
    const int64_t chunk = item.chunk + item.row.chunks - 1 - i;
    const float* decays = reinterpret_cast<const float*>(
        args.prepared + (chunk * args.heads_v + item.head) * Stage::kRecord.bytes + Stage::kRecord.decay_chunk);
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
