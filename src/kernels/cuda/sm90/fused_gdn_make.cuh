// The making groups of the fused walk of GDN: loads, norms, gates, both score matrices in one product, P, L, and the inverse. Two groups
// take the chunks of their CTA in turns, so that each has two chunks' time for one; of a pair or of twins four.
#pragma once
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/fused_gdn_memory.cuh"
#include "kernels/cuda/sm90/walk_maps.h"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90::fused_gdn {

// Brings in chunks as stages come free: by warp 0 of each making group the rounds that it makes. A round is one chunk for each CTA of the
// cluster; q, k and this CTA's halves of v are loaded of all of them. Of twins who makes a chunk loads its q and k, for both.
template <int kCtas, int kHeads, bool kQueries>
class Loader {
 public:
  // From chunk `first` of the item on, whose place in the ring is `position`; in the items before it are `begin` chunks.
  __device__ __forceinline__ Loader(const FusedMaps& maps, Shared<kCtas, kHeads>& shared, const Item& item, int first,
                                    int begin, int rank, MakePosition<kCtas, kHeads>& position)
      : maps_(maps),
        shared_(shared),
        item_(item),
        rank_(rank),
        chunks_(uniform(item.row.chunks)),
        begin_(begin),
        chunk_(first),
        position_(position) {}

  // Everything up to chunk `needed`, waiting for stages; and what can be loaded now. When CTAs with a whole head, which run on every multiprocessor, fill
  // their rings for the first time, two chunks more at most: a lane waits to issue a copy while those before it crowd the memory, and would
  // be late for the first chunk.
  __device__ __forceinline__ void load(int needed) {
    const int limit = kCtas == kHeads && begin_ + chunk_ < kStages ? chunk_ + 2 : chunks_;
#pragma unroll 1
    while (chunk_ <= needed || chunk_ < limit) {
      if (!load_next(chunk_ <= needed)) break;
    }
  }

 private:
  static constexpr int kStages = Ring<kCtas, kHeads>::kStages, kHalves = Ring<kCtas, kHeads>::kHalves;
  // Chunks; of twins, whose ring is short, each as its stage comes free.
  static constexpr int kAtOnce = kHeads > 1 ? 1 : kCtas;

  __device__ __forceinline__ bool load_next(bool wait) {
    if (chunk_ >= chunks_) return false;
    const int stage = position_.stage + (kAtOnce < kCtas ? chunk_ % kCtas : 0);
    if (begin_ + chunk_ >= kStages) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (chunk_ + i >= chunks_) break;
        // Where the other group had the use before, it is waited for from its load on.
        if (MakePosition<kCtas, kHeads>::kSkips && !reached(&shared_.loaded[stage + i], wait)) return false;
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
    if (kAtOnce == kCtas || chunk_ % kCtas == 0) {  // the next round is the other group's
      chunk_ += kCtas;
      position_.advance();
    }
    return true;
  }

  // Whether the use before is at this barrier.
  __device__ __forceinline__ bool reached(uint64_t* barrier, bool wait) const {
    if (!wait) return uniform(ptx::mbarrier_test_wait_parity(barrier, position_.parity ^ 1));
    wait_parity(barrier, position_.parity ^ 1);
    return true;
  }

