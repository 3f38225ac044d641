// What the two state groups of a CTA do where a pair emits. The first has 64 rows of S^T. The second has none, so its
// warps relieve the others: 4 and 5 take the sums of raw rows, 6 brings values and takes outputs away, 7 loads. Warps
// of one scheduler are those with the same number modulo four, and those of 6 and 7 have the inverses.
//
// A pair has two bounds of one length: the chain of the state, and the way of a chunk from its load to its output
// through six stages. So the state reads queries and keys in one product, and a stage goes back to the CTA that makes
// its chunks at the end of its chunk: all but the place of values and output, which is warp 6's.
#pragma once
#include <type_traits>

#include "kernels/cuda/sm90/fused/kda/score.cuh"
#include "kernels/cuda/sm90/fused/kda/state.cuh"

namespace deltarelay::cuda::sm90 {

// Emits the chunks of an item for this CTA's half of the values (emit_items).
template <class Due, class Element>
__device__ __forceinline__ void emit_by_pair(const Item& item, FusedShared<Form::kPair, Element>& shared,
                                             RingPosition<FusedRing<Form::kPair, Element>::kStages>& position,
                                             float (&state)[64], Due& due) {
  // Asked again: that of all roles is spilled where registers are short. By a reduction, whose result is uniform, if
  // there are checkpoints: the loop would otherwise ask in every chunk, on the chain of the state.
  const int rank =
      Due::kStores ? static_cast<int>(__reduce_min_sync(~0u, static_cast<uint32_t>(cluster_rank()))) : cluster_rank();
  using Product = Wgmma<Element>;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = thread / 32;
  const int column = lane_column_of(lane);
  // This lane's row of its warp's 16 value columns, 16 tokens at a time, for transposing ldmatrix and stmatrix.
  const uint32_t v_offset =  // opaque, as the column is
      opaque(FusedStage::kV + swizzled_offset(8 * (lane / 16) + lane % 8, 2 * warp + lane / 8 % 2));
  Fragment output[2];  // of the previous chunk
  int previous = 0;    // its stage

  // O^T of a chunk overwrites the v tile of its stage. A warp overwrites only what it has read.
  auto write_output = [&] {
    constexpr int kStages = FusedRing<Form::kPair, Element>::kStages;
    const int from = Due::kStores ? (position.stage + kStages - 1) % kStages : previous;
    const uint32_t at = shared_address(shared.ring[from]) + v_offset;
#pragma unroll
    for (int b = 0; b < 2; ++b) store_matrix_transposed(at + b * 16 * kRowBytes, output[b]);
    warp_arrive(&shared.done[from]);
  };
  auto walk = [&](int first, auto is_first, auto is_whole) {
    constexpr bool kFirst = decltype(is_first)::value, kWholeChunk = decltype(is_whole)::value;
    const int stage_index = position.stage;
    uint8_t* ring = shared.ring[stage_index];
    const uint32_t stage = shared_address(ring);
    const TokenFactors& factors = tokens_of(ring);
    wait_parity(&shared.scaled[stage_index], position.parity);
    Fragment operand[8];
    if constexpr (!kEndFrames<Element>) ChannelFactors(ring + FusedStage::kEarly, column).scale(state);
#pragma unroll
    for (int k = 0; k < 8; ++k) operand[k] = pack_block<Element>(state, k);
    // Q S, then K S. Local to a chunk: an accumulator that is carried from chunk to chunk must stay in its registers.
    float read[32], v_new[16], out[16];
    const uint64_t rows = swizzled_operand(stage + FusedStage::kQ);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) Product::times(read, operand[k], rows + channel_step(k, FusedStage::kHalfBytes), k > 0);
    wgmma_commit();
    if constexpr (!kFirst) write_output();
    if constexpr (kEndFrames<Element>) decay_state(state, stage, column);
    wait_parity(&shared.brought[stage_index], position.parity);
    Fragment value[2];
    load_values(value, stage + v_offset);
    float4 strength[4];
    load_strength(strength, factors, column);
    wgmma_wait<0>();
    pin(read);
#pragma unroll
    for (int i = 0; i < 16; ++i) v_new[i] = read[16 + i];
    subtract_prediction<Element>(v_new, value, strength, column, kWholeChunk ? kFusedChunk : item.tokens - first);
    const Fragment residual[2] = {pack_block<Element>(v_new, 0), pack_block<Element>(v_new, 1)};

    // V_new~ = R~ + (inverse - I) R~
    wait_parity(&shared.solved[stage_index], position.parity);
    wgmma_fence();
    add_triangle<Element>(v_new, residual, triangle_operand(stage + FusedStage::kInverse));
    wgmma_commit();
    wgmma_wait<0>();
    pin(v_new);
    const Fragment update[2] = {pack_block<Element>(v_new, 0), pack_block<Element>(v_new, 1)};

    // S_mid <- S_mid + k_to_mid^T V_new~; behind it the diagonal of Aqk~ in fp32, then Aqk~ V_new~.
    wgmma_fence();
    update_state<Element>(state, update, stage + FusedStage::kGate);
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = read[i];
    add_diagonal(out, v_new, factors, column);
    wgmma_fence();
    add_triangle<Element>(out, update, triangle_operand(stage + FusedStage::kAqk));
    wgmma_commit();
    if constexpr (kEndFrames<Element>)
      finish_update<1>(state);
    else
      finish_update<1>(state, {ring + FusedStage::kLate, column});
    wgmma_wait<0>();
    pin(out);
    pack_output<Element>(output, out, factors.query + column);
    // Nothing of the stage but v will be read any more by this warp.
    __syncwarp();
    if (lane == 0) release_stage<Form::kPair>(shared, stage_index, rank);
    previous = stage_index;
    position.advance();
  };
  if (item.tokens == 0) return;
  // The first chunk, whole chunks and a last one that is not whole have code of their own: branches for what they lack
  // are on the chain of the state.
  if constexpr (Due::kStores) {  // pauses at every checkpoint, with the last output still to be written
    // By a reduction, whose result is uniform. Of a number that may differ between lanes ptxas would take the loop for
    // one that lanes leave apart: ring addresses in vector registers, a residual that waits for `solved`, and a spill.
    const auto next_pause = [&] {
      return static_cast<int>(__reduce_min_sync(~0u, static_cast<uint32_t>(min(due.next(), item.tokens))));
    };
    // Where a pause ends is read again after it: the loop has a register for the number of chunks alone.
    for (int first = 0; first < item.tokens; first = next_pause()) {
      if (first == due.next()) due.store(state, item, rank);
      int whole = __reduce_min_sync(~0u, (next_pause() - first) / kFusedChunk);
      if (first == 0) walk(0, std::true_type{}, std::false_type{}), --whole;
#pragma unroll 1
      for (; whole > 0; --whole) walk(0, std::false_type{}, std::true_type{});
      first = next_pause() / kFusedChunk * kFusedChunk;
      if (0 < first && first < next_pause()) walk(first, std::false_type{}, std::false_type{});
    }
  } else {
    walk(0, std::true_type{}, std::false_type{});
    const int tokens = item.tokens;
    int first = kFusedChunk;
#pragma unroll 1
    for (; first + kFusedChunk <= tokens; first += kFusedChunk) walk(first, std::false_type{}, std::true_type{});
    if (first < tokens) walk(first, std::false_type{}, std::false_type{});
  }
  write_output();
}

