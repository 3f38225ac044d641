// The state groups of a summary of KDA, from the row's last chunk backwards (fused/adjoint.cuh), and how all roles of a
// pair agree where it ends. Of a chunk:
//     X' = X e^{G_last-G_mid}      Y = X' k_to_mid^T      Z = Y inverse
//     B <- B + (Z beta rk) v       X <- (X' - (Z beta rk^2) k_from_mid) e^{G_mid}
// The tiles and factors are those of emit, in whatever frames their channels are. Group 0 has X. It leaves Z beta rk in
// the stage for group 1, which has B: off the chain of X.
//
// Group 1 has little to do, so its first warp loads. When X has vanished in both CTAs, chunks are under way in many
// hands. All of these are made, and no others: the warps that load agree on `limit`, the first chunk that neither
// loads, and finish what is before it. Behind it an empty load ends the scale and the score group.
#pragma once
#include "kernels/cuda/sm90/fused/adjoint.cuh"
#include "kernels/cuda/sm90/fused/kda/memory.cuh"
#include "kernels/cuda/sm90/fused/kda/state.cuh"

namespace deltarelay::cuda::sm90 {

// X is looked at behind every chunk up to this one. Channels that forget most vanish after one chunk or two, but it is
// the one that keeps most that decides.
constexpr int kOftenUntil = 8;
// z times the strengths of its tokens as an operand: beta rk, or minus beta rk^2.
template <bool kMinusTwice, class Element>
__device__ __forceinline__ void pack_weighed(Fragment (&packed)[2], const float (&z)[16], const float4 (&strength)[4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float even = kMinusTwice ? -strength[n].z : strength[n].x, odd = kMinusTwice ? -strength[n].w : strength[n].y;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      packed[n / 2].reg[2 * (n % 2) + r] = Pair<Element>::pack(z[4 * n + 2 * r] * even, z[4 * n + 2 * r + 1] * odd);
  }
}

// Returns how many chunks have been walked.
template <class Element>
__device__ __forceinline__ int walk_transition(const WalkArgs& args, const Item& item,
                                               FusedShared<Form::kPair, Element>& shared, int rank, float (&x)[64]) {
  constexpr Form kForm = Form::kPair;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, column = lane_column_of(lane);
  const int chunks = item.row.chunks;
  RingPosition<FusedRing<kForm, Element>::kStages> position;
  int previous = 0;  // stage of the previous chunk, of which this warp reads nothing any more
  auto release = [&](int stage) {
    __syncwarp();
    if (lane == 0) release_stage<kForm>(shared, stage, rank);
  };
  auto walk = [&](int chunk) {
    const int stage_index = position.stage;
    uint8_t* ring = shared.ring[stage_index];
    const uint32_t stage = shared_address(ring);
    wait_parity(&shared.scaled[stage_index], position.parity);
    Fragment operand[8];
    float z[16];
    const uint64_t k_to_mid = swizzled_operand(stage + FusedStage::kGate);
    // Y by halves of the channels: the first product starts before the second half is scaled and packed.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = 4 * half, to = from + 4;
      if constexpr (!kEndFrames<Element>)
        ChannelFactors(stage + FusedStage::kLate, column, from, to).scale(x, from, to);
      read_keys<Element>(z, x, operand, k_to_mid, from, to);
      // Between the halves: its branches keep the compiler from moving arithmetic of the second half up between the
      // products of the first.
      if (half == 0 && chunk > 0) release(previous);
    }
    wgmma_commit();
    if constexpr (kEndFrames<Element>) decay_state(x, stage, column);
    __syncwarp();  // keeps the compiler from moving what follows between the products
    float4 strength[4];
    load_strength(strength, tokens_of(ring), column);
    wgmma_wait<0>();
    pin(z);
    const Fragment y[2] = {pack_block<Element>(z, 0), pack_block<Element>(z, 1)};
    wait_parity(&shared.solved[stage_index], position.parity);
    wgmma_fence();
    add_transposed_triangle<Element>(z, y, transposed_triangle_at(operand_place(stage), FusedStage::kInverse));
    wgmma_commit();
    wgmma_wait<0>();
    pin(z);
    Fragment update[2];
    pack_weighed<true, Element>(update, z, strength);
    wgmma_fence();
    update_state<Element>(x, update, stage + FusedStage::kK);
    Fragment of_values[2];
    pack_weighed<false, Element>(of_values, z, strength);
    leave_z<FusedStage>(ring, of_values, thread);
    warp_arrive(&shared.done[stage_index]);
    if constexpr (kEndFrames<Element>)
      finish_update<0>(x);
    else
      finish_update<0>(x, {ring + FusedStage::kEarly, column});
    previous = stage_index;
    position.advance();
  };
  int walked = chunks;
  for_each_chunk(
      chunks, kFirstLook, false, walk,
      [&](int chunk) {
        const bool first = chunk == kFirstLook;
        if (transition_lives(x, args.vanish_bound, 0)) {
          if (first && thread == 0) shared.end.mark(SummaryEnd::keeps(rank), rank);
          return false;
        }
        release(previous);
        if (thread == 0) {
          *static_cast<volatile int*>(&shared.end.walked) = chunk;
          shared.end.mark(SummaryEnd::kVanished | (first ? 0 : SummaryEnd::keeps(rank)), rank);
        }
        // Wakes the group of B, which waits for Z of this chunk: when it has seen the previous use of the stage.
        if (chunk >= FusedRing<kForm>::kStages) wait_parity(&shared.free[position.stage], position.parity ^ 1);
        warp_arrive(&shared.done[position.stage]);
        walked = chunk;
        return true;
      },
      kOftenUntil);
  return walked;
}

