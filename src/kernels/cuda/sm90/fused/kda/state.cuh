// The state groups of the fused walk of KDA: 64 rows of S^T each, in fp32 accumulators. Every product has its A operand
// in registers.
//
// Between chunks the accumulators hold S; inside a chunk they hold S_mid = e^{G_mid} S, the state in the frame of the
// chunk's middle. Of fp16 data they hold S, and from behind the reads on e^{G_last} S (ends.cuh).
#pragma once
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/fused/kda/memory.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/tile/descriptor.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda::sm90 {

// This lane's factors from a vector over the channels, which lies in the order of pairs_at.
struct ChannelFactors {
  float4 of[8];
  __device__ __forceinline__ ChannelFactors(const uint8_t* vector, int column) {
#pragma unroll
    for (int b = 0; b < 8; ++b) of[b] = *reinterpret_cast<const float4*>(vector + (16 * b + 2 * column) * 4);
  }
  // Of blocks `first` to `last` - 1. Loaded at this point: the compiler moves these loads over no barrier.
  __device__ __forceinline__ ChannelFactors(uint32_t vector, int column, int first, int last) {
#pragma unroll
    for (int b = first; b < last; ++b) of[b] = load_quad(vector + (16 * b + 2 * column) * 4);
  }
  __device__ __forceinline__ void scale(float (&state)[64], int first = 0, int last = 8) const {
#pragma unroll
    for (int b = first; b < last; ++b) {
      float* s = state + 8 * b;
      s[0] *= of[b].x, s[1] *= of[b].y, s[2] *= of[b].x, s[3] *= of[b].y;
      s[4] *= of[b].z, s[5] *= of[b].w, s[6] *= of[b].z, s[7] *= of[b].w;
    }
  }
};

__device__ __forceinline__ void load_strength(float4 (&strength)[4], const TokenFactors& factors, int column) {
#pragma unroll
  for (int n = 0; n < 4; ++n) strength[n] = *reinterpret_cast<const float4*>(factors.strength[4 * n + column / 2]);
}

// product = K S, or what blocks `first` to `last` - 1 of the channels add to it. Packs these blocks into `operand`.
// Neither commits nor waits.
template <class Element>
__device__ __forceinline__ void read_keys(float (&product)[16], const float (&state)[64], Fragment (&operand)[8],
                                          uint64_t k_from_mid, int first = 0, int last = 8) {
#pragma unroll
  for (int k = first; k < last; ++k) operand[k] = pack_block<Element>(state, k);
  wgmma_fence();
#pragma unroll
  for (int k = first; k < last; ++k)
    Wgmma<Element>::times(product, operand[k], k_from_mid + channel_step(k, FusedStage::kHalfBytes), k > 0);
}

// S_mid <- S_mid + k_to_mid^T V_new~, with the tiles of k_to_mid at `keys`. Does not wait. One commit group for each
// half of the channels: the first half is scaled while the second is in flight.
template <class Element>
__device__ __forceinline__ void update_state(float (&state)[64], const Fragment (&v_new)[2], uint32_t keys) {
  using Product = Wgmma<Element>;
  const uint64_t tiles = swizzled_operand(keys, FusedStage::kHalfBytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
      Product::times_transposed(half_of(state, half), v_new[k],
                                tiles + operand_step(half * FusedStage::kHalfBytes + k * 16 * kRowBytes), true);
    wgmma_commit();
  }
}

// S <- e^{G_last-G_mid} S_mid, when the update is complete. `kLater` commit groups were issued after the update and may
// still be in flight.
template <int kLater>
__device__ __forceinline__ void finish_update(float (&state)[64], const ChannelFactors& late) {
  wgmma_wait<kLater + 1>();
  pin(half_of(state, 0));
  late.scale(state, 0, 4);
  pin(half_of(state, 0));  // before the second wait
  wgmma_wait<kLater>();
  pin(half_of(state, 1));
  late.scale(state, 4, 8);
}

// The same where the update has come behind the state's factor (decay_state).
template <int kLater>
__device__ __forceinline__ void finish_update(float (&state)[64]) {
  wgmma_wait<kLater>();
  pin(state);
}

// S <- e^{G_last} S of fp16 data, when the operands of the reads have been packed. A branch must follow, over which the
// compiler moves no arithmetic: otherwise it waits for the reads first.
__device__ __forceinline__ void decay_state(float (&state)[64], uint32_t stage, int column) {
  __syncwarp();  // keeps the compiler from loading factors between the products
#pragma unroll
  for (int b = 0; b < 8; b += 2) ChannelFactors(stage + FusedStage::kEarly, column, b, b + 2).scale(state, b, b + 2);
  pin(state);  // not where the update needs it
}

// O^T = query out as operands for stmatrix.
template <class Element>
__device__ __forceinline__ void pack_output(Fragment (&packed)[2], const float (&out)[16], const float* query) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 f = *reinterpret_cast<const float2*>(query + 8 * n);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      packed[n / 2].reg[2 * (n % 2) + r] = Pair<Element>::pack(out[4 * n + 2 * r] * f.x, out[4 * n + 2 * r + 1] * f.y);
  }
}

// out += diagonal V_new~, in fp32.
__device__ __forceinline__ void add_diagonal(float (&out)[16], const float (&v_new)[16], const TokenFactors& factors,
                                             int column) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 diagonal = *reinterpret_cast<const float2*>(&factors.diagonal[8 * n + column]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float &low = out[4 * n + 2 * r], &high = out[4 * n + 2 * r + 1];
      low = fmaf(diagonal.x, v_new[4 * n + 2 * r], low);
      high = fmaf(diagonal.y, v_new[4 * n + 2 * r + 1], high);
    }
  }
}

