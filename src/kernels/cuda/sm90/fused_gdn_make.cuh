// The making groups of the fused walk of GDN: loads, norms, gates, both score matrices in one product, P, L, and the inverse. Two groups
// take the chunks of their CTA in turns, so that each has two chunks' time for one; of a pair or of twins four.
#pragma once
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/sm90/fused_gdn_memory.cuh"
#include "kernels/cuda/sm90/walk_maps.h"
#include "kernels/cuda/tile/descriptor.cuh"
#include "kernels/cuda/tile/scores.cuh"
#include "kernels/cuda/warp_sum.cuh"

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
    if (!wait) return ptx::mbarrier_test_wait_parity(barrier, position_.parity ^ 1);
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
    copy(maps_.v, kHalves == 2 ? 0 : rank_, item.head, stage + Stage::kV);
  }

  const FusedMaps& maps_;
  Shared<kCtas, kHeads>& shared_;
  const Item& item_;
  int rank_, chunks_, begin_;
  int chunk_;
  // Both chunks of a round lie in neighbouring stages, for their number is even.
  MakePosition<kCtas, kHeads>& position_;
};

// Gate and write strength of the token of this lane, as they lie in memory; 0 past the end.
struct RawToken {
  uint32_t gate, beta;
};
// Fetches them a chunk before their use, so that nothing waits for them: of one chunk in `kEvery`, from `chunk` on. Counted on by bytes: where a token
// lies is 64-bit arithmetic.
template <int kEvery>
class TokenCursor {
 public:
  __device__ __forceinline__ TokenCursor(const Activation& activation, const Item& item, int head, int chunk, int lane)
      : gate_(first_of(activation.g, item, head, chunk, lane)),
        beta_(first_of(activation.beta, item, head, chunk, lane)),
        left_(item.tokens - chunk * kFusedChunk - lane) {}

  __device__ __forceinline__ RawToken fetch(const Activation& activation) {
    RawToken raw{};
    if (left_ > 0) raw = {load_bits(gate_, activation.g.dtype, 0), load_bits(beta_, activation.beta.dtype, 0)};
    left_ -= kTokens;
    gate_ += activation.g.token * (kTokens * size_of(activation.g));
    beta_ += activation.beta.token * (kTokens * size_of(activation.beta));
    return raw;
  }

 private:
  static constexpr int kTokens = kEvery * kFusedChunk;
  static __device__ __forceinline__ int size_of(const TensorView& view) { return view.dtype == DType::kFp32 ? 4 : 2; }
  static __device__ __forceinline__ const uint8_t* first_of(const TensorView& view, const Item& item, int head,
                                                            int chunk, int lane) {
    return static_cast<const uint8_t*>(view.data) +
           (item.sequence_at * view.sequence + (item.token + chunk * kFusedChunk + lane) * view.token +
            head * view.head) *
               size_of(view);
  }

  const uint8_t *gate_, *beta_;
  int left_;  // tokens from this lane's on
};

// Gates and write strengths of a chunk, by one warp, a token a lane. Tokens past the end, whose rows may hold anything, decay nothing and write
// nothing.
struct ChunkGates {
  float sum;   // G, base 2
  float beta;  // 0 past the end
  float last;  // G of the last token
};
// Log-decays and strengths in fp32, which have code of their own: the forms and types of all others are 25 instructions of choosing.
__device__ __forceinline__ bool passes_as_is(const Activation& activation) {
  return activation.gate_form == GateForm::kLog && activation.g.dtype == DType::kFp32 &&
         activation.beta_form == BetaForm::kValue && activation.beta.dtype == DType::kFp32;
}
__device__ __forceinline__ ChunkGates sum_gates(const Activation& activation, const GateParams& gate, RawToken raw,
                                                int valid, int lane) {
  float sum = 0.0f, beta = 0.0f;
  if (passes_as_is(activation)) {  // a raw 0 is what belongs past the end
    sum = clamp_decay(log2_decay<GateForm::kLog>(__uint_as_float(raw.gate), gate), gate);
    beta = __uint_as_float(raw.beta);
  } else if (lane < valid) {
    sum = log2_decay(number_of(raw.gate, activation.g.dtype), gate);
    beta = write_strength(number_of(raw.beta, activation.beta.dtype), activation.beta_form);
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) add_from_below(sum, step);
  return {sum, beta, __shfl_sync(~0u, sum, 31)};
}

