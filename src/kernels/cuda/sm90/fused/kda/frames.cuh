// Frames of channels in the fused walk of KDA, for gates that are not bounded. A side of the middle may decay a channel
// by more than fp32 can undo. E and L are log2 of what the earlier and the later side decay it by. Its tiles are
//     q_from_mid, k_from_mid = q, k 2^(G - G_mid + from)    k_to_mid = k 2^(to - (G - G_mid))
// and the state's factors 2^(-E - from) and 2^(-L - to):
//
//     frame          where                from           to             scores
//     the middle     E, L <= kMostSide    0              0              in the tiles
//     centred        E + L <= 2 of it     (L - E) / 2    (E - L) / 2    in the tiles
//     of the ends    otherwise            kEnds - E      kEnds - L      by windows (windows.cuh)
//
// In the frames of the ends K S reads the state decayed from the chunk's start, and the update leaves keys decayed to
// its end. 2^-150 of the entering state stays where less than 2^-230 should, and of a score in the tiles 2^-80. No
// exponent above kMostSide appears. Frames are found chunk by chunk from its gates alone.
#pragma once
#include "kernels/cuda/sm90/fused/kda/windows.cuh"

namespace deltarelay::cuda::sm90 {

constexpr float kMostSide = -kFusedSide * kMidFrameGate * kLog2e;  // 115.4
constexpr float kEnds = 75.0f;

// log2 of what this side decays its channels by: at least 0. kKeeps: leaves at `kept` the sums that its tokens are
// scaled by, row by row outwards. On the later side they include the token, on the earlier one they do not.
template <GateForm kGate, bool kKeeps, GateSource kSource>
__device__ __forceinline__ float2 sum_side(uint8_t* ring, const SidePlace& place, SideGates<kSource>& gates,
                                           const PairGate& gate, uint8_t* kept) {
  float sum[2] = {0.0f, 0.0f};
  if (kKeeps && !place.later) {
    *reinterpret_cast<float2*>(kept) = {0.0f, 0.0f};
    kept += kKeptRow;
  }
  uint32_t run_at = place.first_run();
#pragma unroll 1
  for (int run = 0; run < kFusedSide / kFusedRun; ++run) {
    uint8_t* at[kFusedRun];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) at[i] = ring + (run_at ^ (i * SidePlace::kStep));
    const auto raw = gates.take(ring, at);
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      add_decay<kGate, true>(sum[0], raw.row(i).x, gate, 0, Minus{});
      add_decay<kGate, true>(sum[1], raw.row(i).y, gate, 1, Minus{});
      if constexpr (kKeeps) *reinterpret_cast<float2*>(kept + i * kKeptRow) = {sum[0], sum[1]};
    }
    run_at = place.next_run(run_at);
    if constexpr (kKeeps) kept += kFusedRun * kKeptRow;
  }
  return {sum[0], sum[1]};
}

// True if a channel with these sides leaves the frame of the middle. Of NaN it does not.
__device__ __forceinline__ bool leaves_middle(float one, float other) {
  return fmaxf(fabsf(one), fabsf(other)) > kMostSide;
}

// The frames of a thread's channels.
struct ChannelFrames {
  float from[2], to[2];
  bool of_ends[2];

  // E and L.
  __device__ __forceinline__ ChannelFrames(const float (&early)[2], const float (&late)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      of_ends[c] = early[c] + late[c] > 2.0f * kMostSide;
      const float centre = leaves_middle(early[c], late[c]) ? 0.5f * (late[c] - early[c]) : 0.0f;
      from[c] = of_ends[c] ? kEnds - early[c] : centre;
      to[c] = of_ends[c] ? kEnds - late[c] : -centre;
    }
  }
};

