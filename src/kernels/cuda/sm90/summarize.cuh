// `summarize`: a segment as an affine map of the state, S_out = M S_in + B.
//
// B walks from zero with the values, M from the identity without them; both read the same operands, so one CTA walks both: a state
// group holds 64 rows of B^T and 64 of M^T. No queries, no outputs. While the products of one run, the other is converted.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/stage.cuh"

namespace deltarelay::cuda::sm90 {

template <class Stage, class Element, int kGroups>
__device__ __forceinline__ void summarize_chunks(const Item& item, uint8_t* ring, uint64_t* full, uint64_t* done,
                                                 int group, float (&b)[64], float (&m)[64]) {
  using Record = typename Stage::Record;
  using View = ChunkView<Stage>;
  using Product = Wgmma<Element>;
  constexpr bool kScalarGate = View::kScalarGate;
  constexpr int kChunk = View::kChunk, kBlocks = View::kBlocks;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, warp = thread / 32;
  const int column = 2 * (lane % 4);
  const uint32_t v_offset =
      Stage::kV + group * View::kHalfBytes + swizzled_offset(8 * (lane / 16) + lane % 8, 2 * warp + lane / 8 % 2);
  const uint32_t ring_address = shared_address(ring);
  RingPosition<Stage::kStages> position;

  for (int chunk = 0; chunk < item.row.chunks; ++chunk) {
    const View view = {opaque(ring_address + position.stage * Stage::kBytes)};
    const int valid = item.tokens - chunk * kChunk;
    Fragment operand[8], error[kBlocks];
    float product[kChunk / 2];

    auto pack_state = [&](const float(&state)[64]) {
#pragma unroll
      for (int k = 0; k < 8; ++k) operand[k] = pack_block<Element>(state, k);
    };
    auto read = [&](float(&result)[kChunk / 2]) {
#pragma unroll
      for (int k = 0; k < 8; ++k) Product::times(result, operand[k], view.read() + View::channels(k), k > 0);
      wgmma_commit();
    };
    auto solve = [&](float(&result)[kChunk / 2]) {
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) Product::times(result, error[k], view.t() + View::columns(k), true);
      wgmma_commit();
    };
    // U with its factors, as the operand of the update.
    auto pack_update = [&](float(&solved)[kChunk / 2]) {
      if constexpr (kScalarGate) {
#pragma unroll
        for (int n = 0; n < kChunk / 8; ++n) {
          const float2 factor = view.load_pair(Record::kUpdate + (8 * n + column) * 4);
          solved[4 * n] *= factor.x, solved[4 * n + 1] *= factor.y, solved[4 * n + 2] *= factor.x,
              solved[4 * n + 3] *= factor.y;
        }
      }
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) error[k] = pack_block<Element>(solved, k);
    };
    auto update = [&](float(&state)[64]) {
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) Product::add_transposed(state, error[k], view.update() + View::tokens(k));
      wgmma_commit();
    };
    // -read K S
    constexpr int kRead = kScalarGate ? static_cast<int>(Record::kRead) : static_cast<int>(Record::kBeta);
    auto negate = [&](float(&prediction)[kChunk / 2]) {
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
        const float2 factor = view.load_pair(kRead + (8 * n + column) * 4);
        prediction[4 * n] *= -factor.x, prediction[4 * n + 1] *= -factor.y;
        prediction[4 * n + 2] *= -factor.x, prediction[4 * n + 3] *= -factor.y;
      }
    };
    auto select_valid = [&](float(&values)[kChunk / 2]) {
      if (valid >= kChunk) return;
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i) values[i] = 8 * (i / 4) + column + i % 2 < valid ? values[i] : 0.0f;
    };
    auto pack_error = [&](const float(&values)[kChunk / 2]) {
#pragma unroll
      for (int k = 0; k < kBlocks; ++k) error[k] = pack_block<Element>(values, k);
    };

    pack_state(b);
    wait_parity(&full[position.stage], position.parity);
    clear_keys<Stage, kGroups>(ring + position.stage * Stage::kBytes, valid);
    wgmma_fence();
    read(product);
    view.decay(b, column);
    wgmma_wait<0>();
    pin(product);
    negate(product);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const Fragment value = load_matrix_transposed(view.address + v_offset + block * 16 * kRowBytes);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float2 beta = view.load_pair(Record::kBeta + (16 * block + 8 * (r / 2) + column) * 4);
        float &low = product[8 * block + 2 * r], &high = product[8 * block + 2 * r + 1];
        low = fmaf(beta.x, Pair<Element>::low(value.reg[r]), low);
        high = fmaf(beta.y, Pair<Element>::high(value.reg[r]), high);
      }
    }
    select_valid(product);
    pack_error(product);

    if constexpr (kScalarGate) {  // chunks of 64: registers for one product at a time
      wgmma_fence();
      solve(product);
      wgmma_wait<0>();
      pin(product);
      pack_update(product);
      wgmma_fence();
      update(b);
      wgmma_wait<0>();
      pin(b);
      pack_state(m);
      wgmma_fence();
      read(product);
      view.decay(m, column);
      wgmma_wait<0>();
      pin(product);
      negate(product);
      select_valid(product);
      pack_error(product);
      wgmma_fence();
      solve(product);
      wgmma_wait<0>();
      pin(product);
      pack_update(product);
    } else {
      float other[kChunk / 2];
      pack_state(m);
      wgmma_fence();
      solve(product);
      read(other);
      view.decay(m, column);
      wgmma_wait<1>();
      pin(product);
      pack_update(product);
      wgmma_fence();
      update(b);
      wgmma_wait<1>();
      pin(other);
      negate(other);
      select_valid(other);
      wgmma_wait<0>();
      pin(b);
      pack_error(other);
      wgmma_fence();
      solve(other);
      wgmma_wait<0>();
      pin(other);
      pack_update(other);
    }
    wgmma_fence();
    update(m);
    wgmma_wait<0>();
    pin(m);
    warp_arrive(&done[position.stage]);
    position.advance();
  }
}

}  // namespace deltarelay::cuda::sm90