// What follows from the gates alone: for the state the decay of the chunk, for the making group sums and strengths.
__device__ __forceinline__ void write_gates(uint8_t* stage, TokenGates& to, const ChunkGates& gates, int lane) {
  to.sum(lane) = gates.sum;
  to.beta[lane] = gates.beta;
  if (lane == 0) *reinterpret_cast<float4*>(stage + Stage::kDecay) = {exp2_approx(gates.last), 0.0f, 0.0f, 0.0f};
}

constexpr int kBlockRows = 16;  // rows of a warp in a product of 64

// Of a 16 x 16 block on a diagonal the numbers (i, i) of this lane's rows, lane / 4 and lane / 4 + 8: of the scores q.k and squares of k. One of the
// four lanes of a row has it in its accumulators. By FFMA the sums cost a warp some 190 instructions a chunk.
__device__ __forceinline__ float2 diagonal_of(const float (&block)[8], int lane) {
  const bool odd = lane / 4 % 2 != 0;
  const int from = lane / 4 * 4 + lane / 8;
  return make_float2(__shfl_sync(~0u, odd ? block[1] : block[0], from),
                     __shfl_sync(~0u, odd ? block[7] : block[6], from));
}

// Squares of this lane's rows of q, rows lane / 4 and lane / 4 + 8 of 16 from `first` on: the diagonal of their products with themselves. Rows are
// fetched once more as columns, where the two registers of 8 of them have to be neighbours: moves would be four times as many instructions.
template <class Element>
__device__ __forceinline__ float2 square_queries(const uint8_t* stage, int first, int lane) {
  float upper[4] = {}, lower[4] = {};
  const uint32_t tile = shared_address(stage + Stage::kQ);
  const uint32_t as_rows = tile + swizzled_offset(first + lane % 16, lane / 16),
                 as_columns = tile + swizzled_offset(first + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const int half = step / 4 * Stage::kHalfBytes, channels = step % 4 * 32;  // swizzled: by exclusive or
    const Fragment rows = load_matrix((as_rows ^ channels) + half),
                   columns = load_matrix((as_columns ^ channels) + half);
    mma<Element>(upper, rows, columns.reg[0], columns.reg[1]);
    mma<Element>(lower, rows, columns.reg[2], columns.reg[3]);
  }
  const float block[8] = {upper[0], upper[1], 0.0f, 0.0f, 0.0f, 0.0f, lower[2], lower[3]};
  return diagonal_of(block, lane);
}

// scale / |row| of this lane's rows from their squares.
__device__ __forceinline__ float2 norms_of(float2 square, const Activation& activation, float scale) {
  if (!activation.l2norm) return {scale, scale};
  return {scale * rsqrt_approx(square.x + kL2NormEpsilon), scale * rsqrt_approx(square.y + kL2NormEpsilon)};
}

// Where a lane's rows are in a chunk, and where it stores its share of a block of them. Found once for all chunks; opaque, or the compiler finds them
// again in each.
struct RowPlace {
  int first;  // token of the one; the other is 8 behind it
  int place;  // of the number that this lane writes, in float[16][4]: of two tokens one number each, then the other
  int in_p;   // block_offset
  int in_l;   // the same in a block of FusedLower
  __device__ __forceinline__ RowPlace(bool lower_rows, int lane)
      : first(keep((lower_rows ? kBlockRows : 0) + lane / 4)),
        place(keep(place_of(first + lane % 2 * 8, lane % 4 / 2))),
        in_p(keep(block_offset(lane))),
        in_l(keep(lane / 4 * FusedLower::kPitchBytes + lane % 4 * 8)) {}
  static __device__ __forceinline__ int place_of(int token, int part) { return token / 2 * 4 + token % 2 + 2 * part; }
  static __device__ __forceinline__ int keep(int number) { return static_cast<int>(opaque(number)); }
};
// The two tokens of a lane's rows, and which of their numbers it writes: of the four lanes that know a token two write one each.
struct RowTokens : RowPlace {
  bool second, part;  // the token, the number
  int token;
  __device__ __forceinline__ RowTokens(const RowPlace& at, int lane)
      : RowPlace(at), second(lane % 2 != 0), part(lane % 4 >= 2), token(first + 8 * second) {}
  __device__ __forceinline__ float own(float2 numbers) const { return second ? numbers.y : numbers.x; }
};

// The vectors of Q S and of the diagonal of P, of rows of q whose inverse norms times the scale are `norm`. Past the end they may be anything, for outputs
// that nobody stores.
__device__ __forceinline__ void write_query_vectors(uint8_t* stage, float norm, float dot, TokenGates& gates,
                                                    const RowTokens& rows) {
  const float number = gates.at(rows.place);
  reinterpret_cast<float*>(stage + Stage::kQuery)[rows.place] = norm * (rows.part ? dot * number : exp2_approx(number));
}

