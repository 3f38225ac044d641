// The score group of the fused walk of KDA: loads, norms (one chunk before the scaling), both score matrices in one
// product, Aqk~ and the inverse; and the copies to the other CTA.
//
// Tiles hold k without its norm. So the state works on V_new~ = rk V_new, and the norm enters at two places only:
//     Akk~_ij = beta_i rk_i^2 k_from_mid_i.k_to_mid_j for j < i
//     R~_i = beta_i rk_i v_i - beta_i rk_i^2 (k_from_mid S_mid)_i      V_new~ = (I + Akk~)^-1 R~
// Of fp16 data tiles hold k with its norm: there rk is 1, and nothing has a tilde.
#pragma once
#include <cstddef>

#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/fused/kda/ends.cuh"
#include "kernels/cuda/sm90/fused/kda/memory.cuh"
#include "kernels/cuda/sm90/fused/kda/windows.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/cuda/tile/descriptor.cuh"
#include "kernels/cuda/tile/scores.cuh"

namespace deltarelay::cuda::sm90 {

// Sums of products of channels: k k, q q, q k. Even and odd channels are summed apart, so that no addition waits for
// the previous one.
struct TokenSums {
  float even[3] = {}, odd[3] = {};
  template <bool kQueries, class Element>
  __device__ __forceinline__ void add(const uint4& q, const uint4& k) {  // 8 channels
    using Two = Pair<Element>;
    const uint32_t qs[4] = {q.x, q.y, q.z, q.w}, ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float k0 = Two::low(ks[i]), k1 = Two::high(ks[i]);
      even[0] = fmaf(k0, k0, even[0]), odd[0] = fmaf(k1, k1, odd[0]);
      if constexpr (kQueries) {
        const float q0 = Two::low(qs[i]), q1 = Two::high(qs[i]);
        even[1] = fmaf(q0, q0, even[1]), odd[1] = fmaf(q1, q1, odd[1]);
        even[2] = fmaf(q0, k0, even[2]), odd[2] = fmaf(q1, k1, odd[2]);
      }
    }
  }
};

// For the factors of the tokens, a thread of the score group sums a quarter of a token's channels and writes one of its
// four factors.
struct TokenShare {
  // Byte offset in a stage of the first 16 bytes of q to sum. The others lie at this ^ 16, 32, 48; k is a tile further.
  uint32_t first_piece;
};

// The order of the pieces keeps the four threads of a token free of bank conflicts.
__device__ __forceinline__ TokenShare token_share(uint32_t thread) {
  const uint32_t token = thread / 4, quarter = thread % 4, half = quarter / 2;
  const uint32_t first = (quarter % 2 * 4 + half * 2) ^ (token % 8);
  return {half * FusedStage::kHalfBytes + token * kRowBytes + first * 16};
}

// Byte offset in TokenFactors of the factor that a thread writes.
__device__ __forceinline__ uint32_t factor_at(uint32_t thread) {
  const uint32_t token = thread / 4, quarter = thread % 4;
  const uint32_t pair = token / 2 * 16 + token % 2 * 4 + quarter * 8;
  const uint32_t single = token * 4 + (quarter - 2) * 128 + static_cast<uint32_t>(offsetof(TokenFactors, query));
  return quarter < 2 ? pair : single;
}