  __device__ __forceinline__ void load(int chunk, int stage_index) {
    uint8_t* stage = shared_.ring[stage_index];
    uint64_t* loaded = &shared_.loaded[stage_index];
    const Item& item = item_;  // read again for every chunk: registers are short here
    const int token = static_cast<int>(item.token) + chunk * kFusedChunk;
    auto expect = [](uint64_t* barrier, uint32_t bytes) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, bytes);
    };
    auto copy = [&](const CUtensorMap& map, int half, int head, uint8_t* to) {
      const int32_t at[5] = {0, token, half, head, item.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, loaded);
    };
    auto copy_keys = [&](const CUtensorMap& map, int half, uint8_t* to) {
      const int32_t at[5] = {0, token, half, item.key_head, item.sequence_at};
      if constexpr (kHeads > 1)
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, loaded,
                                  uint16_t{(1 << kCtas) - 1});
      else
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, loaded);
    };
    const bool own = kCtas == 1 || stage_index % 2 == rank_;
    expect(loaded, ((kQueries ? 4 : 2) + kHalves) * Stage::kTileBytes);
    if (!own) expect(&shared_.made[stage_index], Stage::kMadeBytes);
    if (kHeads == 1 || own) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        copy_keys(maps_.k, half, stage + half * Stage::kHalfBytes + Stage::kK);
        if constexpr (kQueries) copy_keys(maps_.q, half, stage + half * Stage::kHalfBytes + Stage::kQ);
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      copy(maps_.v, (kCtas == kHeads ? 0 : rank_) + half, item.head, stage + Stage::kV + half * Stage::kTileBytes);
  }

  const FusedMaps& maps_;
  Shared<kCtas, kHeads>& shared_;
  const Item& item_;
  int rank_, chunks_, begin_;
  int chunk_;
  // Both chunks of a round lie in neighbouring stages, for their number is even.
  MakePosition<kCtas, kHeads>& position_;
};

// Gate and write strength of the token of this lane, as they lie in memory: fetched a chunk before their use, so that nothing waits for them.
struct RawToken {
  uint32_t gate, beta;
};
__device__ __forceinline__ RawToken fetch_token(const Activation& activation, const Item& item, int head, int chunk,
                                                int lane) {
  const int token = chunk * kFusedChunk + lane;
  if (token >= item.tokens) return {};
  const TensorView &g = activation.g, &beta = activation.beta;
  const int64_t at = item.token + token;
  return {load_bits(g.data, g.dtype, item.sequence_at * g.sequence + at * g.token + head * g.head),
          load_bits(beta.data, beta.dtype, item.sequence_at * beta.sequence + at * beta.token + head * beta.head)};
}

// Gates and write strengths of a chunk, by one warp, a token a lane. Tokens past the end, whose rows may hold anything, decay nothing and write
// nothing.
struct ChunkGates {
  float sum;   // G, base 2
  float beta;  // 0 past the end
  float last;  // G of the last token
};
__device__ __forceinline__ ChunkGates sum_gates(const Activation& activation, const GateParams& gate, RawToken raw,
                                                int valid, int lane) {
  float sum = lane < valid ? log2_decay(number_of(raw.gate, activation.g.dtype), gate) : 0.0f;
  const float beta =
      lane < valid ? write_strength(number_of(raw.beta, activation.beta.dtype), activation.beta_form) : 0.0f;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += below;
  }
  return {sum, beta, __shfl_sync(~0u, sum, 31)};
}

// What follows from the gates alone: for the state the vectors of the update, for the making group sums and strengths.
__device__ __forceinline__ void write_gates(uint8_t* stage, TokenGates& to, const ChunkGates& gates, int lane) {
  to.sum[lane] = gates.sum;
  to.beta[lane] = gates.beta;
  reinterpret_cast<float*>(stage + Stage::kUpdate)[lane] = exp2_approx(gates.last - gates.sum);
  if (lane == 0) *reinterpret_cast<float4*>(stage + Stage::kDecay) = {exp2_approx(gates.last), 0.0f, 0.0f, 0.0f};
}

// What a lane knows of its two rows of the scores, `row` and `row + 8` of the block row of its warp.
struct RowFactors {
  float2 sum;     // G
  float2 factor;  // of q rows: scale rq; of k rows: -beta rk^2
};

constexpr int kBlockRows = 16;  // rows of a warp in a product of 64

// Of 32 columns of [q; k] [q; k]^T the numbers (i, i) of this lane's rows, rows lane / 4 and lane / 4 + 8 of block row warp % 2: squares of q and
// k, and q.k. One of the four lanes of a row has it in its accumulators. By FFMA the sums cost a warp some 190 instructions a chunk.
__device__ __forceinline__ float2 diagonal_of(const float* columns, int warp, int lane) {
  const bool odd = lane / 4 % 2 != 0;
  float low = odd ? columns[1] : columns[0], high = odd ? columns[7] : columns[6];
  if (warp % 2 != 0) low = odd ? columns[9] : columns[8], high = odd ? columns[15] : columns[14];
  const int from = lane / 4 * 4 + lane / 8;
  return make_float2(__shfl_sync(~0u, low, from), __shfl_sync(~0u, high, from));
}

