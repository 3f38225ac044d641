// The make groups of the fused walk of GDN. They load a chunk and compute what depends on the chunk alone: norms,
// gates, both score matrices in one product, Aqk~, Akk~ and the inverse. Two groups alternate, so each has the time of
// two chunks for one; in a cluster, the time of four.
#pragma once
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/shuffle.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/fused/adjoint.cuh"
#include "kernels/cuda/sm90/fused/gdn/memory.cuh"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/cuda/tile/descriptor.cuh"
#include "kernels/cuda/tile/scores.cuh"
#include "kernels/cuda/tile/warp_sum.cuh"

namespace deltarelay::cuda::sm90::fused_gdn {

// In a summary chunks are counted from the row's end.
template <bool kSummary>
__device__ __forceinline__ int chunk_in_row(int chunk, int chunks) {
  return kSummary ? chunks - 1 - chunk : chunk;
}

// Loads chunks as stages become free. Warp 0 of each make group loads the rounds that its group makes. A round is one
// chunk for each CTA of the cluster: q, k and this CTA's halves of v of all of them. With twins the CTA that makes a
// chunk loads its q and k for both.
template <Form kForm, bool kQueries>
class Loader {
 public:
  // Starts at chunk `first` of the item, at `position` of the ring; the items before have `begin` chunks.
  __device__ __forceinline__ Loader(const FusedMaps& maps, Shared<kForm>& shared, const Item& item, int first,
                                    int begin, int rank, MakePosition<kForm>& position)
      : maps_(maps),
        shared_(shared),
        item_(item),
        rank_(rank),
        chunks_(uniform(item.row.chunks)),
        begin_(begin),
        chunk_(first),
        position_(position) {}

  // Loads all chunks up to `needed`, waiting for stages, and further chunks whose stages are free. Exception: while
  // CTAs with a whole strip fill their rings for the first time, at most two chunks more. Such CTAs run on every
  // multiprocessor. A lane waits to issue a copy while earlier copies saturate the memory, and would be late for the
  // first chunk. Summaries, which may end after two chunks, likewise.
  __device__ __forceinline__ void load(int needed) {
    const int limit = (has_whole_strip(kForm) || kSummary) && begin_ + chunk_ < kStages ? chunk_ + 2 : chunks_;
    if (kSummary && shared_.end.reached()) return;
#pragma unroll 1
    while (chunk_ <= needed || chunk_ < limit) {
      if (!load_next(chunk_ <= needed)) break;
    }
  }

  // End of a summary, by one thread, when both CTAs make nothing more: waits for the copies that nobody has waited for.
  // Those are of the last two rounds of this make group: it has four stages of the ring.
  __device__ __forceinline__ void settle(int group) {
    constexpr int kStep = 2 * kCtas;
    auto wait = [&](uint64_t* barriers, int chunk) {
      if (chunk >= 0 && chunk < chunks_) wait_parity(&barriers[chunk % kStages], chunk / kStages % 2);
    };
    const int other = 1 - rank_, sent = static_cast<int>(shared_.end.made[group]);
    // Chunks that the other CTA has made and this one has not loaded.
    for (int chunk = chunk_ + other; chunk < min(sent, chunks_); chunk += kStep)
      expect(&shared_.made[chunk % kStages], Stage::kMadeBytes);
#pragma unroll 1
    for (int round = 1; round <= 2; ++round) {
      wait(shared_.loaded, chunk_ - round * kStep);
      wait(shared_.loaded, chunk_ - round * kStep + 1);
      wait(shared_.made, sent - round * kStep);
    }
  }

 private:
  static constexpr bool kSummary = !kQueries;
  static constexpr int kStages = Ring<kForm>::kStages, kHalves = Ring<kForm>::kHalves;
  // Chunks loaded together. The ring of twins is short: each chunk is loaded as its stage becomes free.
  static constexpr int kCtas = ctas(kForm);
  static constexpr bool kTwins = kForm == Form::kTwins;
  static constexpr int kAtOnce = kTwins ? 1 : kCtas;