// Writes the factors of the tokens; 0 for tokens past the end, whose rows may hold anything. Uses plain arithmetic:
// mma.sync would wait behind the state's wgmma.
template <bool kQueries, class Element>
__device__ __forceinline__ void write_factors(const Activation& activation, const TokenShare& share, uint8_t* stage,
                                              TokenFactors& factors, float strength, bool exists, uint32_t thread) {
  TokenSums channels;
  uint4 q[4] = {}, k[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint8_t* at = stage + (share.first_piece ^ (i * 16));
    if constexpr (kQueries) q[i] = *reinterpret_cast<const uint4*>(at + FusedStage::kQ);
    k[i] = *reinterpret_cast<const uint4*>(at + FusedStage::kK);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) channels.template add<kQueries, Element>(q[i], k[i]);
  float sums[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) sums[i] = channels.even[i] + channels.odd[i];
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    constexpr int kSums = kQueries ? 3 : 1;
    float other[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) other[i] = __shfl_xor_sync(~0u, sums[i], distance);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += other[i];
  }
  const bool normed = activation.l2norm;
  const float norm_k = normed ? rsqrtf(sums[0] + kL2NormEpsilon) : 1.0f;
  const float norm_q = normed ? rsqrtf(sums[1] + kL2NormEpsilon) : 1.0f;
  const uint32_t quarter = thread % 4;
  const float once = strength * norm_k;
  const float twice = once * norm_k, query = activation.scale * norm_q;
  const float of_pair = quarter % 2 == 0 ? once : twice, single = quarter % 2 == 0 ? query : sums[2];
  float number = quarter < 2 ? of_pair : single;
  if constexpr (kEndFrames<Element>) {  // norms are in the tiles
    const float norm = quarter % 2 == 0 ? query : norm_k;
    uint8_t* norms = reinterpret_cast<uint8_t*>(&factors) + (FusedStage::kNorms - FusedStage::kTokens);
    if (quarter < 2) reinterpret_cast<float*>(norms)[thread / 4 * 2 + quarter] = exists ? norm : 0.0f;
    number = quarter < 2 ? strength : quarter == 2 ? 1.0f : query * norm_k * sums[2];
  }
  *reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(&factors) + factor_at(thread)) = exists ? number : 0.0f;
}

// Writes Aqk~ below its diagonal from rows of q_from_mid k_to_mid^T. Scores above it may be inf or NaN: select.
template <class Element>
__device__ __forceinline__ void write_aqk(uint8_t* aqk, const float (&scores)[16], int warp, int lane) {
  const int row = lane / 4, column = 2 * (lane % 4);
  auto mask = [&](float(&block)[8], int first) {  // a 16 x 16 block on the diagonal
    const bool low = column < row, high = column + 1 < row;
    block[0] = low ? scores[first] : 0.0f, block[1] = high ? scores[first + 1] : 0.0f;
    block[2] = scores[first + 2], block[3] = scores[first + 3];
    block[4] = block[5] = 0.0f;
    block[6] = low ? scores[first + 6] : 0.0f, block[7] = high ? scores[first + 7] : 0.0f;
  };
  float block[8];
  if (warp == 0) {
    mask(block, 0);
    store_block<Element>(aqk, 0, 0, block, lane);
  } else {
    store_block<Element>(aqk, 2, 0, scores, lane);
    mask(block, 8);
    store_block<Element>(aqk, 2, 2, block, lane);
  }
}

// Writes N = -Akk~ by warps 2 (rows 0-15) and 3 (rows 16-31). N is 0 on and above the diagonal; the scores there may be
// inf or NaN: select.
__device__ __forceinline__ void write_negated_akk(NegatedAkk& negated, const float (&scores)[16],
                                                  const TokenFactors& factors, int warp, int lane) {
  const int row = lane / 4, column = 2 * (lane % 4), pair = (warp - 2) * 8 + row / 2;
  const float strength[2] = {-factors.strength[pair][2 + row % 2], -factors.strength[pair + 4][2 + row % 2]};
  const bool low = column < row, high = column + 1 < row;
  // A 16 x 16 block from block (i, j) of 8 on: rows 0-7 of both column halves, then rows 8-15, in accumulator layout.
  auto store = [&](int i, int j) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int r = part % 2, half = part / 2;
      const float* own = scores + 4 * j + 2 * part;
      float2 two = {own[0] * strength[r], own[1] * strength[r]};
      if (i + r < j + half) continue;
      if (i + r == j + half) two = {low ? two.x : 0.0f, high ? two.y : 0.0f};
      negated.at<float2>(i + r, j + half, row, column) = two;
    }
  };
  if (warp == 2) {
    store(0, 0);
  } else {
    store(2, 0);
    store(2, 2);
  }
}

// Position in the ring of what a warp loads.
struct LoadPosition {
  int stage;
  uint32_t parity = 0;
};

