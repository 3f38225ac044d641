// The making groups of the fused walk of GDN: loads, norms, gates, both score matrices in one product, P, L, and the inverse. Two groups
// take the chunks of their CTA in turns, so that each has two chunks' time for one.
#pragma once
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/fused_gdn_memory.cuh"
#include "kernels/cuda/sm90/walk_maps.h"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90::fused_gdn {

// Brings in chunks as stages come free: by warp 0 of each making group the rounds that it makes. A round is one chunk for each CTA of the
// pair; q, k and this CTA's halves of v are loaded of all of them.
template <int kCtas, bool kQueries>
class Loader {
 public:
  __device__ __forceinline__ Loader(const FusedMaps& maps, const Item& item, Shared<kCtas>& shared, int key_head,
                                    int group, int rank)
      : maps_(maps),
        shared_(shared),
        rank_(rank),
        chunks_(uniform(item.row.chunks)),
        token_(uniform(static_cast<int>(item.token))),
        key_head_(uniform(key_head)),
        head_(uniform(item.head)),
        sequence_(uniform(item.sequence_at)),
        chunk_(group * kCtas),
        position_{group * kCtas} {}

  // Everything up to `chunk`, waiting for stages.
  __device__ __forceinline__ void load_until(int chunk) {
    while (chunk_ <= chunk && load_next(true)) {
    }
  }
  // What can be loaded now. When single CTAs, which run on every multiprocessor, fill their rings for the first time, two chunks at most: a
  // lane waits to issue a copy while those before it crowd the memory, and would be late for the first chunk.
  __device__ __forceinline__ void load_ready() {
    const int limit = kCtas == 1 && chunk_ < kStages ? chunk_ + 2 : chunks_;
    while (chunk_ < limit && load_next(false)) {
    }
  }

 private:
  static constexpr int kStages = Ring<kCtas>::kStages, kHalves = Ring<kCtas>::kHalves;

  __device__ __forceinline__ bool load_next(bool wait) {
    if (chunk_ >= chunks_) return false;
    if (chunk_ >= kStages) {
#pragma unroll
      for (int i = 0; i < kCtas; ++i) {
        if (chunk_ + i >= chunks_) break;
        uint64_t* free = &shared_.free[position_.stage + i];
        if (wait)
          wait_parity(free, position_.parity ^ 1);
        else if (!uniform(ptx::mbarrier_test_wait_parity(free, position_.parity ^ 1)))
          return false;
      }
    }
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < kCtas; ++i) {
        if (chunk_ + i < chunks_) load(chunk_ + i, position_.stage + i);
      }
    }
    __syncwarp();
    chunk_ += 2 * kCtas;
    position_.advance();
    return true;
  }

  __device__ __forceinline__ void load(int chunk, int stage_index) {
    uint8_t* stage = shared_.ring[stage_index];
    uint64_t* loaded = &shared_.loaded[stage_index];
    const int token = token_ + chunk * kFusedChunk;
    auto expect = [](uint64_t* barrier, uint32_t bytes) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, bytes);
    };
    auto copy = [&](const CUtensorMap& map, int half, int head, uint8_t* to) {
      const int32_t at[5] = {0, token, half, head, sequence_};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, loaded);
    };
    expect(loaded, ((kQueries ? 4 : 2) + kHalves) * Stage::kTileBytes);
    if (kCtas > 1 && stage_index % 2 != rank_) expect(&shared_.made[stage_index], Stage::kMadeBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      copy(maps_.k, half, key_head_, stage + half * Stage::kHalfBytes + Stage::kK);
      if constexpr (kQueries) copy(maps_.q, half, key_head_, stage + half * Stage::kHalfBytes + Stage::kQ);
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      copy(maps_.v, rank_ + half, head_, stage + Stage::kV + half * Stage::kTileBytes);
  }

  const FusedMaps& maps_;
  Shared<kCtas>& shared_;
  int rank_, chunks_, token_, key_head_, head_, sequence_;
  int chunk_;
  MakePosition<kCtas> position_;  // both chunks of a round lie in neighbouring stages, for their number is even
};

