// fp16 data in the fused walk of KDA. fp16 has no exponents for the frame of the middle. So the stage holds tiles in
// the frames of the chunk's ends, and scores come from words of tf32 in the frame of the middle. With inverse norms rq
// and rk (1 without l2norm):
//     q_from_start = scale rq q e^G    k_from_start = rk k e^G    k_to_end = rk k e^{G_last-G}
//     S <- e^{G_last} S + k_to_end^T V_new
// The state's products read S itself, and its factor comes behind them, off the chain of K S. Norms are in the tiles:
// short keys would fall into the subnormals of fp16, and scores of long ones leave its range.
//
// The scale group writes the words on its way outwards from the middle, then hands them to the score group, and forms
// the tiles from them while that multiplies. There is one place for words, so each waits for the other once a chunk.
#pragma once
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/fused/kda/gates.cuh"
#include "kernels/cuda/sm90/fused/kda/memory.cuh"

namespace deltarelay::cuda::sm90 {

// A thread's two channels in the words of a chunk: bytes behind the begin of the ring, of row 0 of q.
template <Form kForm>
__device__ __forceinline__ uint32_t words_at(int half, int lane) {
  return static_cast<uint32_t>(sizeof(FusedShared<kForm, __half>::ring) +
                               (2 * half + lane / 16) * ScoreWords::kQuarterBytes + lane % 16 * 8);
}

// Applies norms and gates of this thread's channels on its side of the middle, outwards: writes its words, from `words`
// on (words_at). `column` is the byte of channel pair and stage. Returns log2 of the decay over this side.
template <GateForm kGate, GateSource kSource, bool kQueries, bool kLater>
__device__ __forceinline__ float2 write_words(uint8_t* ring, uint32_t column, uint32_t words, const float4* norms,
                                              SideGates<kSource>& gates, const PairGate& gate) {
  using Two = Pair<__half>;
  constexpr int kFirst = kLater ? kFusedSide : kFusedSide - kFusedRun, kStep = kLater ? kFusedRun : -kFusedRun;
  float sum[2] = {0.0f, 0.0f};
  const auto first_run = [](uint32_t at) { return (at ^ ((kFirst & 7) << 4)) + kFirst * kRowBytes; };
  const auto next_run = [](uint32_t at) {
    return (at ^ ((kFusedRun & 7) << 4)) + static_cast<uint32_t>(kStep * kRowBytes);
  };
  uint32_t run_at = first_run(column), words_run = first_run(words);
  const float4* norm_at = norms + kFirst / 2;
#pragma unroll 1
  for (int run = 0; run < kFusedSide / kFusedRun; ++run) {
    uint8_t *at[kFusedRun], *to[kFusedRun];
    uint32_t q[kFusedRun], k[kFusedRun];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      const int row = kLater ? i : kFusedRun - 1 - i;
      at[i] = ring + ((run_at ^ (row << 4)) + row * kRowBytes);
      to[i] = ring + ((words_run ^ (row << 4)) + row * kRowBytes);
    }
    const auto raw = gates.take(ring, at);
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      if constexpr (kQueries) q[i] = word_at(at[i] + FusedStage::kQ);
      k[i] = word_at(at[i] + FusedStage::kK);
    }
    float factor[kFusedRun][2];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      const float x[2] = {raw.row(i).x, raw.row(i).y};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if constexpr (!kLater) factor[i][c] = sum[c];
        add_decay<kGate, false>(sum[c], x[c], gate, c, std::conditional_t<kLater, Plus, Minus>{});
        if constexpr (kLater) factor[i][c] = sum[c];
      }
    }
    const float4 two[2] = {norm_at[0], norm_at[1]};  // rows 0 and 1, rows 2 and 3
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      const int row = kLater ? i : kFusedRun - 1 - i;
      const float norm_q = row % 2 == 0 ? two[row / 2].x : two[row / 2].z;
      const float norm_k = row % 2 == 0 ? two[row / 2].y : two[row / 2].w;
      float grow[2], shrink[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) grow[c] = exp2_approx(factor[i][c]), shrink[c] = exp2_approx(-factor[i][c]);
      const float k0 = Two::low(k[i]) * norm_k, k1 = Two::high(k[i]) * norm_k;
      if constexpr (kQueries)
        *reinterpret_cast<uint2*>(to[i] + ScoreWords::kQ) = {as_tf32(Two::low(q[i]) * norm_q * grow[0]),
                                                             as_tf32(Two::high(q[i]) * norm_q * grow[1])};
      *reinterpret_cast<uint2*>(to[i] + ScoreWords::kK) = {as_tf32(k0 * grow[0]), as_tf32(k1 * grow[1])};
      *reinterpret_cast<uint2*>(to[i] + ScoreWords::kTo) = {as_tf32(k0 * shrink[0]), as_tf32(k1 * shrink[1])};
    }
    run_at = next_run(run_at);
    words_run = next_run(words_run);
    norm_at += kStep / 2;
  }
  return kLater ? make_float2(sum[0], sum[1]) : make_float2(-sum[0], -sum[1]);
}

