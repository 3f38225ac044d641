// w, u and k_to_end of KDA again, from a given inverse and given sums of gates: what FLA calls recompute_w_u. A token
// has its decays from its own sum, so threads hold no running products. Three CTAs on a multiprocessor are faster than
// four, which have 64 registers.
#pragma once
#include "kernels/cuda/sm90/stages/local.cuh"

namespace deltarelay::cuda::sm90::local {

struct AgainShared {
  alignas(1024) uint8_t tokens[kTile];  // k, then keys of w, then w
  uint8_t v[kTile];                     // then u
  uint8_t given[kHalfTile], times_beta[kHalfTile];
  PerToken per_token;
  uint64_t tokens_ready, v_ready;

  __device__ __forceinline__ uint8_t* q() { return tokens; }  // not loaded: clearing k twice does no harm
  __device__ __forceinline__ uint8_t* k() { return tokens; }
  __device__ __forceinline__ uint8_t* keys() { return tokens; }
  static constexpr bool kWeighs = true;
  __device__ __forceinline__ uint8_t* inverse() { return given; }
  __device__ __forceinline__ uint8_t* weighed() { return times_beta; }
};
constexpr int kAgainResident = 3;
static_assert(kAgainResident * (sizeof(AgainShared) + 1024) <= 228 * 1024);

// Sums of a thread's tokens, of its two channels. Past the end, and in `last`, those of the last token.
struct Sums {
  float2 of[kBlock], last;
  __device__ __forceinline__ Sums(const ChunkArgs& args, const Place& at, const WarpPlace& place) {
    const int valid = at.chunk.valid, first = place.block * kBlock;
    const auto* from = reinterpret_cast<const uint8_t*>(
        args.stage.gate_sums + (at.token_of_call * args.heads_v + at.head) * kWidth + place.channel());
    const auto step = static_cast<uint32_t>(args.heads_v * kWidth * 4);
    const auto row = [&](int token) {
      return *reinterpret_cast<const float2*>(from + uint64_t{static_cast<uint32_t>(min(token, valid - 1))} * step);
    };
#pragma unroll
    for (int t = 0; t < kBlock; ++t) of[t] = row(first + t);
    last = row(kTokens);
  }
};

template <class Element>
__device__ __forceinline__ void write_again(const Sums& sums, AgainShared& shared, const ChunkArgs& args,
                                            const Place& at, const WarpPlace& of) {
  const Intermediates& stage = args.stage;
  const PerToken& tokens = shared.per_token;
  const int first = of.block * kBlock, exist = at.chunk.valid - first;
  const float unit = stage.sums_base_2 ? 1.0f : kLog2e;
  const int64_t step = int64_t{args.heads_v} * kWidth * 2;  // bytes
  uint8_t* to_k =
      static_cast<uint8_t*>(stage.k_to_end) + (at.token_of_call + first) * step + (at.head * kWidth + of.channel()) * 2;
  const bool wants_w = stage.wants(DR_W), wants_k = stage.wants(DR_K_TO_END);
#pragma unroll
  for (int base = 0; base < kBlock; base += kStep) {
    const StepPlace place(of, base);
    uint32_t two[kStep];
#pragma unroll
    for (int t = 0; t < kStep; ++t) two[t] = word_at(shared.k(), place.at(t));
    if (wants_k) {
#pragma unroll
      for (int t = 0; t < kStep; ++t, to_k += step) {
        const float norm = tokens.norm_k[first + base + t];
        const float2 sum = sums.of[base + t];
        const float2 decay = {exp2_approx((sums.last.x - sum.x) * unit), exp2_approx((sums.last.y - sum.y) * unit)};
        if (base + t < exist) put(to_k, 0, scaled<Element>(two[t], {decay.x * norm, decay.y * norm}));
      }
    }
    if (wants_w) {
#pragma unroll
      for (int t = 0; t < kStep; ++t) {
        const float weight = tokens.weight_w[first + base + t];
        const float2 sum = sums.of[base + t], decay = {exp2_approx(sum.x * unit), exp2_approx(sum.y * unit)};
        // First the weight: with a long key it may be as small as the key is long.
        const float2 key = {Pair<Element>::low(two[t]) * weight, Pair<Element>::high(two[t]) * weight};
        put(shared.keys(), place.at(t), Pair<Element>::pack(key.x * decay.x, key.y * decay.y));
      }
    }
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads, kAgainResident)
    again_kernel(const __grid_constant__ LocalMaps maps, const __grid_constant__ LocalArgs all) {
  auto& shared = *reinterpret_cast<AgainShared*>(dynamic_shared_memory());
  const ChunkArgs& args = all.call;
  Place at;
  if (!begin_chunk(maps, all, at, shared)) return;
  const WarpPlace of;
  request_inverse(shared.inverse(), pieces_of(args.stage.inverse, at, args.heads_v, kTokens),
                  int64_t{args.heads_v} * (kTokens / 8), at.chunk.valid);
  const Sums sums(args, at, of);
  const uint32_t beta = load_beta(args, at);
  __syncthreads();  // barriers are there
  wait_for_tokens(at, shared);
  measure_tokens<Element, false>(shared.k(), shared.k(), shared.per_token, args.activation, at.chunk.valid, false,
                                 beta);
  __syncthreads();
  write_again<Element>(sums, shared, args, at, of);
  wait_for_inverse<Element>({shared.inverse(), shared.weighed(), shared.per_token.beta});
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  make_results<Element, false, false>(maps, all, at, shared);
  ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
}

}  // namespace deltarelay::cuda::sm90::local