// Brings this CTA's half of the values and stores the outputs that overwrite them, by one warp.
template <class Element>
__device__ __forceinline__ void move_values(const FusedMaps& maps, const WalkArgs& args, const Item& item,
                                            FusedShared<Form::kPair, Element>& shared, int rank) {
  constexpr int kStages = FusedRing<Form::kPair, Element>::kStages;
  const int lane = threadIdx.x % 32, chunks = uniform(item.row.chunks);
  const OutputPlace place(item);
  auto bring = [&](int chunk, int stage) {
    uint64_t* brought = &shared.brought[stage];
    expect_bytes(brought, FusedStage::kTileBytes);
    copy_tile(maps.v, place.token + chunk * kFusedChunk, rank, place.strip, place.sequence,
              shared.ring[stage] + FusedStage::kV, brought);
  };
  if (lane == 0) {
#pragma unroll 1
    for (int chunk = 0; chunk < min(chunks, kStages); ++chunk) bring(chunk, chunk);
  }
  __syncwarp();
  wait_for_state(args);  // outputs
  RingPosition<kStages> position;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = position.stage;
    wait_parity(&shared.done[stage], position.parity);
    __syncwarp();
    send_tile<Element>(maps, args, place, shared.ring[stage] + FusedStage::kV, chunk, item.tokens, rank, lane, 32);
    __syncwarp();
    if (lane == 0) {
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      if (chunk + kStages < chunks) bring(chunk + kStages, stage);
    }
    position.advance();
  }
}