// scale / |row| of this lane's rows from their squares.
__device__ __forceinline__ float2 norms_of(float2 square, const Activation& activation, float scale) {
  if (!activation.l2norm) return {scale, scale};
  return {scale * rsqrtf(square.x + kL2NormEpsilon), scale * rsqrtf(square.y + kL2NormEpsilon)};
}

// The two tokens of a lane's rows, and which of their numbers it writes to the vectors: of the four lanes that know a token two write one each.
struct RowTokens {
  int first;          // the other is 8 behind it
  bool second, part;  // the token, the number
  __device__ __forceinline__ RowTokens(int warp, int lane)
      : first(kBlockRows * (warp % 2) + lane / 4), second(lane % 2 != 0), part(lane % 4 >= 2) {}
  __device__ __forceinline__ int token() const { return first + 8 * second; }
  // Of that number in two vectors that lie together: float[16][4], of two tokens one number each, then the other.
  __device__ __forceinline__ int place() const { return token() / 2 * 4 + token() % 2 + 2 * part; }
  __device__ __forceinline__ float2 of(const float* numbers) const {
    return make_float2(numbers[first], numbers[first + 8]);
  }
  __device__ __forceinline__ float own(float2 numbers) const { return second ? numbers.y : numbers.x; }
};

// Factors of rows of q, whose inverse norms times the scale are `norm`, and the vectors of Q S and of the diagonal of P.
__device__ __forceinline__ RowFactors write_query_vectors(uint8_t* stage, float2 norm, float2 dot,
                                                          const TokenGates& gates, int valid, const RowTokens& rows) {
  const float2 sum = rows.of(gates.sum);
  const float number = rows.own(norm) * (rows.part ? rows.own(dot) : exp2_approx(rows.own(sum)));
  reinterpret_cast<float*>(stage + Stage::kQuery)[rows.place()] = rows.token() < valid ? number : 0.0f;
  return {sum, norm};
}

// Factors of rows of k, whose inverse norms are `norm`, and the vectors of R.
__device__ __forceinline__ RowFactors write_key_vectors(uint8_t* stage, float2 norm, const TokenGates& gates, int valid,
                                                        const RowTokens& rows) {
  const float2 sum = rows.of(gates.sum), beta = rows.of(gates.beta), once = {beta.x * norm.x, beta.y * norm.y};
  const float2 factor = {-once.x * norm.x, -once.y * norm.y};
  const float number = rows.part ? -rows.own(factor) * exp2_approx(rows.own(sum)) : rows.own(once);
  reinterpret_cast<float*>(stage + Stage::kStrength)[rows.place()] = rows.token() < valid ? number : 0.0f;
  return {sum, factor};
}