// Loads chunks as stages become free, by warps 0 and 1 of the score group; the other two compute the inverse. Warp 0
// loads q and k of the chunks that this CTA makes. Warp 1 loads their gates and this CTA's halves of v of all chunks,
// and announces the bytes that come from the other CTA.
template <Form kForm, GateSource kSource, bool kQueries, class Element>
class Loader {
 public:
  // Starts at `position`; the items before this one have `begin` chunks.
  __device__ __forceinline__ Loader(const FusedMaps& maps, const Item& item, FusedShared<kForm, Element>& shared,
                                    int begin, int warp, int rank, LoadPosition& position)
      : maps_(maps),
        shared_(shared),
        warp_(warp),
        rank_(rank),
        chunks_(uniform(item.row.chunks)),
        token_(uniform(static_cast<int>(item.token))),
        head_(uniform(warp == 0 ? item.key_head : item.head)),
        strip_(uniform(item.strip)),
        sequence_(uniform(item.sequence_at)),
        begin_(begin),
        chunk_(warp == 0 ? rank : 0),
        position_(position) {}

  // Loads all chunks up to `needed`, waiting for stages, of which none is more than a ring behind, and further chunks
  // whose stages are free. Exception: while single CTAs fill their rings for the first time, at most two chunks more.
  // Single CTAs run on every multiprocessor. A lane waits to issue a copy while earlier copies saturate the memory, and
  // would be late for the first chunk.
  __device__ __forceinline__ void load(int needed) {
    const int limit = kForm == Form::kSingle && begin_ + chunk_ < kStages ? chunk_ + 2 : chunks_;
#pragma unroll 1
    while (chunk_ <= needed || chunk_ < limit) {
      if (!load_next(chunk_ <= needed)) break;
    }
  }

 private:
  static constexpr int kStages = FusedRing<kForm, Element>::kStages, kHalves = FusedRing<kForm>::kHalves;
  static constexpr int kCtas = ctas(kForm);

  __device__ __forceinline__ bool load_next(bool wait) {
    if (warp_ > 1 || chunk_ >= chunks_) return false;
    if (begin_ + chunk_ >= kStages && !passes(&shared_.free[position_.stage], position_.parity ^ 1, wait)) return false;
    if constexpr (kSource == GateSource::kWideTiles) {
      if (warp_ == 1 && loads_gates() && begin_ + chunk_ >= SecondQuarters<kForm, Element>::kPlaces * kCtas) {
        // The chunk that had the place of these second quarters lies in the next own stage.
        const int next = position_.stage + kCtas;
        const bool around = next >= kStages;
        if (!passes(&shared_.scaled[around ? next - kStages : next], position_.parity ^ !around, wait)) return false;
      }
    }
    if (elect_lane()) {
      if (warp_ == 0)
        load_keys();
      else
        load_values();
    }
    __syncwarp();
    const int step = warp_ == 0 ? kCtas : 1;
    chunk_ += step;
    position_.stage += step;
    if (position_.stage >= kStages) {
      position_.stage -= kStages;
      position_.parity ^= 1;
    }
    return true;
  }

  // Has a barrier completed the phase of this parity? `wait`: waits until it has.
  __device__ __forceinline__ static bool passes(uint64_t* barrier, uint32_t parity, bool wait) {
    if (!wait) return ptx::mbarrier_test_wait_parity(barrier, parity);
    wait_parity(barrier, parity);
    return true;
  }
  // Is the chunk one of those that this CTA makes?
  __device__ __forceinline__ bool loads_gates() const { return position_.stage % kCtas == rank_; }

  __device__ __forceinline__ void copy(const CUtensorMap& map, int half, int head, uint8_t* to, uint64_t* barrier) {
    copy_tile(map, token_ + chunk_ * kFusedChunk, half, head, sequence_, to, barrier);
  }

  __device__ __forceinline__ void load_keys() {
    uint8_t* stage = shared_.ring[position_.stage];
    uint64_t* loaded = &shared_.loaded[position_.stage];
    expect_bytes(loaded, (kQueries ? 4 : 2) * FusedStage::kTileBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half, stage += FusedStage::kHalfBytes) {
      copy(maps_.k, half, head_, stage + FusedStage::kK, loaded);
      if constexpr (kQueries) copy(maps_.q, half, head_, stage + FusedStage::kQ, loaded);
    }
  }

