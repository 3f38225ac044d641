// The chunk-local stage: a CTA of two warpgroups takes one chunk of 64 tokens of one value head from its tokens to all
// that is wanted of it. Nothing passes through memory in between.
//
//     tokens -> decays, norms -> scores -> inverse -> w, u
//                     \-> k_to_end, q_from_start
//
// KDA: a thread has two channels of 16 tokens; scores are those of local_levels.cuh. GDN: products of the raw tiles,
// times the decay between two tokens. With the inverse given there are no scores.
//     w = inverse (beta rk e^G k) (KDA), (inverse beta rk e^G) k (GDN)
//     u = (inverse beta) v
// The inverse is rounded to its type first, as in FLA.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/stages/local_frames.cuh"
#include "kernels/cuda/sm90/stages/local_inverse.cuh"
#include "kernels/cuda/sm90/stages/local_tokens.cuh"

namespace deltarelay::cuda::sm90::local {

// Starts the copy of 64 tokens of a head, or of one strip of it.
__device__ __forceinline__ void load_tile(uint8_t* to, const CUtensorMap& map, const Place& at, int head, int strip,
                                          uint64_t* ready) {
  const int32_t place[5] = {0, static_cast<int32_t>(at.chunk.token), 2 * strip, head, at.chunk.sequence_at};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, place, ready);
}
__device__ __forceinline__ void load_values(uint8_t* to, const CUtensorMap& map, const Place& at, int strip,
                                            uint64_t* ready) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, ready, kTile);
  load_tile(to, map, at, at.head, strip, ready);
}

// Clears rows of a tile past the end: they belong to another sequence, and NaN times 0 is NaN.
__device__ __forceinline__ void clear_rows(uint8_t* tile, int valid) {
#pragma unroll 1
  for (int i = threadIdx.x; i < (kTokens - valid) * 16; i += kThreads)
    *reinterpret_cast<uint4*>(tile + i % 2 * kHalfTile + valid * kRowBytes + i / 2 * 16) = make_uint4(0, 0, 0, 0);
}

// Stores 64 tokens of 64 numbers, half `half` of a head, by one thread.
__device__ __forceinline__ void store_half(const uint8_t* tile, const CUtensorMap& map, const Place& at, int half,
                                           int head) {
  const int32_t place[5] = {0, static_cast<int32_t>(at.chunk.token), half, head, at.chunk.sequence_at};
  ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, place, tile);
  ptx::cp_async_bulk_commit_group();
}
// The same for a chunk that is not whole, by `threads` threads. `rows`: of the first token.
__device__ __forceinline__ void store_rows(const uint8_t* tile, uint4* rows, int64_t step, int valid, int threads) {
#pragma unroll 1
  for (int i = threadIdx.x % threads; i < valid * 8; i += threads)
    rows[i / 8 * step + i % 8] = *reinterpret_cast<const uint4*>(tile + swizzled_offset(i / 8, i % 8));
}
// A 64 x 64 tile of the head to memory.
__device__ __forceinline__ void store_square(const uint8_t* tile, const CUtensorMap& map, void* data, const Place& at,
                                             int heads) {
  if (at.chunk.valid < kTokens)
    store_rows(tile, pieces_of(data, at, heads, kTokens), int64_t{heads} * (kTokens / 8), at.chunk.valid, kThreads);
  else if (threadIdx.x == kThreads - 1)
    store_half(tile, map, at, 0, at.head);
}

// GDN: Aqk by group 0, Akk by group 1.
template <class Element>
__device__ __forceinline__ void make_scalar_scores(const uint8_t* q, const uint8_t* k, const PerToken& tokens,
                                                   const Scores& to, float scale) {
  const int all = uniform(static_cast<int>(threadIdx.x / 32)), group = all / 4, warp = all % 4;
  const int lane = static_cast<int>(threadIdx.x % 32), row = 16 * warp + lane / 4, column = 2 * (lane % 4);
  float scores[32];
  const uint64_t left = swizzled_operand(shared_address(group == 0 ? q : k));
  const uint64_t right = swizzled_operand(shared_address(k));
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step)
    Wgmma<Element>::times(scores, left + channel_step(step, kHalfTile), right + channel_step(step, kHalfTile),
                          step > 0);
  wgmma_commit();
  float sum[2], by[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = row + 8 * r;
    sum[r] = tokens.sums[token];
    by[r] = group == 0 ? scale * tokens.norm_q[token] : tokens.beta[token] * tokens.norm_k[token];
  }
  wgmma_wait<0>();
  pin(scores);