// The vectors of K S and of the update, and w, of rows of k whose inverse norms are `norm`.
__device__ __forceinline__ void write_key_vectors(uint8_t* stage, float norm, TokenGates& gates, int valid,
                                                  const RowTokens& rows) {
  const float sum = gates.at(rows.place - 2 * rows.part), last = gates.sum(kFusedChunk - 1);
  const float beta = gates.beta[rows.token];
  const float factor = rows.token < valid ? norm * (rows.part ? beta : 1.0f) : 0.0f;
  reinterpret_cast<float*>(stage + Stage::kPrediction)[kFusedChunk * rows.part + rows.token] =
      factor * exp2_approx(rows.part ? last - sum : sum);
  if (rows.part) gates.at(rows.place) = factor;
}

// A warp's 16 rows of the scores of a chunk, in the layout of accumulators: the block on the diagonal, and of the lower rows the one left of it.
struct RowScores {
  float diagonal[8], corner[8];

  // `columns`: all 32.
  __device__ __forceinline__ RowScores(const float* columns, bool lower_rows) {
#pragma unroll
    for (int i = 0; i < 8; ++i) diagonal[i] = lower_rows ? columns[8 + i] : columns[i], corner[i] = columns[i];
  }
  __device__ __forceinline__ void scale(float2 norm) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float factor = i / 2 % 2 ? norm.y : norm.x;
      diagonal[i] *= factor, corner[i] *= factor;
    }
  }
  // Rows past the end, which may be anything, are 0.
  __device__ __forceinline__ void select(const RowTokens& rows, int valid) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool exists = rows.first + (i / 2 % 2 ? 8 : 0) < valid;
      diagonal[i] = exists ? diagonal[i] : 0.0f, corner[i] = exists ? corner[i] : 0.0f;
    }
  }
};

// w_j e^{Gi-Gj} times scores of 16 columns from `first` on.
__device__ __forceinline__ void decay_block(float (&block)[8], const float (&scores)[8], const TokenGates& gates,
                                            float2 sum, int first, int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float4 column = *reinterpret_cast<const float4*>(gates.number[first / 2 + 4 * n + lane % 4]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float ratio = exp2_approx((e / 2 ? sum.y : sum.x) - (e % 2 ? column.y : column.x));
      block[4 * n + e] = scores[4 * n + e] * (ratio * (e % 2 ? column.w : column.z));
    }
  }
}
// The same of a diagonal block; elements on and above the diagonal, which may be anything, become 0.
__device__ __forceinline__ void decay_diagonal(float (&block)[8], const float (&scores)[8], const TokenGates& gates,
                                               float2 sum, int first, int lane) {
  decay_block(block, scores, gates, sum, first, lane);
  const int column = 2 * (lane % 4);
  const bool low = column < lane / 4, high = column + 1 < lane / 4;
  block[0] = low ? block[0] : 0.0f, block[1] = high ? block[1] : 0.0f;
  block[4] = block[5] = 0.0f;
  block[6] = low ? block[6] : 0.0f, block[7] = high ? block[7] : 0.0f;
}

