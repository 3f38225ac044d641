// What all channels of a slow KDA head decay by, alike: left out of 16-bit tiles and kept in fp32.
#pragma once

namespace deltarelay::cuda {

// Log2 of the common decay of a chunk, at most. Above it decays are rounded up as often as down, and exponents above 0
// need a bound too: a channel that decays by less, or late in the chunk, is above 0 by this at most.
constexpr float kMostCommon = 0x1p-2f;

// The common decay of the chunk's tokens, in log2: that of the slowest channel but one of every lane, on average over
// the chunk. Without it a decay below half a unit in the last place of a tile is rounded away, in all channels of a
// slow head alike (docs/numerics.md, what rounding costs). The slowest channel of a lane does not count, or a single
// one that keeps everything would leave the others without.
// `decays`: log2 of the chunk's decay of the lane's channels, without sign. All lanes of all warps find the same if the
// channels of every warp are all channels.
template <int kTokens>
__device__ __forceinline__ float common_decay(const float (&decays)[4]) {
  const float slower = fmaxf(fminf(decays[0], decays[1]), fminf(decays[2], decays[3]));
  const float faster = fminf(fmaxf(decays[0], decays[1]), fmaxf(decays[2], decays[3]));
  const float least = fminf(fminf(slower, faster), kMostCommon);
  return __uint_as_float(__reduce_min_sync(~0u, __float_as_uint(least))) * (-1.0f / kTokens);
}

}  // namespace deltarelay::cuda