  __device__ __forceinline__ void load_values() {
    uint8_t* stage = shared_.ring[position_.stage];
    uint64_t* scaled = &shared_.scaled[position_.stage];
    if (loads_gates()) {
      constexpr int kTiles = is_wide(kSource) ? 2 : 1;  // in a half
      uint64_t* loaded = &shared_.loaded[position_.stage];
      expect_bytes(loaded, 2 * kTiles * FusedStage::kTileBytes);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        copy(maps_.g, kTiles * half, head_, stage + half * FusedStage::kHalfBytes + FusedStage::kGate, loaded);
      if constexpr (kSource == GateSource::kWideTiles) {
        uint8_t* second = shared_.ring[0] + SecondQuarters<kForm, Element>::at(begin_ + chunk_);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          copy(maps_.g, 2 * half + 1, head_, second + half * FusedStage::kTileBytes, loaded);
      }
      expect_bytes(scaled, kHalves * FusedStage::kTileBytes);
    } else {
      expect_bytes(scaled,
                   FusedStage::kTileBytes + FusedStage::kTilesEnd - (kQueries ? 0 : 2 * FusedStage::kTileBytes));
      expect_bytes(&shared_.solved[position_.stage], (kQueries ? 2 : 1) * FusedStage::kTriangleBytes);
    }
    copy(maps_.v, rank_, strip_, stage + FusedStage::kV, scaled);
  }

  const FusedMaps& maps_;
  FusedShared<kForm, Element>& shared_;
  int warp_, rank_, chunks_, token_;
  int head_;  // of what this warp loads: the key head, or the head of the gates
  int strip_, sequence_, begin_;
  int chunk_;
  LoadPosition& position_;
};

// Positions of the score group in the ring: for loading, for the sums of norms, and for Aqk~ and the inverse.
template <Form kForm, class Element>
struct ScoreState {
  LoadPosition loading;
  OwnPosition<kForm, Element> summing, making;
};

// Clears the blocks above the diagonals in the stages whose chunks this CTA makes, by kThreads threads; copies from the
// other CTA bring their own zeros.
template <int kThreads, Form kForm, class Element>
__device__ __forceinline__ void clear_stages(FusedShared<kForm, Element>& shared, int rank, int thread) {
  // Unrolled: the compiler would assume that a loop count differs between lanes, and give up uniform registers after
  // it.
#pragma unroll
  for (int i = 0; i < FusedRing<kForm, Element>::kStages; ++i) {
    uint8_t* stage = shared.ring[i];
#pragma unroll
    for (int first = 0; first < kClearThreads; first += kThreads) {
      if (first + thread < kClearThreads && i % ctas(kForm) == rank)
        clear_above(stage + FusedStage::kAqk, stage + FusedStage::kInverse, first + thread);
    }
  }
}

// Copies the scaled tiles and the factors of a stage to CTA `other`, by one thread.
template <bool kQueries, class Shared>
__device__ __forceinline__ void copy_tiles(Shared& shared, int stage_index, int other) {
  uint8_t* stage = shared.ring[stage_index];
  if constexpr (kQueries) {
    copy_to_block(stage, stage, FusedStage::kTilesEnd, &shared.scaled[stage_index], other);
  } else {  // without q
    uint8_t *first = stage + FusedStage::kK, *second = first + FusedStage::kHalfBytes;
    copy_to_block(first, first, 2 * FusedStage::kTileBytes, &shared.scaled[stage_index], other);
    copy_to_block(second, second, static_cast<uint32_t>(stage + FusedStage::kTilesEnd - second),
                  &shared.scaled[stage_index], other);
  }
}

// Copies Aqk~ or inverse - I of a stage to CTA `other`, by one thread.
template <class Shared>
__device__ __forceinline__ void copy_triangle(Shared& shared, int stage_index, int triangle, int other) {
  uint8_t* at = shared.ring[stage_index] + triangle;
  copy_to_block(at, at, FusedStage::kTriangleBytes, &shared.solved[stage_index], other);
}

// Copies the tiles of fp16 data when they are complete, by warp 0: scores do not wait for them. `number`: of the chunk
// among those that this CTA makes.
template <bool kQueries>
__device__ __forceinline__ void send_tiles(FusedShared<Form::kPair, __half>& shared, int stage_index, uint32_t number,
                                           int warp, uint32_t thread, int other) {
  constexpr uint32_t kOwnStages = FusedRing<Form::kPair, __half>::kStages / ctas(Form::kPair);
  if (warp != 0) return;
  wait_parity(&shared.scaled[stage_index], number / kOwnStages % 2);
  if (thread == 0) copy_tiles<kQueries>(shared, stage_index, other);
}

