// What the kernels of chunks share: where a CTA finds its chunk, its factors per token, and its rows in memory.
#pragma once
#include "kernels/cuda/ptx/grid.cuh"
#include "kernels/cuda/sm80/chunk_grid.cuh"
#include "kernels/cuda/sm80/stages/scores.cuh"

namespace deltarelay::cuda::sm80 {

// Factors of the tokens of a chunk.
struct TokenFactors {
  float k_norm[kStageTokens], q_norm[kStageTokens], beta[kStageTokens];
};

// A chunk of a value head, as a CTA of ChunkGrid finds it.
struct ChunkInputs {
  const ChunkArgs& args;
  StageChunk chunk;
  int tokens, blocks, thread, warp, lane;
  bool is_kda;

  // Returns false if the call has fewer chunks than the grid.
  __device__ __forceinline__ static bool find(const ChunkArgs& args, ChunkPlace& place) {
    return find_chunk(args.tables, static_cast<int>(ChunkGrid::chunk()), args.stage.chunk, place);
  }
  __device__ __forceinline__ ChunkInputs(const ChunkArgs& of, const ChunkPlace& place)
      : args(of),
        chunk(stage_chunk(of.tables, place, static_cast<int>(blockIdx.x), of.heads_v / of.heads_qk)),
        tokens(place.valid),
        blocks(of.stage.chunk / kBlock),
        thread(static_cast<int>(threadIdx.x)),
        warp(thread / 32),
        lane(thread % 32),
        is_kda(of.rule == Rule::kKda) {}

  __device__ __forceinline__ Rows q() const { return rows_of(args.q, chunk, chunk.key_head); }
  __device__ __forceinline__ Rows k() const { return rows_of(args.k, chunk, chunk.key_head); }
  __device__ __forceinline__ Rows v() const { return rows_of(args.v, chunk, chunk.head); }
  __device__ __forceinline__ GateSource gates() const {
    return {args.activation, args.stage, chunk, args.heads_v, args.dk, is_kda};
  }
  __device__ __forceinline__ Rows stage_rows(void* data, int width) const {
    return rows_of(data, args.stage.dtype, chunk, args.heads_v, width);
  }

  // Norms and betas, as far as the call reads what they are of. A barrier follows.
  __device__ __forceinline__ void load_factors(TokenFactors& to, bool reads_beta) const {
    const bool l2norm = args.activation.l2norm;
    find_norms(to.k_norm, k(), args.dk, tokens, l2norm && args.k.data != nullptr, warp, lane);
    find_norms(to.q_norm, q(), args.dk, tokens, l2norm && args.q.data != nullptr, warp, lane);
    if (thread >= kStageTokens) return;
    const Rows beta = rows_of(args.activation.beta, chunk, chunk.head);
    to.beta[thread] = reads_beta && thread < tokens
                          ? write_strength(load_number(beta.data, beta.dtype, beta.at + thread * beta.step),
                                           args.activation.beta_form)
                          : 0.0f;
  }
  __device__ __forceinline__ ScoreInputs scores(const TokenFactors& factors, bool kk, bool qk) const {
    return {k(), q(), factors.k_norm, factors.q_norm, gates(), args.dk, tokens, blocks, kk, qk};
  }
};

}  // namespace deltarelay::cuda::sm80
