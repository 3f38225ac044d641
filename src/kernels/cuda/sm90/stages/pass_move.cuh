// The two warps that move data: one loads stages, the other stores states and V_new.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"
#include "kernels/cuda/sm90/stages/pass.h"
#include "kernels/cuda/sm90/stages/pass_stage.cuh"

namespace deltarelay::cuda::sm90::pass {

// The CTAs of a pair share w and keys: each loads one half of the channels and multicasts it to both.
template <Form kForm, bool kScalar>
__device__ __forceinline__ void load_chunks(const StatePassMaps& maps, const StatePassArgs& args,
                                            Shared<kForm, kScalar>& shared) {
  using Place = Stage<kForm>;
  const Item& item = shared.item;
  const int chunks = item.row.chunks, rank = kForm == Form::kPair ? cluster_rank() : 0;
  const int keys_head = args.scales_v_new ? item.key_head : item.head;
  RingPosition<Place::kStages> position;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    uint8_t* stage = shared.ring + position.stage * Place::kBytes;
    uint64_t* full = &shared.full[position.stage];
    wait_parity(&shared.free[position.stage], position.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full, Place::kBytes);
    const int token = static_cast<int>(item.token) + chunk * kChunk;
    auto load_shared = [&](int offset, const CUtensorMap& map, int head) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint8_t* to = stage + offset + half * kHalfBytes;
        const int32_t at[5] = {0, token, half, head, item.sequence_at};
        if constexpr (kForm == Form::kPair) {
          if (half == rank)
            ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, full, uint16_t{3});
        } else {
          ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, full);
        }
      }
    };
    load_shared(Place::kW, maps.w, item.head);
#pragma unroll
    for (int half = 0; half < Place::kHalves; ++half) {
      const int32_t at[5] = {0, token, item.value_half + half, item.strip, item.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, stage + Place::kU + half * kHalfBytes, &maps.u,
                                at, full);
    }
    load_shared(Place::kKeys, maps.keys, keys_head);
    position.advance();
  }
}

// Rows of V_new of a chunk that is not whole, by all lanes: a box would overwrite the next sequence.
template <Form kForm>
__device__ __forceinline__ void store_rows(const StatePassArgs& args, const Item& item, int chunk,
                                           const uint8_t* tile) {
  constexpr int kHalves = halves_a_cta(kForm);
  const TensorView& v_new = args.walk.o;
  const int valid = item.tokens - chunk * kChunk;
  uint16_t* out = static_cast<uint16_t*>(v_new.data) + item.sequence_at * v_new.sequence +
                  (item.token + chunk * kChunk) * v_new.token + item.strip * v_new.head;
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < valid * 8 * kHalves; i += 32) {
    const int row = i / (8 * kHalves), half = i / 8 % kHalves, piece = i % 8;
    const uint4 data = *reinterpret_cast<const uint4*>(tile + half * kHalfBytes + swizzled_offset(row, piece));
    *reinterpret_cast<uint4*>(out + row * v_new.token + (item.value_half + half) * kHalfWidth + piece * 8) = data;
  }
}

// The states of a chunk. Value-major: 64 rows of both halves of the keys, strips side by side as heads. Key-major: 128
// rows of one half of the values, which are numbered through the strips of a head.
template <Form kForm>
__device__ __forceinline__ void store_states(const StatePassMaps& maps, const StatePassArgs& args, const Item& item,
                                             int chunk, const uint8_t* tile) {
#pragma unroll
  for (int half = 0; half < halves_a_cta(kForm); ++half) {
    const int value_half = item.value_half + half, row = args.key_major ? 0 : value_half * kGroupRows;
    const int column = args.key_major ? item.first_value / kHalfWidth + value_half : 0;
    const int32_t at[5] = {0, row, column, args.key_major ? item.head : item.strip,
                           static_cast<int32_t>(item.chunk) + chunk};
    ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &maps.states, at, tile + half * kStateBytes);
  }
}

// V_new of a chunk.
template <Form kForm>
__device__ __forceinline__ void store_values(const StatePassMaps& maps, const StatePassArgs& args, const Item& item,
                                             int chunk, const uint8_t* tile) {
  if (item.tokens - chunk * kChunk < kChunk) {
    store_rows<kForm>(args, item, chunk, tile);
  } else if (threadIdx.x % 32 == 0) {
    ptx::fence_proxy_async(ptx::space_shared);  // orders the stores of all writers behind the barrier
#pragma unroll
    for (int half = 0; half < halves_a_cta(kForm); ++half) {
      const int32_t at[5] = {0, static_cast<int32_t>(item.token) + chunk * kChunk, item.value_half + half, item.strip,
                             item.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &maps.v_new, at, tile + half * kHalfBytes);
    }
    ptx::cp_async_bulk_commit_group();
  }
}

// Stores what the state groups leave, and hands stages back. kEmit: else a summary, which stores nothing here.
template <Form kForm, bool kScalar, bool kEmit>
__device__ __forceinline__ void store_chunks(const StatePassMaps& maps, const StatePassArgs& args,
                                             Shared<kForm, kScalar>& shared) {
  using Place = Stage<kForm>;
  const Item& item = shared.item;
  const bool states = kEmit && args.wants_states, values = kEmit && args.walk.o.data != nullptr;
  const int lane = threadIdx.x % 32, chunks = item.row.chunks;
  RingPosition<Place::kStages> position;
  RingPosition<kTiles> tile;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (states) {
      wait_parity(&shared.states_full[tile.stage], tile.parity);
      __syncwarp();
      if (lane == 0) {
        ptx::fence_proxy_async(ptx::space_shared);
        store_states<kForm>(maps, args, item, chunk, shared.states[tile.stage]);
        ptx::cp_async_bulk_commit_group();
      }
    }
    if (values && Place::kOwnValues) {
      wait_parity(&shared.values_full[tile.stage], tile.parity);
      __syncwarp();
      store_values<kForm>(maps, args, item, chunk, shared.values[tile.stage]);
    }
    wait_parity(&shared.done[position.stage], position.parity);
    __syncwarp();  // no lane may still test a phase that a load completes
    if (values && !Place::kOwnValues) {
      store_values<kForm>(maps, args, item, chunk, shared.ring + position.stage * Place::kBytes + Place::kU);
      if (lane == 0) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      __syncwarp();
    }
    // Only if a CTA waits: an arrival in flight to a CTA that has ended could reach another one in its place.
    if (chunk + Place::kStages < chunks) {
      if constexpr (kForm == Form::kPair) {
        if (lane < 2) arrive_in_block(&shared.free[position.stage], lane);
      } else if (lane == 0) {
        ptx::mbarrier_arrive(&shared.free[position.stage]);
      }
    }
    if (states || (values && Place::kOwnValues)) {
      if (lane == 0) {
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
        ptx::mbarrier_arrive(&shared.tiles_free[tile.stage]);
      }
      __syncwarp();
      tile.advance();
    }
    position.advance();
  }
  if (kEmit && lane == 0) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
}

}  // namespace deltarelay::cuda::sm90::pass
