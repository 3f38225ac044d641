// Decays of single tokens for KDA with scores, in shared memory: the two numbers of a thread's word, each in a tile of
// its own, where the same word of q and k lies. Only the thread itself reads and writes them there, so nothing waits.
//
// Registers would need loops that are unrolled as a whole, and a CTA runs each of its instructions once: it waits for
// instructions.
#pragma once
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm90/stages/local_tokens.cuh"

namespace deltarelay::cuda::sm90::local {

struct DecayTiles {
  uint8_t *x, *y;
};

constexpr int kStep = 8;  // tokens of one turn of a loop

// Bytes of the thread's words of kStep tokens, from token `base` of its block on.
struct StepPlace {
  uint32_t rows, word;
  __device__ __forceinline__ StepPlace(const WarpPlace& of, int base)
      : rows(of.half * kHalfTile + (of.block * kBlock + base) * kRowBytes), word(of.word ^ ((base & 4) << 4)) {}
  __device__ __forceinline__ uint32_t at(int t) const { return rows + t * kRowBytes + (word ^ (t << 4)); }
};

__device__ __forceinline__ uint32_t word_at(const uint8_t* tile, uint32_t at) {
  return *reinterpret_cast<const uint32_t*>(tile + at);
}
__device__ __forceinline__ float2 decay_at(const DecayTiles& from, uint32_t at) {
  return {__uint_as_float(word_at(from.x, at)), __uint_as_float(word_at(from.y, at))};
}
__device__ __forceinline__ void put_decay(const DecayTiles& to, uint32_t at, float2 decay) {
  put(to.x, at, __float_as_uint(decay.x));
  put(to.y, at, __float_as_uint(decay.y));
}

// Starts the loads of gates or their sums: two fp32, or two 16-bit numbers in x. Past the end the last row is read
// again. Returns the sums ahead of the first token.
__device__ __forceinline__ float2 request_gates(const DecayTiles& to, const ChunkArgs& args, const Place& at,
                                                const WarpPlace& of) {
  const Intermediates& stage = args.stage;
  const TensorView& g = args.activation.g;
  const int first = of.block * kBlock, last = at.chunk.valid - 1;
  const bool sums = stage.gives(DR_GATE_SUMS), wide = sums || g.dtype == DType::kFp32;
  const uint8_t* from = nullptr;
  int64_t step = 0;
  float2 before = {0.0f, 0.0f};
  if (sums) {
    step = int64_t{args.heads_v} * kWidth * 4;
    from = reinterpret_cast<const uint8_t*>(stage.gate_sums + (at.token_of_call * args.heads_v + at.head) * kWidth +
                                            of.channel());
    if (first > 0) before = *reinterpret_cast<const float2*>(from + min(first - 1, last) * step);
  } else {
    const int bytes = wide ? 4 : 2;
    step = g.token * bytes;
    from = static_cast<const uint8_t*>(g.data) +
           (at.chunk.sequence_at * g.sequence + at.chunk.token * g.token + at.head * g.head + of.channel()) * bytes;
  }
  const bool in_pairs = wide || ((reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(step)) & 3) == 0;
#pragma unroll 1
  for (int base = 0; base < kBlock; base += kStep) {
    const StepPlace place(of, base);
#pragma unroll
    for (int t = 0; t < kStep; ++t) {
      const uint8_t* row = from + min(first + base + t, last) * step;
      const uint32_t word = shared_address(to.x) + place.at(t);
      if (in_pairs) {
        copy_word(word, row, 4);
        if (wide) copy_word(word + static_cast<uint32_t>(to.y - to.x), row + 4, 4);
      } else {
        const auto* two = reinterpret_cast<const uint16_t*>(row);
        put(to.x, place.at(t), uint32_t{two[0]} | uint32_t{two[1]} << 16);
      }
    }
  }
  close_copies();
  return before;
}

// Gates to decays, or to log-decays in base 2 where sums are wanted. Returns the product.
template <class Read, class Log2Gate>
__device__ __forceinline__ float2 make_decays(const DecayTiles& to, const WarpPlace& of, bool for_sums, Read read,
                                              Log2Gate log2_gate) {
  float2 product = {1.0f, 1.0f};
#pragma unroll 1
  for (int base = 0; base < kBlock; base += kStep) {
    const StepPlace place(of, base);
    float2 x[kStep];
#pragma unroll
    for (int t = 0; t < kStep; ++t) x[t] = read(place.at(t));
#pragma unroll
    for (int t = 0; t < kStep; ++t) x[t] = log2_gate(x[t]);
    if (!for_sums) {
#pragma unroll
      for (float2& decay : x) {
        decay = {exp2_approx(decay.x), exp2_approx(decay.y)};
        product = times(product, decay);
      }
    }
#pragma unroll
    for (int t = 0; t < kStep; ++t) put_decay(to, place.at(t), x[t]);
  }
  return product;
}

__device__ __forceinline__ float2 activate(const DecayTiles& to, float2 before, const ChunkArgs& args, const Place& at,
                                           const WarpPlace& of, bool for_sums) {
  const auto wide = [&](uint32_t place) { return decay_at(to, place); };
  if (args.stage.gives(DR_GATE_SUMS)) {
    const float unit = args.stage.sums_base_2 ? 1.0f : kLog2e;
    wait_for_copies<0>();
    return make_decays(to, of, for_sums, wide, [&](float2 sum) {
      const float2 gate = {(sum.x - before.x) * unit, (sum.y - before.y) * unit};
      before = sum;
      return gate;
    });
  }
  const ChannelGates gates(args.activation, at, of);
  float2 product = {1.0f, 1.0f};
  wait_for_copies<0>();
  gates.choose(for_sums, [&](auto log2_gate) {
    const DType dtype = args.activation.g.dtype;
    if (dtype == DType::kBf16) {
      const auto read = [&](uint32_t place) {
        const uint32_t two = word_at(to.x, place);
        return float2{Pair<__nv_bfloat16>::low(two), Pair<__nv_bfloat16>::high(two)};
      };
      product = make_decays(to, of, for_sums, read, log2_gate);
    } else {
      const auto read = [&](uint32_t place) {
        const uint32_t two = word_at(to.x, place);
        return dtype == DType::kFp32 ? decay_at(to, place) : float2{Pair<__half>::low(two), Pair<__half>::high(two)};
      };
      product = make_decays(to, of, for_sums, read, log2_gate);
    }
  });
  return product;
}

// Decays of the thread's tokens, and their product, from gates that were requested. Tokens past the end do not decay.
// Uses `totals`. Where sums are wanted gates are read again: decays have the same bits as without them.
__device__ __forceinline__ float2 form_decays(const DecayTiles& to, float2 before, float (&totals)[4][kWidth],
                                              bool reads, const ChunkArgs& args, const Place& at, const WarpPlace& of) {
  float2 product = {1.0f, 1.0f};
  bool for_sums = args.stage.wants(DR_GATE_SUMS);
#pragma unroll 1
  for (bool again = reads; again; for_sums = false) {
    product = activate(to, before, args, at, of, for_sums);
    again = for_sums;
    if (!for_sums) break;
    write_channel_sums([&](int t) { return decay_at(to, StepPlace(of, t / kStep * kStep).at(t % kStep)); }, totals,
                       args, at, of);
    before = request_gates(to, args, at, of);
  }
  if (!reads || at.chunk.valid < kTokens) {
    product = {1.0f, 1.0f};
#pragma unroll 1
    for (int t = 0; t < kBlock; ++t) {
      const uint32_t place = StepPlace(of, t / kStep * kStep).at(t % kStep);
      const bool exists = reads && of.block * kBlock + t < at.chunk.valid;
      const float2 decay = exists ? decay_at(to, place) : float2{1.0f, 1.0f};
      put_decay(to, place, decay);
      product = times(product, decay);
    }
  }
  return product;
}

// The same in registers, with this thread's q and k.
__device__ __forceinline__ void read_part(Part& part, const uint8_t* q, const uint8_t* k, const DecayTiles& decays,
                                          const WarpPlace& of) {
  read_part(part.q, q, true, of);
  read_part(part.k, k, true, of);
#pragma unroll
  for (int t = 0; t < kBlock; ++t) part.decay[t] = decay_at(decays, StepPlace(of, t / kStep * kStep).at(t % kStep));
}

}  // namespace deltarelay::cuda::sm90::local
