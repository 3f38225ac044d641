// Scores by windows of four tokens in the fused walk of KDA: what channels in the frames of the chunk's ends add to
// q_from_mid k_to_mid^T and k_from_mid k_to_mid^T below the diagonal (frames.cuh). Such a channel decays by more than
// 2^230 within the chunk, and no frame holds that. A window decays it by 2^230 at most, because a token that decays by
// more than 2^57 counts as 2^57. With c the sum of log2 decays since the window's begin, W that of the whole window and
// H the whole number next to W / 2, the tile of windows has
//     rows q, k 2^(H - c)    columns k 2^(c - H)    and of each window two factors, 2^-H and 2^(H - W)
// A row times the first is decayed from the line before its window on, a column times the second up to the line behind
// it; both are the way across a window. What falls below 2^-126 on the way would only decay further.
//
// Blocks of scores come from rows and columns of one window as they are, and of neighbouring windows, of 8 and of 16
// tokens from and up to the line between them.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/sm90/fused/kda/gates.cuh"

namespace deltarelay::cuda::sm90 {

constexpr float kMostTokenDecay = 57.0f;  // log2; four of them: kMostSide and the rounding of two lines

// The tile of windows: 16 channels, 8 of each half, as 64 rows of q and k and 32 of columns, in two parts of 8
// channels. Until the score group has multiplied it, it lies where Aqk~ and inverse - I will be written. Bytes behind
// kAqk. The flag lies where these matrices are 0 otherwise (clear_above), the counts where they are written in any
// case.
struct WindowTile {
  static constexpr int kHalfChannels = 8;
  static constexpr int kPart = 3 * kFusedChunk * 16, kColumns = 2 * kFusedChunk;
  static constexpr int kFlag = 2 * kPart;  // uint32_t
  // Of a window, 64 bytes: of channels 2 t, 2 t + 1 of a part both factors, of both parts.
  static constexpr int kFactors = kFlag + 16;
  // Listed channels of a half, a byte each: where the channel lies in a row of the half's tiles.
  static constexpr int kLists = kFactors + 512, kList = 64;
  static constexpr int kCounts = FusedStage::kTriangleBytes + core_offset(3, 3);  // listed channels: uint16_t[2]
  static constexpr uint32_t kTile = 1, kSums = 2;                                 // flags: a tile, or sums of scores
  static __device__ __forceinline__ uint8_t* of(uint8_t* stage) { return stage + FusedStage::kAqk; }
  static __device__ __forceinline__ uint32_t& flag(uint8_t* stage) { return word_at(of(stage) + kFlag); }
};
static_assert(WindowTile::kFlag == FusedStage::kTriangleBytes + core_offset(0, 2) &&
              WindowTile::kLists + 2 * WindowTile::kList <= WindowTile::kCounts);

// Sums of scores (i, j) below the diagonal, of either matrix, lie in its place: diagonals d and 32 - d share a line of
// 32 numbers. That of diagonal 16 is half empty, and there lies the flag.
struct ScoreSums {
  static __device__ __forceinline__ int at(int i, int j) {
    const int before = i - j - 1, even = before % 2, step = before / 2;
    const int first = even * kFusedChunk * 8;
    return step < 8 ? first + (7 - step) * kFusedChunk + i : first + (step - 8 + even) * kFusedChunk + j;
  }
  static __device__ __forceinline__ float* of(uint8_t* stage, bool keys) {
    return reinterpret_cast<float*>(stage + (keys ? FusedStage::kInverse : FusedStage::kAqk));
  }
};

// Channels of a half that no frame holds in this chunk, as bits of its pairs. All lanes have the same.
struct ListedChannels {
  uint32_t even, odd;
  __device__ __forceinline__ explicit ListedChannels(const bool (&mine)[2])
      : even(__ballot_sync(~0u, mine[0])), odd(__ballot_sync(~0u, mine[1])) {}
  __device__ __forceinline__ bool any() const { return (even | odd) != 0; }
  // Writes the list of this half and its length, by one warp. A barrier follows.
  __device__ __forceinline__ void write(uint8_t* stage, int half, int lane) const {
    uint8_t* const list = WindowTile::of(stage) + WindowTile::kLists + half * WindowTile::kList;
    const uint32_t own = 1u << lane, before = own - 1;
    if (even & own) list[__popc(even & before)] = static_cast<uint8_t>(4 * lane);
    if (odd & own) list[__popc(even) + __popc(odd & before)] = static_cast<uint8_t>(4 * lane + 2);
    if (lane == 0)
      reinterpret_cast<uint16_t*>(WindowTile::of(stage) + WindowTile::kCounts)[half] =
          static_cast<uint16_t>(__popc(even) + __popc(odd));
  }
};

// Those of them that are a warp's: the warps of a half begin at both ends.
class OwnChannels {
 public:
  __device__ __forceinline__ OwnChannels(int half, int listed, bool later)
      : next_(WindowTile::kLists + half * WindowTile::kList + (later ? listed - 1 : 0)),
        step_(later ? -1 : 1),
        left_((listed + !later) / 2) {}
  __device__ __forceinline__ bool any() const { return left_ > 0; }
  // The next kCount channels; where there are fewer, another one or the first of the half.
  template <int kCount>
  __device__ __forceinline__ void take(const uint8_t* tile, uint32_t (&at)[kCount], bool (&counts)[kCount]) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      counts[c] = c < left_;
      at[c] = counts[c] ? tile[next_ + c * step_] : c > 0 ? at[0] : 0;
    }
    next_ += kCount * step_;
    left_ -= kCount;
  }

 private:
  int next_, step_, left_;
};

