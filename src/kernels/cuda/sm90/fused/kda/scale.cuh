// The scale group of the fused walk of KDA: gates, then q_from_mid, k_from_mid and k_to_mid in place of q, k and g, and
// the state's factors. Elementwise work only.
//
// A thread owns two channels of one side of the chunk's middle (16 tokens) and walks outwards from the middle. So sums
// of log-decays need no scan across threads: the later side sums inclusively, the earlier side exclusively and with the
// opposite sign.
#pragma once
#include <type_traits>

#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/sm90/fused/kda/ends.cuh"
#include "kernels/cuda/sm90/fused/kda/frames.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"

namespace deltarelay::cuda::sm90 {

// Applies the gates of this thread's channels on its side of the middle, outwards: overwrites q, k and g by q_from_mid,
// k_from_mid and k_to_mid. `column` is the byte of channel pair and stage. Returns log2 of the decay over this side.
template <GateForm kGate, GateSource kSource, bool kQueries, bool kLater>
__device__ __forceinline__ float2 scale_rows(uint8_t* ring, uint32_t column, SideGates<kSource>& gates,
                                             const PairGate& gate) {
  using Two = Pair<__nv_bfloat16>;
  float sum[2] = {0.0f, 0.0f};
  // Rows of a run differ only in the low bits of their number, which the swizzle uses. The next run is the same in the
  // other half of the swizzle's eight rows.
  constexpr int kFirst = kLater ? kFusedSide : kFusedSide - kFusedRun;
  uint32_t run_at = (column ^ ((kFirst & 7) << 4)) + kFirst * kRowBytes;
#pragma unroll 1
  for (int run = 0; run < kFusedSide / kFusedRun; ++run) {
    uint8_t* at[kFusedRun];
    uint32_t q[kFusedRun], k[kFusedRun];
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      const int row = kLater ? i : kFusedRun - 1 - i;
      at[i] = ring + ((run_at ^ (row << 4)) + row * kRowBytes);
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
#pragma unroll
    for (int i = 0; i < kFusedRun; ++i) {
      float grow[2], shrink[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) grow[c] = exp2_approx(factor[i][c]), shrink[c] = exp2_approx(-factor[i][c]);
      const float k0 = Two::low(k[i]), k1 = Two::high(k[i]);
      if constexpr (kQueries)
        word_at(at[i] + FusedStage::kQ) = Two::pack(Two::low(q[i]) * grow[0], Two::high(q[i]) * grow[1]);
      word_at(at[i] + FusedStage::kK) = Two::pack(k0 * grow[0], k1 * grow[1]);
      word_at(at[i] + FusedStage::kGate) = Two::pack(k0 * shrink[0], k1 * shrink[1]);
    }
    run_at = (run_at ^ ((kFusedRun & 7) << 4)) + static_cast<uint32_t>((kLater ? kFusedRun : -kFusedRun) * kRowBytes);
  }
  return kLater ? make_float2(sum[0], sum[1]) : make_float2(-sum[0], -sum[1]);
}

// Scales all chunks of this CTA, by the two warps of one side.
template <Form kForm, GateForm kGate, GateSource kSource, bool kQueries, bool kLater, class Element>
__device__ __forceinline__ void scale_side(const Activation& activation, FusedShared<kForm, Element>& shared,
                                           int rank) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, half = thread / 32 % 2;
  const int pair = half * 32 + lane;
  const int vector_at = (kLater ? FusedStage::kLate : FusedStage::kEarly) + pairs_at(pair) * 4;
  uint8_t* ring = shared.ring[0];
  SideGates<kSource> gates;

