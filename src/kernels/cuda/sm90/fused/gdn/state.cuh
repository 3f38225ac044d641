// The state groups of the fused walk of GDN: 64 rows of S^T each, in fp32 accumulators. Every product has its A operand
// in registers.
#pragma once
#include <type_traits>

#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/fused/gdn/memory.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90::fused_gdn {

// Clears rows of k past the end. Every state group that reads k does it for itself: two write the same zeros. Waits for
// `made` first: the make groups of this CTA also read these rows, for numbers that a select drops.
__device__ __forceinline__ void clear_keys(uint8_t* stage, uint64_t* made, uint32_t parity, int valid, int group,
                                           int thread) {
  wait_parity(made, parity);
  clear_rows(stage, Stage::kK, Stage::kK + Stage::kHalfBytes, valid, group, thread);
}

// This lane's factors from a vector over the tokens.
struct TokenFactors {
  float2 of[4];
  __device__ __forceinline__ TokenFactors(const uint8_t* vector, int column) {
#pragma unroll
    for (int n = 0; n < 4; ++n) of[n] = *reinterpret_cast<const float2*>(vector + (8 * n + column) * 4);
  }
  __device__ __forceinline__ void scale(float (&product)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) product[i] *= i % 2 == 0 ? of[i / 4].x : of[i / 4].y;
  }
  __device__ __forceinline__ TokenFactors negated() const {
    TokenFactors factors = *this;
#pragma unroll
    for (float2& two : factors.of) two = {-two.x, -two.y};
    return factors;
  }
};

// The work of a state group on a chunk, except outputs.
template <class Element>
struct ChunkStep {
  using Product = Wgmma<Element>;
  uint8_t* stage;
  uint32_t address, place;  // of the stage; `place` as in operand_place
  int column;               // this lane's column in an 8-column block of an accumulator

  __device__ __forceinline__ ChunkStep(uint8_t* at, int lane_column)
      : stage(at), address(shared_address(at)), place(operand_place(address)), column(lane_column) {}

  // K S; with 32 numbers Q S, then K S: q and k are neighbours.
  template <int kNumbers>
  __device__ __forceinline__ void read_state(float (&product)[kNumbers], const Fragment (&state)[8]) const {
    const uint64_t tokens = swizzled_operand_at(place, kNumbers == 32 ? Stage::kQ : Stage::kK);
#pragma unroll
    for (int k = 0; k < 8; ++k) Product::times(product, state[k], tokens + channel_step(k, Stage::kHalfBytes), k > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ float decay() const { return *reinterpret_cast<const float*>(stage + Stage::kDecay); }
  // R~ = V - (rk e^G) K S; without values V is 0. Rows past the end become 0: their values may be NaN.
  __device__ __forceinline__ void subtract_prediction(float (&residual)[16], const float* predicted,
                                                      const Fragment (&value)[2], const TokenFactors& factor,
                                                      bool values, int valid) const {
    using Two = Pair<Element>;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 f = factor.of[n];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t pair = value[n / 2].reg[2 * (n % 2) + r];
        const int low = 4 * n + 2 * r, high = low + 1;
        residual[low] = fmaf(-f.x, predicted[low], values ? Two::low(pair) : 0.0f);
        residual[high] = fmaf(-f.y, predicted[high], values ? Two::high(pair) : 0.0f);
      }
    }
    if (valid < kFusedChunk) select_tokens(residual, column, valid);
  }
  // V_new~ = R~ + (inverse - I) R~, after the product of read_state. Does not wait: the state decays meanwhile.
  template <int kNumbers>
  __device__ __forceinline__ void solve(float (&v_new)[16], float (&read)[kNumbers], const Fragment (&value)[2],
                                        bool values, int valid) const {
    const TokenFactors prediction(stage + Stage::kPrediction, column);
    wgmma_wait<0>();
    pin(read);
    subtract_prediction(v_new, read + (kNumbers - 16), value, prediction, values, valid);
    const Fragment residual[2] = {pack_block<Element>(v_new, 0), pack_block<Element>(v_new, 1)};
    wgmma_fence();
    add_triangle<Element>(v_new, residual, triangle_operand_at(place, Stage::kInverse));
    wgmma_commit();
  }
  // (weight e^{G_last-G} V_new~)^T
  static __device__ __forceinline__ void pack_update(Fragment (&update)[2], const float (&v_new)[16],
                                                     const TokenFactors& factor) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 f = factor.of[n];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        update[n / 2].reg[2 * (n % 2) + r] =
            Pair<Element>::pack(v_new[4 * n + 2 * r] * f.x, v_new[4 * n + 2 * r + 1] * f.y);
    }
  }
  // S <- S + k^T (weight e^{G_last-G} V_new~) for one half of the channels; without `keeps` the old S is dropped. Does
  // not wait, and is a commit group of its own: the first half is packed while the second is in flight.
  __device__ __forceinline__ void update_half(float (&state)[64], const Fragment (&update)[2], int half,
                                              bool keeps) const {
    const uint64_t keys = swizzled_operand_at(place, Stage::kK, Stage::kHalfBytes);
#pragma unroll
    for (int k = 0; k < 2; ++k)
      Product::times_transposed(half_of(state, half), update[k],
                                keys + operand_step(half * Stage::kHalfBytes + k * 16 * kRowBytes), keeps || k > 0);
    wgmma_commit();
  }
};

