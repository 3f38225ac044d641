// Scores pair by pair in the fused walk of KDA: what channels in the frames of the chunk's ends (frames.cuh) add to
// q_from_mid k_to_mid^T and k_from_mid k_to_mid^T below the diagonal. Such a channel decays by more than 2^230 within
// the chunk, and no frame holds that. So the decay from token j to token i is a product of their gates' decays:
//     w_1(i) = a_i k_{i-1}    w_{d+1}(i) = a_i w_d(i-1)    sums over channels of k_i w_d(i) and q_i w_d(i), j = i - d
// Every factor is at most 1: nothing overflows, and a forget is exact. A lane has token j, a warp half of the channels
// and every second distance d. Next to products shuffles take four times as long, so tokens meet in shared memory.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/fused/kda/gates.cuh"

namespace deltarelay::cuda::sm90 {

constexpr int kPairSteps = kFusedChunk / 2;  // distances of a warp: 1, 3, .. or 2, 4, ..
constexpr float kLeastPair = 0x1p-100f;      // the last distance is one from which on no |w| reaches this

// Until the score group takes them, sums of pairs lie where it will write Aqk~ (those with q) and inverse - I.
// Distances d and 32 - d share a line of 32 numbers; odd distances have the first 8 lines, even ones the others. The
// line of distance 16 is half empty, and its place is one that is 0 otherwise (clear_above): there a flag says that the
// stage has such sums.
struct PairSums {
  static constexpr int kFlag = kPairSteps / 2 * kFusedChunk;
  // Of distance 1 + even + 2 step and token i.
  static __device__ __forceinline__ int at(int even, int step, int i) {
    const int first = even * kFlag;
    return step < kPairSteps / 2 ? first + (7 - step) * kFusedChunk + i
                                 : first + (step - 8 + even) * kFusedChunk + i - (1 + even + 2 * step);
  }
  static __device__ __forceinline__ float* of(uint8_t* stage, int matrix) {
    return reinterpret_cast<float*>(stage + matrix);
  }
};
static_assert(kPairSteps == 16 && FusedStage::kTriangleBytes == 16 * kFusedChunk * sizeof(float));

// Channels of one half, as bits: pair p has bits p and p + 32. All lanes of a warp have the same.
struct ChannelList {
  uint64_t rest;
  // The next channel, or -1.
  __device__ __forceinline__ int take() {
    const int channel = __ffsll(static_cast<int64_t>(rest)) - 1;
    rest &= rest - 1;
    return channel;
  }
};

// Sums over the channels of a list, two at a time, for distances 1 + even + 2 step. `tiles` of the half are raw;
// `second` is the second quarter of its gates in fp32. A lane has w of token j and finds the rest, of token j + d, in
// `passage`, a KB of this warp: of each channel and token the decay over the last two tokens, k and q.
template <GateForm kGate, GateSource kSource, bool kQueries>
__device__ __forceinline__ void sum_pairs(uint8_t* tiles, const uint8_t* second, uint8_t* passage, const PairGate& gate,
                                          ChannelList list, int even, int lane, float (&of_keys)[kPairSteps],
                                          float (&of_queries)[kPairSteps]) {
  using Two = Pair<__nv_bfloat16>;
#pragma unroll
  for (int step = 0; step < kPairSteps; ++step) of_keys[step] = of_queries[step] = 0.0f;
  uint2* const own = reinterpret_cast<uint2*>(passage) + lane;
#pragma unroll 1
  while (list.rest != 0) {
    float w[2];
    __syncwarp();  // all have read the passage
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = list.take(), pair = channel & 31;
      const bool counts = channel >= 0, odd = channel >= 32;
      const uint8_t* at = tiles + lane * kRowBytes + ((pair * 4) ^ ((lane & 7) << 4)) + 2 * odd;
      auto bits = [at](int tile) { return uint32_t{*reinterpret_cast<const uint16_t*>(at + tile)}; };
      const uint32_t k = counts ? bits(FusedStage::kK) << 16 : 0;
      uint32_t q = 0;
      if constexpr (kQueries) q = counts ? bits(FusedStage::kQ) : 0;
      PairGate of_pair = gate;
      if constexpr (kGate == GateForm::kRawSoftplus || kGate == GateForm::kRawBounded)
        of_pair.offset[0] = __shfl_sync(~0u, odd ? gate.offset[1] : gate.offset[0], pair);
      float log = 0.0f;
      float raw;
      if constexpr (kSource == GateSource::kTiles)  // at the place of k and q: it saves branches
        raw = __uint_as_float(bits(FusedStage::kGate) << 16);
      else
        raw = SideGates<kSource>{}.number(tiles, second, lane, 2 * pair + odd);
      add_decay<kGate, true>(log, raw, of_pair, 0, Plus{});
      const float once = counts ? exp2_approx(log) : 0.0f, before = __shfl_up_sync(~0u, once, 1),
                  behind = __shfl_down_sync(~0u, once, 1);
      own[i * 32] = make_uint2(__float_as_uint(once * before), k | q);
      // Of distance d - 2: the decay over two tokens that follows brings it to the first distance.
      w[i] = __uint_as_float(k);
      if (even == 0) w[i] *= behind;
    }
    __syncwarp();
#pragma unroll
    for (int step = 0; step < kPairSteps; ++step) {
      // Distance 1 is one decay from token j, which w has by now; all others are two further.
      const int distance = 1 + even + 2 * step;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 there = own[i * 32 + distance];
        if (step > 0 || even == 1) w[i] *= __uint_as_float(there.x);
        of_keys[step] = fmaf(Two::high(there.y), w[i], of_keys[step]);
        if constexpr (kQueries) of_queries[step] = fmaf(Two::low(there.y), w[i], of_queries[step]);
      }
      // Lanes without a token at that distance have read anything.
      const bool ends = lane + distance >= kFusedChunk || (fabsf(w[0]) < kLeastPair && fabsf(w[1]) < kLeastPair);
      if (step % 4 == 3 && __all_sync(~0u, ends)) break;
    }
  }
}