#pragma unroll
  for (int n = 0; n < kTokens / 8; ++n) {
    const int c = 8 * n + column;
    if (8 * n > 16 * warp + 15) {  // above the diagonal
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[4 * n + i] = 0.0f;
      continue;
    }
    const float2 of = *reinterpret_cast<const float2*>(&tokens.sums[c]);
    const float2 norm = *reinterpret_cast<const float2*>(&tokens.norm_k[c]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = row + 8 * r;
      float& low = scores[4 * n + 2 * r];
      float& high = scores[4 * n + 2 * r + 1];
      low = c <= token ? low * by[r] * norm.x * exp2_approx(sum[r] - of.x) : 0.0f;
      high = c + 1 <= token ? high * by[r] * norm.y * exp2_approx(sum[r] - of.y) : 0.0f;
      if (group == 1) *reinterpret_cast<float2*>(&to.lower.row[token][c]) = {low, high};
    }
  }
  if (group == 0) {
    const uint32_t at = shared_address(to.aqk) + swizzled_offset(16 * warp + lane % 16, lane / 16);
#pragma unroll
    for (int b = 0; b < kTokens / 16; ++b) store_matrix(at ^ (b * 32), pack_block<Element>(scores, b));
  }
}

// Where a thread works on one half of the columns of a tile: its group has this half.
struct HalfPlace {
  int half, warp, lane;
  uint32_t own;  // byte of the lane's row of a matrix fragment
  __device__ __forceinline__ HalfPlace() {
    const int all = uniform(static_cast<int>(threadIdx.x / 32));
    half = all / 4, warp = all % 4, lane = static_cast<int>(threadIdx.x % 32);
    own = swizzled_offset(16 * warp + lane % 16, lane / 16);
  }
};

// Begins: product = inverse times one half of the columns of a tile.
template <class Element>
__device__ __forceinline__ void multiply(float (&product)[32], const uint8_t* inverse, const uint8_t* tile,
                                         const HalfPlace& of) {
  const uint64_t left = swizzled_operand(shared_address(inverse));
  const uint64_t right = swizzled_operand(shared_address(tile + of.half * kHalfTile));
  wgmma_fence();
#pragma unroll
  for (int b = 0; b < kTokens / 16; ++b)
    Wgmma<Element>::times_transposed(product, left + operand_step(b * 32), right + operand_step(b * 16 * kRowBytes),
                                     b > 0);
  wgmma_commit();
}
// The same with columns of the inverse weighed.
template <class Element>
__device__ __forceinline__ void multiply_weighed(float (&product)[32], const uint8_t* inverse, const float* weight,
                                                 const uint8_t* tile, const HalfPlace& of) {
  Fragment left[kTokens / 16] = {};
#pragma unroll
  for (int b = 0; b < kTokens / 16; ++b) {
    if (b > of.warp) break;  // above the diagonal
    left[b] = load_matrix((shared_address(inverse) + of.own) ^ (b * 32));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 by = *reinterpret_cast<const float2*>(weight + 16 * b + 8 * (i / 2) + 2 * (of.lane % 4));
      left[b].reg[i] = opaque(scaled<Element>(left[b].reg[i], by));
    }
  }
  const uint64_t right = swizzled_operand(shared_address(tile + of.half * kHalfTile));
  wgmma_fence();
#pragma unroll
  for (int b = 0; b < kTokens / 16; ++b)
    Wgmma<Element>::times_transposed(product, left[b], right + operand_step(b * 16 * kRowBytes), b > 0);
  wgmma_commit();
}