  __device__ __forceinline__ bool load_next(bool wait) {
    if (chunk_ >= chunks_) return false;
    const int stage = position_.stage + (kAtOnce < kCtas ? chunk_ % kCtas : 0);
    if (begin_ + chunk_ >= kStages) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (chunk_ + i >= chunks_) break;
        // If the other group had the previous use, its load must have begun before `free` can be tested.
        if (MakePosition<kForm>::kSkips && !reached(&shared_.loaded[stage + i], wait)) return false;
        if (!reached(&shared_.free[stage + i], wait)) return false;
      }
    }
    if (elect_lane()) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (chunk_ + i < chunks_) load(chunk_ + i, stage + i);
      }
    }
    __syncwarp();
    chunk_ += kAtOnce;
    if (kAtOnce == kCtas || chunk_ % kCtas == 0) {  // the next round belongs to the other group
      chunk_ += kCtas;
      position_.advance();
    }
    return true;
  }

  // Has the previous use passed this barrier?
  __device__ __forceinline__ bool reached(uint64_t* barrier, bool wait) const {
    if (!wait) return ptx::mbarrier_test_wait_parity(barrier, position_.parity ^ 1);
    if constexpr (kSummary) return wait_unless_ended(barrier, position_.parity ^ 1, shared_.end);
    wait_parity(barrier, position_.parity ^ 1);
    return true;
  }
  static __device__ __forceinline__ void expect(uint64_t* barrier, uint32_t bytes) {
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, bytes);
  }

  __device__ __forceinline__ void load(int chunk, int stage_index) {
    uint8_t* stage = shared_.ring[stage_index];
    uint64_t* loaded = &shared_.loaded[stage_index];
    const Item& item = item_;  // read again for every chunk: registers are short
    const int token = static_cast<int>(item.token) + chunk_in_row<kSummary>(chunk, chunks_) * kFusedChunk;
    auto copy = [&](const CUtensorMap& map, int half, int head, uint8_t* to) {
      const int32_t at[5] = {0, token, half, head, item.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, loaded);
    };
    auto copy_keys = [&](const CUtensorMap& map, int half, uint8_t* to) {
      const int32_t at[5] = {0, token, half, item.key_head, item.sequence_at};
      if constexpr (kTwins)
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, loaded,
                                  uint16_t{(1 << kCtas) - 1});
      else
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, loaded);
    };
    const bool own = kCtas == 1 || stage_index % 2 == rank_;
    const bool gates = own && maps_.copies_gates;
    constexpr int kTiles = kSummary ? 4 : 4 + kHalves;  // k, v; or k, q, this CTA's halves of v
    expect(loaded, kTiles * Stage::kTileBytes + (gates ? sizeof(RawGates) : 0));
    if (!own) expect(&shared_.made[stage_index], Stage::kMadeBytes);
    if (!kTwins || own) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        copy_keys(maps_.k, half, stage + half * Stage::kHalfBytes + Stage::kK);
        if constexpr (kQueries) copy_keys(maps_.q, half, stage + half * Stage::kHalfBytes + Stage::kQ);
      }
    }
    copy(maps_.v, kHalves == 2 || kSummary ? 0 : rank_, item.strip, stage + Stage::kV);
    if constexpr (kSummary) copy(maps_.v, 1, item.strip, stage + Stage::kOtherValues);
    if (gates) {
      RawGates& raw = shared_.raw[stage_index / kCtas];
      const int32_t at[5] = {item.head / kNumbersInRow * kNumbersInRow, token, 0, 0, item.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, raw.number[0], &maps_.g, at, loaded);
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, raw.number[1], &maps_.beta, at, loaded);
    }
  }

  const FusedMaps& maps_;
  Shared<kForm>& shared_;
  const Item& item_;
  int rank_, chunks_, begin_;
  int chunk_;
  // Both chunks of a round lie in neighbouring stages, because the number of stages is even.
  MakePosition<kForm>& position_;
};