// Forms the tiles of one side, whose rows begin with `first`, from this thread's words. `from`, `to`: what the earlier
// and the later side decay its channels by.
template <bool kQueries>
__device__ __forceinline__ void write_ends(uint8_t* ring, uint32_t column, uint32_t words, int first, float2 from,
                                           float2 to) {
  using Two = Pair<__half>;
  uint32_t run_at = column + first * kRowBytes, words_run = words + first * kRowBytes;  // rows of a swizzle's eight
#pragma unroll 1
  for (int run = 0; run < kFusedSide / kFusedRun; ++run) {
#pragma unroll
    for (int row = 0; row < kFusedRun; ++row) {
      uint8_t* at = ring + ((run_at ^ (row << 4)) + row * kRowBytes);
      const uint8_t* word = ring + ((words_run ^ (row << 4)) + row * kRowBytes);
      if constexpr (kQueries) {
        const float2 q = *reinterpret_cast<const float2*>(word + ScoreWords::kQ);
        word_at(at + FusedStage::kQ) = Two::pack(q.x * from.x, q.y * from.y);
      }
      const float2 k = *reinterpret_cast<const float2*>(word + ScoreWords::kK),
                   k_to = *reinterpret_cast<const float2*>(word + ScoreWords::kTo);
      word_at(at + FusedStage::kK) = Two::pack(k.x * from.x, k.y * from.y);
      word_at(at + FusedStage::kGate) = Two::pack(k_to.x * to.x, k_to.y * to.y);
    }
    run_at = (run_at ^ ((kFusedRun & 7) << 4)) + kFusedRun * kRowBytes;
    words_run = (words_run ^ ((kFusedRun & 7) << 4)) + kFusedRun * kRowBytes;
  }
}

// Scales a chunk on one side of the middle. `number`: of the chunk among those that this CTA makes.
template <Form kForm, GateForm kGate, GateSource kSource, bool kQueries, bool kLater>
__device__ __forceinline__ void scale_to_ends(FusedShared<kForm, __half>& shared, uint8_t* stage, uint32_t column,
                                              SideGates<kSource>& gates, const PairGate& gate, int half, int lane,
                                              uint32_t number) {
  uint8_t* ring = shared.ring[0];
  ScoreWords& place = shared.words;
  const uint32_t words = opaque(words_at<kForm>(half, lane));
  const int pair = half * 32 + lane;
  wait_parity(&place.taken, (number % 2) ^ 1);
  const float2 side = write_words<kGate, kSource, kQueries, kLater>(
      ring, column, words, reinterpret_cast<const float4*>(stage + FusedStage::kNorms), gates, gate);
  float2(&sides)[2][kWidth / 2] = place.sides[number % 2];
  sides[kLater][pair] = side;
  ptx::fence_proxy_async(ptx::space_shared);
  warp_arrive(&place.written);
  split_barrier(kScaleBarrier, kWarpgroup);
  const float2 other = sides[!kLater][pair];
  const float2 early = kLater ? other : side, late = kLater ? side : other;
  if constexpr (kLater)
    *reinterpret_cast<float2*>(stage + FusedStage::kEarly + pairs_at(pair) * 4) = {exp2_approx(early.x + late.x),
                                                                                   exp2_approx(early.y + late.y)};
  write_ends<kQueries>(ring, column, words, kLater ? kFusedSide : 0, {exp2_approx(early.x), exp2_approx(early.y)},
                       {exp2_approx(late.x), exp2_approx(late.y)});
}

// A chunk that nobody reads any more: its words are handed on as they are, by a warp of the scale group.
__device__ __forceinline__ void skip_words(ScoreWords& words, uint32_t number) {
  wait_parity(&words.taken, (number % 2) ^ 1);
  warp_arrive(&words.written);
}

// The same by a warp of the score group.
__device__ __forceinline__ void pass_words(ScoreWords& words, uint32_t number) {
  wait_parity(&words.written, number % 2);
  warp_arrive(&words.taken);
}

// Rows 0-31 are q_from_mid k_to_mid^T, rows 32-63 k_from_mid k_to_mid^T, as multiply_scores has it.
__device__ __forceinline__ void multiply_words(float (&scores)[16], ScoreWords& words, uint32_t number) {
  wait_parity(&words.written, number % 2);
  const uint32_t place = opaque(shared_address(words.tiles));  // or all descriptors would stay in registers
  const uint64_t rows = swizzled_operand(place + ScoreWords::kQ), columns = swizzled_operand(place + ScoreWords::kTo);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kWidth / 8; ++step) {
    const uint64_t at = channel_step(step, ScoreWords::kQuarterBytes);
    times_tf32(scores, rows + at, columns + at, step > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(scores);
  warp_arrive(&words.taken);
}

}  // namespace deltarelay::cuda::sm90
