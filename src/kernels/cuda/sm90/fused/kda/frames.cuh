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
// its end. 2^-190 of the entering state stays where less than 2^-230 should. No exponent above kMostSide appears. Where
// a channel has these frames, all scores of the chunk are made by windows. Frames are found chunk by chunk from its
// gates alone.
#pragma once
#include "kernels/cuda/sm90/fused/kda/windows.cuh"

namespace deltarelay::cuda::sm90 {

constexpr float kMostSide = -kFusedSide * kMidFrameGate * kLog2e;  // 115.4
constexpr float kEnds = 96.0f;
// What a window decays a channel by at most, for tiles with exponents from kEnds - 1 down to -kMostSide.
constexpr float kMostWindow = kMostSide + kEnds - 1.0f;

// log2 of what a side decays a thread's two channels by, from the middle out to each of its tokens: at least 0. In local
// memory: in registers, loops over tokens would have to be unrolled, and their code would not fit the instruction cache.
struct SideSums {
  float2 of[kFusedSide + 1];  // of 0 tokens, 1, ..
  // |G - G_mid| of tokens, counted outwards from the middle; -1 is G_mid itself on the later side.
  __device__ __forceinline__ const float2* shifts(bool later) const { return of + later; }
};

// Returns the sums of the whole side.
template <GateForm kGate, GateSource kSource>
__device__ __forceinline__ float2 sum_side(SideSums& sums, uint8_t* ring, const SidePlace& place,
                                           SideGates<kSource>& gates, const PairGate& gate) {
  float sum[2] = {0.0f, 0.0f};
  sums.of[0] = {0.0f, 0.0f};
  uint32_t run_at = place.first_run();
#pragma unroll 1
  for (int run = 0; run < kFusedSide; run += kFusedRun) {
    uint8_t* at[kFusedRun];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) at[i] = ring + (run_at ^ (i * SidePlace::kStep));
    const auto raw = gates.take(ring, at);
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      add_decay<kGate, true>(sum[0], raw.row(i).x, gate, 0, Minus{});
      add_decay<kGate, true>(sum[1], raw.row(i).y, gate, 1, Minus{});
      sums.of[run + i + 1] = {sum[0], sum[1]};
    }
    run_at = place.next_run(run_at);
  }
  return {sum[0], sum[1]};
}

// True if a channel with these sides leaves the frame of the middle. Of NaN it does not.
__device__ __forceinline__ bool leaves_middle(float one, float other) {
  return fmaxf(fabsf(one), fabsf(other)) > kMostSide;
}

// Tokens of a side in two halves: those next to the middle, and those beyond.
constexpr int kWindow = kFusedSide / 2;

// How a thread's tiles are moved, its inner tokens and its outer ones; numbers of each channel.
struct TileFrames {
  float from[2][2], to[2][2];
};

// The frames of a thread's channels.
struct ChannelFrames {
  float from[2], to[2];
  bool of_ends[2];

  // E and L. Frames of the ends are moved by whole numbers: tiles move from frame to frame without being rounded.
  __device__ __forceinline__ ChannelFrames(const float (&early)[2], const float (&late)[2]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      of_ends[c] = early[c] + late[c] > 2.0f * kMostSide;
      const float centre = leaves_middle(early[c], late[c]) ? 0.5f * (late[c] - early[c]) : 0.0f;
      from[c] = of_ends[c] ? floorf(kEnds - early[c]) : centre;
      to[c] = of_ends[c] ? floorf(kEnds - late[c]) : -centre;
    }
  }
  __device__ __forceinline__ TileFrames tiles() const {
    return {{{from[0], from[1]}, {from[0], from[1]}}, {{to[0], to[1]}, {to[0], to[1]}}};
  }
};