// Gate and write strength of the token of this lane, as they lie in memory: fetched a chunk before their use, so that nothing waits for them.
struct RawToken {
  uint32_t gate, beta;
};
__device__ __forceinline__ RawToken fetch_token(const Activation& activation, const Item& item, int chunk, int lane) {
  const int token = chunk * kFusedChunk + lane;
  if (token >= item.tokens) return {};
  const TensorView &g = activation.g, &beta = activation.beta;
  const int64_t at = item.token + token;
  return {load_bits(g.data, g.dtype, item.sequence_at * g.sequence + at * g.token + item.head * g.head),
          load_bits(beta.data, beta.dtype, item.sequence_at * beta.sequence + at * beta.token + item.head * beta.head)};
}

// Sums of products of a quarter of the channels of one token: k k, q q, q k.
template <class Element, bool kQueries>
__device__ __forceinline__ void sum_products(float (&sums)[3], const uint8_t* stage, uint32_t thread) {
  using Two = Pair<Element>;
  // The order of the pieces keeps the four threads of a token off each other's banks.
  const uint32_t token = thread / 4, quarter = thread % 4, half = quarter / 2;
  const uint32_t first =
      half * Stage::kHalfBytes + token * kRowBytes + ((quarter % 2 * 4 + half * 2) ^ (token % 8)) * 16;
#pragma unroll 1  // unrolled it is more code than the instruction cache has room for
  for (int i = 0; i < 4; i += 2) {
    uint4 q[2] = {}, k[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint8_t* at = stage + (first ^ ((i + e) * 16));
      if constexpr (kQueries) q[e] = *reinterpret_cast<const uint4*>(at + Stage::kQ);
      k[e] = *reinterpret_cast<const uint4*>(at + Stage::kK);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t qs[4] = {q[e].x, q[e].y, q[e].z, q[e].w}, ks[4] = {k[e].x, k[e].y, k[e].z, k[e].w};
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float k0 = Two::low(ks[p]), k1 = Two::high(ks[p]);
        sums[0] = fmaf(k1, k1, fmaf(k0, k0, sums[0]));
        if constexpr (kQueries) {
          const float q0 = Two::low(qs[p]), q1 = Two::high(qs[p]);
          sums[1] = fmaf(q1, q1, fmaf(q0, q0, sums[1]));
          sums[2] = fmaf(q1, k1, fmaf(q0, k0, sums[2]));
        }
      }
    }
  }
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
#pragma unroll
    for (int i = 0; i < (kQueries ? 3 : 1); ++i) sums[i] += __shfl_xor_sync(~0u, sums[i], distance);
  }
}

// The vectors of a stage, and what the scores of this group need of them. Every warp sums all gates, a token a lane, so that none has to
// wait for another; then four threads write the numbers of one token. Tokens past the end, whose rows may hold anything, decay nothing and
// count nothing.
template <class Element, bool kQueries>
__device__ __forceinline__ void write_vectors(uint8_t* stage, Tokens& tokens, const Activation& activation,
                                              const GateParams& gate, RawToken raw, int valid, uint32_t thread) {
  const int lane = static_cast<int>(thread % 32), token = static_cast<int>(thread / 4);
  float sum = lane < valid ? log2_decay(number_of(raw.gate, activation.g.dtype), gate) : 0.0f;
  const float beta =
      lane < valid ? write_strength(number_of(raw.beta, activation.beta.dtype), activation.beta_form) : 0.0f;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += below;
  }
  const float own = __shfl_sync(~0u, sum, token), strength = __shfl_sync(~0u, beta, token);
  const float last = __shfl_sync(~0u, sum, 31);

  float sums[3] = {0.0f, 0.0f, 0.0f};
  sum_products<Element, kQueries>(sums, stage, thread);
  const bool normed = activation.l2norm, exists = token < valid;
  const float norm_k = normed ? rsqrtf(sums[0] + kL2NormEpsilon) : 1.0f;
  const float norm_q = activation.scale * (normed ? rsqrtf(sums[1] + kL2NormEpsilon) : 1.0f);
  const float once = exists ? strength * norm_k : 0.0f, twice = exists ? strength * norm_k * norm_k : 0.0f;
  auto vector = [&](int offset) { return reinterpret_cast<float*>(stage + offset); };
  const float through = exp2_approx(own);
  switch (thread % 4) {
    case 0:
      vector(Stage::kStrength)[token / 2 * 4 + token % 2] = once;
      vector(Stage::kStrength)[token / 2 * 4 + 2 + token % 2] = twice * through;
      break;
    case 1:
      tokens.sum[token] = own;
      tokens.key[token] = -twice;
      break;
    case 2:
      vector(Stage::kUpdate)[token] = exp2_approx(last - own);
      if (token == 0) *reinterpret_cast<float4*>(stage + Stage::kDecay) = {exp2_approx(last), 0.0f, 0.0f, 0.0f};
      break;
    default:
      if constexpr (kQueries) {
        vector(Stage::kQuery)[token] = exists ? norm_q * through : 0.0f;
        vector(Stage::kDiagonal)[token] = exists ? norm_q * sums[2] : 0.0f;
        tokens.query[token] = norm_q;
      }
  }
}