// Where a warp writes a tile: 2 channels of each part, a word of every row; a lane has a token.
struct TileWord {
  uint8_t* tile;
  int word, lane;
  template <bool kQueries>
  __device__ __forceinline__ void put(int part, uint32_t q, uint32_t k, uint32_t column, const uint2& factors) const {
    uint8_t* to = tile + part * WindowTile::kPart + lane * 16 + word * 4;
    if constexpr (kQueries) word_at(to) = q;
    word_at(to + kFusedChunk * 16) = k;
    word_at(to + WindowTile::kColumns * 16) = column;
    if (lane % 4 == 0)
      *reinterpret_cast<uint2*>(tile + WindowTile::kFactors + lane / 4 * 64 + word * 16 + part * 8) = factors;
  }
};

// Writes a warp's words of `kParts` parts from `part` on, and takes their channels from the list. `tiles`: of the half,
// raw; `second`: the second quarter of its gates in fp32.
template <GateForm kGate, GateSource kSource, bool kQueries, int kParts>
__device__ __forceinline__ void write_parts(const uint8_t* tiles, const uint8_t* second, const PairGate& gate,
                                            OwnChannels& list, const TileWord& place, int part) {
  using Two = Pair<__nv_bfloat16>;
  constexpr float kWhole = 0x1.8p23f;  // whole numbers around it
  constexpr int kOwn = 2 * kParts;
  const int lane = place.lane;
  uint32_t channel[kOwn];
  bool counts[kOwn];  // otherwise times 0
  list.take(place.tile, channel, counts);
  const uint8_t* const row = tiles + lane * kRowBytes;
  float q[kOwn] = {}, k[kOwn], raw[kOwn], decay[kOwn], offset[kOwn] = {};
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    const uint8_t* at = row + (channel[c] ^ ((lane & 7) << 4));
    auto number = [at](int tile_at) {
      return __uint_as_float(uint32_t{*reinterpret_cast<const uint16_t*>(at + tile_at)} << 16);
    };
    if constexpr (kSource == GateSource::kTiles)
      raw[c] = number(FusedStage::kGate);
    else
      raw[c] = SideGates<kSource>{}.number(tiles, second, lane, static_cast<int>(channel[c] / 2));
    if constexpr (kGate == GateForm::kRawSoftplus || kGate == GateForm::kRawBounded) {
      const bool odd = channel[c] % 4 != 0;
      offset[c] = __shfl_sync(~0u, odd ? gate.offset[1] : gate.offset[0], static_cast<int>(channel[c] / 4));
    }
    k[c] = number(FusedStage::kK);
    if constexpr (kQueries) q[c] = number(FusedStage::kQ);
  }
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    PairGate own = gate;
    own.offset[0] = offset[c];
    decay[c] = 0.0f;
    add_decay<kGate, true>(decay[c], raw[c], own, 0, Minus{});
    decay[c] = fminf(decay[c], kMostTokenDecay);
  }
  // The other tokens of the window. All its lanes add in one order, so they have the same sum.
  float others[kOwn][3];
