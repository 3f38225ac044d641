// Which summary a pair walks where pairs come in waves. Summaries take longer the more a head keeps, which only the
// gates tell; a long one that starts last is a tail. So heads that keep most come first, judged by one chunk of each.
// The order changes the time, never the result.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90::fused_gdn {

// Most heads of a call that are ordered.
constexpr int kMostOrdered = 32;

// About the log-decay of a token of head l, in lane l, from its mean raw gate over the sampled tokens; the others have 0.
// NaN counts as no decay.
__device__ __forceinline__ float sampled_decay(const Activation& activation, const RowOrder& order, int heads) {
  const TensorView& g = activation.g;
  const int head = static_cast<int>(threadIdx.x % 32);
  if (head >= heads) return 0.0f;
  const int64_t at = order.sequence_at * g.sequence + order.token * g.token + head * g.head;
  float sum = 0.0f;
#pragma unroll
  for (int token = 0; token < RowOrder::kSampled; ++token) sum += load_number(g.data, g.dtype, at + token * g.token);
  const float decay = log2_decay(sum / RowOrder::kSampled, gate_params(activation, head, 0, 1));
  return decay <= 0.0f ? decay : 0.0f;
}

// The number of this CTA's item in that order, by one warp: all rows of the head that keeps most, then those of the
// next.
__device__ __forceinline__ uint32_t ordered_number(const RowOrder& order, const WalkArgs& args,
                                                   const Activation& activation) {
  const int strips = args.strips.all, heads = args.heads_v, lane = static_cast<int>(threadIdx.x % 32);
  const int place = static_cast<int>(blockIdx.x) / 2 - order.first * strips;
  if (place < 0 || place >= order.count * strips || heads > kMostOrdered) return blockIdx.x;
  wait_for_previous_grid();  // the gates may come from there
  const float own = sampled_decay(activation, order, heads);
  int before = 0;  // heads that come before this lane's
#pragma unroll 1
  for (int head = 0; head < heads; ++head) {
    const float decay = __shfl_sync(~0u, own, head);
    before += decay > own || (decay == own && head < lane);
  }
  const int of_head = order.count * args.strips.a_head, within = place % of_head;
  const int head = __ffs(static_cast<int>(__ballot_sync(~0u, lane < heads && before == place / of_head))) - 1;
  const int row = order.first + within / args.strips.a_head;
  const int strip = head * args.strips.a_head + within % args.strips.a_head;
  return static_cast<uint32_t>((row * strips + strip) * 2) + blockIdx.x % 2;
}

}  // namespace deltarelay::cuda::sm90::fused_gdn