// scale_rows (scale.cuh) from sums, for both sides.
template <bool kQueries>
__device__ __forceinline__ void scale_in_frames(uint8_t* ring, const SidePlace& place, const SideSums& sums,
                                                const TileFrames& frames) {
  using Two = Pair<__nv_bfloat16>;
  const float sign = place.later ? -1.0f : 1.0f;
  const float2* shifts = sums.shifts(place.later);
  uint32_t run_at = place.first_run();
#pragma unroll 1
  for (int run = 0; run < kFusedSide; run += kFusedRun) {
    const int outer = run >= kWindow;
    uint8_t* at[kFusedRun];
    uint32_t q[kFusedRun], k[kFusedRun];
    float2 shift[kFusedRun];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      at[i] = ring + (run_at ^ (i * SidePlace::kStep));
      shift[i] = shifts[run + i];
      if constexpr (kQueries) q[i] = word_at(at[i] + FusedStage::kQ);
      k[i] = word_at(at[i] + FusedStage::kK);
    }
    float from[2], to[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      from[c] = outer ? frames.from[1][c] : frames.from[0][c];
      to[c] = outer ? frames.to[1][c] : frames.to[0][c];
    }
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      const float each[2] = {shift[i].x, shift[i].y};
      float grow[2], shrink[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        grow[c] = exp2_approx(fmaf(sign, each[c], from[c]));
        shrink[c] = exp2_approx(fmaf(-sign, each[c], to[c]));
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

// Scores by windows of 16 tokens or, with `eights`, of 8: each in a frame of its own, then across the lines between
// them. Between the products tiles move on in place, from the windows' frames to those of the lines, at last to the
// state's. `own` and `other` are what the frames of the ends move a channel by on this side of the middle and on the
// other. The near tiles, k_to_mid of the later side or q_from_mid and k_from_mid of the earlier one, are moved by `own`
// in the end, the others, the far tiles, by `other`; in a window both by the same, in opposite directions. Channels in
// one frame stay in it.
struct WindowFrames {
  bool eights;
  float own[2], other[2], inner[2], line[2];
  bool apart[2];
  // `half`: what the inner window decays by.
  __device__ __forceinline__ WindowFrames(const ChannelFrames& frames, bool later, bool by_eights, float2 half)
      : eights(by_eights) {
    const float decay[2] = {half.x, half.y};
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      apart[c] = frames.of_ends[c];
      own[c] = later ? frames.to[c] : frames.from[c];
      other[c] = later ? frames.from[c] : frames.to[c];
      inner[c] = eights && apart[c] ? floorf(kEnds - decay[c]) : own[c];
      line[c] = floorf(decay[c]);
    }
  }
  __device__ __forceinline__ TileFrames tiles(bool later) const {
    TileFrames frames;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      frames.from[0][c] = later ? -inner[c] : inner[c], frames.from[1][c] = later ? -own[c] : own[c];
      frames.to[0][c] = -frames.from[0][c], frames.to[1][c] = -frames.from[1][c];
    }
    return frames;
  }
  // 2^exponent(channel) of both channels.
  template <class Exponent>
  __device__ __forceinline__ uint32_t powers(Exponent exponent) const {
    return Pair<__nv_bfloat16>::pack(exp2_approx(apart[0] ? exponent(0) : 0.0f),
                                     exp2_approx(apart[1] ? exponent(1) : 0.0f));
  }
};

// Where tiles of windows stand: in their windows, at the lines between windows of 8, at the middle, in the state's
// frames.
enum class Stand { kWindows, kLines, kMiddle, kState };

// Moves a thread's tiles on to where they are needed next.
template <bool kQueries>
__device__ __forceinline__ void move_tiles(uint8_t* ring, const SidePlace& place, const WindowFrames& windows,
                                           Stand stand) {
  const bool eights = windows.eights;
  uint32_t near_inner = 0, far[2];  // powers of two
  if (stand == Stand::kLines) {
    near_inner = windows.powers([&](int c) { return -windows.line[c] - windows.inner[c]; });
    far[0] = 0;
    far[1] = windows.powers([&](int c) { return windows.line[c] + windows.own[c]; });
  } else if (stand == Stand::kMiddle) {
    far[0] = windows.powers([&](int c) { return windows.inner[c]; });
    far[1] = windows.powers([&](int c) { return eights ? -windows.line[c] : windows.own[c]; });
  } else {
    near_inner = windows.powers([&](int c) { return windows.line[c] + windows.own[c]; });
    far[0] = far[1] = windows.powers([&](int c) { return windows.other[c]; });
  }
  auto move = [&](uint32_t run_at, bool queries_and_keys, uint32_t powers) {
    uint8_t* first = ring + (queries_and_keys ? FusedStage::kK : FusedStage::kGate);
    uint32_t words[kFusedRun];
    auto each = [&](uint8_t* tile) {
#pragma unroll
      for (int i = 0; i < kFusedRun; ++i) words[i] = word_at(tile + (run_at ^ (i * SidePlace::kStep)));
#pragma unroll
      for (int i = 0; i < kFusedRun; ++i) {
        asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(words[i]) : "r"(powers));
        word_at(tile + (run_at ^ (i * SidePlace::kStep))) = words[i];
      }
    };
    each(first);
    if (kQueries && queries_and_keys) each(ring + FusedStage::kQ);
  };
  uint32_t run_at = place.first_run();