  OwnPosition<kForm, Element> position{rank};
  make_items<kForm>(shared, [&](const Item& item, int begin) {
    const PairGate gate = pair_gate<kGate>(activation, item.head, 2 * pair);
    const int tokens = uniform(item.tokens), chunks = uniform(item.row.chunks);
#pragma unroll 1
    for (int chunk = rank; chunk < chunks; chunk += ctas(kForm)) {
      const int stage = position.stage, second = SecondQuarters<kForm, Element>::at(begin + chunk);
      wait_parity(&shared.loaded[stage], position.parity);
      if (!kQueries && shared.end.limit_reached(chunk)) break;
      wait_parity(&shared.summed[stage], position.parity);
      // Of a summary nobody reads the chunk any more. Warps that meet at a barrier below must all see the same, which
      // the marks do not promise: fp16 takes what the score group has decided.
      if (!kQueries && (kEndFrames<Element> ? shared.end.empty[stage] : uniform(shared.end.reached()) != 0)) {
        if constexpr (kEndFrames<Element>) skip_words(shared.words, (begin + chunk) / ctas(kForm));
        warp_arrive(&shared.scaled[stage]);
        position.advance();
        continue;
      }
      const int valid = tokens - (kQueries ? chunk : chunk_from_end(chunk, chunks)) * kFusedChunk;
      if (valid < kFusedChunk) {
        clear_tail<kGate, kSource, kQueries>(shared.ring[stage], ring + second, valid, thread);
        split_barrier(kScaleBarrier, kWarpgroup);
      }
      const uint32_t column = opaque(stage * FusedRing<kForm>::kBytes + half * FusedStage::kHalfBytes + lane * 4);
      gates.begin(kLater, half, lane, stage * FusedRing<kForm>::kBytes, second);
      if constexpr (kEndFrames<Element>) {
        scale_to_ends<kForm, kGate, kSource, kQueries, kLater>(shared, shared.ring[stage], column, gates, gate, half,
                                                               lane, (begin + chunk) / ctas(kForm));
      } else {
        const float2 side = scale_rows<kGate, kSource, kQueries, kLater>(ring, column, gates, gate);
        *reinterpret_cast<float2*>(shared.ring[stage] + vector_at) = {exp2_approx(side.x), exp2_approx(side.y)};
      }
      ptx::fence_proxy_async(ptx::space_shared);
      warp_arrive(&shared.scaled[stage]);
      position.advance();
    }
  });
}

// Loads q, k and g of a chunk once more, where they have been overwritten: of gates in fp32 the first quarters.
template <GateSource kSource>
class Reload {
 public:
  __device__ __forceinline__ explicit Reload(uint64_t* barrier) : barrier_(barrier) {
    if (threadIdx.x % kWarpgroup == 0) {
      ptx::mbarrier_init(barrier_, 1);
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
  }
  // Behind a barrier of the scale group, since which it has used nothing of this.
  __device__ __forceinline__ void end() {
    if (threadIdx.x % kWarpgroup == 0) invalidate_barrier(barrier_);
  }
  // By the scale group. Its writes to the stage are ordered before the copies: a proxy fence, then a barrier.
  template <bool kQueries>
  __device__ __forceinline__ void load(const FusedMaps& maps, const Item& item, int chunk, uint8_t* stage) {
    if (threadIdx.x % kWarpgroup == 0) {
      const int token = static_cast<int>(item.token) + chunk * kFusedChunk, sequence = item.sequence_at;
      expect_bytes(barrier_, (kQueries ? 6 : 4) * FusedStage::kTileBytes);
#pragma unroll 1
      for (int half = 0; half < 2; ++half, stage += FusedStage::kHalfBytes) {
        if constexpr (kQueries)
          copy_tile(maps.q, token, half, item.key_head, sequence, stage + FusedStage::kQ, barrier_);
        copy_tile(maps.k, token, half, item.key_head, sequence, stage + FusedStage::kK, barrier_);
        copy_tile(maps.g, token, is_wide(kSource) ? 2 * half : half, item.head, sequence, stage + FusedStage::kGate,
                  barrier_);
      }
    }
    __syncwarp();
    wait_parity(barrier_, parity_);
    parity_ ^= 1;
  }

 private:
  uint64_t* barrier_;
  uint32_t parity_ = 0;
};

// Chunks that are scaled sums first (scale_carefully) from one on in which a channel has left the middle.
constexpr int kCarefulChunks = 8;

// Scales all chunks of this CTA; their gates are not bounded. At once, as if no channel left the frame of the middle;
// if one has, the chunk is loaded again and scaled sums first. What a chunk becomes follows from the chunk alone.
template <Form kForm, GateForm kGate, GateSource kSource, bool kQueries>
__device__ __forceinline__ void scale_by_channel(const FusedMaps& maps, const Activation& activation,
                                                 FusedShared<kForm>& shared, int rank) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, half = thread / 32 % 2;
  const bool later = uniform(thread / 64) != 0;
  const int pair = half * 32 + lane;
  const int vector_at = (later ? FusedStage::kLate : FusedStage::kEarly) + pairs_at(pair) * 4;
  uint8_t* ring = shared.ring[0];
  SideGates<kSource> gates;
  Reload<kSource> reload(&shared.again);