__device__ __forceinline__ void decay_state(float (&state)[64], float factor) {
#pragma unroll
  for (int i = 0; i < 64; ++i) state[i] *= factor;
}

// Channels 16 `first` to 16 `last` of the state as an operand.
template <class Element>
__device__ __forceinline__ void pack_state(Fragment (&operand)[8], const float (&state)[64], int first, int last) {
#pragma unroll
  for (int k = first; k < last; ++k) operand[k] = pack_block<Element>(state, k);
}
// Packs the whole state when its update is complete. `kLater` commit groups were issued after the update and may still
// be in flight.
template <class Element, int kLater>
__device__ __forceinline__ void pack_updated(Fragment (&operand)[8], float (&state)[64]) {
  wgmma_wait<kLater + 1>();
  pin(half_of(state, 0));
  pack_state<Element>(operand, state, 0, 4);
  wgmma_wait<kLater>();
  pin(half_of(state, 1));
  pack_state<Element>(operand, state, 4, 8);
}

// Emits the chunks of an item for one half of the values (emit_items).
template <class Element, Form kForm, class Due>
__device__ __forceinline__ void emit_chunks(const FusedMaps& maps, const WalkArgs& args, const Item& item,
                                            Shared<kForm>& shared, int group, int rank,
                                            RingPosition<Ring<kForm>::kStages>& position, float (&state)[64],
                                            Due& due) {
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = thread / 32;
  const int column = lane_column_of(lane), chunks = item.row.chunks, tokens = item.tokens;
  constexpr bool kSends = has_whole_strip(kForm);  // stores its outputs itself: no warp of the CTA is idle
  const int half = kSends ? group : rank;
  // This lane's row of its warp's 16 value columns in a stage, for transposing ldmatrix and stmatrix. Opaque too.
  const uint32_t values_at = opaque(Stage::kV + group * Stage::kTileBytes +
                                    swizzled_offset(8 * (lane / 16) + lane % 8, 2 * warp + lane / 8 % 2));
  Fragment output[2];  // of the previous chunk
  int previous = 0;    // its stage

  // The output overwrites the v tile of its stage. A warp overwrites only what it has read.
  auto output_tile = [&] { return shared.ring[previous] + Stage::kV + group * Stage::kTileBytes; };
  auto write_output = [&] {
    const uint32_t at = shared_address(shared.ring[previous]) + values_at;
#pragma unroll
    for (int b = 0; b < 2; ++b) store_matrix_transposed(at + b * 16 * kRowBytes, output[b]);
    if constexpr (!kSends) warp_arrive(&shared.done[previous]);
  };

  const OutputPlace place(item);
  Fragment operand[8];
  pack_state<Element>(operand, state, 0, 8);
  auto walk = [&](int chunk, auto is_first, auto is_whole) {
    constexpr bool kFirst = decltype(is_first)::value, kWholeChunk = decltype(is_whole)::value;
    const int stage_index = position.stage, valid = kWholeChunk ? kFusedChunk : tokens - chunk * kFusedChunk;
    const ChunkStep<Element> step(shared.ring[stage_index], column);
    wait_parity(&shared.loaded[stage_index], position.parity);
    if (valid < kFusedChunk)
      clear_keys(shared.ring[stage_index], &shared.made[stage_index], position.parity, valid, group, thread);
    Fragment value[2];
    load_values(value, step.address + values_at);
    // Local to a chunk: an accumulator that is carried from chunk to chunk must stay in the same registers.
    float read[32], v_new[16], out[16];
    wgmma_fence();
    step.read_state(read, operand);
    if constexpr (!kFirst) write_output();

    wait_parity(&shared.made[stage_index], position.parity);
    const float decay = step.decay();
    step.solve(v_new, read, value, true, valid);
    // Meanwhile the previous output is stored.
    if constexpr (kSends && !kFirst)
      send_output<Element, kWholeChunk>(maps, args, place, output_tile(), chunk - 1, tokens, half, group, thread);
    // If the gates forget the state within a chunk, the update overwrites it without a multiplication: 4 to 5 % faster.
    // The branch comes after the store of outputs: before it, it costs gates that keep the state 1 %.
    const bool keeps = uniform(decay != 0.0f);
    if (keeps) decay_state(state, decay);
    const TokenFactors writing(step.stage + Stage::kUpdate, column);
    wgmma_wait<0>();
    pin(v_new);
    Fragment update[2];
    step.pack_update(update, v_new, writing);
    // The factors of Q S are loaded before the update: its operands would come first through the same pipe.
    const TokenFactors query(step.stage + Stage::kQuery, column);
    wgmma_fence();
#pragma unroll
    for (int half_index = 0; half_index < 2; ++half_index) step.update_half(state, update, half_index, keeps);
    // While the state is updated, the output: Q S, then Aqk~ V_new~.
    const Fragment v_new_operand[2] = {pack_block<Element>(v_new, 0), pack_block<Element>(v_new, 1)};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int low = 4 * n + 2 * r, high = low + 1;
        out[low] = query.of[n].x * read[low], out[high] = query.of[n].y * read[high];
      }
    }
    wgmma_fence();
    add_triangle<Element>(out, v_new_operand, triangle_operand_at(step.place, Stage::kAqk));
    wgmma_commit();
    // By now the previous output has been read: its stage is free.
    if (kSends && !kFirst && thread == 0) {
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      release_stage<kForm>(shared, previous, rank);
    }
    pack_updated<Element, 1>(operand, state);
    wgmma_wait<0>();
    pin(out);
    output[0] = pack_block<Element>(out, 0), output[1] = pack_block<Element>(out, 1);
    previous = stage_index;
    position.advance();
  };
  if (chunks == 0) return;
  // The first chunk, whole chunks and the rest have code of their own. Without the branches for the end of a sequence a
  // chunk takes 5 % fewer cycles; without those for a previous output a pair has 40 instructions less. The rest is the
  // last chunk, and with twins perhaps a chunk without tokens.
  int chunk = 0;
  const auto walk_first = [&] {
    walk(0, std::true_type{}, std::false_type{});
    chunk = 1;
  };
  const auto walk_until = [&](int end) {
    const int whole = uniform(min(tokens / kFusedChunk, end));
#pragma unroll 1
    for (; chunk < whole; ++chunk) walk(chunk, std::false_type{}, std::true_type{});
#pragma unroll 1
    for (; chunk < end; ++chunk) walk(chunk, std::false_type{}, std::false_type{});
  };
  if constexpr (Due::kStores) {  // pauses at every checkpoint, with the last output still to be written
#pragma unroll 1
    while (chunk < item.row.chunks) {  // read again: it would cost a register
      if (chunk * kFusedChunk == due.next()) due.store(state, item, half);
      const int next = due.next(), end = next < tokens ? next / kFusedChunk : item.row.chunks;
      if (chunk == 0) walk_first();
      walk_until(end);
    }
  } else {
    walk_first();
    walk_until(chunks);
  }
  write_output();
  if constexpr (kSends) send_output<Element>(maps, args, place, output_tile(), chunks - 1, tokens, half, group, thread);
}

}  // namespace deltarelay::cuda::sm90::fused_gdn