// A product into the place of its tile.
template <class Element>
__device__ __forceinline__ void put_product(const float (&product)[32], uint8_t* tile, const HalfPlace& of) {
#pragma unroll
  for (int b = 0; b < kTokens / 16; ++b)
    store_matrix((shared_address(tile + of.half * kHalfTile) + of.own) ^ (b * 32), pack_block<Element>(product, b));
}
// From there to head `head` of memory.
__device__ __forceinline__ void store_product(const uint8_t* tile, const CUtensorMap& map, void* data, int heads,
                                              int head, const Place& at, const HalfPlace& of) {
  const uint8_t* const columns = tile + of.half * kHalfTile;
  if (at.chunk.valid == kTokens) {
    if (threadIdx.x % kGroup == 0) store_half(columns, map, at, of.half, head);
    return;
  }
  uint4* rows = static_cast<uint4*>(data) + (at.token_of_call * heads + head) * 16 + 8 * of.half;
  store_rows(columns, rows, int64_t{heads} * 16, at.chunk.valid, kGroup);
}
// All warps of the group have read the tiles; then what was put there may be stored.
template <class Put>
__device__ __forceinline__ void put_in_order(const HalfPlace& of, Put put) {
  named_barrier(1 + of.half, kGroup);
  put();
  ptx::fence_proxy_async(ptx::space_shared);
  named_barrier(1 + of.half, kGroup);
}

// One strip of v, with zeros past the end.
template <class Memory>
__device__ __forceinline__ void wait_for_values(const Place& at, Memory& shared, int strip) {
  wait_parity(&shared.v_ready, strip % 2);
  if (at.chunk.valid == kTokens) return;
  clear_rows(shared.v, at.chunk.valid);
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
}

// w, then the strips of u. KDA with scores has registers for w and the first strip at once.
template <class Element, bool kScalar, bool kScores, class Memory>
__device__ __forceinline__ void make_results(const LocalMaps& maps, const LocalArgs& all, const Place& at,
                                             Memory& shared) {
  const ChunkArgs& args = all.call;
  const PerToken& tokens = shared.per_token;
  const int a_head = all.strips_a_head, heads_u = args.heads_v * a_head;
  const bool wants_w = args.stage.wants(DR_W), wants_u = args.stage.wants(DR_U);
  const HalfPlace of;
  if (!wants_w && !wants_u) return;
  int strip = 0;
  if constexpr (kScores && !kScalar) {
    // What is not wanted is made of anything, and not stored.
    float w[32], u[32];
    if (wants_u) wait_for_values(at, shared, 0);
    multiply<Element>(w, shared.inverse(), shared.keys(), of);
    multiply<Element>(u, shared.weighed(), shared.v, of);
    wgmma_wait<0>();
    pin(w);
    pin(u);
    put_in_order(of, [&] {
      put_product<Element>(w, shared.keys(), of);
      put_product<Element>(u, shared.v, of);
    });
    if (wants_w) store_product(shared.keys(), maps.w, args.stage.w, args.heads_v, at.head, at, of);
    if (wants_u) store_product(shared.v, maps.u, args.stage.u, heads_u, at.head * a_head, at, of);
    strip = 1;
  } else if (wants_w) {
    float w[32];
    if constexpr (kScalar)
      multiply_weighed<Element>(w, shared.inverse(), tokens.weight_w, shared.keys(), of);
    else
      multiply<Element>(w, shared.inverse(), shared.keys(), of);
    wgmma_wait<0>();
    pin(w);
    if constexpr (kScalar) {
#pragma unroll
      for (float& x : w) x *= tokens.power_w;
    }
    put_in_order(of, [&] { put_product<Element>(w, shared.keys(), of); });
    store_product(shared.keys(), maps.w, args.stage.w, args.heads_v, at.head, at, of);
  }
  if (!wants_u) return;
#pragma unroll 1
  for (; strip < a_head; ++strip) {
    if (strip > 0) {
      ptx::fence_proxy_async(ptx::space_shared);
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      __syncthreads();  // the strip before has left
      if (threadIdx.x == 0) load_values(shared.v, maps.v, at, strip, &shared.v_ready);
    }
    wait_for_values(at, shared, strip);
    float u[32];
    if constexpr (Memory::kWeighs)
      multiply<Element>(u, shared.weighed(), shared.v, of);
    else
      multiply_weighed<Element>(u, shared.inverse(), tokens.beta, shared.v, of);
    wgmma_wait<0>();
    pin(u);
    put_in_order(of, [&] { put_product<Element>(u, shared.v, of); });
    store_product(shared.v, maps.u, args.stage.u, heads_u, at.head * a_head + strip, at, of);
  }
}