// Loads the chunks of a summary that this CTA makes and both halves of the values of all chunks, and announces the
// bytes that come from the other CTA: by one warp, which never waits for a stage.
template <GateSource kSource, class Element>
class SummaryLoader {
 public:
  __device__ __forceinline__ SummaryLoader(const FusedMaps& maps, const Item& item,
                                           FusedShared<Form::kPair, Element>& shared, int rank)
      : maps_(maps), item_(item), shared_(shared), rank_(rank), chunks_(uniform(item.row.chunks)), limit_(chunks_) {}

  // Loads the next chunks whose stages are free.
  __device__ __forceinline__ void load() {
    const uint2 marks = load_two(shared_address(shared_.end.marks));
    if (uniform(static_cast<int>((marks.x | marks.y) & ~SummaryEnd::kVanished)) != 0) goes_on_ = true;
    if (uniform(static_cast<int>(marks.x & marks.y)) != 0) agree();
#pragma unroll 1
    while (chunk_ < (goes_on_ || agreed_ ? chunks_ : kFirstLoads) && !ended()) {
      if (chunk_ >= kStages &&
          !__all_sync(~0u, ptx::mbarrier_test_wait_parity(&shared_.free[position_.stage], position_.parity ^ 1)))
        return;
      if constexpr (kSource == GateSource::kWideTiles) {
        if (position_.stage % 2 == rank_ && chunk_ < limit_) {
          const SecondPlace<Element> place(position_, chunk_);
          if (place.used &&
              !__all_sync(~0u, ptx::mbarrier_test_wait_parity(&shared_.scaled[place.stage], place.parity)))
            return;
        }
      }
      if (elect_lane()) load_chunk();
      __syncwarp();
      ++chunk_;
      position_.advance();
      if (chunk_ == chunks_) agree();
    }
  }
  // Is nothing left to load? Behind the limit comes an empty load in each CTA.
  __device__ __forceinline__ bool ended() const { return chunk_ >= min(limit_ + 2, chunks_); }
  __device__ __forceinline__ int limit() const { return limit_; }

 private:
  static constexpr int kStages = FusedRing<Form::kPair, Element>::kStages;
  // Chunks that are loaded before the first look, in both CTAs without waiting for anything: a summary may end there,
  // and what is loaded must be handed on. With two less than a ring a summary that goes on waits for them.
  static constexpr int kFirstLoads =
      is_wide(kSource) ? SecondQuarters<Form::kPair, Element>::kPlaces * ctas(Form::kPair) : kStages;

  // Tells the other CTA which chunk would be the next one here, and takes the later of both as the limit. Neither waits
  // for the other before it has told its own.
  __device__ __forceinline__ void agree() {
    if (agreed_) return;
    agreed_ = true;
    if (chunk_ < chunks_ && !goes_on_) {  // both ended at the first look, with as many chunks loaded
      limit_ = chunk_;
      if (elect_lane()) *static_cast<volatile int*>(&shared_.end.limit) = limit_;
      __syncwarp();
      return;
    }
    if (elect_lane()) store_in_block(&shared_.end.stopped[rank_], static_cast<uint32_t>(chunk_) + 1, 1 - rank_);
    if (chunk_ == chunks_) return;
    const volatile uint32_t* stopped = &shared_.end.stopped[1 - rank_];
    int theirs;
    do theirs = uniform(static_cast<int>(*stopped));
    while (theirs == 0);
    limit_ = max(chunk_, theirs - 1);
    if (elect_lane()) *static_cast<volatile int*>(&shared_.end.limit) = limit_;
    __syncwarp();
  }

  __device__ __forceinline__ void load_chunk() {
    const int index = position_.stage;
    uint8_t* stage = shared_.ring[index];
    const bool own = index % 2 == rank_;
    if (chunk_ >= limit_) {
      if (own) ptx::mbarrier_arrive(&shared_.loaded[index]);
      return;
    }
    const int sequence = item_.sequence_at;
    const int token = static_cast<int>(item_.token) + chunk_from_end(chunk_, chunks_) * kFusedChunk;
    if (own) {
      uint64_t* loaded = &shared_.loaded[index];
      expect_bytes(loaded, 2 * FusedStage::kTileBytes + gate_bytes<kSource>());
#pragma unroll
      for (int half = 0; half < 2; ++half)
        copy_tile(maps_.k, token, half, item_.key_head, sequence,
                  stage + half * FusedStage::kHalfBytes + FusedStage::kK, loaded);
      copy_gates<kSource, Element>(maps_, token, item_.head, sequence, shared_.ring[0], stage, chunk_, loaded);
    } else {
      expect_bytes(&shared_.scaled[index], FusedStage::kTilesEnd - 2 * FusedStage::kTileBytes);
      expect_bytes(&shared_.solved[index], FusedStage::kTriangleBytes);
    }
    uint64_t* brought = &shared_.brought[index];
    expect_bytes(brought, 2 * FusedStage::kTileBytes);
    copy_tile(maps_.v, token, 0, item_.strip, sequence, stage + FusedStage::kV, brought);
    copy_tile(maps_.v, token, 1, item_.strip, sequence, stage + FusedStage::kOtherValues, brought);
  }