#pragma unroll
  for (int distance = 1; distance < 4; ++distance) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) others[c][distance - 1] = __shfl_xor_sync(~0u, decay[c], distance);
  }
  float to[kOwn];
  uint32_t from[kParts] = {};
#pragma unroll
  for (int c = 0; c < kOwn; ++c) {
    const float near = decay[c] + others[c][0], far = others[c][1] + others[c][2], all = near + far;
    const float since = (lane % 2 != 0 ? near : decay[c]) + (lane % 4 >= 2 ? far : 0.0f);
    const float rounded = fmaf(all, 0.5f, kWhole), middle = rounded - kWhole;
    const float grow = exp2_approx(middle - since), shrink = exp2_approx(since - middle);
    to[c] = exp2_approx(middle - all);
    from[c / 2] |= (0x3f80 - ((__float_as_uint(rounded) - __float_as_uint(kWhole)) << 7)) << (16 * (c % 2));
    raw[c] = counts[c] ? k[c] * shrink : 0.0f;
    q[c] = counts[c] ? q[c] * grow : 0.0f, k[c] = counts[c] ? k[c] * grow : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int c = 2 * i;
    place.template put<kQueries>(part + i, Two::pack(q[c], q[c + 1]), Two::pack(k[c], k[c + 1]),
                                 Two::pack(raw[c], raw[c + 1]), {from[i], Two::pack(to[c], to[c + 1])});
  }
}

// Factors of one window, of the channels that a lane has in an operand.
struct WindowFactors {
  uint2 from, to;
};
// Numbers of one row (of an A operand) or column (of a B operand) of 16 channels, decayed further.
__device__ __forceinline__ void decay_once(uint32_t& low, uint32_t& high, const uint2& factor) {
  low = times_pair(low, factor.x), high = times_pair(high, factor.y);
}
__device__ __forceinline__ void decay_across(uint32_t& low, uint32_t& high, const WindowFactors& window) {
  decay_once(low, high, window.from);
  decay_once(low, high, window.to);
}