// Aqk~ and the inverse of a scaled chunk, and their copies to CTA `other`. Warps 0 and 1 write Aqk~; warps 2 and 3
// write Akk~ and alternate in computing the inverse.
template <Form kForm, bool kQueries, bool kMidFrame, class Element>
__device__ __forceinline__ void score_chunk(FusedShared<kForm, Element>& shared, int stage_index, int chunk, int warp,
                                            uint32_t thread, int lane, int other, uint32_t number) {
  constexpr int kCtas = ctas(kForm);
  uint8_t* stage = shared.ring[stage_index];
  // Rows 0-31 are q_from_mid k_to_mid^T, rows 32-63 k_from_mid k_to_mid^T.
  float scores[16];
  if constexpr (kEndFrames<Element>) {
    multiply_words(scores, shared.words, number);
    if constexpr (kCtas > 1) send_tiles<kQueries>(shared, stage_index, number, warp, thread, other);
  } else {
    multiply_scores<Element>(scores, swizzled_operand(shared_address(stage + FusedStage::kQ)),
                             swizzled_operand(shared_address(stage + FusedStage::kGate)), FusedStage::kHalfBytes);
    wgmma_wait<0>();
    pin(scores);
  }
  if constexpr (!kMidFrame) add_listed<kQueries>(stage, scores, warp, lane, thread);
  if (warp < 2) {
    if constexpr (kQueries) {
      write_aqk<Element>(stage + FusedStage::kAqk, scores, warp, lane);
      ptx::fence_proxy_async(ptx::space_shared);
      if constexpr (kCtas > 1) {
        named_barrier(kScoreBarrier, 64);
        if (thread == 0) copy_triangle(shared, stage_index, FusedStage::kAqk, other);
      }
    }
  } else {
    named_barrier(kTriangleBarrier, 64);  // the inverse of the previous chunk is done with Akk~
    write_negated_akk(shared.negated, scores, tokens_of(stage), warp, lane);
    named_barrier(kTriangleBarrier, 64);
    if (warp == 2 + chunk / kCtas % 2) {
      write_inverse<Element>(shared.negated, stage + FusedStage::kInverse, lane);
      ptx::fence_proxy_async(ptx::space_shared);
      __syncwarp();
      if (kCtas > 1 && lane == 0) copy_triangle(shared, stage_index, FusedStage::kInverse, other);
    }
  }
  warp_arrive(&shared.solved[stage_index]);
}

// Waits until a chunk at `position` has been scaled, copies it to the other CTA, and scores it.
template <Form kForm, bool kQueries, bool kMidFrame, class Element>
__device__ __forceinline__ void score_scaled(FusedShared<kForm, Element>& shared, OwnPosition<kForm, Element>& position,
                                             int chunk, int warp, uint32_t thread, int lane, int other, int begin = 0) {
  const int stage_index = position.stage;
  const uint32_t number = static_cast<uint32_t>(begin + chunk) / ctas(kForm);
  if constexpr (!kEndFrames<Element>) {
    wait_parity(&shared.scaled[stage_index], position.parity);
    if (ctas(kForm) > 1 && thread == 0) copy_tiles<kQueries>(shared, stage_index, other);
  }
  bool unread = false;  // a summary has ended: nobody reads the chunk
  if constexpr (!kQueries) unread = named_barrier_any(kScoreBarrier, kWarpgroup, shared.end.reached());
  if (unread) {
    if constexpr (kEndFrames<Element> && !kQueries) {
      pass_words(shared.words, number);
      send_tiles<kQueries>(shared, stage_index, number, warp, thread, other);
    }
    if (thread == 0) copy_triangle(shared, stage_index, FusedStage::kInverse, other);
    warp_arrive(&shared.solved[stage_index]);
  } else {
    score_chunk<kForm, kQueries, kMidFrame>(shared, stage_index, chunk, warp, thread, lane, other, number);
  }
  position.advance();
}