// Raw gate and write strength of this lane's token; 0 past the end.
struct RawToken {
  uint32_t gate, beta;
};
// Those that TMA copied with the tiles of a chunk (FusedMaps::copies_gates).
__device__ __forceinline__ RawToken copied_token(const RawGates& copied, int head, int valid, int lane) {
  if (lane >= valid) return {};
  return {__float_as_uint(copied.number[0][lane][head % kNumbersInRow]),
          __float_as_uint(copied.number[1][lane][head % kNumbersInRow])};
}
// Otherwise the warp loads them itself: 32 tokens are 32 sectors, which occupy the shared-memory pipe as long as 32
// stores. Loads one chunk of every `kEvery`, from `chunk` on, one chunk before its use, so that nothing waits for it.
// Advances pointers by bytes: computing the address of a token takes 64-bit arithmetic. In a summary goes backwards.
template <int kEvery, bool kSummary>
class TokenCursor {
 public:
  __device__ __forceinline__ TokenCursor(const Activation& activation, const Item& item, int head, int chunk, int lane)
      : gate_(first_of(activation.g, item, head, chunk, lane)),
        beta_(first_of(activation.beta, item, head, chunk, lane)),
        tokens_(item.tokens),
        left_(tokens_ - chunk * kFusedChunk - lane) {}

  __device__ __forceinline__ RawToken fetch(const Activation& activation) {
    RawToken raw{};
    if (left_ > 0 && (!kSummary || left_ <= tokens_))
      raw = {load_bits(gate_, activation.g.dtype, 0), load_bits(beta_, activation.beta.dtype, 0)};
    left_ -= kTokens;
    gate_ += activation.g.token * (kTokens * float_bytes(activation.g.dtype));
    beta_ += activation.beta.token * (kTokens * float_bytes(activation.beta.dtype));
    return raw;
  }

 private:
  static constexpr int kTokens = (kSummary ? -kEvery : kEvery) * kFusedChunk;
  static __device__ __forceinline__ const uint8_t* first_of(const TensorView& view, const Item& item, int head,
                                                            int chunk, int lane) {
    return static_cast<const uint8_t*>(view.data) +
           (item.sequence_at * view.sequence + (item.token + chunk * kFusedChunk + lane) * view.token +
            head * view.head) *
               float_bytes(view.dtype);
  }

  const uint8_t *gate_, *beta_;
  int tokens_;  // of the row
  int left_;    // tokens from this lane's token on
};

// Gates and write strengths of a chunk, by one warp, one token per lane. Tokens past the end, whose rows may hold
// anything, neither decay nor write.
struct ChunkGates {
  float sum;   // G, base 2
  float beta;  // 0 past the end
};
// `copied`: log-decays and strengths in fp32. They have code of their own: selecting among all forms and types costs 25
// instructions.
__device__ __forceinline__ ChunkGates sum_gates(const Activation& activation, bool copied, const GateParams& gate,
                                                RawToken raw, int valid, int lane) {
  float sum = 0.0f, beta = 0.0f;
  if (copied) {  // past the end a raw 0 is right
    sum = clamp_decay(log2_decay<GateForm::kLog>(__uint_as_float(raw.gate), gate), gate);
    beta = __uint_as_float(raw.beta);
  } else if (lane < valid) {
    sum = log2_decay(number_of(raw.gate, activation.g.dtype), gate);
    beta = write_strength(number_of(raw.beta, activation.beta.dtype), activation.beta_form);
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) add_from_below(sum, step);
  return {sum, beta};
}