  const FusedMaps& maps_;
  const Item& item_;
  FusedShared<Form::kPair, Element>& shared_;
  int rank_, chunks_, limit_;
  bool agreed_ = false, goes_on_ = false;
  int chunk_ = 0;
  RingPosition<kStages> position_;
};

// Has all of a chunk arrived in its stage?
template <class Element>
__device__ __forceinline__ bool made(FusedShared<Form::kPair, Element>& shared, int chunk) {
  constexpr int kStages = FusedRing<Form::kPair, Element>::kStages;
  const int stage = chunk % kStages;
  const uint32_t parity = chunk / kStages % 2;
  return ptx::mbarrier_test_wait_parity(&shared.scaled[stage], parity) &&
         ptx::mbarrier_test_wait_parity(&shared.solved[stage], parity) &&
         ptx::mbarrier_test_wait_parity(&shared.brought[stage], parity);
}

// Called by one thread of a warp that has finished its row after `chunk` chunks: releases the stages of the others that
// are made, for the other CTA.
template <class Element>
__device__ __forceinline__ void release_made(FusedShared<Form::kPair, Element>& shared, int chunk, int rank) {
  constexpr int kStages = FusedRing<Form::kPair, Element>::kStages;
#pragma unroll 1
  while (!shared.end.limit_reached(chunk)) {
    if (made(shared, chunk))
      release_stage<Form::kPair>(shared, chunk++ % kStages, rank);
    else
      __nanosleep(50);  // the other CTA may go on for long, and this one makes chunks for it
  }
}

// B <- B + (Z beta rk) v of the chunks that the group of X walks. The first warp loads meanwhile, and goes on until all
// that is made has been released.
template <class Loader, class Element>
__device__ __forceinline__ int add_values(const Item& item, FusedShared<Form::kPair, Element>& shared, int rank,
                                          Loader& loader, float (&b)[64]) {
  constexpr int kStages = FusedRing<Form::kPair, Element>::kStages;
  const int thread = threadIdx.x % kWarpgroup, chunks = item.row.chunks, tokens = item.tokens;
  const bool loads = uniform(thread / 32) == 0;
  RingPosition<kStages> position;
  // Waits for Z of a chunk. False if the group of X has ended before. The warp that loads does not sleep: a stage that
  // has become free would wait with it.
  auto walked = [&](int chunk) {
    if (loads) {
      do loader.load();
      while (!__all_sync(~0u, ptx::mbarrier_test_wait_parity(&shared.done[position.stage], position.parity)));
    } else {
      wait_parity(&shared.done[position.stage], position.parity);
    }
    return chunk < uniform(*static_cast<volatile int*>(&shared.end.walked));
  };
  int chunk = 0;
#pragma unroll 1
  for (; chunk < chunks && walked(chunk); ++chunk) {
    uint8_t* stage = shared.ring[position.stage];
    const int valid = tokens - chunk_from_end(chunk, chunks) * kFusedChunk;
    wait_parity(&shared.brought[position.stage], position.parity);
    add_chunk<Element, FusedStage>(b, stage, valid, thread);
    __syncwarp();
    if (thread % 32 == 0) release_stage<Form::kPair>(shared, position.stage, rank);
    position.advance();
  }
  if (!loads) return chunk;
#pragma unroll 1
  while (chunk < loader.limit() || !loader.ended()) {
    loader.load();
    if (chunk < loader.limit() && __all_sync(~0u, made(shared, chunk))) {
      if (thread == 0) release_stage<Form::kPair>(shared, chunk % kStages, rank);
      ++chunk;
    }
  }
  return chunk;
}

// A summary by one of the two state groups.
template <GateSource kSource, class Element>
__device__ __forceinline__ void summarize_fused(const FusedMaps& maps, const WalkArgs& args, const Item& item,
                                                FusedShared<Form::kPair, Element>& shared, int group, int rank) {
  int walked;
  if (group == 0) {
    walked = summarize_transition(args, item, rank,
                                  [&](float(&x)[64]) { return walk_transition(args, item, shared, rank, x); });
  } else {
    SummaryLoader<kSource, Element> loader(maps, item, shared, rank);
    walked =
        summarize_values(args, item, rank, [&](float(&b)[64]) { return add_values(item, shared, rank, loader, b); });
  }
  if (threadIdx.x % 32 == 0) release_made(shared, walked, rank);
}

}  // namespace deltarelay::cuda::sm90