// Scores the chunks of one item; the items before have `begin` chunks.
template <Form kForm, GateSource kSource, bool kQueries, bool kMidFrame, class Element>
__device__ __forceinline__ void score_item(const FusedMaps& maps, const Activation& activation, const Item& item,
                                           int begin, FusedShared<kForm, Element>& shared, int warp, int rank,
                                           ScoreState<kForm, Element>& at) {
  constexpr int kCtas = ctas(kForm);
  const int chunks = uniform(item.row.chunks);
  const int other = 1 - rank;
  if (chunks == 0) return;

  // The raw write strength of this thread's token, loaded one chunk before its use, so that nothing waits for it.
  const TokenShare share = token_share(threadIdx.x % kWarpgroup);
  const TensorView& beta = activation.beta;
  const int beta_bytes = float_bytes(beta.dtype);
  const int first_token = rank * kFusedChunk + static_cast<int>(threadIdx.x % kWarpgroup / 4);
  const uint8_t* beta_at = static_cast<const uint8_t*>(beta.data) +
                           (item.sequence_at * beta.sequence +
                            (item.token + min(first_token, item.tokens - 1)) * beta.token + item.head * beta.head) *
                               beta_bytes;
  auto fetch_beta = [&](int chunk, int token) {  // for a token past the end: that of an existing one
    const bool exists = chunk * kFusedChunk + token < item.tokens;
    const uint32_t step = opaque(kCtas * kFusedChunk * beta_bytes);  // otherwise its product stays in a register
    beta_at += exists && chunk >= kCtas ? step * beta.token : 0;
    return load_bits(beta_at, beta.dtype, 0);
  };
  uint32_t next_beta = fetch_beta(0, 0);

  Loader<kForm, kSource, kQueries, Element> loader(maps, item, shared, begin, warp, rank, at.loading);
  loader.load(-1);
  if (begin == 0) {  // once, while the first copies are in flight
    clear_stages<kWarpgroup>(shared, rank, static_cast<int>(threadIdx.x % kWarpgroup));
    named_barrier(kScoreBarrier, kWarpgroup);
  }
  OwnPosition<kForm, Element>& position = at.making;
  OwnPosition<kForm, Element>& ahead = at.summing;
#pragma unroll 1
  for (int chunk = rank - kCtas; chunk < chunks; chunk += kCtas) {
    // Opaque. The compiler would otherwise keep every address that follows from the thread in registers between chunks.
    const uint32_t thread = opaque(threadIdx.x) % kWarpgroup;
    const int lane = static_cast<int>(thread % 32);
    loader.load(chunk + kCtas);
    // Sums over the raw rows of the next chunk, so that its scaling need not wait for them.
    if (chunk + kCtas < chunks) {
      // The write strength is computed before the wait: the latency from a chunk's load to its inverse must be short,
      // because the ring covers no more than that.
      const int token = static_cast<int>(thread / 4);
      const float strength = write_strength(number_of(next_beta, beta.dtype), activation.beta_form);
      wait_parity(&shared.loaded[ahead.stage], ahead.parity);
      write_factors<kQueries, Element>(activation, share, shared.ring[ahead.stage], tokens_of(shared.ring[ahead.stage]),
                                       strength, (chunk + kCtas) * kFusedChunk + token < item.tokens, thread);
      ptx::fence_proxy_async(ptx::space_shared);
      warp_arrive(&shared.summed[ahead.stage]);
      next_beta = fetch_beta(chunk + 2 * kCtas, token);  // after the fence, which may wait for loads
      ahead.advance();
    }
    if (chunk >= 0) {
      score_scaled<kForm, kQueries, kMidFrame>(shared, position, chunk, warp, thread, lane, other, begin);
    }
  }
  loader.load(chunks - 1);
}