// Emits the chunks of an item of a single CTA for one half of the values (emit_items).
template <class Due, class Element>
__device__ __forceinline__ void emit_fused(const FusedMaps& maps, const WalkArgs& args, const Item& item,
                                           FusedShared<Form::kSingle, Element>& shared, int group,
                                           RingPosition<FusedRing<Form::kSingle, Element>::kStages>& position,
                                           float (&state)[64], Due& due) {
  using Product = Wgmma<Element>;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = thread / 32;
  const int column = lane_column_of(lane);
  int tokens = Due::kStores ? 0 : item.tokens;  // up to the next checkpoint, or all: one register for both
  // This lane's row of its warp's 16 value columns, 16 tokens at a time, for transposing ldmatrix and stmatrix.
  const uint32_t v_offset = opaque(FusedStage::kV + group * FusedStage::kTileBytes +  // as the column is
                                   swizzled_offset(8 * (lane / 16) + lane % 8, 2 * warp + lane / 8 % 2));
  const OutputPlace place(item);
  float product[16];  // K S, then R~, then V_new~
  float out[16];
  int previous = 0;  // stage of the previous chunk

  // O^T of a chunk overwrites the v tile of its stage. A warp overwrites only what it has read.
  auto write_output = [&](int stage_index) {
    Fragment packed[2];
    pack_output<Element>(packed, out, tokens_of(shared.ring[stage_index]).query + column);
    const uint32_t at = shared_address(shared.ring[stage_index]) + v_offset;
#pragma unroll
    for (int b = 0; b < 2; ++b) store_matrix_transposed(at + b * 16 * kRowBytes, packed[b]);
  };
  auto output_tile = [&](int stage_index) {
    return shared.ring[stage_index] + FusedStage::kV + group * FusedStage::kTileBytes;
  };

  // Counts in tokens: a chunk number and a number of chunks would need two more registers, and spill.
  int first = 0;  // of the chunk
  const auto walk = [&] {
    const int stage_index = position.stage;
    const uint32_t stage = shared_address(shared.ring[stage_index]);
    wait_parity(&shared.scaled[stage_index], position.parity);
    Fragment value[2];
    load_values(value, stage + v_offset);
    Fragment state_operand[8];
    const uint64_t q_from_mid = swizzled_operand(stage + FusedStage::kQ),
                   k_from_mid = swizzled_operand(stage + FusedStage::kK);
    if constexpr (!kEndFrames<Element>)
      ChannelFactors(shared.ring[stage_index] + FusedStage::kEarly, column).scale(state);
    read_keys<Element>(product, state, state_operand, k_from_mid);
    wgmma_commit();
    if constexpr (kEndFrames<Element>) decay_state(state, stage, column);
    // Behind K S: the previous output goes to shared memory, which frees its registers for Q S.
    if (first > 0) write_output(previous);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k)
      Product::times(out, state_operand[k], q_from_mid + channel_step(k, FusedStage::kHalfBytes), k > 0);
    wgmma_commit();

    const TokenFactors& factors = tokens_of(shared.ring[stage_index]);
    float4 strength[4];
    load_strength(strength, factors, column);
    wgmma_wait<1>();
    pin(product);
    subtract_prediction<Element>(product, value, strength, column, tokens - first);
    const Fragment residual[2] = {pack_block<Element>(product, 0), pack_block<Element>(product, 1)};

    // V_new~ = R~ + (inverse - I) R~
    wait_parity(&shared.solved[stage_index], position.parity);
    wgmma_fence();
    add_triangle<Element>(product, residual, triangle_operand(stage + FusedStage::kInverse));
    wgmma_commit();
    // Meanwhile the previous output is stored.
    if (first > 0)
      send_output<Element>(maps, args, place, output_tile(previous), first / kFusedChunk - 1, tokens, group, group,
                           thread);
    wgmma_wait<0>();
    pin(product);
    pin(out);
    const Fragment v_new[2] = {pack_block<Element>(product, 0), pack_block<Element>(product, 1)};

    // S_mid <- S_mid + k_to_mid^T V_new~; behind it the diagonal of Aqk~ in fp32, then Aqk~ V_new~.
    wgmma_fence();
    update_state<Element>(state, v_new, stage + FusedStage::kGate);
    add_diagonal(out, product, factors, column);
    wgmma_fence();
    add_triangle<Element>(out, v_new, triangle_operand(stage + FusedStage::kAqk));
    wgmma_commit();
    if constexpr (kEndFrames<Element>)
      finish_update<1>(state);
    else
      finish_update<1>(state, {shared.ring[stage_index] + FusedStage::kLate, column});
    // By now the previous output has been read: its stage is free. The compiler moves no arithmetic over this branch,
    // so the scaling stays before the wait for Aqk~ V_new~.
    if (first > 0 && thread == 0) {
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      release_stage<Form::kSingle>(shared, previous, 0);
    }
    previous = stage_index;
    position.advance();
    wgmma_wait<0>();
    pin(out);
  };
  const auto walk_tokens = [&] {
#pragma unroll 1
    for (; first < tokens; first += kFusedChunk) walk();
  };
  if constexpr (Due::kStores) {  // pauses at every checkpoint, with the last output still to be written
#pragma unroll 1
    while (first < item.tokens) {
      if (first == due.next()) due.store(state, item, group);
      tokens = min(due.next(), item.tokens);
      walk_tokens();
    }
  } else {
    walk_tokens();
  }
  if (tokens == 0) return;
  write_output(previous);
  send_output<Element>(maps, args, place, output_tile(previous), (tokens - 1) / kFusedChunk, tokens, group, group,
                       thread);
}

}  // namespace deltarelay::cuda::sm90
