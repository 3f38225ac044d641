// The chunk loop of a state group: 64 value rows of S^T, or of B^T or M^T of a summary.
//
//     V_new = u - w S        S <- decay_chunk S + keys^T (update V_new)
//
// While w S is in flight, the state decays and is laid out for its store. While the state is updated, V_new is stored
// and the next chunk's u becomes the accumulator from which w S will be subtracted. The update is two products, of one
// half of the keys each, so that the next w S begins with the first half while the second is in flight.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/ptx/wgmma_difference.cuh"
#include "kernels/cuda/sm90/rows/transition.cuh"
#include "kernels/cuda/sm90/stages/pass_stage.cuh"

namespace deltarelay::cuda::sm90::pass {

// A state group's way through the rings.
template <Form kForm, bool kScalar, class Element, bool kEmit>
class StateGroup {
 public:
  using Memory = Shared<kForm, kScalar>;
  using Place = Stage<kForm>;
  using Product = Wgmma<Element>;

  __device__ __forceinline__ StateGroup(Memory& shared, int half, bool values, bool wants_states, bool wants_v_new,
                                        bool key_major)
      : shared_(shared),
        half_(half),
        values_(values),
        wants_states_(wants_states),
        wants_v_new_(wants_v_new),
        key_major_(key_major) {
    // Opaque. The compiler would otherwise read the thread number from its special register in every chunk.
    const int thread = static_cast<int>(opaque(threadIdx.x) % kWarpgroup), lane = thread % 32, warp = thread / 32;
    column_ = 2 * (lane % 4);
    ring_address_ = shared_address(shared.ring);
    value_offset_ = half * kHalfBytes + swizzled_offset(8 * (lane / 16) + lane % 8, 2 * warp + lane / 8 % 2);
    state_offset_ = half * kStateBytes + (key_major ? swizzled_offset(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2)
                                                    : swizzled_offset(16 * warp + lane % 16, lane / 16));
    tokens_ = shared.item.tokens;
  }

  // Chunks `first` to `until` - 1 of a row; at least one. The state is updated in two halves of its keys: while the
  // second is in flight, the first is packed and meets the w of the next chunk.
  __device__ __forceinline__ void walk(float (&state)[64], int first, int until) {
    float2 update[kScalar ? kChunk / 8 : 1];
    begin(first);
    pin(state);  // ptxas would otherwise move a part of it between the products
    subtract<false>(state, update, first);
#pragma unroll 1
    for (int chunk = first + 1; chunk < until; ++chunk) {  // ptxas serialises products in flight at the end of a turn
      add(state, update);
      begin(chunk);
      subtract<true>(state, update, chunk);
    }
    add(state, update);
    wgmma_wait<0>();
    pin(state);
    warp_arrive(&shared_.done[last_stage_]);
  }

  // Releases the last `chunks` chunks of a group that has nothing left to do.
  __device__ __forceinline__ void skip(int chunks) {
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      wait_parity(&shared_.full[position_.stage], position_.parity);
      wait_parity(&shared_.decays_full[decays_.stage], decays_.parity);
      warp_arrive(&shared_.decays_free[decays_.stage]);
      warp_arrive(&shared_.done[position_.stage]);
      position_.advance();
      decays_.advance();
    }
  }

