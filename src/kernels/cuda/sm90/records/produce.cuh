// The producer warp of the walk: loads stages and stores outputs.
//
// CTAs of a cluster share operands: the two CTAs of one strip all but the values, neighbouring strips of one key head q
// and k. Each CTA loads its share of them and multicasts it to all, so that the L2 is read once. A stage may be loaded
// again only when all CTAs are done with it: their producers signal each other.
#pragma once
#include <type_traits>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90 {

// Place of a CTA in its cluster of 1, 2 or 4.
struct Cluster {
  int size, rank;
  __device__ __forceinline__ uint16_t all() const { return static_cast<uint16_t>((1 << size) - 1); }
};

// One warp loads stages and stores outputs, in order: the stage of chunk c is free when its output has been read.
template <class Stage, class Element, Form kForm, bool kEmit>
__device__ __forceinline__ void produce(const WalkMaps& maps, const WalkArgs& args, WalkShared<Stage>& shared,
                                        const Cluster& cluster) {
  using Record = typename Stage::Record;
  using Place = std::conditional_t<kEmit, Stage, typename Stage::Summary>;  // layout of a stage
  constexpr int kChunk = Record::kChunk, kHalfBytes = kChunk * kRowBytes, kHalves = halves_a_cta(kForm);
  const Item& item = shared.item;
  const int lane = threadIdx.x % 32, chunks = item.row.chunks;
  const int key_head = item.key_head;
  // The bytes of the record that this CTA loads: a CTA of a pair loads one half.
  constexpr int kFrom = kEmit ? 0 : Record::kSummary, kMiddle = kFrom + (Record::kBytes - kFrom) / 32 * 16;
  const int part = kForm == Form::kPair && cluster.rank == 1 ? kMiddle : kFrom;
  const int part_bytes = (kForm == Form::kPair && cluster.rank == 0 ? kMiddle : Record::kBytes) - part;
  const uint8_t* record = args.prepared + (item.chunk * args.heads_v + item.head) * Record::kBytes + part;
  const int64_t record_step = static_cast<int64_t>(args.heads_v) * Record::kBytes;
  auto load = [&](int chunk, int stage_index) {
    uint8_t* stage = shared.ring + stage_index * Place::kBytes;
    uint64_t* full = &shared.full[stage_index];
    const int token = static_cast<int>(item.token) + chunk * kChunk;
    constexpr int kRawHalves = Stage::kRawTiles ? (kEmit ? 4 : 2) : 0;
    constexpr uint32_t kBytes = (Record::kBytes - kFrom) + (kHalves + kRawHalves) * kHalfBytes;
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full, kBytes);
    // Halves of a tile of q or k, distributed over the CTAs of the cluster from CTA `first` on.
    auto load_shared = [&](uint8_t* tile, const CUtensorMap& map, int first) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (((first + half) & (cluster.size - 1)) != cluster.rank) continue;
        const int32_t at[5] = {0, token, half, key_head, item.sequence_at};
        uint8_t* to = tile + half * kHalfBytes;
        if (cluster.size == 1)
          ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, full);
        else
          ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, full, cluster.all());
      }
    };
    if constexpr (Stage::kRawTiles) {
      load_shared(stage + Place::kRead, maps.k, 0);
      if constexpr (kEmit) load_shared(stage + Place::kQuery, maps.q, 2);
    }
    uint8_t* to = stage + Place::kRecord + part;
    const uint8_t* from = record + chunk * record_step;
    if constexpr (kForm == Form::kSingle)
      ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, part_bytes, full);
    else
      ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, part_bytes, full, cluster.all());
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int32_t at[5] = {0, token, item.value_half + half, item.strip, item.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, stage + Place::kV + half * kHalfBytes, &maps.v,
                                at, full);
    }
  };
  auto store = [&](int chunk, const uint8_t* tile) {
    const int token = static_cast<int>(item.token) + chunk * kChunk, valid = item.tokens - chunk * kChunk;
    if (valid >= kChunk) {
      if (lane == 0) {
        // One proxy fence for the stores of all writers. Behind the barrier it orders them too, outside of their chain.
        ptx::fence_proxy_async(ptx::space_shared);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const int32_t at[5] = {0, token, item.value_half + half, item.strip, item.sequence_at};
          ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &maps.o, at, tile + half * kHalfBytes);
        }
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      }
    } else {  // a box would overwrite the next sequence
      Element* out = static_cast<Element*>(args.o.data) + item.sequence_at * args.o.sequence + token * args.o.token +
                     item.strip * args.o.head;
#pragma unroll 1
      for (int i = lane; i < valid * 8 * kHalves; i += 32) {
        const int row = i / (8 * kHalves), half = i / 8 % kHalves, piece = i % 8;
        const uint4 data = *reinterpret_cast<const uint4*>(tile + half * kHalfBytes + swizzled_offset(row, piece));
        *reinterpret_cast<uint4*>(out + row * args.o.token + (item.value_half + half) * kHalfWidth + piece * 8) = data;
      }
    }
    __syncwarp();
  };
  RingPosition<Place::kStages> position;
  for (int chunk = 0; chunk < chunks + Place::kStages; ++chunk) {
    const int leaving = chunk - Place::kStages, stage = position.stage;
    const uint32_t parity = position.parity ^ 1;  // of the previous use
    const bool waits = leaving >= 0 && chunk < chunks && cluster.size > 1;
    if (leaving >= chunks) break;
    if (leaving >= 0) {
      wait_parity(&shared.done[stage], parity);
      __syncwarp();  // no lane may still test a phase that the load by another lane completes
      // Only if some CTA waits: an arrival in flight to a CTA that has ended could reach another one in its place.
      if (waits && lane < cluster.size) arrive_in_block(&shared.free[stage], lane);
      if constexpr (kEmit) store(leaving, shared.ring + stage * Place::kBytes + Place::kV);
    }
    if (chunk < chunks && lane == 0) {
      if (waits) wait_parity(&shared.free[stage], parity);
      load(chunk, stage);
    }
    __syncwarp();
    position.advance();
  }
  if (kEmit && lane == 0) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
}

}  // namespace deltarelay::cuda::sm90