  const bool keeps = may_keep_sums(kSource) && has_kept_sums<kForm>();
  OwnPosition<kForm> position{rank};
  make_items<kForm>(shared, [&](const Item& item, int begin) {
    const PairGate gate = pair_gate<kGate>(activation, item.head, 2 * pair);
    const int tokens = uniform(item.tokens), chunks = uniform(item.row.chunks);
    int careful = 0;  // chunks to scale sums first
#pragma unroll 1
    for (int chunk = rank; chunk < chunks; chunk += ctas(kForm)) {
      uint8_t* stage = shared.ring[position.stage];
      const int second = SecondQuarters<kForm>::at(begin + chunk);
      wait_parity(&shared.loaded[position.stage], position.parity);
      if (!kQueries && shared.end.limit_reached(chunk)) break;
      wait_parity(&shared.summed[position.stage], position.parity);
      if (!kQueries && shared.end.empty[position.stage]) {
        warp_arrive(&shared.scaled[position.stage]);
        position.advance();
        continue;
      }
      const int in_row = kQueries ? chunk : chunk_from_end(chunk, chunks), valid = tokens - in_row * kFusedChunk;
      auto clear = [&] {
        if (valid >= kFusedChunk) return;
        clear_tail<kGate, kSource, kQueries>(stage, ring + second, valid, thread);
        split_barrier(kScaleBarrier, kWarpgroup);
      };
      clear();
      const uint32_t column =
          opaque(position.stage * FusedRing<kForm>::kBytes + half * FusedStage::kHalfBytes + lane * 4);
      if (careful == 0) {
        gates.begin(later, half, lane, position.stage * FusedRing<kForm>::kBytes, second);
        const float2 side = later ? scale_rows<kGate, kSource, kQueries, true>(ring, column, gates, gate)
                                  : scale_rows<kGate, kSource, kQueries, false>(ring, column, gates, gate);
        *reinterpret_cast<float2*>(stage + vector_at) = {exp2_approx(side.x), exp2_approx(side.y)};
        ptx::fence_proxy_async(ptx::space_shared);
        if (named_barrier_any(kScaleBarrier, kWarpgroup, leaves_middle(side.x, side.y))) {
          reload.template load<kQueries>(maps, item, in_row, stage);
          clear();
          careful = 1;
        }
      }
      if (careful > 0) {
        const SidePlace place{later, half, lane, column};
        const auto scale = [&](auto keep) {
          constexpr bool kKeeps = decltype(keep)::value && may_keep_sums(kSource);
          return scale_carefully<kForm, kGate, kSource, kQueries, kKeeps>(ring, stage, place, gates, gate, second);
        };
        const bool leaves = keeps ? scale(std::true_type{}) : scale(std::false_type{});
        careful = leaves ? kCarefulChunks : careful - 1;
        ptx::fence_proxy_async(ptx::space_shared);
      }
      warp_arrive(&shared.scaled[position.stage]);
      position.advance();
    }
  });
  reload.end();
}

// `kQueries`: also q; a summary has none, and its chunks are counted from the row's end. kMidFrame: gates are so that
// no channel leaves the frame of the middle.
template <Form kForm, GateForm kGate, GateSource kSource, bool kQueries, bool kMidFrame, class Element>
__device__ __forceinline__ void scale_chunks(const FusedMaps& maps, const Activation& activation,
                                             FusedShared<kForm, Element>& shared, int rank) {
  static_assert(kMidFrame || !kEndFrames<Element>);
  if constexpr (!kMidFrame)
    scale_by_channel<kForm, kGate, kSource, kQueries>(maps, activation, shared, rank);
  else if (uniform(static_cast<int>(threadIdx.x) % kWarpgroup / 64) == 0)
    scale_side<kForm, kGate, kSource, kQueries, false>(activation, shared, rank);
  else
    scale_side<kForm, kGate, kSource, kQueries, true>(activation, shared, rank);
}

}  // namespace deltarelay::cuda::sm90