// Scores the chunks of a summary, from the row's end (summary.cuh).
template <bool kMidFrame, class Element>
__device__ __forceinline__ void score_backwards(const Activation& activation, FusedShared<Form::kPair, Element>& shared,
                                                int warp, int rank) {
  constexpr Form kForm = Form::kPair;
  constexpr int kCtas = ctas(kForm);
  const Item& item = shared.item;
  const int all = uniform(item.row.chunks);
  const TokenShare share = token_share(threadIdx.x % kWarpgroup);
  const TensorView& beta = activation.beta;
  const uint8_t* beta_at =
      static_cast<const uint8_t*>(beta.data) +
      (item.sequence_at * beta.sequence + item.token * beta.token + item.head * beta.head) * float_bytes(beta.dtype);
  auto fetch_beta = [&](int chunk, int token) {  // for a token past either end: that of an existing one
    const int at = min(max(chunk_from_end(chunk, all), 0) * kFusedChunk + token, item.tokens - 1);
    return load_bits(beta_at + at * (beta.token * float_bytes(beta.dtype)), beta.dtype, 0);
  };
  uint32_t next_beta = fetch_beta(rank, static_cast<int>(threadIdx.x % kWarpgroup / 4));

  clear_stages<kWarpgroup>(shared, rank, static_cast<int>(threadIdx.x % kWarpgroup));
  named_barrier(kScoreBarrier, kWarpgroup);
  OwnPosition<kForm, Element> position{rank}, ahead{rank};
  int chunks = all;
#pragma unroll 1
  for (int chunk = rank - kCtas; chunk < chunks; chunk += kCtas) {
    const uint32_t thread = opaque(threadIdx.x) % kWarpgroup;  // as in score_item
    const int lane = static_cast<int>(thread % 32), next = chunk + kCtas;
    const auto sum_next = [&] {
      if (next < chunks) {
        const int token = static_cast<int>(thread / 4);
        const float strength = write_strength(number_of(next_beta, beta.dtype), activation.beta_form);
        wait_parity(&shared.loaded[ahead.stage], ahead.parity);
        if (uniform(shared.end.limit_reached(next)) != 0) {
          chunks = next;
        } else {
          // The first thread decides for all roles; others may see the end earlier or later.
          const bool ends = uniform(shared.end.reached()) != 0;
          if (thread == 0) shared.end.empty[ahead.stage] = ends;
          if (!ends)
            write_factors<false, Element>(activation, share, shared.ring[ahead.stage],
                                          tokens_of(shared.ring[ahead.stage]), strength,
                                          chunk_from_end(next, all) * kFusedChunk + token < item.tokens, thread);
          ptx::fence_proxy_async(ptx::space_shared);
          warp_arrive(&shared.summed[ahead.stage]);
          next_beta = fetch_beta(next + kCtas, token);
          ahead.advance();
        }
      }
    };
    const auto score = [&] {
      if (chunk >= 0) score_scaled<kForm, false, kMidFrame>(shared, position, chunk, warp, thread, lane, 1 - rank);
    };
    if constexpr (!kEndFrames<Element>) {
      sum_next();
      score();
    } else {
      // A CTA makes chunks in two stages. The next one's may be free only once the previous chunk has been walked, and
      // this one must not wait for that.
      const bool waits = !__any_sync(~0u, ptx::mbarrier_test_wait_parity(&shared.loaded[ahead.stage], ahead.parity));
#pragma unroll 1
      for (int step = 0; step < 2; ++step) {
        if ((step == 0) == waits)
          score();
        else
          sum_next();
      }
    }
  }
}

// `kQueries`: also q and Aqk~; a summary has neither. kMidFrame: the scores of all channels are in the tiles.
template <Form kForm, GateSource kSource, bool kQueries, bool kMidFrame, class Element>
__device__ __forceinline__ void score_chunks(const FusedMaps& maps, const Activation& activation,
                                             FusedShared<kForm, Element>& shared, int rank) {
  const int warp = uniform(static_cast<int>(threadIdx.x) % kWarpgroup / 32);
  if constexpr (!kQueries) {
    score_backwards<kMidFrame>(activation, shared, warp, rank);
  } else if constexpr (kForm == Form::kPair) {  // others load and sum (pair_emit.cuh)
    const int chunks = uniform(shared.item.row.chunks);
    OwnPosition<kForm, Element> position{rank};
#pragma unroll 1
    for (int chunk = rank; chunk < chunks; chunk += ctas(kForm)) {
      const uint32_t thread = opaque(threadIdx.x) % kWarpgroup;  // as above
      score_scaled<kForm, true, kMidFrame>(shared, position, chunk, warp, thread, static_cast<int>(thread % 32),
                                           1 - rank);
    }
  } else {
    ScoreState<kForm, Element> at{.loading = {warp == 0 ? rank : 0}, .summing = {rank}, .making = {rank}};
    make_items<kForm>(shared, [&](const Item& item, int begin) {
      score_item<kForm, kSource, kQueries, kMidFrame>(maps, activation, item, begin, shared, warp, rank, at);
    });
  }
}

}  // namespace deltarelay::cuda::sm90