// Of rows `row` and `row + 8` of the scores, 16 columns from `first`: times the factor of the row and e^{Gi-Gj}. On a diagonal block the
// elements on and above the diagonal, which may be anything, become 0.
__device__ __forceinline__ void decay_block(float (&block)[8], const float* scores, const Tokens& tokens, float2 factor,
                                            int row, int first, int lane, bool diagonal) {
  const int column = 2 * (lane % 4);
  const float2 sum = {tokens.sum[row], tokens.sum[row + 8]};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 before = *reinterpret_cast<const float2*>(&tokens.sum[first + 8 * n + column]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float ratio = exp2_approx((e / 2 ? sum.y : sum.x) - (e % 2 ? before.y : before.x));
      block[4 * n + e] = scores[4 * n + e] * (e / 2 ? factor.y : factor.x) * ratio;
    }
  }
  if (diagonal) {
    const bool low = column < lane / 4, high = column + 1 < lane / 4;
    block[0] = low ? block[0] : 0.0f, block[1] = high ? block[1] : 0.0f;
    block[4] = block[5] = 0.0f;
    block[6] = low ? block[6] : 0.0f, block[7] = high ? block[7] : 0.0f;
  }
}

// P by warps 0 (rows 0-15) and 1 (16-31). Rows past the end may be anything: they make outputs that nobody stores.
template <class Element>
__device__ __forceinline__ void write_p(uint8_t* p, const float (&scores)[16], const Tokens& tokens, int warp,
                                        int lane) {
  const int row = 16 * warp + lane / 4;
  const float2 factor = {tokens.query[row], tokens.query[row + 8]};
  float block[8];
  decay_block(block, scores, tokens, factor, row, 0, lane, warp == 0);
  store_block<Element>(p, 2 * warp, 0, block, lane);
  if (warp == 1) {
    decay_block(block, scores + 8, tokens, factor, row, 16, lane, true);
    store_block<Element>(p, 2, 2, block, lane);
  }
}

// -L by warps 2 (rows 0-15) and 3 (16-31). Rows past the end are 0: selected, for 0 times anything is no 0.
__device__ __forceinline__ void write_lower(FusedLower& lower, const float (&scores)[16], const Tokens& tokens,
                                            int valid, int warp, int lane) {
  const int row = 16 * (warp - 2) + lane / 4, column = 2 * (lane % 4);
  const float2 factor = {tokens.key[row], tokens.key[row + 8]};
  auto store = [&](auto& to, const float* from, int first, bool diagonal) {
    float block[8];
    decay_block(block, from, tokens, factor, row, first, lane, diagonal);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int r = i / 2 % 2;
      const bool exists = row + 8 * r < valid;
      *reinterpret_cast<float2*>(&to[lane / 4 + 8 * r][8 * (i / 4) + column]) = {exists ? block[i] : 0.0f,
                                                                                 exists ? block[i + 1] : 0.0f};
    }
  };
  if (warp == 2) {
    store(lower.diagonal[0], scores, 0, true);
  } else {
    store(lower.corner, scores, 0, false);
    store(lower.diagonal[1], scores + 8, 16, true);
  }
}