// This lane's token, and where its data lies. The lane has the scores of the token's q row and of its k row, so Aqk~
// and Akk~ share their decays. A warp has 8 tokens, one of the four groups of a chunk. Computed once for all chunks and
// opaque: the compiler would otherwise recompute them in each chunk.
struct TokenPlace {
  int group, token;
  int as_rows;         // for load_matrix: 8 rows of q and the same rows of k as an operand of 16 rows
  int in_aqk, in_akk;  // byte offsets of the lane's first two numbers in Aqk~ and in NegatedAkk
  __device__ __forceinline__ TokenPlace(int warp, int lane, bool queries) : group(tokens_of(warp)) {
    const int row = 8 * group + lane % 8;
    token = keep(8 * group + lane / 4);
    as_rows = keep((!queries || lane / 8 % 2 ? Stage::kK : Stage::kQ) + swizzled_offset(row, lane / 16));
    in_aqk = keep(core_offset(group, 0) + lane / 4 * 16 + lane % 4 * 4);
    in_akk = keep(NegatedAkk::offset(group, 0) + NegatedAkk::in_block(lane / 4, lane % 4 * 2));
  }
  // Warp 0 loads, and warps 2 and 3 compute the inverse. So warp 1 has the last tokens, which have the most columns.
  static __device__ __forceinline__ int tokens_of(int warp) { return warp == 0 ? 0 : warp == 1 ? 3 : warp - 1; }
  static __device__ __forceinline__ int keep(int number) { return static_cast<int>(opaque(number)); }
};

// Scores of this lane's token with all 32 tokens. In column block n (8 columns) numbers 4 n and 4 n + 1 belong to q,
// the next two to k. Does not wait for the product. With `square`, returns |q|^2 in fp32; mma.sync would take longer
// (docs/kernels/sm90-fused.md).
template <class Element>
__device__ __forceinline__ float multiply_rows(float (&scores)[16], const uint8_t* stage, bool square,
                                               const TokenPlace& at) {
  const uint32_t address = shared_address(stage), as_rows = address + at.as_rows;
  const uint64_t keys = swizzled_operand_at(operand_place(address), Stage::kK);
  Fragment rows[8];
#pragma unroll
  for (int k = 0; k < 8; ++k)  // the swizzle of a piece is an exclusive or
    rows[k] = load_matrix((as_rows ^ (k % 4 * 32)) + k / 4 * Stage::kHalfBytes);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) Wgmma<Element>::times(scores, rows[k], keys + channel_step(k, Stage::kHalfBytes), k > 0);
  wgmma_commit();
  if (!square) return 0.0f;
  using Two = Pair<Element>;
  float sums[4] = {};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float low = Two::low(rows[k].reg[2 * i]), high = Two::high(rows[k].reg[2 * i]);
      sums[2 * i] = fmaf(low, low, sums[2 * i]), sums[2 * i + 1] = fmaf(high, high, sums[2 * i + 1]);
    }
  }
  float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

// Number (i, i) of an 8 x 8 diagonal block, for this lane's row i. One of the four lanes of that row holds it.
__device__ __forceinline__ float diagonal_of(float even, float odd, int lane) {
  return __shfl_sync(~0u, lane / 4 % 2 != 0 ? odd : even, lane / 4 * 4 + lane / 8);
}

// Selects the scores of the diagonal column block of a group's rows.
__device__ __forceinline__ void pick_diagonal(float (&own)[4], const float (&scores)[16], int group) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float upper = group == 0 ? scores[e] : scores[4 + e];
    const float below = group == 2 ? scores[8 + e] : scores[12 + e];
    own[e] = group < 2 ? upper : below;
  }
}
// `square`: |q|^2.
template <bool kQueries>
__device__ __forceinline__ TokenNorms norms_of(const float (&own)[4], float square, const Activation& activation,
                                               int lane) {
  TokenNorms norm = {.key = 1.0f, .query = activation.scale};
  if (activation.l2norm) {
    norm.key = rsqrt_approx(diagonal_of(own[2], own[3], lane) + kL2NormEpsilon);
    if constexpr (kQueries) norm.query *= rsqrt_approx(square + kL2NormEpsilon);
  }
  return norm;
}

// Writes the vectors for the state, by one warp, one token per lane. Rows past the end become 0: their norms may be
// NaN. Their query factors may be anything: nobody stores those outputs.
__device__ __forceinline__ void write_vectors(uint8_t* stage, TokenGates& gates, const TokenNorms& norms, int valid,
                                              int lane) {
  const float weight = gates.weight(lane), sum = gates.sum(lane), last = gates.sum(kFusedChunk - 1),
              decay = exp2_approx(sum);
  auto at = [&](int vector) -> float& { return reinterpret_cast<float*>(stage + vector)[lane]; };
  at(Stage::kPrediction) = (lane < valid ? norms.key : 0.0f) * decay;
  at(Stage::kUpdate) = weight * exp2_approx(last - sum);
  at(Stage::kQuery) = norms.query * decay;
  const float kept = last < kForgotten ? 0.0f : exp2_approx(last);
  if (lane == 0) *reinterpret_cast<float4*>(stage + Stage::kDecay) = {kept, 0.0f, 0.0f, 0.0f};
}

