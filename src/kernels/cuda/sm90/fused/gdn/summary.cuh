// The state groups of a summary of GDN, from the row's last chunk backwards (fused/adjoint.cuh). Of a chunk, with u_i =
// weight_i e^{G_last-G_i} and p_i = rk_i e^{G_i}:
//     Y = u (X k^T)      Z = Y inverse      B <- B + Z v      X <- e^{G_last} X - (p Z) k
// Group 0 has X. It leaves Z in the stage for group 1, which has B: off the chain of X.
#pragma once
#include "kernels/cuda/sm90/fused/adjoint.cuh"
#include "kernels/cuda/sm90/fused/gdn/state.cuh"

namespace deltarelay::cuda::sm90::fused_gdn {

// Chunks are counted from the row's end. Returns how many have been walked.
template <class Element>
__device__ __forceinline__ int walk_transition(const WalkArgs& args, const Item& item, Shared<Form::kPair>& shared,
                                               int rank, float (&x)[64]) {
  const int thread = threadIdx.x % kWarpgroup, column = lane_column_of(thread % 32);
  const int chunks = item.row.chunks, tokens = item.tokens;
  RingPosition<Ring<Form::kPair>::kStages> position;
  int previous = 0;  // stage of the previous chunk
  Fragment operand[8];
  pack_state<Element>(operand, x, 0, 8);
  auto walk = [&](int chunk) {
    const int stage_index = position.stage, valid = tokens - (chunks - 1 - chunk) * kFusedChunk;
    const ChunkStep<Element> step(shared.ring[stage_index], column);
    wait_parity(&shared.loaded[stage_index], position.parity);
    if (valid < kFusedChunk)
      clear_keys(shared.ring[stage_index], &shared.made[stage_index], position.parity, valid, 0, thread);
    float z[16];
    wgmma_fence();
    step.read_state(z, operand);
    if (chunk > 0) release_summarized<Form::kPair>(shared, previous, rank, thread);
    wait_parity(&shared.made[stage_index], position.parity);
    const float decay = step.decay();
    const TokenFactors weights(step.stage + Stage::kUpdate, column);
    wgmma_wait<0>();
    pin(z);
    weights.scale(z);
    const Fragment weighed[2] = {pack_block<Element>(z, 0), pack_block<Element>(z, 1)};
    wgmma_fence();
    add_transposed_triangle<Element>(z, weighed, transposed_triangle_at(step.place, Stage::kInverse));
    wgmma_commit();
    decay_state(x, decay);
    const TokenFactors prediction(step.stage + Stage::kPrediction, column);
    wgmma_wait<0>();
    pin(z);
    Fragment update[2];
    step.pack_update(update, z, prediction.negated());
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) step.update_half(x, update, half, true);
    const Fragment of_z[2] = {pack_block<Element>(z, 0), pack_block<Element>(z, 1)};
    leave_z<Stage>(step.stage, of_z, thread);
    warp_arrive(&shared.done[stage_index]);
    pack_updated<Element, 0>(operand, x);
    previous = stage_index;
    position.advance();
  };
  int walked = chunks;
  for_each_chunk(chunks, kFirstLook, false, walk, [&](int chunk) {
    if (transition_lives(x, args.vanish_bound, 0)) return false;
    if (thread == 0) release_stage<Form::kPair>(shared, previous, rank);
    mark_vanished(shared, position, chunk, rank, thread);
    walked = chunk;
    return true;
  });
  return walked;
}

// B <- B + Z v of the chunks that the group of X walks. Returns how many these were.
template <class Element>
__device__ __forceinline__ int add_values(const Item& item, Shared<Form::kPair>& shared, int rank, float (&b)[64]) {
  const int thread = threadIdx.x % kWarpgroup, chunks = item.row.chunks, tokens = item.tokens;
  RingPosition<Ring<Form::kPair>::kStages> position;
  auto walked = [&](int chunk) {
    wait_parity(&shared.loaded[position.stage], position.parity);
    wait_parity(&shared.done[position.stage], position.parity);
    return chunk < uniform(*static_cast<volatile int*>(&shared.end.walked));
  };
  int chunk = 0;
#pragma unroll 1
  for (; chunk < chunks && walked(chunk); ++chunk) {
    uint8_t* stage = shared.ring[position.stage];
    const int valid = tokens - (chunks - 1 - chunk) * kFusedChunk;
    add_chunk<Element, Stage>(b, stage, valid, thread);
    named_barrier(kStateBarrier + 1, kWarpgroup);
    if (thread == 0) release_stage<Form::kPair>(shared, position.stage, rank);
    position.advance();
  }
  return chunk;
}

// A summary by one of the two state groups.
template <class Element>
__device__ __forceinline__ void summarize(const WalkArgs& args, const Item& item, Shared<Form::kPair>& shared,
                                          int group, int rank) {
  const auto arrive = [](int walked) {
    cluster_arrive();  // the make groups of both CTAs meet (make_chunks)
    return walked;
  };
  int walked;
  if (group == 0)
    walked = summarize_transition(
        args, item, rank, [&](float(&x)[64]) { return arrive(walk_transition<Element>(args, item, shared, rank, x)); });
  else
    walked = summarize_values(args, item, rank,
                              [&](float(&b)[64]) { return arrive(add_values<Element>(item, shared, rank, b)); });
  if (threadIdx.x % kWarpgroup == 0)
    release_until_ended<Form::kPair, Ring<Form::kPair>::kStages>(shared, walked, item.row.chunks, rank, shared.loaded,
                                                                 shared.made);
  cluster_wait();
}

}  // namespace deltarelay::cuda::sm90::fused_gdn