// Loads the chunks that this CTA makes as their stages become free, and announces the bytes of the others, which come
// from the other CTA. By one warp.
template <GateSource kSource, class Element>
__device__ __forceinline__ void load_chunks(const FusedMaps& maps, const Item& item,
                                            FusedShared<Form::kPair, Element>& shared, int rank) {
  constexpr int kStages = FusedRing<Form::kPair, Element>::kStages;
  const int chunks = uniform(item.row.chunks), sequence = uniform(item.sequence_at);
  const int key_head = uniform(item.key_head), head = uniform(item.head);
  int token = uniform(static_cast<int>(item.token));
  RingPosition<kStages> position;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk, token += kFusedChunk) {
    const int index = position.stage;
    const bool own = index % 2 == rank;
    if (chunk >= kStages) wait_parity(&shared.free[index], position.parity ^ 1);
    if constexpr (kSource == GateSource::kWideTiles) {
      if (own) {
        const SecondPlace<Element> place(position, chunk);
        if (place.used) wait_parity(&shared.scaled[place.stage], place.parity);
      }
    }
    if (elect_lane()) {
      if (own) {
        uint8_t* stage = shared.ring[index];
        uint64_t* loaded = &shared.loaded[index];
        expect_bytes(loaded, 4 * FusedStage::kTileBytes + gate_bytes<kSource>());
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint8_t* tiles = stage + half * FusedStage::kHalfBytes;
          copy_tile(maps.k, token, half, key_head, sequence, tiles + FusedStage::kK, loaded);
          copy_tile(maps.q, token, half, key_head, sequence, tiles + FusedStage::kQ, loaded);
        }
        copy_gates<kSource, Element>(maps, token, head, sequence, shared.ring[0], stage, chunk, loaded);
      } else {
        expect_bytes(&shared.scaled[index], FusedStage::kTilesEnd);
        expect_bytes(&shared.solved[index], 2 * FusedStage::kTriangleBytes);
      }
    }
    __syncwarp();
    position.advance();
  }
}

// Writes the factors of the tokens of the chunks that this CTA makes, by two warps: a thread does the work of two of
// the score group, for a token of each half of the chunk.
template <class Element>
__device__ __forceinline__ void sum_tokens(const Activation& activation, const Item& item,
                                           FusedShared<Form::kPair, Element>& shared, int rank) {
  constexpr int kCtas = ctas(Form::kPair), kThreads = 64;
  const uint32_t thread = threadIdx.x % kThreads;
  const int chunks = uniform(item.row.chunks), own = static_cast<int>(thread / 4);
  const TokenShare share = token_share(thread);
  // Before the first arrival at `summed`: behind that the scale group may write above the diagonals (windows.cuh).
  clear_stages<kThreads>(shared, rank, static_cast<int>(thread));
  // The raw write strength of a token, loaded one chunk before its use; past the end that of an existing token.
  const TensorView& beta = activation.beta;
  const int64_t beta_step = beta.token * float_bytes(beta.dtype);
  const uint8_t* beta_at =
      static_cast<const uint8_t*>(beta.data) +
      (item.sequence_at * beta.sequence + item.token * beta.token + item.head * beta.head) * float_bytes(beta.dtype);
  uint32_t next[2];
  auto fetch = [&](int chunk) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int token = min(chunk * kFusedChunk + side * kFusedSide + own, item.tokens - 1);
      next[side] = load_bits(beta_at + token * beta_step, beta.dtype, 0);
    }
  };
  if (rank < chunks) fetch(rank);
  OwnPosition<Form::kPair, Element> position{rank};
#pragma unroll 1
  for (int chunk = rank; chunk < chunks; chunk += kCtas) {
    uint8_t* stage = shared.ring[position.stage];
    const int valid = item.tokens - chunk * kFusedChunk;
    float strength[2];
#pragma unroll
    for (int side = 0; side < 2; ++side)
      strength[side] = write_strength(number_of(next[side], beta.dtype), activation.beta_form);
    wait_parity(&shared.loaded[position.stage], position.parity);
#pragma unroll 1  // the instruction cache
    for (int side = 0; side < 2; ++side)
      write_factors<true, Element>(activation, share, stage + side * kFusedSide * kRowBytes, tokens_of(stage),
                                   side == 0 ? strength[0] : strength[1], side * kFusedSide + own < valid,
                                   thread + side * kThreads);
    ptx::fence_proxy_async(ptx::space_shared);
    warp_arrive(&shared.summed[position.stage]);
    fetch(chunk + kCtas);  // after the fence, which may wait for loads
    position.advance();
  }
}

// What the state group without rows does.
template <GateSource kSource, class Element>
__device__ __forceinline__ void relieve(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                                        const Item& item, FusedShared<Form::kPair, Element>& shared, int rank) {
  const int warp = uniform(static_cast<int>(threadIdx.x) % kWarpgroup / 32);
  if (warp == 2)
    move_values(maps, args, item, shared, rank);
  else if (warp == 3)
    load_chunks<kSource>(maps, item, shared, rank);
  else
    sum_tokens(activation, item, shared, rank);
}

}  // namespace deltarelay::cuda::sm90