// Adds to 16 rows of scores, from a tile, the products with columns of the same side (`own`) and, of the later side,
// with those of the earlier one (`cross`), in the layout of accumulators. Above the diagonal it adds anything.
__device__ __forceinline__ void add_windows(const uint8_t* tile, float (&own)[8], float (&cross)[8], bool keys,
                                            bool later, uint32_t lane) {
  using Element = __nv_bfloat16;
  const uint32_t at = shared_address(tile);
  const uint32_t odd = lane / 16;  // this lane's rows and columns lie in the second window of their 8
  const bool across = odd != 0 && lane % 4 < 2;
  auto factors = [&](uint32_t window) {
    const uint4 of = *reinterpret_cast<const uint4*>(tile + WindowTile::kFactors + window * 64 + lane % 4 * 16);
    return WindowFactors{{of.x, of.z}, {of.y, of.w}};
  };
  auto one_unless = [](bool counts, const WindowFactors& window) {
    constexpr uint32_t kOnes = 0x3f803f80;
    return counts ? window : WindowFactors{{kOnes, kOnes}, {kOnes, kOnes}};
  };
  auto columns = [&](uint32_t token) {
    return load_matrix(at + lane / 8 % 2 * WindowTile::kPart +
                       (WindowTile::kColumns + token + lane / 16 * 8 + lane % 8) * 16);
  };
  const uint32_t window = later ? 4 : 0, token = later ? kFusedSide : 0;
  Fragment rows = load_matrix(at + lane / 16 * WindowTile::kPart + ((keys ? kFusedChunk : 0) + token + lane % 16) * 16);
  Fragment both = columns(token);
  auto multiply = [&](float* sums, const Fragment& a, uint32_t low, uint32_t high, float(&product)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) product[e] = sums[e];
    mma<Element>(product, a, low, high);
  };
  float first[4], second[4], within[4];
  multiply(own, rows, both.reg[0], both.reg[1], first);
  multiply(own + 4, rows, both.reg[2], both.reg[3], second);
  // From the line before the row's window, and to the line behind the column's.
  const WindowFactors inner = factors(window + odd), outer = factors(window + 2 + odd);
  decay_once(rows.reg[0], rows.reg[2], inner.from);
  decay_once(rows.reg[1], rows.reg[3], outer.from);
  decay_once(both.reg[0], both.reg[1], inner.to);
  decay_once(both.reg[2], both.reg[3], outer.to);
  multiply(own, rows, both.reg[0], both.reg[1], within);
  own[0] = across ? within[0] : first[0], own[1] = across ? within[1] : first[1];
  multiply(own + 4, rows, both.reg[2], both.reg[3], within);
  own[6] = across ? within[2] : second[2], own[7] = across ? within[3] : second[3];
  // From the line in the middle of the side, and to it.
  const WindowFactors f1 = factors(window + 1), f2 = factors(window + 2);
  decay_across(rows.reg[1], rows.reg[3], one_unless(odd != 0, f2));
  decay_across(both.reg[0], both.reg[1], one_unless(odd == 0, f1));
  multiply(own, rows, both.reg[0], both.reg[1], first);
  own[2] = first[2], own[3] = first[3];
  if (!later) return;
  // From the chunk's middle, and to it.
  both = columns(0);
  const WindowFactors f0 = factors(window);
  decay_across(rows.reg[0], rows.reg[2], one_unless(odd != 0, f0));
  decay_across(rows.reg[1], rows.reg[3], f1);
  decay_across(rows.reg[1], rows.reg[3], f0);
  decay_once(both.reg[0], both.reg[1], factors(odd).to);
  decay_once(both.reg[2], both.reg[3], factors(2 + odd).to);
  const WindowFactors f3 = factors(3);
  decay_across(both.reg[0], both.reg[1], one_unless(odd == 0, factors(1)));
  decay_across(both.reg[2], both.reg[3], one_unless(odd == 0, f3));
  decay_across(both.reg[0], both.reg[1], factors(2));
  decay_across(both.reg[0], both.reg[1], f3);
  multiply(cross, rows, both.reg[0], both.reg[1], first);
  multiply(cross + 4, rows, both.reg[2], both.reg[3], second);
#pragma unroll
  for (int e = 0; e < 4; ++e) cross[e] = first[e], cross[4 + e] = second[e];
}

// Of an accumulator of 16 rows and 16 columns: row and column of number e.
__device__ __forceinline__ int row_of(int e, int lane) { return lane / 4 + e / 2 % 2 * 8; }
__device__ __forceinline__ int column_of(int e, int lane) { return e / 4 * 8 + 2 * (lane % 4) + e % 2; }

