// Which summary a pair walks where pairs come in waves. Summaries take longer the more a head keeps, which only the
// gates tell; a long one that starts last is a tail. So heads that keep most come first, judged by one chunk of each.
// The order changes the time, never the result.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/fused/gdn/memory.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90::fused_gdn {

// Most strips of a call that are ordered: their decays lie in the place of `negated`, which is free before the walk.
constexpr int kMostOrdered = 256;
static_assert(sizeof(NegatedAkk) >= kMostOrdered * sizeof(float));

// log2 of the decay of head `head` over the sampled chunk, by one warp, one token per lane. NaN counts as none.
__device__ __forceinline__ float sampled_decay(const Activation& activation, const RowOrder& order, int head) {
  const TensorView& g = activation.g;
  const int64_t token = order.token + static_cast<int>(threadIdx.x % 32);
  const float raw = load_number(g.data, g.dtype, order.sequence_at * g.sequence + token * g.token + head * g.head);
  float sum = log2_decay(raw, gate_params(activation, head, 0, 1));
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum <= 0.0f ? sum : 0.0f;
}

// The number of this CTA's item in that order: all rows of the head that keeps most, then those of the next. Called by
// all threads before anything else uses the shared memory.
__device__ __forceinline__ uint32_t ordered_number(const RowOrder& order, const WalkArgs& args,
                                                   const Activation& activation, Shared<Form::kPair>& shared) {
  const int strips = args.strips.all, thread = static_cast<int>(threadIdx.x);
  const int place = static_cast<int>(blockIdx.x) / 2 - order.first * strips;
  if (place < 0 || place >= order.count * strips || strips > kMostOrdered) return blockIdx.x;
  wait_for_previous_grid();  // the gates may come from there
  float* decays = reinterpret_cast<float*>(shared.negated[0][0].blocks);
#pragma unroll 1
  for (int strip = thread / 32; strip < strips; strip += kFusedThreads / 32)
    decays[strip] = sampled_decay(activation, order, args.strips.head_of(strip));
  __syncthreads();
  if (thread < strips) {
    const float own = decays[thread];
    int before = 0;
#pragma unroll 1
    for (int strip = 0; strip < strips; ++strip)
      before += decays[strip] > own || (decays[strip] == own && strip < thread);
    if (before == place / order.count) shared.items = thread;
  }
  __syncthreads();
  const int row = order.first + place % order.count;
  const uint32_t number = static_cast<uint32_t>((row * strips + shared.items) * 2) + blockIdx.x % 2;
  __syncthreads();  // all have read it
  return number;
}

}  // namespace deltarelay::cuda::sm90::fused_gdn