// Of this lane's rows of the scores, 16 columns from `first`: times the factor of the row and e^{Gi-Gj}. On a diagonal block the elements on
// and above the diagonal, which may be anything, become 0.
__device__ __forceinline__ void decay_block(float (&block)[8], const float* scores, const float* sums,
                                            const RowFactors& rows, int first, int lane, bool diagonal) {
  const int column = 2 * (lane % 4);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float2 before = *reinterpret_cast<const float2*>(&sums[first + 8 * n + column]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float ratio = exp2_approx((e / 2 ? rows.sum.y : rows.sum.x) - (e % 2 ? before.y : before.x));
      block[4 * n + e] = scores[4 * n + e] * (e / 2 ? rows.factor.y : rows.factor.x) * ratio;
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
__device__ __forceinline__ void write_p(uint8_t* p, const float* scores, const float* sums, const RowFactors& rows,
                                        int warp, int lane) {
  float block[8];
  decay_block(block, scores, sums, rows, 0, lane, warp == 0);
  store_block<Element>(p, 2 * warp, 0, block, lane);
  if (warp == 1) {
    decay_block(block, scores + 8, sums, rows, 16, lane, true);
    store_block<Element>(p, 2, 2, block, lane);
  }
}

// -L by warps 2 (rows 0-15) and 3 (16-31). Rows past the end are 0: selected, for 0 times anything is no 0.
__device__ __forceinline__ void write_lower(FusedLower& lower, const float* scores, const float* sums,
                                            const RowFactors& rows, int valid, int warp, int lane) {
  const int row = kBlockRows * (warp - 2) + lane / 4, column = 2 * (lane % 4);
  auto store = [&](auto& to, const float* from, int first, bool diagonal) {
    float block[8];
    decay_block(block, from, sums, rows, first, lane, diagonal);
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

// Where a making group stands in the ring, with what it loads and with what it makes, and whose turn it is to make T.
template <int kCtas, int kHeads>
struct MakeState {
  MakePosition<kCtas, kHeads> loading, making;
  int turn = 0;
};

// The chunks of one item that are this group's: every second, or where two CTAs share every fourth; which are, the `begin` chunks before it tell.
template <class Element, int kCtas, int kHeads, bool kQueries>
__device__ __forceinline__ void make_chunks(const FusedMaps& maps, const Activation& activation, const Item& item,
                                            int begin, Shared<kCtas, kHeads>& shared, int group, int rank,
                                            MakeState<kCtas, kHeads>& at) {
  using Position = MakePosition<kCtas, kHeads>;
  const int warp = uniform(static_cast<int>(threadIdx.x) % kWarpgroup / 32);
  const int chunks = uniform(item.row.chunks), first = (group + begin / kCtas) % 2 * kCtas;
  auto& lower = shared.lower[group];
  auto& gates = shared.gates[group];
  // Where a stage would begin whose P, T and vectors are those of this CTA's head (0), or of the other's.
  auto made_of = [](uint8_t* stage, int of) { return stage + of * (Ring<kCtas, kHeads>::kOther - Stage::kP); };
  Loader<kCtas, kHeads, kQueries> loader(maps, shared, item, first, begin, rank, at.loading);
  if (warp == 0) loader.load(first + (kHeads > 1 ? rank : 0));

  // Gates by one warp a head: of four that all sum for themselves the other three would take issue slots from the state.
  const int gates_of = kHeads > 1 ? warp / 2 : 0, head = item.head ^ gates_of;
  const GateParams gate = gate_params(activation, head, 0, 1);
  Position& position = at.making;
  int& turn = at.turn;
  RawToken raw = fetch_token(activation, item, head, first + rank, threadIdx.x % 32);
  if (begin == 0) {  // the stages that this group makes, once, while the first copies are on their way
    for (Position own = position; own.parity == 0; own.advance()) {
      const int thread = threadIdx.x % kWarpgroup;
#pragma unroll
      for (int of = 0; of < kHeads; ++of) {
        uint8_t* made = made_of(shared.ring[own.stage], of);
        if (thread < kClearThreads) clear_above(made + Stage::kP, made + Stage::kT, thread);
      }
    }
  }
#pragma unroll 1
  for (int chunk = first + rank; chunk < chunks; chunk += 2 * kCtas) {
    // Opaque, or the compiler keeps every address that follows from it in registers from chunk to chunk.
    const uint32_t thread = opaque(threadIdx.x) % kWarpgroup;
    const int lane = static_cast<int>(thread % 32), stage_index = position.stage;
    uint8_t* stage = shared.ring[stage_index];
    const int valid = min(item.tokens - chunk * kFusedChunk, kFusedChunk);
    // Warp 0 has asked for it: until then the barrier may still be that of the other group's use.
    if constexpr (Position::kSkips) named_barrier(kMakeBarrier + group, kWarpgroup);
    wait_parity(&shared.loaded[stage_index], position.parity);

    // Rows 0-31 are those of q, rows 32-63 those of k; columns k, and before them q, of which only the squares are of use.
    float scores[kQueries ? 32 : 16];
    const uint64_t rows = swizzled_operand(shared_address(stage + Stage::kQ)),
                   columns = swizzled_operand(shared_address(stage + (kQueries ? Stage::kQ : Stage::kK)));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const uint64_t at = operand_step((step / 4) * Stage::kHalfBytes + (step % 4) * 32);
      Wgmma<Element>::times(scores, rows + at, columns + at, step > 0);
    }
    wgmma_commit();
    if (kHeads > 1 ? warp % 2 != 0 : warp == 1) {
      write_gates(made_of(stage, gates_of), gates[gates_of], sum_gates(activation, gate, raw, valid, lane), lane);
      raw = fetch_token(activation, item, head, chunk + 2 * kCtas, lane);
    }
    named_barrier(kMakeBarrier + group, kWarpgroup);
    wgmma_wait<0>();
    pin(scores);
    const float* of_keys = scores + (kQueries ? 16 : 0);
    const RowTokens tokens(warp, lane);
    if (warp < 2) {
      if constexpr (kQueries) {
        const float2 norm = norms_of(diagonal_of(scores, warp, lane), activation, activation.scale),
                     dot = diagonal_of(of_keys, warp, lane);
#pragma unroll 1
        for (int of = 0; of < kHeads; ++of) {
          uint8_t* made = made_of(stage, of);
          const RowFactors factors = write_query_vectors(made, norm, dot, gates[of], valid, tokens);
          write_p<Element>(made + Stage::kP, of_keys, gates[of].sum, factors, warp, lane);
        }
      }
      // What the next chunk of this group needs: its stages were left by the state three chunks ago, so nobody waits for what is made here. Of
      // twins that can wait for this one: only the rest of its round.
      if (warp == 0) loader.load(kHeads > 1 ? chunk | 1 : chunk + 2 * kCtas);
    } else {
      const float2 norm = norms_of(diagonal_of(of_keys, warp, lane), activation, 1.0f);
#pragma unroll 1
      for (int of = 0; of < kHeads; ++of) {
        const RowFactors factors = write_key_vectors(made_of(stage, of), norm, gates[of], valid, tokens);
        write_lower(lower[of], of_keys, gates[of].sum, factors, valid, warp, lane);
      }
      named_barrier(kLowerBarrier + group, 64);
      // By the warps in turns, or of twins by both at once.
      const int of = kHeads > 1 ? warp - 2 : 0;
      if (kHeads > 1 || warp == 2 + turn) write_t<Element>(lower[of], made_of(stage, of) + Stage::kT, lane);
    }
    turn ^= 1;
    ptx::fence_proxy_async(ptx::space_shared);
    named_barrier(kMakeBarrier + group, kWarpgroup);
    if (thread == 0) {
      if constexpr (kCtas > 1)
        copy_to_block(stage + Stage::kP, made_of(stage, kHeads - 1) + Stage::kP, Stage::kMadeBytes,
                      &shared.made[stage_index], 1 - rank);
      ptx::mbarrier_arrive(&shared.made[stage_index]);
    }
    if (kHeads > 1 && warp == 0) loader.load(chunk + 2 * kCtas);
    position.advance();
  }
  if (warp == 0) loader.load(chunks - 1);
}

// `kQueries`: q too, and P; a summary has neither.
template <class Element, int kCtas, int kHeads, bool kQueries>
__device__ __forceinline__ void make_all(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                                         Shared<kCtas, kHeads>& shared, int group, int rank) {
  MakeState<kCtas, kHeads> at{.loading = {group * kCtas}, .making = {group * kCtas + rank}};
  make_items<kCtas, kHeads>(shared, [&](const Item& item, int begin) {
    // The state is some chunks behind: by the time it comes here, the one it starts from is there.
    if (kCtas == kHeads && group == 0 && begin > 0 && threadIdx.x % kWarpgroup == 0) prefetch_entry(args, item);
    make_chunks<Element, kCtas, kHeads, kQueries>(maps, activation, item, begin, shared, group, rank, at);
  });
}

}  // namespace deltarelay::cuda::sm90::fused_gdn