// Is the inverse of Akk needed here?
__device__ __forceinline__ bool makes_inverse(const Intermediates& stage) {
  return stage.wants(DR_INVERSE) || (stage.wants(DR_W | DR_U) && !stage.gives(DR_INVERSE));
}

// The first step to the inverse, by group 1, and for GDN the weights of its columns.
template <bool kScalar, bool kScores>
__device__ __forceinline__ void begin_inverse(const Intermediates& stage, Shared<kScalar, kScores>& shared) {
  const int warp = uniform(static_cast<int>(threadIdx.x / 32)), lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kScores) {
    if (warp / 2 == 2 && makes_inverse(stage)) invert_thirty_two(shared.squares.lower, 32 * (warp % 2), lane);
  }
  if (kScalar && warp == 7) weigh_columns(shared.per_token, lane);
}

// From there to w and u.
template <class Element, bool kScalar, bool kScores>
__device__ __forceinline__ void finish(const LocalMaps& maps, const LocalArgs& all, const Place& at,
                                       Shared<kScalar, kScores>& shared) {
  const Intermediates& stage = all.call.stage;
  const int heads = all.call.heads_v, valid = at.chunk.valid;
  const int64_t step = int64_t{heads} * (kTokens / 8);
  const bool solves = stage.wants(DR_W | DR_U);
  const InverseTiles tiles = {shared.inverse(), shared.weighed(), shared.per_token.beta};
  if constexpr (kScores) {
    const int warp = uniform(static_cast<int>(threadIdx.x / 32)), lane = static_cast<int>(threadIdx.x % 32);
    __syncthreads();
    if (stage.wants(DR_AQK)) store_square(shared.scores().aqk, maps.aqk, stage.aqk, at, heads);
    if (makes_inverse(stage)) {
      invert_below<Element>(shared.squares.lower, tiles, warp, lane);
    } else if (solves) {
      request_inverse(shared.inverse(), pieces_of(stage.inverse, at, heads, kTokens), step, valid);
      wait_for_inverse<Element>(tiles);
    }
  } else if (stage.gives(DR_INVERSE)) {
    wait_for_inverse<Element>(tiles);
  }
  if (!solves && !stage.wants(DR_INVERSE)) return;
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (stage.wants(DR_INVERSE)) store_square(shared.inverse(), maps.inverse, stage.inverse, at, heads);
  make_results<Element, kScalar, kScores>(maps, all, at, shared);
}

// q and k are there; past the end they are 0.
template <class Memory>
__device__ __forceinline__ void wait_for_tokens(const Place& at, Memory& shared) {
  wait_parity(&shared.tokens_ready, 0);
  if (at.chunk.valid == kTokens) return;
  clear_rows(shared.q(), at.chunk.valid);
  clear_rows(shared.k(), at.chunk.valid);
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
}

