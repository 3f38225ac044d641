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

// Where a thread's fragments of Z beta rk lie in a stage: 16 tokens each. The thread of group 1 with its number reads
// them.
__device__ __forceinline__ uint4& fragment_of_z(uint8_t* stage, int block, int thread) {
  return *reinterpret_cast<uint4*>(stage + FusedStage::kZ + (block * kWarpgroup + thread) * 16);
}

// z times the strengths of its tokens as an operand: beta rk, or minus beta rk^2.
template <bool kMinusTwice>
__device__ __forceinline__ void pack_weighed(Fragment (&packed)[2], const float (&z)[16], const float4 (&strength)[4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float even = kMinusTwice ? -strength[n].z : strength[n].x, odd = kMinusTwice ? -strength[n].w : strength[n].y;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      packed[n / 2].reg[2 * (n % 2) + r] =
          Pair<__nv_bfloat16>::pack(z[4 * n + 2 * r] * even, z[4 * n + 2 * r + 1] * odd);
  }
}

// Returns how many chunks have been walked.
__device__ __forceinline__ int walk_transition(const WalkArgs& args, const Item& item, FusedShared<Form::kPair>& shared,
                                               int rank, float (&x)[64]) {
  constexpr Form kForm = Form::kPair;
  const int thread = threadIdx.x % kWarpgroup, column = lane_column_of(thread % 32), chunks = item.row.chunks;
  RingPosition<FusedRing<kForm>::kStages> position;
  int previous = 0;  // stage of the previous chunk
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
      ChannelFactors(stage + FusedStage::kLate, column, from, to).scale(x, from, to);
      read_keys(z, x, operand, k_to_mid, from, to);
      // Between the halves: its branches keep the compiler from moving arithmetic of the second half up between the
      // products of the first.
      if (half == 0 && chunk > 0) release_summarized<kForm>(shared, previous, rank, thread);
    }
    wgmma_commit();
    __syncwarp();  // keeps the compiler from moving what follows between the products
    float4 strength[4];
    load_strength(strength, tokens_of(ring), column);
    wgmma_wait<0>();
    pin(z);
    const Fragment y[2] = {pack_block<__nv_bfloat16>(z, 0), pack_block<__nv_bfloat16>(z, 1)};
    wait_parity(&shared.solved[stage_index], position.parity);
    wgmma_fence();
    add_transposed_triangle<__nv_bfloat16>(z, y, transposed_triangle_at(operand_place(stage), FusedStage::kInverse));
    wgmma_commit();
    wgmma_wait<0>();
    pin(z);
    Fragment update[2];
    pack_weighed<true>(update, z, strength);
    wgmma_fence();
    update_state(x, update, stage + FusedStage::kK);
    Fragment of_values[2];
    pack_weighed<false>(of_values, z, strength);
#pragma unroll
    for (int b = 0; b < 2; ++b)
      fragment_of_z(ring, b, thread) =
          make_uint4(of_values[b].reg[0], of_values[b].reg[1], of_values[b].reg[2], of_values[b].reg[3]);
    warp_arrive(&shared.done[stage_index]);
    finish_update<0>(x, {ring + FusedStage::kEarly, column});
    previous = stage_index;
    position.advance();
  };
  int walked = chunks;
  for_each_chunk(
      chunks, kFirstLook, false, walk,
      [&](int chunk) {
        if (transition_lives(x, args.vanish_bound, 0)) return false;
        if (thread == 0) {
          release_stage<kForm>(shared, previous, rank);
          *static_cast<volatile int*>(&shared.end.walked) = chunk;
          store_in_block(&shared.end.vanished[rank], 1, rank);
          store_in_block(&shared.end.vanished[rank], 1, 1 - rank);
        }
        walked = chunk;
        return true;
      },
      kOftenUntil);
  return walked;
}

// Loads the chunks of a summary that this CTA makes and both halves of the values of all chunks, and announces the
// bytes that come from the other CTA: by one warp, which never waits for a stage.
template <GateSource kSource>
class SummaryLoader {
 public:
  __device__ __forceinline__ SummaryLoader(const FusedMaps& maps, const Item& item, FusedShared<Form::kPair>& shared,
                                           int rank)
      : maps_(maps), item_(item), shared_(shared), rank_(rank), chunks_(uniform(item.row.chunks)), limit_(chunks_) {}