// The scores of listed channels, by the scale group, behind a barrier. A tile
// for the score group, or sums if a half has more than 8 channels. Raw tiles may be overwritten afterwards.
template <GateForm kGate, GateSource kSource, bool kQueries>
__device__ __forceinline__ void score_listed(uint8_t* stage, const uint8_t* second, const PairGate& gate, bool later) {
  // Opaque: otherwise what follows from the thread stays in registers between chunks.
  const uint32_t thread = opaque(threadIdx.x) % kWarpgroup;
  const int lane = static_cast<int>(thread % 32), half = static_cast<int>(thread / 32 % 2);
  const uint16_t* counts = reinterpret_cast<const uint16_t*>(WindowTile::of(stage) + WindowTile::kCounts);
  int count = max(counts[0], counts[1]);
  const bool one_tile = __all_sync(~0u, count <= WindowTile::kHalfChannels);
  const bool keys = half == 1;
  OwnChannels list(half, counts[half], later);
  const TileWord place{WindowTile::of(stage), half * 2 + (later ? 1 : 0), lane};
  const uint8_t* const tiles = stage + half * FusedStage::kHalfBytes;
  second += half * FusedStage::kTileBytes;
  if (one_tile) {
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      if (list.any())
        write_parts<kGate, kSource, kQueries, 1>(tiles, second, gate, list, place, part);
      else
        place.template put<kQueries>(part, 0, 0, 0, {0, 0});
    }
    if (!keys && !later) WindowTile::flag(stage) = WindowTile::kTile;
    split_barrier(kScaleBarrier, kWarpgroup);
    return;
  }
  float own[8] = {}, cross[8] = {};
#pragma unroll 1
  do {
    write_parts<kGate, kSource, kQueries, 2>(tiles, second, gate, list, place, 0);
    split_barrier(kScaleBarrier, kWarpgroup);
    if (kQueries || keys) add_windows(WindowTile::of(stage), own, cross, keys, later, opaque(lane));
    split_barrier(kScaleBarrier, kWarpgroup);
    count -= WindowTile::kHalfChannels;
  } while (__any_sync(~0u, count > 0));
  if (kQueries || keys) {
    float* sums = ScoreSums::of(stage, keys);
    const int token = later ? kFusedSide : 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int i = row_of(e, lane), j = column_of(e, lane);
      if (j < i) sums[ScoreSums::at(token + i, token + j)] = own[e];
      if (later) sums[ScoreSums::at(token + i, j)] = cross[e];
    }
  }
  if (!keys && !later) WindowTile::flag(stage) = WindowTile::kSums;
}

// Adds to the scores of a stage what it has of listed channels, and clears what is above the diagonals again. By all
// threads of the score group; warps 0 and 1 have the scores of q.
template <bool kQueries>
__device__ __forceinline__ void add_listed(uint8_t* stage, float (&scores)[16], int warp, int lane, uint32_t thread) {
  const uint32_t flag = WindowTile::flag(stage);
  if (flag == 0) return;
  if (kQueries || warp >= 2) {
    const bool later = warp % 2 != 0, keys = warp >= 2;
    if (flag == WindowTile::kTile) {
      float own[8], cross[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) own[e] = later ? scores[8 + e] : scores[e], cross[e] = scores[e];
      add_windows(WindowTile::of(stage), own, cross, keys, later, opaque(lane));
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        scores[e] = later ? cross[e] : own[e];
        scores[8 + e] = later ? own[e] : scores[8 + e];
      }
    } else {
      const float* sums = ScoreSums::of(stage, keys);
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        const int i = (later ? kFusedSide : 0) + row_of(e, lane), j = column_of(e, lane);
        if (j < i) scores[e] += sums[ScoreSums::at(i, j)];
      }
    }
  }
  // Not kScoreBarrier, where half of the group may still meet for the chunk before.
  named_barrier(kListedBarrier, kWarpgroup);
  // A matrix by the two warps that write it next: what orders their writes before its use orders these as well.
  const int own = static_cast<int>(thread % 64), of_inverse = warp >= 2 ? 1 : 0;
  if (own < kClearThreads / 2) {
    const int piece = own < 32 ? of_inverse * 32 + own : 32 + of_inverse * 16 + own;
    clear_above(stage + FusedStage::kAqk, stage + FusedStage::kInverse, piece);
  }
  ptx::fence_proxy_async(ptx::space_shared);
}

}  // namespace deltarelay::cuda::sm90