template <class Element, bool kScores>
__device__ __forceinline__ void run(const LocalMaps& maps, const LocalArgs& all, const Place& at,
                                    Shared<false, kScores>& shared, uint32_t beta) {
  const ChunkArgs& args = all.call;
  const WarpPlace of;
  const bool reads = args.stage.gives(DR_GATE_SUMS) || args.activation.g.data != nullptr;
  if constexpr (kScores) {
    const DecayTiles decays = {shared.tokens.columns, shared.tokens.keys};
    float2 before = {0.0f, 0.0f};
    if (reads) before = request_gates(decays, args, at, of);
    __syncthreads();  // barriers are there
    const float2 product = form_decays(decays, before, shared.products, reads, args, at, of);
    *reinterpret_cast<float2*>(&shared.products[of.block][of.channel()]) = product;
    wait_for_tokens(at, shared);
    // Scores need k. If they alone read q, and nobody wants them, q may be anything.
    const bool fits = measure_tokens<Element, false>(shared.q(), shared.k(), shared.per_token, args.activation,
                                                     at.chunk.valid, all.reads_q, beta);
    const bool all_fit = __syncthreads_and(fits && product.x >= kLeastProduct && product.y >= kLeastProduct);
    if (kHasFrames<Element> && all_fit) {
      if (at.chunk.valid == kTokens)
        write_frames<Element, true>(shared.tokens, shared.products, shared.per_token, args, at, of);
      else
        write_frames<Element, false>(shared.tokens, shared.products, shared.per_token, args, at, of);
      ptx::fence_proxy_async(ptx::space_shared);
      __syncthreads();
      multiply_frames<Element>(shared.tokens, shared.per_token, shared.scores(), args.activation.scale);
      begin_inverse(args.stage, shared);
      // Not shared with the levels: values that live across both would be spilled there.
      return finish<Element>(maps, all, at, shared);
    }
    Part part;
    read_part(part, shared.q(), shared.k(), decays, of);
    const Scores scores = shared.scores();
    for (int i = threadIdx.x; i < kHalfTile / 16; i += kThreads)
      reinterpret_cast<uint4*>(scores.aqk)[i] = make_uint4(0, 0, 0, 0);
    // The tiles have been read. Scores of a block are written by two warps, its zeros by four.
    __syncthreads();
    make_channel_scores<Element>(shared.levels(), shared.products, part,
                                 {scores, shared.per_token, args.activation.scale}, of);
    part.renew(static_cast<uint32_t>(args.stage.chunk ^ kTokens));
    write_decayed<Element>(part, shared.products, shared.keys(), shared.per_token, args, at, of);
  } else {
    Part part;
    {
      RawGates raw;
      if (reads) load_gates(raw, args, at, of);
      __syncthreads();  // barriers are there
      // Twice where sums are wanted of softplus gates, so that decays have the same bits as without them.
      bool for_sums = args.stage.wants(DR_GATE_SUMS);
#pragma unroll 1
      for (bool again = reads; again; for_sums = false) {
        activate_gates(part.decay, raw, args, at, of, for_sums);
        again = for_sums && args.activation.gate_form == GateForm::kRawSoftplus;
        if (for_sums) write_channel_sums([&](int t) { return part.decay[t]; }, shared.products, args, at, of);
      }
#pragma unroll
      for (float2& x : part.decay) x = {exp2_approx(x.x), exp2_approx(x.y)};
      if (!reads || at.chunk.valid < kTokens) {
        asm volatile("");  // a branch: whole chunks need no selects
#pragma unroll
        for (int t = 0; t < kBlock; ++t)
          if (!reads || of.block * kBlock + t >= at.chunk.valid) part.decay[t] = {1.0f, 1.0f};
      }
    }
    float2 product = part.decay[0];
#pragma unroll
    for (int t = 1; t < kBlock; ++t) product = times(product, part.decay[t]);
    *reinterpret_cast<float2*>(&shared.products[of.block][of.channel()]) = product;
    wait_for_tokens(at, shared);
    read_part(part.q, shared.q(), all.reads_q, of);
    read_part(part.k, shared.k(), all.reads_k, of);
    measure_tokens<Element, false>(shared.q(), shared.k(), shared.per_token, args.activation, at.chunk.valid,
                                   all.reads_q, beta);
    __syncthreads();  // the raw tiles have been read
    write_decayed<Element>(part, shared.products, shared.keys(), shared.per_token, args, at, of);
  }
  begin_inverse(args.stage, shared);
  finish<Element>(maps, all, at, shared);
}

