// `emit`: replays a segment from the state that enters it and writes outputs.
//
// Per chunk: K S, with Q S behind it; R; (inverse - I) R; then the update k_to_end^T V_new, with Aqk V_new behind it.
// The output of a chunk is converted and stored while the products of the next chunk run.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"

namespace deltarelay::cuda::sm90 {

// An accumulator as A operands.
template <class Element, int kBlocks>
__device__ __forceinline__ void pack_blocks(Fragment (&packed)[kBlocks], const float (&numbers)[8 * kBlocks]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) packed[b] = pack_block<Element>(numbers, b);
}

// Issues K S and Q S, each a commit group.
template <class Element, class View>
__device__ __forceinline__ void read_state(float (&product)[View::kChunk / 2], float (&out)[View::kChunk / 2],
                                           const Fragment (&state)[8], const View& view) {
  using Product = Wgmma<Element>;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) Product::times(product, state[k], view.read() + View::channels(k), k > 0);
  wgmma_commit();
#pragma unroll
  for (int k = 0; k < 8; ++k) Product::times(out, state[k], view.query() + View::channels(k), k > 0);
  wgmma_commit();
}

// Overwrites K S by R = beta V - read K S.
template <class Element, class View>
__device__ __forceinline__ void form_residual(float (&product)[View::kChunk / 2], const View& view,
                                              const Fragment (&value)[View::kBlocks],
                                              const float2 (&beta)[View::kChunk / 8], int column) {
#pragma unroll
  for (int n = 0; n < View::kChunk / 8; ++n) {
    const float2 read = view.load_pair(View::Record::kReadFactor + (8 * n + column) * 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t pair = value[n / 2].reg[2 * (n % 2) + r];
      float &low = product[4 * n + 2 * r], &high = product[4 * n + 2 * r + 1];
      low = fmaf(-read.x, low, beta[n].x * Pair<Element>::low(pair));
      high = fmaf(-read.y, high, beta[n].y * Pair<Element>::high(pair));
    }
  }
}

// (update factor V_new)^T as an operand.
template <class Element, int kBlocks>
__device__ __forceinline__ void pack_decayed(Fragment (&decayed)[kBlocks], const float (&product)[8 * kBlocks],
                                             const float2 (&factor)[2 * kBlocks]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float2 two = factor[2 * b + r / 2];
      decayed[b].reg[r] = Pair<Element>::pack(product[8 * b + 2 * r] * two.x, product[8 * b + 2 * r + 1] * two.y);
    }
  }
}

// Overwrites Q S by query Q S + diagonal V_new, in fp32.
template <class View>
__device__ __forceinline__ void add_diagonal(float (&out)[View::kChunk / 2], const float (&product)[View::kChunk / 2],
                                             const View& view, int column) {
#pragma unroll
  for (int n = 0; n < View::kChunk / 8; ++n) {
    const float2 diagonal = view.load_pair(View::Record::kDiagonal + (8 * n + column) * 4);
    const float2 query = view.load_pair(View::Record::kQueryFactor + (8 * n + column) * 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float &low = out[4 * n + 2 * r], &high = out[4 * n + 2 * r + 1];
      const float from_low = diagonal.x * product[4 * n + 2 * r], from_high = diagonal.y * product[4 * n + 2 * r + 1];
      low = fmaf(query.x, low, from_low);
      high = fmaf(query.y, high, from_high);
    }
  }
}