#pragma unroll 1
  for (int run = 0; run < kFusedSide; run += kFusedRun) {
    const bool outer = run >= kWindow;
    if (outer || stand != Stand::kLines) move(run_at, place.later, outer ? far[1] : far[0]);
    if (!outer && eights && stand != Stand::kMiddle) move(run_at, !place.later, near_inner);
    run_at = place.next_run(run_at);
  }
}

// Makes the scores of a chunk whose tiles stand in windows, and moves the tiles to the state's frames.
template <bool kQueries>
__device__ __forceinline__ void score_windows(uint8_t* ring, uint8_t* stage, const SidePlace& place,
                                              const WindowFrames& windows) {
  const BlockShare share(place);
  const uint32_t first = shared_address(stage);
  auto multiply = [&](float(&product)[4], int row, int column) {
    multiply_block(product,
                   {first + (share.keys ? FusedStage::kK : FusedStage::kQ) + row * kRowBytes, FusedStage::kHalfBytes},
                   {first + FusedStage::kGate + column * kRowBytes, FusedStage::kHalfBytes}, share);
  };
  float early[4] = {}, late[4] = {};
#pragma unroll 1
  for (Stand stand = Stand::kWindows; stand != Stand::kState;) {
    split_barrier(kScaleBarrier, kWarpgroup);
    if (kQueries || share.keys) {
      const bool across = stand == Stand::kMiddle;
      float product[4];
      multiply(product, across ? kFusedSide : 0, 0);
      if (across) {
        put_block(stage, share, product, kFusedSide, 0);
      } else {
        // Behind a line between windows of 8 are rows 8-15 of columns 0-7.
        if (stand == Stand::kWindows) early[0] = product[0], early[1] = product[1];
        if (stand == Stand::kWindows || share.column == 0) early[2] = product[2], early[3] = product[3];
        multiply(product, kFusedSide, kFusedSide);
        if (stand == Stand::kWindows) late[0] = product[0], late[1] = product[1];
        if (stand == Stand::kWindows || share.column == 0) late[2] = product[2], late[3] = product[3];
      }
    }
    split_barrier(kScaleBarrier, kWarpgroup);
    stand = stand == Stand::kWindows ? (windows.eights ? Stand::kLines : Stand::kMiddle)
            : stand == Stand::kLines ? Stand::kMiddle
                                     : Stand::kState;
    move_tiles<kQueries>(ring, place, windows, stand);
  }
  if (kQueries || share.keys) {
    put_block(stage, share, early, 0, 0);
    put_block(stage, share, late, kFusedSide, kFusedSide);
  }
}

// Lines at 5 levels: between spans of 16, 8, 4, 2 and 1 tokens. At every level 16 tokens lie behind a line: of them q and
// k go where the gates were, q in rows 0-15. Of the others k goes where Aqk~ and inverse - I will be.
constexpr int kLineLevels = 5;
static_assert(1 << kLineLevels == kFusedChunk);

template <bool kQueries>
__device__ __forceinline__ void scale_to_lines(uint8_t* ring, uint8_t* stage, const SidePlace& place,
                                               const SideSums& sums, int level) {
  using Two = Pair<__nv_bfloat16>;
  const float2* shifts = sums.shifts(place.later);
  const int span = 1 << level;
#pragma unroll 4
  for (int i = 0; i < kFusedSide; ++i) {
    const int token = place.later ? kFusedSide + i : kFusedSide - 1 - i;
    const int line = (token | (2 * span - 1)) - span + 1;  // the first token behind it
    const float2 own = shifts[i], at_line = shifts[place.later ? line - 1 - kFusedSide : kFusedSide - line];
    const float factor[2] = {exp2_approx(-fabsf(own.x - at_line.x)), exp2_approx(-fabsf(own.y - at_line.y))};
    auto scaled = [&](uint32_t raw) { return Two::pack(Two::low(raw) * factor[0], Two::high(raw) * factor[1]); };
    const int number = (token >> (level + 1) << level) + (token & (span - 1));
    uint8_t* raw = ring + place.row(token);
    const uint32_t k = scaled(word_at(raw + FusedStage::kK));
    if (token >= line) {
      uint8_t* at = ring + place.row(number) + FusedStage::kGate;
      if constexpr (kQueries) word_at(at) = scaled(word_at(raw + FusedStage::kQ));
      word_at(at + kFusedSide * kRowBytes) = k;
    } else {
      const int row = place.half * kFusedSide + number;
      word_at(stage + FusedStage::kAqk + row * kRowBytes + ((place.lane * 4) ^ ((row & 7) << 4))) = k;
    }
  }
}