template <class Element, bool kScores>
__device__ __forceinline__ void run(const LocalMaps& maps, const LocalArgs& all, const Place& at,
                                    Shared<true, kScores>& shared, uint32_t beta) {
  const ChunkArgs& args = all.call;
  const int warp = uniform(static_cast<int>(threadIdx.x / 32)), lane = static_cast<int>(threadIdx.x % 32);
  const bool sums = args.stage.gives(DR_GATE_SUMS);
  if (warp == 2 && (sums || args.activation.g.data != nullptr)) {
    const float unit = sums && !args.stage.sums_base_2 ? kLog2e : 1.0f;
    const StageGates gates = {sums ? args.stage.gate_sums : nullptr, unit, args.heads_v, args.activation};
    const float2 two =
        scalar_sums(gates, {at.chunk.sequence_at, at.chunk.token, at.token_of_call, at.head, at.chunk.valid}, 0, lane);
    reinterpret_cast<float2*>(shared.per_token.sums)[lane] = {two.x * unit, two.y * unit};
  }
  if (warp == 3 && args.stage.wants(DR_GATE_SUMS)) write_scalar_sums(args, at, lane);
  __syncthreads();  // barriers and sums are there
  wait_for_tokens(at, shared);
  measure_tokens<Element, true>(shared.q(), shared.k(), shared.per_token, args.activation, at.chunk.valid, all.reads_q,
                                beta);
  __syncthreads();
  if constexpr (kScores) {
    make_scalar_scores<Element>(shared.q(), shared.k(), shared.per_token, shared.scores(), args.activation.scale);
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
  }
  begin_inverse(args.stage, shared);
  write_decayed<Element>(shared.q(), shared.k(), shared.per_token, args, at);
  finish<Element>(maps, all, at, shared);
}

// Finds the CTA's chunk, and starts the copies of its q, k and v. Returns false if there is none.
// Grid: heads, chunks (the second axis, kMostRows of them for each place of the third). Neighbours read the same rows
// of q and k.
template <class Memory>
__device__ __forceinline__ bool begin_chunk(const LocalMaps& maps, const LocalArgs& all, Place& at, Memory& shared) {
  const ChunkArgs& args = all.call;
  allow_next_grid();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.tokens_ready, 1);
    ptx::mbarrier_init(&shared.v_ready, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  wait_for_previous_grid();
  const auto chunk = static_cast<int>(blockIdx.z * kMostRows + blockIdx.y);
  if (!find_chunk_in_parameters(all.call.tables, chunk, kTokens, at.chunk)) return false;
  at.head = static_cast<int>(blockIdx.x);
  at.key_head = at.head / all.group;
  at.token_of_call = (args.tables.batched ? args.tables.token_begin()[at.chunk.sequence] : 0) + at.chunk.token;
  if (threadIdx.x == 0) {
    const uint32_t bytes = (all.reads_q ? kTile : 0) + (all.reads_k ? kTile : 0);
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.tokens_ready, bytes);
    if (all.reads_k) load_tile(shared.k(), maps.k, at, at.key_head, 0, &shared.tokens_ready);
    if (all.reads_q) load_tile(shared.q(), maps.q, at, at.key_head, 0, &shared.tokens_ready);
    if (all.reads_v) load_values(shared.v, maps.v, at, 0, &shared.v_ready);
  }
  return true;
}

template <class Element, bool kScalar, bool kScores>
__global__ void __launch_bounds__(kThreads, kResident<kScalar, kScores>)
    local_kernel(const __grid_constant__ LocalMaps maps, const __grid_constant__ LocalArgs all) {
  auto& shared = *reinterpret_cast<Shared<kScalar, kScores>*>(dynamic_shared_memory());
  const ChunkArgs& args = all.call;
  Place at;
  if (!begin_chunk(maps, all, at, shared)) return;
  const uint32_t beta = load_beta(args, at);
  if (!kScores && args.stage.gives(DR_INVERSE)) {
    request_inverse(shared.inverse(), pieces_of(args.stage.inverse, at, args.heads_v, kTokens),
                    int64_t{args.heads_v} * (kTokens / 8), at.chunk.valid);
  }
  run<Element, kScores>(maps, all, at, shared, beta);
  ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
}

}  // namespace deltarelay::cuda::sm90::local