// Sets scores of tokens past the end to 0: they may be NaN.
__device__ __forceinline__ void select_scores(float (&scores)[16], int token, int valid, int lane) {
#pragma unroll
  for (int i = 0; i < 16; ++i) scores[i] = token < valid && i / 4 * 8 + lane % 4 * 2 + i % 2 < valid ? scores[i] : 0.0f;
}

// Writes this lane's two numbers of Aqk~ and of -Akk~ in 8 columns, from scaled scores. `decay` is weight_j
// e^{G_i-G_j}.
template <class Element, bool kQueries>
__device__ __forceinline__ void write_columns(uint8_t* aqk, uint8_t* negated, const float (&scores)[4], float2 decay) {
  if constexpr (kQueries) word_at(aqk) = Pair<Element>::pack(scores[0] * decay.x, scores[1] * decay.y);
  *reinterpret_cast<float2*>(negated) = {scores[2] * decay.x, scores[3] * decay.y};
}

// Start of a virtual stage whose Aqk~, inverse - I and vectors are those of this CTA's strip (0) or of the other's.
template <Form kForm>
__device__ __forceinline__ uint8_t* made_of(uint8_t* stage, int of) {
  return stage + of * (Ring<kForm>::kOther - Stage::kAqk);
}

// Clears the blocks above the diagonals in the stages that this group makes, from `position` on.
template <Form kForm>
__device__ __forceinline__ void clear_stages(Shared<kForm>& shared, MakePosition<kForm> position) {
  for (; position.parity == 0; position.advance()) {
    const int thread = threadIdx.x % kWarpgroup;
#pragma unroll
    for (int of = 0; of < strips(kForm); ++of) {
      uint8_t* made = made_of<kForm>(shared.ring[position.stage], of);
      if (thread < kClearThreads) clear_above(made + Stage::kAqk, made + Stage::kInverse, thread);
    }
  }
}

// The inverse of strip `of` (0: this CTA's), by one warp, which completes the chunk. Strip 0 is signalled to the state
// groups of this CTA. In a cluster the last strip is copied to the other CTA.
template <class Element, Form kForm>
__device__ __forceinline__ void make_inverse(Shared<kForm>& shared, NegatedAkk (&negated)[strips(kForm)],
                                             int stage_index, int of, int rank, int lane) {
  constexpr int kStrips = strips(kForm);
  uint8_t* stage = shared.ring[stage_index];
  write_inverse<Element>(negated[of], made_of<kForm>(stage, of) + Stage::kInverse, lane);
  ptx::fence_proxy_async(ptx::space_shared);
  __syncwarp();
  if (elect_lane()) {
    if (ctas(kForm) > 1 && of == kStrips - 1)
      copy_to_block(stage + Stage::kAqk, made_of<kForm>(stage, kStrips - 1) + Stage::kAqk, Stage::kMadeBytes,
                    &shared.made[stage_index], 1 - rank);
    if (of == 0) ptx::mbarrier_arrive(&shared.made[stage_index]);
  }
}

// Positions of a make group in the ring, for loading and for making, and whose turn it is to compute the inverse.
template <Form kForm>
struct MakeState {
  MakePosition<kForm> loading, making;
  int turn = 0;
};