// Makes the scores of a chunk with any gates. Raw q and k stay, gates do not.
template <bool kQueries>
__device__ __forceinline__ void write_by_lines(uint8_t* ring, uint8_t* stage, const SidePlace& place,
                                               const SideSums& sums) {
  const BlockShare share(place);
  const uint32_t first = shared_address(stage);
  const RowBlock rows{first + FusedStage::kGate + share.keys * (kFusedSide * kRowBytes), FusedStage::kHalfBytes},
      columns{first + FusedStage::kAqk, kFusedSide * kRowBytes};
  float products[kLineLevels][4] = {};  // the last comes first: that of spans of one token
#pragma unroll 1
  for (int level = kLineLevels - 1; level >= 0; --level) {
    scale_to_lines<kQueries>(ring, stage, place, sums, level);
    split_barrier(kScaleBarrier, kWarpgroup);
#pragma unroll
    for (int e = 0; e < 4 * (kLineLevels - 1); ++e)
      products[kLineLevels - 1 - e / 4][e % 4] = products[kLineLevels - 2 - e / 4][e % 4];
    if (kQueries || share.keys) multiply_block(products[0], rows, columns, share);
    split_barrier(kScaleBarrier, kWarpgroup);
  }
  reinterpret_cast<uint4*>(stage + FusedStage::kAqk)[threadIdx.x % kWarpgroup] = make_uint4(0, 0, 0, 0);
  split_barrier(kScaleBarrier, kWarpgroup);
  if (kQueries || share.keys) {
#pragma unroll
    for (int level = 0; level < kLineLevels; ++level) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int span = 1 << level, row = share.row_of(e), column = share.column_of(e);
        const int group = row >> level;
        if (group != column >> level) continue;
        put_score(stage, share.keys, 2 * span * group + span + row % span, 2 * span * group + column % span,
                  products[level][e]);
      }
    }
  }
}

// Scales a chunk, sums first. Where no channel leaves the middle, the results are those of scale_rows bit for bit.
// Returns whether one does. `second`: the byte of the second quarters of gates in fp32.
template <GateForm kGate, GateSource kSource, bool kQueries>
__device__ __forceinline__ bool scale_carefully(uint8_t* ring, uint8_t* stage, const SidePlace& place,
                                                SideGates<kSource>& gates, const PairGate& gate, uint32_t second) {
  // The sides change hands where the state's factors will lie.
  const int pair_at = pairs_at(place.half * 32 + place.lane) * 4;
  float2& own = *reinterpret_cast<float2*>(stage + (place.later ? FusedStage::kLate : FusedStage::kEarly) + pair_at);
  const float2& other =
      *reinterpret_cast<const float2*>(stage + (place.later ? FusedStage::kEarly : FusedStage::kLate) + pair_at);
  auto any = [](bool mine) { return named_barrier_any(kScaleBarrier, kWarpgroup, mine); };
  SideSums sums;
  gates.begin(place.later, place.half, place.lane, static_cast<uint32_t>(stage - ring), second);
  const float2 side = sum_side<kGate>(sums, ring, place, gates, gate);
  own = side;
  const bool leaves = any(leaves_middle(side.x, side.y));
  float2 beyond = {0.0f, 0.0f};
  if (leaves) beyond = other;
  const float2 early = place.later ? beyond : side, late = place.later ? side : beyond;
  ChannelFrames frames({early.x, early.y}, {late.x, late.y});
  const bool apart = leaves && any(frames.of_ends[0] || frames.of_ends[1]);
  const float2 half = sums.of[kWindow];
  const bool by_eights = apart && any(fmaxf(side.x, side.y) > kMostWindow);
  const bool by_lines =
      by_eights && any(fmaxf(fmaxf(half.x, half.y), fmaxf(side.x - half.x, side.y - half.y)) > kMostWindow);
  const WindowFrames windows(frames, place.later, by_eights, half);
  TileFrames tiles = windows.tiles(place.later);
  if (by_lines) {
    write_by_lines<kQueries>(ring, stage, place, sums);
    tiles = frames.tiles();
  }
  scale_in_frames<kQueries>(ring, place, sums, tiles);
  if (apart && !by_lines) score_windows<kQueries>(ring, stage, place, windows);
  if (apart && place.lane == 0) KeySums::of(stage)[KeySums::kFlag] = 1.0f;
  own = {exp2_approx(-side.x - (place.later ? frames.to[0] : frames.from[0])),
         exp2_approx(-side.y - (place.later ? frames.to[1] : frames.from[1]))};
  return leaves;
}

}  // namespace deltarelay::cuda::sm90