// scale_rows (scale.cuh) with frames, for both sides. kKeeps: the sums of sum_side lie at `kept`.
template <GateForm kGate, bool kKeeps, GateSource kSource, bool kQueries>
__device__ __forceinline__ void scale_in_frames(uint8_t* ring, const SidePlace& place, SideGates<kSource>& gates,
                                                const PairGate& gate, const ChannelFrames& frames,
                                                const uint8_t* kept) {
  using Two = Pair<__nv_bfloat16>;
  float sum[2] = {0.0f, 0.0f};
  const float sign = place.later ? -1.0f : 1.0f;
  uint32_t run_at = place.first_run();
#pragma unroll 1
  for (int run = 0; run < kFusedSide / kFusedRun; ++run) {
    uint8_t* at[kFusedRun];
    uint32_t q[kFusedRun], k[kFusedRun];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) at[i] = ring + (run_at ^ (i * SidePlace::kStep));
    typename SideGates<kSource>::Run raw;
    float2 sums[kFusedRun];
    if constexpr (kKeeps) {
#pragma unroll
      for (int i = 0; i < kFusedRun; ++i) sums[i] = *reinterpret_cast<const float2*>(kept + i * kKeptRow);
      kept += kFusedRun * kKeptRow;
    } else {
      raw = gates.take(ring, at);
    }
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      if constexpr (kQueries) q[i] = word_at(at[i] + FusedStage::kQ);
      k[i] = word_at(at[i] + FusedStage::kK);
    }
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      float grow[2], shrink[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float shift;
        if constexpr (kKeeps) {
          shift = c == 0 ? sums[i].x : sums[i].y;
        } else {
          const float before = sum[c];
          add_decay<kGate, true>(sum[c], c == 0 ? raw.row(i).x : raw.row(i).y, gate, c, Minus{});
          shift = place.later ? sum[c] : before;
        }
        grow[c] = exp2_approx(fmaf(sign, shift, frames.from[c]));
        shrink[c] = exp2_approx(fmaf(-sign, shift, frames.to[c]));
      }
      const float k0 = Two::low(k[i]), k1 = Two::high(k[i]);
      if constexpr (kQueries)
        word_at(at[i] + FusedStage::kQ) = Two::pack(Two::low(q[i]) * grow[0], Two::high(q[i]) * grow[1]);
      word_at(at[i] + FusedStage::kK) = Two::pack(k0 * grow[0], k1 * grow[1]);
      word_at(at[i] + FusedStage::kGate) = Two::pack(k0 * shrink[0], k1 * shrink[1]);
    }
    run_at = place.next_run(run_at);
  }
}

// Scales a chunk, sums first. Where no channel leaves the middle, the results are those of scale_rows bit for bit.
// Returns whether one does. `second`: the byte of the second quarters of gates in fp32. Sums that are kept spare the
// second pass the gates: its loop has 117 instructions instead of 220 (softplus).
template <Form kForm, GateForm kGate, GateSource kSource, bool kQueries, bool kKeeps>
__device__ __forceinline__ bool scale_carefully(uint8_t* ring, uint8_t* stage, const SidePlace& place,
                                                SideGates<kSource>& gates, const PairGate& gate, uint32_t second) {
  uint8_t* kept = ring + KeptSums<kForm>::kBegin + threadIdx.x % kWarpgroup * sizeof(float2);
  // The sides change hands where the state's factors will lie.
  const int pair_at = pairs_at(place.half * 32 + place.lane) * 4;
  float2& own = *reinterpret_cast<float2*>(stage + (place.later ? FusedStage::kLate : FusedStage::kEarly) + pair_at);
  const float2& other =
      *reinterpret_cast<const float2*>(stage + (place.later ? FusedStage::kEarly : FusedStage::kLate) + pair_at);
  auto begin = [&] { gates.begin(place.later, place.half, place.lane, static_cast<uint32_t>(stage - ring), second); };
  begin();
  const float2 side = sum_side<kGate, kKeeps>(ring, place, gates, gate, kept);
  own = side;
  split_barrier(kScaleBarrier, kWarpgroup);
  const float2 beyond = other;
  const float2 early = place.later ? beyond : side, late = place.later ? side : beyond;
  const ChannelFrames frames({early.x, early.y}, {late.x, late.y});
  const ListedChannels list(frames.of_ends);
  if (!place.later) list.write(stage, place.half, place.lane);
  bool leaves = named_barrier_any(kScaleBarrier, kWarpgroup, list.any());
  if (leaves) {
    score_listed<kGate, kSource, kQueries>(stage, ring + second, gate, place.later);
  } else {
    leaves =
        named_barrier_any(kScaleBarrier, kWarpgroup, leaves_middle(early.x, late.x) || leaves_middle(early.y, late.y));
  }
  if constexpr (!kKeeps) begin();
  scale_in_frames<kGate, kKeeps, kSource, kQueries>(ring, place, gates, gate, frames, kept);
  own = {exp2_approx(-side.x - (place.later ? frames.to[0] : frames.from[0])),
         exp2_approx(-side.y - (place.later ? frames.to[1] : frames.from[1]))};
  return leaves;
}

}  // namespace deltarelay::cuda::sm90
