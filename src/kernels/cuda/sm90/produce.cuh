// The producer warp of the walk: bulk copies in, outputs out.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/sm90/stage.cuh"
#include "kernels/cuda/sm90/walk_maps.h"

namespace deltarelay::cuda::sm90 {

// One warp: fills stages, and sends outputs off. In order: the stage of chunk c is free when its output has left.
template <class Stage, class Element, int kGroups, bool kEmit>
__device__ __forceinline__ void produce(const WalkMaps& maps, const WalkArgs& args, const Item& item, uint8_t* ring,
                                        uint64_t* full, uint64_t* done) {
  using Record = typename Stage::Record;
  constexpr int kChunk = Record::kChunk, kHalfBytes = kChunk * kRowBytes;
  const int lane = threadIdx.x % 32, chunks = item.row.chunks;
  const int key_head = item.head / (args.heads_v / args.heads_qk);
  constexpr int kFrom = kEmit ? 0 : Record::kSummary;
  const uint8_t* record = args.prepared + (item.chunk * args.heads_v + item.head) * Record::kBytes;
  const int64_t record_step = static_cast<int64_t>(args.heads_v) * Record::kBytes;

  auto load = [&](int chunk, int stage_index) {
    uint8_t* stage = ring + stage_index * Stage::kBytes;
    uint64_t* barrier = &full[stage_index];
    const int token = static_cast<int>(item.token) + chunk * kChunk;
    const uint32_t bytes =
        (Record::kBytes - kFrom) + kGroups * kHalfBytes + (Stage::kRawTiles ? (kEmit ? 4 : 2) * kHalfBytes : 0);
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, bytes);
    if constexpr (Stage::kRawTiles) {
      const int32_t at[5] = {0, token, 0, key_head, item.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, stage + Stage::kRead, &maps.k, at, barrier);
      if constexpr (kEmit) {
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, stage + Stage::kQuery, &maps.q, at, barrier);
      }
    }
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, stage + Stage::kRecord + kFrom,
                       record + chunk * record_step + kFrom, Record::kBytes - kFrom, barrier);
#pragma unroll
    for (int half = 0; half < kGroups; ++half) {
      const int32_t at[5] = {0, token, item.value_half + half, item.head, item.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, stage + Stage::kV + half * kHalfBytes, &maps.v,
                                at, barrier);
    }
  };
  auto store = [&](int chunk, const uint8_t* tile) {
    const int token = static_cast<int>(item.token) + chunk * kChunk, valid = item.tokens - chunk * kChunk;
    if (valid >= kChunk) {
      if (lane == 0) {
        // The proxy fence of the writers' stores: behind the barrier, it orders them as well and costs the chain nothing.
        ptx::fence_proxy_async(ptx::space_shared);
#pragma unroll
        for (int half = 0; half < kGroups; ++half) {
          const int32_t at[5] = {0, token, item.value_half + half, item.head, item.sequence_at};
          ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &maps.o, at, tile + half * kHalfBytes);
        }
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      }
    } else {  // a box would run into the next sequence
      Element* out = static_cast<Element*>(args.o.data) + item.sequence_at * args.o.sequence + token * args.o.token +
                     item.head * args.o.head;
      for (int i = lane; i < valid * 8 * kGroups; i += 32) {
        const int row = i / (8 * kGroups), half = i / 8 % kGroups, piece = i % 8;
        const uint4 data = *reinterpret_cast<const uint4*>(tile + half * kHalfBytes + swizzled_offset(row, piece));
        *reinterpret_cast<uint4*>(out + row * args.o.token + (item.value_half + half) * kHalfWidth + piece * 8) = data;
      }
    }
    __syncwarp();
  };

  RingPosition<Stage::kStages> position;
  for (int chunk = 0; chunk < chunks + Stage::kStages; ++chunk) {
    const int leaving = chunk - Stage::kStages;
    if (leaving >= chunks) break;
    if (leaving >= 0) {
      wait_parity(&done[position.stage], position.parity ^ 1);
      if constexpr (kEmit) store(leaving, ring + position.stage * Stage::kBytes + Stage::kV);
    }
    if (chunk < chunks && lane == 0) load(chunk, position.stage);
    __syncwarp();
    position.advance();
  }
  if (kEmit && lane == 0) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
}

}  // namespace deltarelay::cuda::sm90
