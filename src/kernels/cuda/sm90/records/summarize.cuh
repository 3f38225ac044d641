// `summarize`: a segment as an affine map of the state, S_out = M S_in + B.
//
// B starts from zero and takes the values; M starts from the identity and takes none. Both read the same operands. In
// each CTA of a pair, one state group walks 64 rows of B^T and the other the same rows of M^T. There are no queries and
// no outputs.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/sm90/rows/transition.cuh"

namespace deltarelay::cuda::sm90 {

// Releases the last `chunks` chunks of M's group once M has vanished.
template <class Stage, class Position>
__device__ __forceinline__ void finish_vanished(WalkShared<Stage>& shared, Position position, int chunks) {
#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    wait_parity(&shared.full[position.stage], position.parity);
    warp_arrive(&shared.done[position.stage]);
    position.advance();
  }
}

// `values`: the state is B^T, else M^T.
template <class Stage, class Element>
__device__ __forceinline__ void summarize_chunks(const WalkArgs& args, WalkShared<Stage>& shared, bool values,
                                                 float (&state)[64]) {
  using Record = typename Stage::Record;
  using Summary = typename Stage::Summary;
  using View = ChunkView<Summary>;
  using Product = Wgmma<Element>;
  constexpr bool kScalarGate = View::kScalarGate;
  constexpr int kChunk = View::kChunk, kBlocks = View::kBlocks;
  // Opaque. The compiler would otherwise read the thread number from its special register in every chunk.
  const int thread = static_cast<int>(opaque(threadIdx.x) % kWarpgroup), lane = thread % 32, warp = thread / 32;
  const int column = 2 * (lane % 4);  // this lane's column in an 8-column block of an accumulator
  const int chunks = shared.item.row.chunks, tokens = shared.item.tokens;
  const uint32_t v_offset = Summary::kV + swizzled_offset(8 * (lane / 16) + lane % 8, 2 * warp + lane / 8 % 2);
  const uint32_t ring_address = shared_address(shared.ring);
  RingPosition<Summary::kStages> position;

  auto walk = [&](int chunk) {
    const View view = {opaque(ring_address + position.stage * Summary::kBytes)};
    const int valid = tokens - chunk * kChunk;
    Fragment operand[8], update[kBlocks], value[kBlocks];
    float product[kChunk / 2];  // K S, then R, then V_new
#pragma unroll
    for (int k = 0; k < 8; ++k) operand[k] = pack_block<Element>(state, k);
    wait_parity(&shared.full[position.stage], position.parity);
    clear_keys<Summary>(shared.ring + position.stage * Summary::kBytes, valid);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) Product::times(product, operand[k], view.read() + View::channels(k), k > 0);
    wgmma_commit();

    __syncwarp();  // keeps the compiler from moving what follows between the products
    // Behind K S: the operands of R. The values are multiplied here, so that one FFMA per number is left after K S.
    float2 read[kChunk / 8], beta[kChunk / 8];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) value[b] = load_matrix_transposed(view.address + v_offset + b * 16 * kRowBytes);
    view.load_factors(beta, Record::kBeta, column);
    view.load_factors(read, Record::kReadFactor, column);
    float weighed[kChunk / 2];
    weigh_values<Element>(weighed, value, beta, values, column, valid);
    wgmma_wait<0>();
    pin(product);
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i)
      product[i] = fmaf(i % 2 == 0 ? -read[i / 4].x : -read[i / 4].y, product[i], weighed[i]);
    float2 factor[View::kFactors];
    view.template solve<Element>(product, state, factor, column);
    wgmma_wait<0>();
    pin(product);
    if constexpr (kScalarGate) {
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i) product[i] *= i % 2 == 0 ? factor[i / 4].x : factor[i / 4].y;
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) update[b] = pack_block<Element>(product, b);  // (update factor V_new)^T

    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) Product::add_transposed(state, update[k], view.update() + View::tokens(k));
    wgmma_commit();
    wgmma_wait<0>();
    pin(state);
    warp_arrive(&shared.done[position.stage]);
    position.advance();
  };
  for_each_chunk(chunks, kLookEvery - 1, values, walk, [&](int chunk) {
    const bool vanished = !transition_lives(state, args.vanish_bound);
    if (vanished) finish_vanished(shared, position, chunks - chunk);
    return vanished;
  });
}

}  // namespace deltarelay::cuda::sm90