// Makes this group's chunks of one item: every second chunk, in a cluster every fourth. The number of chunks before the
// item, `begin`, decides which ones.
template <class Element, Form kForm, bool kQueries>
__device__ __forceinline__ void make_chunks(const FusedMaps& maps, const Activation& activation, const Item& item,
                                            int begin, Shared<kForm>& shared, int group, int rank,
                                            MakeState<kForm>& at) {
  constexpr bool kTwins = kForm == Form::kTwins, kSummary = !kQueries;
  constexpr int kCtas = ctas(kForm), kStrips = strips(kForm);
  // The role. The second group swaps roles: no scheduler has both inverting warps. With twins that costs 1 % of cycles.
  const int warp = uniform(static_cast<int>(threadIdx.x) % kWarpgroup / 32) ^ (kTwins ? 0 : 2 * group);
  const int chunks = uniform(item.row.chunks), first = (group + begin / kCtas) % 2 * kCtas;
  auto& negated = shared.negated[group];
  auto& gates = shared.gates[group];
  auto& norms = shared.norms[group];
  Loader<kForm, kQueries> loader(maps, shared, item, first, begin, rank, at.loading);
  if (warp == 0) loader.load(first + (kTwins ? rank : 0));
  // One warp per strip sums the gates. If all four did, the other three would take issue slots from the state groups.
  const int gates_of = kTwins ? warp % 2 : 0, head = item.head + (gates_of != 0 ? item.to_twin : 0);
  const GateParams gate = gate_params(activation, head, 0, 1);
  const bool sums_gates = kTwins ? warp >= 2 : warp == 3;
  const int own_lane = static_cast<int>(threadIdx.x % 32);
  TokenCursor<2 * kCtas, kSummary> cursor(activation, item, head, chunk_in_row<kSummary>(first + rank, chunks),
                                          own_lane);
  RawToken raw{};
  if (sums_gates && !maps.copies_gates) raw = cursor.fetch(activation);
  if (begin == 0) clear_stages(shared, at.making);  // once, while the first copies are in flight
  const TokenPlace place(warp, own_lane, kQueries);
  int chunk = first + rank;
#pragma unroll 1
  for (; chunk < chunks; chunk += 2 * kCtas) {
    // Opaque. Otherwise every address that follows from the lane stays in a register between chunks.
    const int lane = static_cast<int>(opaque(threadIdx.x % 32)), stage_index = at.making.stage;
    uint8_t* stage = shared.ring[stage_index];
    const int valid = min(item.tokens - chunk_in_row<kSummary>(chunk, chunks) * kFusedChunk, kFusedChunk);
    // The inverting warps are done with the previous chunk, and warp 0 has issued the load of this one (kSkips), unless
    // the summary has ended.
    if constexpr (kSummary) {
      if (named_barrier_any(kMakeBarrier + group, kWarpgroup, shared.end.reached())) break;
    } else {
      named_barrier(kMakeBarrier + group, kWarpgroup);
    }
    wait_parity(&shared.loaded[stage_index], at.making.parity);
    float scores[16];
    const float square = multiply_rows<Element>(scores, stage, kQueries && activation.l2norm, place);
    if (sums_gates) {
      if (maps.copies_gates) raw = copied_token(shared.raw[stage_index / kCtas], head, valid, lane);
      const ChunkGates sums = sum_gates(activation, maps.copies_gates, gate, raw, valid, lane);
      gates[gates_of].sum(lane) = sums.sum, gates[gates_of].beta[lane] = sums.beta;
      if (!maps.copies_gates) raw = cursor.fetch(activation);
    }
    named_barrier(kMakeBarrier + group, kWarpgroup);  // gates
    wgmma_wait<0>();
    pin(scores);
    float sum[kStrips];
#pragma unroll
    for (int of = 0; of < kStrips; ++of) sum[of] = gates[of].sum(place.token);
    const float beta = gates[kTwins ? lane % 2 : 0].beta[place.token];
    if (valid < kFusedChunk) select_scores(scores, place.token, valid, lane);
    float own[4];  // scores of the diagonal column block
    pick_diagonal(own, scores, place.group);
    const TokenNorms norm = norms_of<kQueries>(own, square, activation, lane);
    // Two of the four lanes of a token write its norms, and its weight for each strip.
    const int member = lane % 4;
    if (member < 2) norms.of(member, place.token) = member == 0 ? norm.key : norm.query;
    if (member < kStrips) gates[member].weight(place.token) = place.token < valid ? norm.key * beta : 0.0f;
    named_barrier(kMakeBarrier + group, kWarpgroup);  // all weights are written
    if (sums_gates) write_vectors(made_of<kForm>(stage, gates_of), gates[gates_of], norms.of(lane), valid, lane);
    // This lane's numbers of Aqk~ and -Akk~ in 8 columns: first those left of the diagonal, then those on it.
    auto write = [&](int n, const float* numbers, auto&& select) {
      const float scaled[4] = {numbers[0] * norm.query, numbers[1] * norm.query, numbers[2] * -norm.key,
                               numbers[3] * -norm.key};
      float2 decay[kStrips];  // weight_j e^{G_i-G_j}
#pragma unroll
      for (int of = 0; of < kStrips; ++of) {
        const float4 column = *reinterpret_cast<const float4*>(gates[of].number[4 * n + lane % 4]);
        decay[of] = select({exp2_approx(sum[of] - column.x) * column.z, exp2_approx(sum[of] - column.y) * column.w});
      }
#pragma unroll
      for (int of = 0; of < kStrips; ++of)
        write_columns<Element, kQueries>(made_of<kForm>(stage, of) + Stage::kAqk + core_offset(0, n) + place.in_aqk,
                                         negated[of].blocks + n * NegatedAkk::kBlockBytes + place.in_akk, scaled,
                                         decay[of]);
    };
#pragma unroll
    for (int n = 0; n < 3; ++n) {
      if (n >= place.group) break;
      write(n, scores + 4 * n, [](const float2& all) { return all; });
    }
    // Above the diagonal decays are unbounded. On the diagonal Aqk~ has the token's own score, and Akk~ is 0.
    const int row = lane / 4, column = lane % 4 * 2;
    own[2] = column < row ? own[2] : 0.0f, own[3] = column + 1 < row ? own[3] : 0.0f;
    write(place.group, own, [&](const float2& all) {
      return float2{column <= row ? all.x : 0.0f, column + 1 <= row ? all.y : 0.0f};
    });
    ptx::fence_proxy_async(ptx::space_shared);
    // With twins one warp per strip computes the inverse; otherwise two warps take turns.
    if (kTwins ? warp >= 2 : warp == 2 + at.turn) {
      split_barrier(kAkkBarrier + group, kWarpgroup);
      make_inverse<Element>(shared, negated, stage_index, kTwins ? warp - 2 : 0, rank, lane);
    } else {
      split_arrive(kAkkBarrier + group, kWarpgroup);
      // Meanwhile loads the next chunk. With twins the state leaves its stage about now, and may wait for this chunk.
      if (warp == 0) loader.load(chunk + 2 * kCtas);
    }
    at.turn ^= 1;
    at.making.advance();
  }
  if (warp == 0) loader.load(chunks - 1);
  if constexpr (kSummary) {
    // What this group has made is on its way to the other CTA when both CTAs have arrived here.
    const bool first_thread = warp == 0 && own_lane == 0;
    if (first_thread) store_in_block(&shared.end.made[group], static_cast<uint32_t>(chunk), 1 - rank);
    cluster_arrive();
    cluster_wait();
    if (first_thread) loader.settle(group);
  }
}

// `kQueries`: also q and Aqk~; a summary has neither.
template <class Element, Form kForm, bool kQueries>
__device__ __forceinline__ void make_all(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                                         Shared<kForm>& shared, int group, int rank) {
  constexpr int kCtas = ctas(kForm);
  MakeState<kForm> at{.loading = {group * kCtas}, .making = {group * kCtas + rank}};
  make_items<kForm>(shared, [&](const Item& item, int begin) {
    // The state is some chunks behind: when it reaches this item, its first state is in the L2.
    if (has_whole_strip(kForm) && group == 0 && begin > 0 && threadIdx.x % kWarpgroup == 0) prefetch_entry(args, item);
    make_chunks<Element, kForm, kQueries>(maps, activation, item, begin, shared, group, rank, at);
  });
}

}  // namespace deltarelay::cuda::sm90::fused_gdn