 private:
  // Waits for what a chunk reads, and begins V_new with u.
  __device__ __forceinline__ void begin(int chunk) {
    const uint32_t u = opaque(ring_address_ + position_.stage * Place::kBytes) + Place::kU + value_offset_;
    wait_parity(&shared_.full[position_.stage], position_.parity);
    wait_parity(&shared_.decays_full[decays_.stage], decays_.parity);
    if (kEmit && has_tiles()) wait_parity(&shared_.tiles_free[tile_.stage], tile_.parity ^ 1);
    clear_rows(shared_.ring + position_.stage * Place::kBytes + Place::kKeys, tokens_ - chunk * kChunk);
    const uint32_t mask = kEmit || values_ ? ~0u : 0u;  // M has no values
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const Fragment value = load_matrix_transposed(u + b * 16 * kRowBytes);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const uint32_t pair = value.reg[r] & mask;
        v_new_[8 * b + 2 * r] = Pair<Element>::low(pair);
        v_new_[8 * b + 2 * r + 1] = Pair<Element>::high(pair);
      }
    }
  }

  // V_new = u - w S, and the state decays. kFlying: the state is still being updated with the chunk before.
  template <bool kFlying, int kCount>
  __device__ __forceinline__ void subtract(float (&state)[64], float2 (&update)[kCount], int chunk) {
    const uint32_t stage = opaque(ring_address_ + position_.stage * Place::kBytes);
    const uint32_t decays = opaque(shared_address(&shared_.decays[decays_.stage]));
    Fragment operand[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kFlying) {
        wgmma_wait<1>();  // for this half of the update
        pin(half_of(state, half));
      }
#pragma unroll
      for (int k = 4 * half; k < 4 * half + 4; ++k) operand[k] = pack_block<Element>(state, k);
      wgmma_fence();
#pragma unroll
      for (int k = 4 * half; k < 4 * half + 4; ++k)
        WgmmaDifference<Element>::subtract(v_new_, operand[k],
                                           swizzled_operand(stage + Place::kW) + channel_step(k, kHalfBytes));
      wgmma_commit();
    }

    __syncwarp();  // keeps the compiler from moving what follows between the products
    if constexpr (kFlying) warp_arrive(&shared_.done[last_stage_]);
    decay(state, decays);
    // ptxas would otherwise wait for w S before the state decays, and move state and V_new away meanwhile.
    pin(state);
    if constexpr (kScalar) {
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) update[n] = load_pair_unordered(decays + (8 * n + column_) * 4);
    }
    warp_arrive(&shared_.decays_free[decays_.stage]);
    if (kEmit && wants_states_) store_states(operand);
    wgmma_wait<0>();
    pin(v_new_);
    const int valid = tokens_ - chunk * kChunk;
    if (valid < kChunk) select_tokens(v_new_, column_, valid);
  }

  // S <- S + keys^T (update V_new), left in flight. Meanwhile V_new is stored.
  template <int kCount>
  __device__ __forceinline__ void add(float (&state)[64], const float2 (&update)[kCount]) {
    const uint32_t stage = opaque(ring_address_ + position_.stage * Place::kBytes);
    Fragment weighed[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if constexpr (kScalar) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float2 two = update[2 * b + r / 2];
          weighed[b].reg[r] = Pair<Element>::pack(v_new_[8 * b + 2 * r] * two.x, v_new_[8 * b + 2 * r + 1] * two.y);
        }
      } else {
        weighed[b] = pack_block<Element>(v_new_, b);
      }
    }
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t keys = swizzled_operand(stage + Place::kKeys + half * kHalfBytes, kHalfBytes);
#pragma unroll
      for (int k = 0; k < kBlocks; ++k)
        Product::times_transposed(half_of(state, half), weighed[k], keys + operand_step(k * 16 * kRowBytes), true);
      wgmma_commit();
    }

    __syncwarp();
    if (kEmit && wants_v_new_) {
      const uint32_t to = Place::kOwnValues ? shared_address(shared_.values[tile_.stage]) : stage + Place::kU;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        store_matrix_transposed(to + value_offset_ + b * 16 * kRowBytes, pack_block<Element>(v_new_, b));
      if constexpr (Place::kOwnValues) warp_arrive(&shared_.values_full[tile_.stage]);
    }
    if (kEmit && has_tiles()) tile_.advance();
    last_stage_ = position_.stage;
    position_.advance();
    decays_.advance();
  }

  static __device__ __forceinline__ float (&half_of(float (&state)[64], int half))[32] {
    return reinterpret_cast<float(&)[32]>(state[32 * half]);
  }

  // Does something wait in tiles for its way out?
  __device__ __forceinline__ bool has_tiles() const { return wants_states_ || (Place::kOwnValues && wants_v_new_); }

  // The state at the start of the chunk, as the products see it.
  __device__ __forceinline__ void store_states(const Fragment (&operand)[8]) {
    const uint32_t to = shared_address(shared_.states[tile_.stage]) + state_offset_;
    if (key_major_) {  // [128 keys][64 values]
#pragma unroll
      for (int k = 0; k < 8; ++k) store_matrix_transposed(to + k * 16 * kRowBytes, operand[k]);
    } else {  // [2 halves of the keys][64 values][64 keys]
#pragma unroll
      for (int k = 0; k < 8; ++k) store_matrix((to ^ (k % 4 * 32)) + k / 4 * kHalfBytes, operand[k]);
    }
    warp_arrive(&shared_.states_full[tile_.stage]);
  }

  __device__ __forceinline__ void decay(float (&state)[64], uint32_t decays) const {
    if constexpr (kScalar) {
      const float factor = load_pair_unordered(decays + kChunk * 4).x;
#pragma unroll
      for (int i = 0; i < 64; ++i) state[i] *= factor;
    } else {
#pragma unroll
      for (int b = 0; b < 16; ++b) {
        const float2 factor = load_pair_unordered(decays + (8 * b + column_) * 4);
        state[4 * b] *= factor.x, state[4 * b + 1] *= factor.y, state[4 * b + 2] *= factor.x,
            state[4 * b + 3] *= factor.y;
      }
    }
  }

  Memory& shared_;
  int half_;
  bool values_, wants_states_, wants_v_new_, key_major_;
  float v_new_[kChunk / 2];  // V_new^T: u, then u - w S
  int column_, tokens_, last_stage_ = 0;
  uint32_t ring_address_, value_offset_, state_offset_;
  RingPosition<Memory::kStages> position_;
  RingPosition<kDecayStages> decays_;
  RingPosition<kTiles> tile_;
};

}  // namespace deltarelay::cuda::sm90::pass