// State group `group` of a CTA, which has one half of the values. Walks chunks `first` .. `last` - 1 of the row; the
// first lies at `position` of the ring.
template <class Stage, class Element>
__device__ __forceinline__ void emit_chunks(WalkShared<Stage>& shared, int group, float (&state)[64],
                                            RingPosition<Stage::kStages>& position, int first, int last) {
  using Record = typename Stage::Record;
  using View = ChunkView<Stage>;
  using Product = Wgmma<Element>;
  constexpr bool kScalarGate = View::kScalarGate;
  constexpr int kChunk = View::kChunk, kBlocks = View::kBlocks;
  // Opaque. The compiler would otherwise read the thread number from its special register in every chunk.
  const int thread = static_cast<int>(opaque(threadIdx.x) % kWarpgroup), lane = thread % 32, warp = thread / 32;
  const int column = 2 * (lane % 4);  // this lane's column in an 8-column block of an accumulator
  // This lane's row of its warp's 16 value columns in a V tile, for transposing ldmatrix and stmatrix.
  const uint32_t v_offset =
      Stage::kV + group * View::kHalfBytes + swizzled_offset(8 * (lane / 16) + lane % 8, 2 * warp + lane / 8 % 2);
  const uint32_t ring_address = shared_address(shared.ring);
  float product[kChunk / 2];  // K S, then R, then V_new
  float out[kChunk / 2];
  Fragment v_new[kBlocks];                      // V_new^T
  Fragment decayed[kScalarGate ? kBlocks : 1];  // GDN: (update factor V_new)^T
  uint32_t previous = 0;                        // address of the previous chunk's stage

  auto store_output = [&](uint32_t stage, int stage_index, const Fragment(&converted)[kBlocks]) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) store_matrix_transposed(stage + v_offset + b * 16 * kRowBytes, converted[b]);
    warp_arrive(&shared.done[stage_index]);
  };

  // From the state to V_new. The previous output is converted before K S and stored after Q S: a store between the two
  // would delay Q S, since it may not overwrite data still to be read.
  auto predict = [&](int chunk, int previous_stage) {
    const View view = {opaque(ring_address + position.stage * Stage::kBytes)};
    Fragment state_operand[8];
    pack_blocks<Element>(state_operand, state);
    wait_parity(&shared.full[position.stage], position.parity);
    const int valid = shared.item.tokens - chunk * kChunk;
    clear_keys<Stage>(shared.ring + position.stage * Stage::kBytes, valid);
    wgmma_wait<0>();
    Fragment converted[kBlocks];
    if (previous_stage >= 0) {
      pin(out);
      pack_blocks<Element>(converted, out);
    }

    read_state<Element>(product, out, state_operand, view);
    if (previous_stage >= 0) store_output(previous, previous_stage, converted);

    // Chunks of 64 tokens leave no registers for values and factors while both products are in flight.
    Fragment value[kBlocks];
    float2 beta[kChunk / 8];
    auto load_inputs = [&] {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) value[b] = load_matrix_transposed(view.address + v_offset + b * 16 * kRowBytes);
      view.load_factors(beta, Record::kBeta, column);
    };
    if constexpr (!kScalarGate) load_inputs();
    wgmma_wait<1>();
    pin(product);
    if constexpr (kScalarGate) load_inputs();
    form_residual<Element>(product, view, value, beta, column);
    if (valid < kChunk) select_tokens(product, column, valid);
    float2 factor[View::kFactors];
    view.template solve<Element>(product, state, factor, column);
    wgmma_wait<0>();
    pin(product);
    pin(out);
    pack_blocks<Element>(v_new, product);
    if constexpr (kScalarGate) pack_decayed<Element>(decayed, product, factor);
  };

  // Rotated loop: no product is in flight over its back edge, since ptxas follows wgmma through straight code only.
  predict(first, -1);
  for (int chunk = first;;) {
    const View view = {opaque(ring_address + position.stage * Stage::kBytes)};
    const int stage_index = position.stage;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      Product::add_transposed(state, kScalarGate ? decayed[k] : v_new[k], view.update() + View::tokens(k));
    }
    wgmma_commit();
    add_diagonal(out, product, view, column);  // while the state is updated
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) Product::times(out, v_new[k], view.aqk() + View::columns(k), true);
    wgmma_commit();
    wgmma_wait<1>();
    pin(state);
    previous = view.address;
    position.advance();
    if (++chunk == last) {
      wgmma_wait<0>();
      pin(out);
      Fragment converted[kBlocks];
      pack_blocks<Element>(converted, out);
      store_output(previous, stage_index, converted);
      return;
    }
    predict(chunk, stage_index);
  }
}

}  // namespace deltarelay::cuda::sm90