// The sums of both halves of the channels, by the scale group; `half` is that of this warp. Ends with a barrier behind
// which raw tiles may be overwritten.
template <GateForm kGate, GateSource kSource, bool kQueries>
__device__ __forceinline__ void write_pairs(uint8_t* stage, const uint8_t* second, const PairGate& gate,
                                            const ChannelList& list, int half, int even, int lane) {
  float of_keys[kPairSteps], of_queries[kPairSteps];
  // Passages lie where the sums will.
  uint8_t* passage = stage + FusedStage::kAqk + (2 * even + half) * 1024;
  sum_pairs<kGate, kSource, kQueries>(stage + half * FusedStage::kHalfBytes, second + half * FusedStage::kTileBytes,
                                      passage, gate, list, even, lane, of_keys, of_queries);
  split_barrier(kScaleBarrier, kWarpgroup);
  float *keys = PairSums::of(stage, FusedStage::kInverse), *queries = PairSums::of(stage, FusedStage::kAqk);
  auto each = [&](auto body) {
    const int token = static_cast<int>(opaque(lane));  // otherwise all places stay in registers over the barrier
#pragma unroll
    for (int step = 0; step < kPairSteps; ++step) {
      const int later = token + 1 + even + 2 * step;
      if (later < kFusedChunk) body(step, PairSums::at(even, step, later));
    }
  };
  if (half == 0) {
    each([&](int step, int at) {
      keys[at] = of_keys[step];
      if constexpr (kQueries) queries[at] = of_queries[step];
    });
  }
  split_barrier(kScaleBarrier, kWarpgroup);
  if (half == 1) {
    each([&](int step, int at) {
      keys[at] += of_keys[step];
      if constexpr (kQueries) queries[at] += of_queries[step];
    });
    keys[PairSums::kFlag] = 1.0f;
  }
}

// Adds the sums of a stage, if it has some, to its scores, and clears what is above the diagonals again. By all threads
// of the score group; warps 0 and 1 have the scores of q.
template <bool kQueries>
__device__ __forceinline__ void add_pairs(uint8_t* stage, float (&scores)[16], int warp, int lane, uint32_t thread) {
  if (PairSums::of(stage, FusedStage::kInverse)[PairSums::kFlag] == 0.0f) return;
  if (kQueries || warp >= 2) {
    const float* sums = PairSums::of(stage, warp < 2 ? FusedStage::kAqk : FusedStage::kInverse);
    const int row = warp % 2 * 16 + lane / 4, column = 2 * (lane % 4);
#pragma unroll
    for (int e = 0; e < 16; ++e) {
      const int i = row + e / 2 % 2 * 8, j = column + e / 4 * 8 + e % 2, before = i - j - 1;
      if (before >= 0) scores[e] += sums[PairSums::at(before % 2, before / 2, i)];
    }
  }
  named_barrier(kScoreBarrier, kWarpgroup);
  if (thread < kClearThreads) clear_above(stage + FusedStage::kAqk, stage + FusedStage::kInverse, thread);
  ptx::fence_proxy_async(ptx::space_shared);
  named_barrier(kScoreBarrier, kWarpgroup);
}

}  // namespace deltarelay::cuda::sm90