// `kQueries`: q too, and P; a summary has neither.
template <class Element, int kCtas, bool kQueries>
__device__ __forceinline__ void make_chunks(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                                            const Item& item, Shared<kCtas>& shared, int group, int rank) {
  const int warp = uniform(static_cast<int>(threadIdx.x) % kWarpgroup / 32);
  const int chunks = uniform(item.row.chunks);
  FusedLower& lower = shared.lower[group];
  Tokens& tokens = shared.tokens[group];
  Loader<kCtas, kQueries> loader(maps, item, shared, item.head / (args.heads_v / args.heads_qk), group, rank);
  if (warp == 0) loader.load_ready();

  const GateParams gate = gate_params(activation, item.head, 0, 1);
  MakePosition<kCtas> position{group * kCtas + rank};
  RawToken raw = fetch_token(activation, item, group * kCtas + rank, threadIdx.x % 32);
  int turn = 0;
#pragma unroll 1
  for (int chunk = group * kCtas + rank; chunk < chunks; chunk += 2 * kCtas) {
    // Opaque, or the compiler keeps every address that follows from it in registers from chunk to chunk.
    const uint32_t thread = opaque(threadIdx.x) % kWarpgroup;
    const int lane = static_cast<int>(thread % 32), stage_index = position.stage;
    uint8_t* stage = shared.ring[stage_index];
    const int valid = min(item.tokens - chunk * kFusedChunk, kFusedChunk);
    if (warp == 0) loader.load_until(chunk);
    wait_parity(&shared.loaded[stage_index], position.parity);
    write_vectors<Element, kQueries>(stage, tokens, activation, gate, raw, valid, thread);
    raw = fetch_token(activation, item, chunk + 2 * kCtas, lane);
    if (thread < 64) {  // above the diagonal: 256 bytes in each of columns 2 and 3, of P and of T
      uint8_t* matrix = stage + (thread < 32 ? Stage::kP : Stage::kT);
      *reinterpret_cast<uint4*>(matrix + core_offset(0, 2 + static_cast<int>(thread) / 16 % 2) + thread % 16 * 16) =
          make_uint4(0, 0, 0, 0);
    }
    named_barrier(kMakeBarrier + group, kWarpgroup);

    // Rows 0-31 are q k^T, rows 32-63 k k^T.
    float scores[16];
    const uint64_t rows = swizzled_operand(shared_address(stage + Stage::kQ)),
                   columns = swizzled_operand(shared_address(stage + Stage::kK));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const uint64_t at = operand_step((step / 4) * Stage::kHalfBytes + (step % 4) * 32);
      Wgmma<Element>::times(scores, rows + at, columns + at, step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
    if (warp < 2) {
      if constexpr (kQueries) write_p<Element>(stage + Stage::kP, scores, tokens, warp, lane);
      if (warp == 0) loader.load_ready();
    } else {
      write_lower(lower, scores, tokens, valid, warp, lane);
      named_barrier(kLowerBarrier + group, 64);
      if (warp == 2 + turn) write_t<Element>(lower, stage + Stage::kT, lane);
    }
    turn ^= 1;
    ptx::fence_proxy_async(ptx::space_shared);
    named_barrier(kMakeBarrier + group, kWarpgroup);
    if (thread == 0) {
      if constexpr (kCtas > 1)
        copy_to_block(stage + Stage::kP, stage + Stage::kP, Stage::kMadeBytes, &shared.made[stage_index], 1 - rank);
      ptx::mbarrier_arrive(&shared.made[stage_index]);
    }
    position.advance();
  }
  if (warp == 0) loader.load_until(chunks - 1);
}

}  // namespace deltarelay::cuda::sm90::fused_gdn
