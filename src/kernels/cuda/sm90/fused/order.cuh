// Which summary a pair walks where pairs come in waves. Summaries take longer the more a head keeps, which only the
// gates tell; a long one that starts last is a tail. So heads that keep most come first, judged by one chunk of each.
// The order changes the time, never the result.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/rows/early_start.cuh"
#include "kernels/cuda/sm90/fused/inverse.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"

namespace deltarelay::cuda::sm90 {

// Most strips of a call that are ordered: their decays lie in the place of `negated`, which is free before the walk.
constexpr int kMostOrdered = 256;
static_assert(sizeof(NegatedAkk) >= kMostOrdered * sizeof(float));

// The number of this CTA's item in that order: all rows of the head that keeps most, then those of the next. Called by
// all threads before anything else uses the shared memory. sampled_decay(head): log2 of the head's decay over a few
// tokens, at most 0, by a warp. The decays lie in `negated`, the strip that is found in `found`.
template <class SampledDecay>
__device__ __forceinline__ uint32_t ordered_number(const RowOrder& order, const WalkArgs& args, NegatedAkk& negated,
                                                   int& found, SampledDecay&& sampled_decay) {
  const int strips = args.strips.all, thread = static_cast<int>(threadIdx.x);
  const int place = static_cast<int>(blockIdx.x) / 2 - order.first * strips;
  if (place < 0 || place >= order.count * strips || strips > kMostOrdered) return blockIdx.x;
  wait_for_previous_grid();  // the gates may come from there
  float* decays = reinterpret_cast<float*>(negated.blocks);
#pragma unroll 1
  for (int strip = thread / 32; strip < strips; strip += kFusedThreads / 32)
    decays[strip] = sampled_decay(args.strips.head_of(strip));
  __syncthreads();
  if (thread < strips) {
    const float own = decays[thread];
    int before = 0;
#pragma unroll 1
    for (int strip = 0; strip < strips; ++strip)
      before += decays[strip] > own || (decays[strip] == own && strip < thread);
    if (before == place / order.count) found = thread;
  }
  __syncthreads();
  const int row = order.first + place % order.count;
  const uint32_t number = static_cast<uint32_t>((row * strips + found) * 2) + blockIdx.x % 2;
  __syncthreads();  // all have read it
  return number;
}

}  // namespace deltarelay::cuda::sm90
