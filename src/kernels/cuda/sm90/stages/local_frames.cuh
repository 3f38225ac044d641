// KDA scores of a chunk of 64 tokens whose decays fit: in two frames instead of six levels (local_levels.cuh).
//
// Tokens 0 .. 31 have their frame at token 16, tokens 32 .. 63 at token 48. In the frame of a border b
//     Aqk_ij ~ (q_i e^{G_i - G_b}) (k_j e^{G_b - G_j})
// holds on both sides of the border. One of the factors exceeds 1, so it is taken only where the decay over any 16
// tokens is at least kLeastProduct: e^{+-80}, which gates of -5 a token do not exceed, then is a number of bf16 and of
// fp32 in full precision. What a product has above the diagonal may be anything, and is not used.
//
// Rows of tokens 32 .. 63 also meet columns of tokens 0 .. 31, k_j e^{G_48 - G_j}, which are at most 1 ("far").
//
// The same numbers, times a factor of the channel and one of the token, are q_from_start, k_to_end and the keys of w.
// The factor of a channel may vanish where the number is large; what is lost is below 2^-33 of the vector.
#pragma once
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/stages/local_decays.cuh"

namespace deltarelay::cuda::sm90::local {

constexpr float kLeastProduct = 0x1p-116f;  // 16 gates of -5 make 2^-115.4
// fp16 has five bits of exponent.
template <class Element>
constexpr bool kHasFrames = std::is_same_v<Element, __nv_bfloat16>;

template <class Element>
__device__ __forceinline__ uint32_t packed(float2 x) {
  return Pair<Element>::pack(x.x, x.y);
}

// Operands of the scores; k_to_end and q_from_start to memory; keys of w to their tile. Rows lie over q and k, columns
// and keys over the decays. kWhole: all tokens of the thread exist.
template <class Element, bool kWhole>
__device__ __forceinline__ void write_frames(FrameTiles& to, const float (&products)[4][kWidth], const PerToken& tokens,
                                             const ChunkArgs& args, const Place& at, const WarpPlace& of) {
  const Intermediates& stage = args.stage;
  const int first = of.block * kBlock, exist = at.chunk.valid - first;
  const bool second = of.block >= 2;
  auto product = [&](int block) { return *reinterpret_cast<const float2*>(&products[block][of.channel()]); };
  const float2 own = product(of.block), second_block = product(1), third_block = product(2);
  const float2 middle = times(second_block, third_block);
  // From the start of the chunk to the frame, from there to its end
  const float2 before = second ? times(product(0), middle) : product(0);
  const float2 after = second ? product(3) : times(middle, product(3));
  float2 run = {1.0f, 1.0f};  // e^{G - G_frame}
  if (of.block % 2 == 0) run = {reciprocal_approx(own.x), reciprocal_approx(own.y)};
  uint8_t* const far = to.far - of.half * (kHalfTile / 2);
  const int64_t step = int64_t{args.heads_v} * kWidth * 2;  // bytes
  const int64_t offset = (at.token_of_call + first) * step + (at.head * kWidth + of.channel()) * 2;
  const bool wants_q = stage.wants(DR_Q_FROM_START), wants_k = stage.wants(DR_K_TO_END), wants_w = stage.wants(DR_W);
  uint8_t* to_q = static_cast<uint8_t*>(stage.q_from_start) + offset;
  uint8_t* to_k = static_cast<uint8_t*>(stage.k_to_end) + offset;
  const DecayTiles decays = {to.columns, to.keys};
#pragma unroll 1
  for (int base = 0; base < kBlock; base += kStep) {
    const StepPlace place(of, base);
    float2 decay[kStep];
    uint32_t two_q[kStep], two_k[kStep];
#pragma unroll
    for (int t = 0; t < kStep; ++t) {
      decay[t] = decay_at(decays, place.at(t));
      two_q[t] = word_at(to.q, place.at(t));
      two_k[t] = word_at(to.k, place.at(t));
    }
    float norm_k[kStep], weight[kStep];
#pragma unroll
    for (int t = 0; t < kStep; t += 4) {
      *reinterpret_cast<float4*>(norm_k + t) = *reinterpret_cast<const float4*>(&tokens.norm_k[first + base + t]);
      *reinterpret_cast<float4*>(weight + t) = *reinterpret_cast<const float4*>(&tokens.weight_w[first + base + t]);
    }
    float2 query[kStep], key[kStep], column[kStep];
#pragma unroll
    for (int t = 0; t < kStep; ++t) {
      run = times(run, decay[t]);
      query[t] = times({Pair<Element>::low(two_q[t]), Pair<Element>::high(two_q[t])}, run);
      const float2 k = {Pair<Element>::low(two_k[t]), Pair<Element>::high(two_k[t])};
      key[t] = times(k, run);
      column[t] = times(k, {reciprocal_approx(run.x), reciprocal_approx(run.y)});
      put(to.q, place.at(t), packed<Element>(query[t]));
      put(to.k, place.at(t), packed<Element>(key[t]));
      put(to.columns, place.at(t), packed<Element>(column[t]));
    }
    if (!second) {
#pragma unroll
      for (int t = 0; t < kStep; ++t)
        put(far, place.at(t), packed<Element>(times(times(column[t], second_block), third_block)));
    }
    if (wants_w) {
#pragma unroll
      for (int t = 0; t < kStep; ++t)
        put(to.keys, place.at(t), packed<Element>(times({key[t].x * weight[t], key[t].y * weight[t]}, before)));
    }
    if (wants_k) {
#pragma unroll
      for (int t = 0; t < kStep; ++t)
        if (kWhole || base + t < exist)
          put(to_k + t * step, 0, packed<Element>(times(column[t], {after.x * norm_k[t], after.y * norm_k[t]})));
    }
    if (wants_q) {
#pragma unroll
      for (int t = 0; t < kStep; ++t) {
        const float norm = tokens.norm_q[first + base + t];
        if (kWhole || base + t < exist)
          put(to_q + t * step, 0, packed<Element>(times(query[t], {before.x * norm, before.y * norm})));
      }
    }
    to_q += kStep * step;
    to_k += kStep * step;
  }
}

// Aqk by group 0, Akk by group 1, which ends with a barrier of its own.
template <class Element>
__device__ __forceinline__ void multiply_frames(const FrameTiles& from, const PerToken& tokens, const Scores& to,
                                                float scale) {
  const int all = uniform(static_cast<int>(threadIdx.x / 32)), group = all / 4, warp = all % 4;
  const int lane = static_cast<int>(threadIdx.x % 32), row = 16 * warp + lane / 4, column = 2 * (lane % 4);
  float scores[32], far[16];
  const uint64_t left = swizzled_operand(shared_address(group == 0 ? from.q : from.k));
  const uint64_t near_columns = swizzled_operand(shared_address(from.columns));
  const uint64_t far_columns = swizzled_operand(shared_address(from.far));
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step)
    Wgmma<Element>::times(scores, left + channel_step(step, kHalfTile), near_columns + channel_step(step, kHalfTile),
                          step > 0);
#pragma unroll
  for (int step = 0; step < 8; ++step)
    Wgmma<Element>::times(far, left + channel_step(step, kHalfTile), far_columns + channel_step(step, kHalfTile / 2),
                          step > 0);
  wgmma_commit();
  float by[2], diagonal[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = row + 8 * r;
    by[r] = group == 0 ? scale * tokens.norm_q[token] : tokens.beta[token] * tokens.norm_k[token];
    diagonal[r] = tokens.diagonal[token];
  }
  wgmma_wait<0>();
  pin(scores);
  pin(far);
  // Aqk lies over the columns of tokens 0 .. 31.
  if (group == 0)
    split_barrier(5, kThreads);
  else
    arrive_at_barrier(5, kThreads);
#pragma unroll
  for (int i = 0; i < 16; ++i) scores[i] = warp >= 2 ? far[i] : scores[i];
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
    const int c = 8 * n + column;
    if (8 * n > 16 * warp + 15) {  // above the diagonal
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[4 * n + i] = 0.0f;
      continue;
    }
    const float2 norm = *reinterpret_cast<const float2*>(&tokens.norm_k[c]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = row + 8 * r;
      float& low = scores[4 * n + 2 * r];
      float& high = scores[4 * n + 2 * r + 1];
      low = c < token ? low * by[r] * norm.x : c == token ? diagonal[r] : 0.0f;
      high = c + 1 < token ? high * by[r] * norm.y : c + 1 == token ? diagonal[r] : 0.0f;
      if (group == 1) *reinterpret_cast<float2*>(&to.lower.row[token][c]) = {low, high};
    }
  }
  if (group == 0) {
    const uint32_t place = shared_address(to.aqk) + swizzled_offset(16 * warp + lane % 16, lane / 16);
#pragma unroll
    for (int b = 0; b < kTokens / 16; ++b) store_matrix(place ^ (b * 32), pack_block<Element>(scores, b));
    ptx::fence_proxy_async(ptx::space_shared);  // Aqk is stored by TMA
  } else {
    named_barrier(2, kGroup);
  }
}

}  // namespace deltarelay::cuda::sm90::local
