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

// Rows of a tile to memory, by all lanes. kPieces: 16-byte pieces of a row, 8 in one half of it. Plain stores: the rows
// of a stage are so many small requests to the copy engine that with stores among them it would set the pace.
template <int kPieces>
__device__ __forceinline__ void store_rows(uint16_t* to, int64_t row_step, const uint8_t* tile, int rows) {
#pragma unroll 8
  for (int i = threadIdx.x % 32; i < rows * kPieces; i += 32) {
    const int row = i / kPieces, piece = i % kPieces;
    const uint4 data = *reinterpret_cast<const uint4*>(tile + piece / 8 * kHalfBytes + swizzled_offset(row, piece % 8));
    *reinterpret_cast<uint4*>(to + row * row_step + piece * 8) = data;
  }
}

// One half of the values of a state.
__device__ __forceinline__ void store_state_half(const StatePassArgs& args, const Item& item, int chunk, int half,
                                                 const uint8_t* tile) {
  const int64_t columns = int64_t{args.walk.strips.a_head} * kWidth, value = item.first_value + half * kGroupRows;
  uint16_t* const matrix =
      static_cast<uint16_t*>(args.states) + ((item.chunk + chunk) * args.walk.heads_v + item.head) * columns * kWidth;
  if (args.key_major)  // [128 keys][64 values]
    store_rows<8>(matrix + value, columns, tile, kWidth);
  else  // [2 halves of the keys][64 values][64 keys]
    store_rows<16>(matrix + value * kWidth, kWidth, tile, kGroupRows);
}

// Stores what the state groups leave, and hands stages back. kEmit: else a summary, which stores nothing here.
template <Form kForm, bool kScalar, bool kEmit>
__device__ __forceinline__ void store_chunks(const StatePassArgs& args, Shared<kForm, kScalar>& shared) {
  using Place = Stage<kForm>;
  const Item& item = shared.item;
  const TensorView& v_new = args.walk.o;
  const int lane = threadIdx.x % 32, chunks = item.row.chunks;
  uint16_t* const values = static_cast<uint16_t*>(v_new.data) + item.sequence_at * v_new.sequence +
                           item.token * v_new.token + item.strip * v_new.head + item.value_half * kHalfWidth;
  RingPosition<Place::kStages> position;
  RingPosition<kStateTiles> tile;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (kEmit && args.states != nullptr) {
      wait_parity(&shared.states_full[tile.stage], tile.parity);
#pragma unroll
      for (int half = 0; half < Place::kHalves; ++half)
        store_state_half(args, item, chunk, item.value_half + half, shared.states[tile.stage] + half * kStateBytes);
      warp_arrive(&shared.states_free[tile.stage]);
      tile.advance();
    }
    wait_parity(&shared.done[position.stage], position.parity);
    if (kEmit && v_new.data != nullptr) {
#pragma unroll
      for (int half = 0; half < Place::kHalves; ++half) {
        store_rows<8>(values + chunk * kChunk * v_new.token + half * kHalfWidth, v_new.token,
                      shared.ring + position.stage * Place::kBytes + Place::kU + half * kHalfBytes,
                      min(item.tokens - chunk * kChunk, kChunk));
      }
    }
    __syncwarp();
    // Only if a CTA waits: an arrival in flight to a CTA that has ended could reach another one in its place.
    if (chunk + Place::kStages < chunks) {
      if constexpr (kForm == Form::kPair) {
        if (lane < 2) arrive_in_block(&shared.free[position.stage], lane);
      } else if (lane == 0) {
        ptx::mbarrier_arrive(&shared.free[position.stage]);
      }
    }
    position.advance();
  }
}

}  // namespace deltarelay::cuda::sm90::pass