  // Loads the next chunks before `end` whose stages are free.
  __device__ __forceinline__ void load(int end) {
    if (uniform(shared_.end.reached()) != 0) agree();
#pragma unroll 1
    while (chunk_ < end && !ended()) {
      if (chunk_ >= kStages &&
          !__all_sync(~0u, ptx::mbarrier_test_wait_parity(&shared_.free[position_.stage], position_.parity ^ 1)))
        return;
      if constexpr (kSource == GateSource::kWideTiles) {
        if (position_.stage % 2 == rank_ && chunk_ < limit_) {
          const SecondPlace place(position_, chunk_);
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
  static constexpr int kStages = FusedRing<Form::kPair>::kStages;

  // Tells the other CTA which chunk would be the next one here, and takes the later of both as the limit. Neither waits
  // for the other before it has told its own.
  __device__ __forceinline__ void agree() {
    if (agreed_) return;
    agreed_ = true;
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
      copy_gates<kSource>(maps_, token, item_.head, sequence, shared_.ring[0], stage, chunk_, loaded);
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
  FusedShared<Form::kPair>& shared_;
  int rank_, chunks_, limit_;
  bool agreed_ = false;
  int chunk_ = 0;
  RingPosition<kStages> position_;
};

// Has all of a chunk arrived in its stage, within a while?
__device__ __forceinline__ bool made(FusedShared<Form::kPair>& shared, int chunk) {
  constexpr int kStages = FusedRing<Form::kPair>::kStages;
  const int stage = chunk % kStages;
  const uint32_t parity = chunk / kStages % 2;
  return wait_a_while(&shared.scaled[stage], parity) && wait_a_while(&shared.solved[stage], parity) &&
         wait_a_while(&shared.brought[stage], parity);
}

// Called by one thread of the group of X, which has finished its row after `chunk` chunks: releases the stages of the
// others that are made, for the other CTA.
__device__ __forceinline__ void release_made(FusedShared<Form::kPair>& shared, int chunk, int rank) {
  constexpr int kStages = FusedRing<Form::kPair>::kStages;
#pragma unroll 1
  while (!shared.end.limit_reached(chunk)) {
    if (made(shared, chunk)) release_stage<Form::kPair>(shared, chunk++ % kStages, rank);
  }
}

// B <- B + (Z beta rk) v of the chunks that the group of X walks. The first warp loads meanwhile, and goes on until all
// that is made has been released.
template <class Loader>
__device__ __forceinline__ void add_values(const Item& item, FusedShared<Form::kPair>& shared, int rank, Loader& loader,
                                           float (&b)[64]) {
  using Product = Wgmma<__nv_bfloat16>;
  constexpr int kStages = FusedRing<Form::kPair>::kStages;
  const int thread = threadIdx.x % kWarpgroup, chunks = item.row.chunks, tokens = item.tokens;
  const bool loads = uniform(thread / 32) == 0;
  RingPosition<kStages> position;
  // Waits for Z of a chunk. False if the group of X has ended before.
  auto walked = [&](int chunk) {
#pragma unroll 1
    while (true) {
      // At first at most four chunks: a summary may end after two.
      if (loads) loader.load(chunk < kFirstLook ? chunk + 4 : chunks);
      if (__all_sync(~0u, wait_a_while(&shared.done[position.stage], position.parity))) return true;
      if (uniform(*static_cast<volatile int*>(&shared.end.walked)) <= chunk) return false;
    }
  };
  int chunk = 0;
#pragma unroll 1
  for (; chunk < chunks && walked(chunk); ++chunk) {
    uint8_t* stage = shared.ring[position.stage];
    const int valid = tokens - chunk_from_end(chunk, chunks) * kFusedChunk;
    wait_parity(&shared.brought[position.stage], position.parity);
    if (valid < kFusedChunk) clear_rows(stage, FusedStage::kV, FusedStage::kOtherValues, valid, 1, thread);
    Fragment z[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 four = fragment_of_z(stage, k, thread);
      z[k] = Fragment{{four.x, four.y, four.z, four.w}};
    }
    const uint32_t place = operand_place(shared_address(stage));
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t values = swizzled_operand_at(place, half == 0 ? FusedStage::kV : FusedStage::kOtherValues);
#pragma unroll
      for (int k = 0; k < 2; ++k)
        Product::times_transposed(half_of(b, half), z[k], values + operand_step(k * 16 * kRowBytes), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(b);
    named_barrier(kStateBarrier + 1, kWarpgroup);
    if (thread == 0) release_stage<Form::kPair>(shared, position.stage, rank);
    position.advance();
  }
  if (!loads) return;
#pragma unroll 1
  while (chunk < loader.limit() || !loader.ended()) {
    loader.load(chunks);
    if (chunk < loader.limit() && __all_sync(~0u, made(shared, chunk))) {
      if (thread == 0) release_stage<Form::kPair>(shared, chunk % kStages, rank);
      ++chunk;
    }
  }
}

// A summary by one of the two state groups.
template <GateSource kSource>
__device__ __forceinline__ void summarize_fused(const FusedMaps& maps, const WalkArgs& args, const Item& item,
                                                FusedShared<Form::kPair>& shared, int group, int rank) {
  if (group == 0) {
    const int walked = summarize_transition(
        args, item, rank, [&](float(&x)[64]) { return walk_transition(args, item, shared, rank, x); });
    if (threadIdx.x % kWarpgroup == 0) release_made(shared, walked, rank);
  } else {
    SummaryLoader<kSource> loader(maps, item, shared, rank);
    summarize_values(args, item, rank, [&](float(&b)[64]) {
      add_values(item, shared, rank, loader, b);
      return 0;
    });
  }
}

}  // namespace deltarelay::cuda::sm90
