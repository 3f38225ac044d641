// Tokens and gate sums of a team of lanes in `prepare` of KDA, and whether they fit the frame of the chunk's middle.
#pragma once
#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/rows.cuh"

namespace deltarelay::cuda::sm80 {

// Log2 of what a half of the chunk may decay by in the mid frame: 16 tokens at the bound that a caller promises.
constexpr float kMidFrameLog2 = -kMidFrameGate * (kChunk / 2) * kLog2e;

// What a team holds of one slab of channels: kChannels of them a lane, of kRows tokens.
template <class Cell, class Sum, int kChannels>
struct KdaSlab {
  Cell q[kRows], k[kRows];
  Sum sum[kRows][kChannels];  // G; mid frame: G - G_mid
  Sum middle[kChannels];      // G_mid
  Sum end[kChannels];         // G_last

  // Does the mid frame hold all channels of the chunk? Every team has all of them, so all warps find the same.
  __device__ __forceinline__ bool fits_mid_frame() const {
    bool fits = true;
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
      fits = fits && middle[c].rounded() >= -kMidFrameLog2 && end[c] - middle[c] >= -kMidFrameLog2;
    return __all_sync(~0u, fits);
  }
  __device__ __forceinline__ void move_to_mid_frame() {
#pragma unroll
    for (int i = 0; i < kRows * kChannels; ++i) {
      Sum& of = sum[i / kChannels][i % kChannels];
      of = Sum::of(of - middle[i % kChannels]);
    }
  }

  // Without this, the compiler keeps q and k as fp32 after their first use, in twice the registers.
  __device__ __forceinline__ void stay_packed() {
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
#pragma unroll
      for (int w = 0; w < Cell::kWords; ++w) {
        q[t].word[w] = opaque(q[t].word[w]);
        k[t].word[w] = opaque(k[t].word[w]);
      }
    }
  }
};

}  // namespace deltarelay::cuda::sm80
