// Tokens and gate sums of a team of lanes in `prepare` of KDA: what all channels decay by, whether the sums fit the
// frame of the chunk's middle, and scores of neighbouring tokens.
#pragma once
#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/rows.cuh"
#include "kernels/cuda/tile/slow_decay.cuh"
#include "kernels/cuda/tile/warp_sum.cuh"

namespace deltarelay::cuda::sm80 {

// Log2 of what a half of the chunk may decay by in the mid frame: 16 tokens at the bound that a caller promises.
constexpr float kMidFrameLog2 = -kMidFrameGate * (kChunk / 2) * kLog2e;

// Index of pair (i, j) of a 4 x 4 block: with the diagonal (q k) and without (k k).
__device__ __forceinline__ constexpr int pair_with_diagonal(int i, int j) { return i * (i + 1) / 2 + j; }
__device__ __forceinline__ constexpr int pair_below_diagonal(int i, int j) { return i * (i - 1) / 2 + j; }
constexpr int kPairsQ = 10, kPairsK = 6;

// What a team holds of one slab of channels: kChannels of them a lane, of kRows tokens.
template <class Cell, class Sum, int kChannels>
struct KdaSlab {
  Cell q[kRows], k[kRows];
  Sum sum[kRows][kChannels];  // G; mid frame: G - G_mid. leave_out turns G into H (record.h), here and below
  Sum middle[kChannels];      // G_mid
  Sum end[kChannels];         // G_last

  // `channels`: how many of this lane's exist. Every team has all of them, so all warps find the same.
  __device__ __forceinline__ float common_decay_of(int channels) const {
    float decays[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) decays[c] = c < channels ? fabsf(end[c].rounded()) : kMostCommon;
    return common_decay<kChunk>(decays);
  }
  // `first`: tokens from where `sum` begins to the team's first; negative if the team is earlier.
  __device__ __forceinline__ void leave_out(float common, int first) {
    const float before = static_cast<float>(-first) * common;
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const Sum of_tokens = Sum::of(fmaf(static_cast<float>(-t - 1), common, before));
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sum[t][c] = sum[t][c] + of_tokens;
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      middle[c] = middle[c] + Sum::of(-kChunk / 2.0f * common);
      end[c] = end[c] + Sum::of(-1.0f * kChunk * common);
    }
  }

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

  // Scores of the 4 x 4 diagonal block of the team's tokens, pair by pair, before norms. Returns the pair lane % 16.
  template <int kLanes>
  __device__ __forceinline__ float sum_pairs(const float (&decay)[kRows][kChannels], int lane) const {
    static_assert(kRows == 4);
    float pairs[16] = {};
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      float forget[4];
#pragma unroll
      for (int t = 1; t < 4; ++t) forget[t] = exp2_approx(decay[t][c]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float decayed = k[j].get(c);
#pragma unroll
        for (int i = j; i < 4; ++i) {
          if (i > j) {
            decayed *= forget[i];
            float& pair = pairs[kPairsQ + pair_below_diagonal(i, j)];
            pair = fmaf(k[i].get(c), decayed, pair);
          }
          float& pair = pairs[pair_with_diagonal(i, j)];
          pair = fmaf(q[i].get(c), decayed, pair);
        }
      }
    }
    return sum_over_lanes<16, kLanes>(pairs, lane);
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