// A block of -L, in fp32.
__device__ __forceinline__ void store_lower(FusedLower::Block& to, const float (&block)[8], const RowPlace& rows) {
  uint8_t* at = reinterpret_cast<uint8_t*>(to) + rows.in_l;
#pragma unroll
  for (int i = 0; i < 8; i += 2)
    *reinterpret_cast<float2*>(at + i / 2 % 2 * 8 * FusedLower::kPitchBytes + i / 4 * 32) = {block[i], block[i + 1]};
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
  const int gates_of = kHeads > 1 ? warp % 2 : 0, head = item.head ^ gates_of;
  const GateParams gate = gate_params(activation, head, 0, 1);
  Position& position = at.making;
  int& turn = at.turn;
  const bool sums_gates = kHeads > 1 ? warp >= 2 : warp == 3;
  TokenCursor<2 * kCtas> cursor(activation, item, head, first + rank, static_cast<int>(threadIdx.x % 32));
  RawToken raw{};
  if (sums_gates) raw = cursor.fetch(activation);
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
  const RowPlace rows(warp & 1, static_cast<int>(threadIdx.x % 32));
#pragma unroll 1
  for (int chunk = first + rank; chunk < chunks; chunk += 2 * kCtas) {
    // Opaque, or the compiler keeps every address that follows from it in registers from chunk to chunk.
    const uint32_t thread = opaque(threadIdx.x) % kWarpgroup;
    const int lane = static_cast<int>(thread % 32), stage_index = position.stage;
    uint8_t* stage = shared.ring[stage_index];
    const int valid = min(item.tokens - chunk * kFusedChunk, kFusedChunk);
    // The warps of L are done with the chunk before. And warp 0 has asked for this one: until then the barrier of its stage may still be that of the
    // other group's use (kSkips).
    named_barrier(kMakeBarrier + group, kWarpgroup);
    wait_parity(&shared.loaded[stage_index], position.parity);

    // Rows 0-31 are those of q, rows 32-63 those of k; columns k.
    float scores[16];
    const uint32_t operands = operand_place(shared_address(stage));
    multiply_scores<Element>(scores, swizzled_operand_at(operands, Stage::kQ), swizzled_operand_at(operands, Stage::kK),
                             Stage::kHalfBytes);
    if (sums_gates) {
      write_gates(made_of(stage, gates_of), gates[gates_of], sum_gates(activation, gate, raw, valid, lane), lane);
      raw = cursor.fetch(activation);
    }
    const bool lower_rows = warp & 1, of_keys = warp >= 2;
    float2 square = {};
    if constexpr (kQueries) {
      if (!of_keys && activation.l2norm) square = square_queries<Element>(stage, lower_rows ? kBlockRows : 0, lane);
    }
    named_barrier(kMakeBarrier + group, kWarpgroup);  // gates
    wgmma_wait<0>();
    pin(scores);
    const RowTokens tokens(rows, lane);
    RowScores with_keys(scores, lower_rows);
    const float2 diagonal = diagonal_of(with_keys.diagonal, lane);
    const float dot = tokens.own(diagonal);
    if (of_keys) square = diagonal;
    const float2 norm = norms_of(square, activation, of_keys ? 1.0f : activation.scale);
    if (of_keys) {
#pragma unroll
      for (int of = 0; of < kHeads; ++of)
        write_key_vectors(made_of(stage, of), tokens.own(norm), gates[of], valid, tokens);
    }
    with_keys.scale(of_keys ? make_float2(-norm.x, -norm.y) : norm);
    if (valid < kFusedChunk) with_keys.select(tokens, valid);
    named_barrier(kMakeBarrier + group, kWarpgroup);  // w of all
#pragma unroll
    for (int of = 0; of < kHeads; ++of) {
      uint8_t* made = made_of(stage, of);
      const float2 sum = {gates[of].sum(tokens.first), gates[of].sum(tokens.first + 8)};
      float block[8];
      decay_diagonal(block, with_keys.diagonal, gates[of], sum, lower_rows ? 16 : 0, lane);
      if (of_keys) {
        store_lower(lower[of].diagonal[lower_rows], block, rows);
      } else if constexpr (kQueries) {
        store_block<Element>(made + Stage::kP + core_offset(2 * lower_rows, 2 * lower_rows) + rows.in_p, block);
        write_query_vectors(made, tokens.own(norm), dot, gates[of], tokens);
      }
      if (lower_rows) {
        decay_block(block, with_keys.corner, gates[of], sum, 0, lane);
        if (of_keys)
          store_lower(lower[of].corner, block, rows);
        else if constexpr (kQueries)
          store_block<Element>(made + Stage::kP + core_offset(2, 0) + rows.in_p, block);
      }
    }
    if (of_keys) {
      named_barrier(kLowerBarrier + group, 64);
      // By the warps in turns, or of twins by both at once.
      const int of = kHeads > 1 ? warp - 2 : 0;
      if (kHeads > 1 || warp == 2 + turn) write_t<Element>(lower[of], made_of(stage, of) + Stage::kT, lane);
      ptx::fence_proxy_async(ptx::space_shared);
      split_barrier(kMadeBarrier + group, kWarpgroup);
      if (warp == 2 && elect_lane()) {
        if constexpr (kCtas > 1)
          copy_to_block(stage + Stage::kP, made_of(stage, kHeads - 1) + Stage::kP, Stage::kMadeBytes,
                        &shared.made[stage_index], 1 - rank);
        ptx::mbarrier_arrive(&shared.made[stage_index]);
      }
    } else {
      ptx::fence_proxy_async(ptx::space_shared);
      split_arrive(kMadeBarrier + group, kWarpgroup);
      // What the next chunk of this group needs, while the others make T: of twins its stage is left about now by the state, which may wait for this chunk.
      if (warp == 0) loader.load(chunk + 2 * kCtas);
    }
    turn ^= 1;
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
