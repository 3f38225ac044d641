// What a token has for itself: norms, gates, and the tensors that are q or k times a decay.
#pragma once
#include "kernels/cuda/sm90/stages/local_levels.cuh"
#include "kernels/cuda/tile/activation.cuh"

namespace deltarelay::cuda::sm90::local {

constexpr float kLn2 = 0.6931471805599453f;

// Are products of this vector with factors of local_frames.cuh numbers of full precision? `square`: its squared length.
__device__ __forceinline__ bool fits_frames(float square) {
  return square == 0.0f || (square >= 0x1p-12f && square <= 0x1p20f);
}

// The token that a thread measures: warp w has tokens 8 w .. 8 w + 7, four lanes each, of which one measures.
struct Measured {
  int row, token;
  bool here;
  __device__ __forceinline__ Measured() {
    const int lane = static_cast<int>(threadIdx.x % 32);
    row = lane / 4;
    token = 8 * uniform(static_cast<int>(threadIdx.x / 32)) + row;
    here = row / 2 == lane % 4;
  }
};

// beta as it is stored. Nobody waits for it before its token is measured: gates are on their way by then.
__device__ __forceinline__ uint32_t load_beta(const ChunkArgs& args, const Place& at) {
  const TensorView& beta = args.activation.beta;
  const Measured of;
  if (beta.data == nullptr || !of.here || of.token >= at.chunk.valid) return 0;
  return load_bits(
      beta.data, beta.dtype,
      at.chunk.sequence_at * beta.sequence + (at.chunk.token + of.token) * beta.token + at.head * beta.head);
}

// Norms of q and k, q k of the diagonal of Aqk, beta, and for KDA the weights of keys, from the raw tiles. Where a tile
// was not loaded, its numbers are not used. beta is 0 past the end, and where the call has none. Returns whether the
// vectors that this thread has seen fit frames.
template <class Element, bool kScalar>
__device__ __forceinline__ bool measure_tokens(const uint8_t* q, const uint8_t* k, PerToken& to,
                                               const Activation& activation, int valid, bool has_q,
                                               uint32_t beta_bits) {
  const int warp = uniform(static_cast<int>(threadIdx.x / 32)), lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t from = shared_address(lane / 8 % 2 == 0 ? q : k) + swizzled_offset(8 * warp + lane % 8, lane / 16);
  float by_k[4] = {}, by_q[4] = {};  // q k^T over k k^T; q q^T
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const Fragment both = load_matrix((from ^ (step % 4 * 32)) + step / 4 * kHalfTile);
    mma<Element>(by_k, both, both.reg[1], both.reg[3]);
    mma<Element>(by_q, both, both.reg[0], both.reg[2]);
  }
  const Measured of;
  if (!of.here) return true;
  const int token = of.token;
  const bool odd = of.row % 2 == 1, exists = token < valid, normalise = activation.l2norm && exists;
  const float square_q = odd ? by_q[1] : by_q[0], square_k = odd ? by_k[3] : by_k[2];
  const float norm_q = normalise ? rsqrtf(square_q + kL2NormEpsilon) : 1.0f;
  const float norm_k = normalise ? rsqrtf(square_k + kL2NormEpsilon) : 1.0f;
  to.norm_q[token] = norm_q;
  to.norm_k[token] = norm_k;
  const bool has_beta = exists && activation.beta.data != nullptr;
  const float beta =
      has_beta ? write_strength(number_of(beta_bits, activation.beta.dtype), activation.beta_form) : 0.0f;
  to.beta[token] = beta;
  if constexpr (!kScalar) to.weight_w[token] = beta * norm_k;
  to.diagonal[token] = exists ? (odd ? by_k[1] : by_k[0]) * norm_q * norm_k * activation.scale : 0.0f;
  return fits_frames(square_k) && (!has_q || fits_frames(square_q));
}

// GDN: factors of the columns of the inverse, for w, by one warp. In units of the largest norm, so that large keys
// leave the factors inside the range of fp16.
__device__ __forceinline__ void weigh_columns(PerToken& tokens, int lane) {
  const float2 norm = *reinterpret_cast<const float2*>(&tokens.norm_k[2 * lane]);
  float most = fmaxf(norm.x, norm.y);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  const float power = power_and_rest(most).power, unit = 1.0f / power;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int token = 2 * lane + e;
    const float by = tokens.beta[token] * (e == 0 ? norm.x : norm.y) * unit;
    tokens.weight_w[token] = by * exp2_approx(tokens.sums[token]);
  }
  if (lane == 0) tokens.power_w = power;
}

// --- A gate for each channel -----------------------------------------------------------------------------------------

// The gates of a thread's part as they are stored: two fp32, or two 16-bit numbers in x. Of sums, `before` is the row
// ahead of the first. Past the end the last row is read again, so that no load waits behind a branch.
struct RawGates {
  uint2 row[kBlock], before;
};

__device__ __forceinline__ void load_gates(RawGates& raw, const ChunkArgs& args, const Place& at, const WarpPlace& of) {
  const Intermediates& stage = args.stage;
  const int first = of.block * kBlock, last = at.chunk.valid - 1;
  if (stage.gives(DR_GATE_SUMS)) {
    const float* sums = stage.gate_sums + (at.token_of_call * args.heads_v + at.head) * kWidth + of.channel();
    const auto step = static_cast<uint32_t>(args.heads_v * kWidth * 4);
    auto row = [&](int token) {
      const uint64_t offset = uint64_t{static_cast<uint32_t>(min(token, last))} * step;
      return *reinterpret_cast<const uint2*>(reinterpret_cast<const uint8_t*>(sums) + offset);
    };
    raw.before = first == 0 ? make_uint2(0, 0) : row(first - 1);
#pragma unroll
    for (int t = 0; t < kBlock; ++t) raw.row[t] = row(first + t);
    return;
  }
  const TensorView& g = args.activation.g;
  const int bytes = g.dtype == DType::kFp32 ? 4 : 2;
  const int64_t step = g.token * bytes;
  const uint8_t* gates =
      static_cast<const uint8_t*>(g.data) +
      (at.chunk.sequence_at * g.sequence + at.chunk.token * g.token + at.head * g.head + of.channel()) * bytes;
  auto row = [&](int t) { return gates + min(first + t, last) * step; };
  const bool in_pairs = ((reinterpret_cast<uintptr_t>(gates) | static_cast<uintptr_t>(step)) & (2 * bytes - 1)) == 0;
  if (bytes == 4) {
#pragma unroll
    for (int t = 0; t < kBlock; ++t) {
      const auto* two = reinterpret_cast<const uint32_t*>(row(t));
      raw.row[t] = in_pairs ? *reinterpret_cast<const uint2*>(two) : make_uint2(two[0], two[1]);
    }
  } else {
#pragma unroll
    for (int t = 0; t < kBlock; ++t) {
      const auto* two = reinterpret_cast<const uint16_t*>(row(t));
      raw.row[t].x = in_pairs ? *reinterpret_cast<const uint32_t*>(two) : uint32_t{two[0]} | uint32_t{two[1]} << 16;
    }
  }
}

// What makes log-decays in base 2 of gates of a thread's two channels; not clamped, so that a gate of -inf is one.
struct ChannelGates {
  GateParams first, second;

  // Asked for before the gates are waited for.
  __device__ __forceinline__ ChannelGates(const Activation& activation, const Place& at, const WarpPlace& of)
      : first(gate_params(activation, gate_slope(activation, at.head),
                          gate_bias(activation, at.head, of.channel(), kWidth))),
        second(first) {
    first.lowest = activation.gate_floor == 0.0f ? -INFINITY : activation.gate_floor * kLog2e;
    second.bias = gate_bias(activation, at.head, of.channel() + 1, kWidth);
  }
  template <GateForm kForm>
  __device__ __forceinline__ float2 decays(float2 raw) const {
    const float2 x = {log2_decay<kForm>(raw.x, first), log2_decay<kForm>(raw.y, second)};
    if constexpr (kForm == GateForm::kLog || kForm == GateForm::kLinear)
      return {clamp_decay(x.x, first), clamp_decay(x.y, first)};
    return x;
  }
  // Softplus gates of which only e^g is needed: -A log2(1 + e^x) has an absolute error of 2^-21 A. `softplus`, whose
  // relative error is that small, takes twice the instructions.
  __device__ __forceinline__ float2 short_softplus(float2 raw) const {
    constexpr float kIsLinear = 24.0f;  // from here on log2(1 + 2^x) is x
    const float slope = first.slope * kLn2;
    auto decay = [&](float x) {
      const float sum = log2_approx(1.0f + exp2_approx(x));
      return slope * (x > kIsLinear ? x : sum);
    };
    return {decay(fmaf(raw.x, kLog2e, first.bias * kLog2e)), decay(fmaf(raw.y, kLog2e, second.bias * kLog2e))};
  }
  // Calls `run` with the function for the form of the gates. `for_sums`: relative errors are small.
  template <class Run>
  __device__ __forceinline__ void choose(bool for_sums, Run run) const {
    switch (first.form) {
      case GateForm::kLog:
        return run([&](float2 x) { return decays<GateForm::kLog>(x); });
      case GateForm::kLinear:
        return run([&](float2 x) { return decays<GateForm::kLinear>(x); });
      case GateForm::kRawSoftplus:
        if (for_sums) return run([&](float2 x) { return decays<GateForm::kRawSoftplus>(x); });
        return run([&](float2 x) { return short_softplus(x); });
      case GateForm::kRawBounded:
        return run([&](float2 x) { return decays<GateForm::kRawBounded>(x); });
    }
  }
};

// Log-decays in base 2 of the thread's part.
__device__ __forceinline__ void activate_gates(float2 (&gate)[kBlock], const RawGates& raw, const ChunkArgs& args,
                                               const Place& at, const WarpPlace& of, bool for_sums) {
  const Activation& activation = args.activation;
  if (args.stage.gives(DR_GATE_SUMS)) {
    const float unit = args.stage.sums_base_2 ? 1.0f : kLog2e;
    float2 before = {__uint_as_float(raw.before.x), __uint_as_float(raw.before.y)};
#pragma unroll
    for (int t = 0; t < kBlock; ++t) {
      const float2 sum = {__uint_as_float(raw.row[t].x), __uint_as_float(raw.row[t].y)};
      gate[t] = {(sum.x - before.x) * unit, (sum.y - before.y) * unit};
      before = sum;
    }
    return;
  }
  const ChannelGates gates(activation, at, of);
#pragma unroll
  for (int t = 0; t < kBlock; ++t) {
    const uint32_t two = raw.row[t].x;
    if (activation.g.dtype == DType::kFp32)
      gate[t] = {__uint_as_float(two), __uint_as_float(raw.row[t].y)};
    else if (activation.g.dtype == DType::kBf16)
      gate[t] = {Pair<__nv_bfloat16>::low(two), Pair<__nv_bfloat16>::high(two)};
    else
      gate[t] = {Pair<__half>::low(two), Pair<__half>::high(two)};
  }
  gates.choose(for_sums, [&](auto log2_gate) {
#pragma unroll
    for (float2& x : gate) x = log2_gate(x);
  });
}

// Sums of the gates as results. Uses `totals` of the blocks, and ends with a barrier of the CTA.
// `gate(t)`: of the thread's token t.
template <class Gate>
__device__ __forceinline__ void write_channel_sums(Gate gate, float (&totals)[4][kWidth], const ChunkArgs& args,
                                                   const Place& at, const WarpPlace& of) {
  auto total = [&](int block) -> float2& { return *reinterpret_cast<float2*>(&totals[block][of.channel()]); };
  float2 sum = {0.0f, 0.0f};
#pragma unroll
  for (int t = 0; t < kBlock; ++t) sum = {sum.x + gate(t).x, sum.y + gate(t).y};
  total(of.block) = sum;
  __syncthreads();
  sum = {0.0f, 0.0f};
  for (int block = 0; block < of.block; ++block) sum = {sum.x + total(block).x, sum.y + total(block).y};
  const float unit = args.stage.sums_base_2 ? 1.0f : kLn2;
  float* to = args.stage.gate_sums + (at.token_of_call * args.heads_v + at.head) * kWidth + of.channel();
#pragma unroll
  for (int t = 0; t < kBlock; ++t) {
    const int token = of.block * kBlock + t;
    sum = {sum.x + gate(t).x, sum.y + gate(t).y};
    if (token < at.chunk.valid)
      *reinterpret_cast<float2*>(to + int64_t{token} * args.heads_v * kWidth) = {sum.x * unit, sum.y * unit};
  }
  __syncthreads();
}

// This thread's q and k.
__device__ __forceinline__ void read_part(uint32_t (&words)[kBlock], const uint8_t* tile, bool loaded,
                                          const WarpPlace& of) {
  const uint8_t* half = tile + of.half * kHalfTile + of.block * kBlock * kRowBytes;
#pragma unroll
  for (int t = 0; t < kBlock; ++t) words[t] = loaded ? *reinterpret_cast<const uint32_t*>(half + of.at(t)) : 0;
}

// q_from_start and k_to_end to memory, keys of w to their tile.
template <class Element>
__device__ __forceinline__ void write_decayed(Part& part, const float (&products)[4][kWidth], uint8_t* tile,
                                              const PerToken& tokens, const ChunkArgs& args, const Place& at,
                                              const WarpPlace& of) {
  const Intermediates& stage = args.stage;
  const int first = of.block * kBlock;
  float2 before = {1.0f, 1.0f}, after = {1.0f, 1.0f};
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    const float2 product = *reinterpret_cast<const float2*>(&products[block][of.channel()]);
    if (block < of.block) before = times(before, product);
    if (block > of.block) after = times(after, product);
  }
  const int64_t step = int64_t{args.heads_v} * kWidth * 2;  // bytes
  auto row_of = [&](void* data, int t) {
    return static_cast<uint8_t*>(data) + (at.token_of_call + first + t) * step + (at.head * kWidth + of.channel()) * 2;
  };
  const bool wants_q = stage.wants(DR_Q_FROM_START), wants_k = stage.wants(DR_K_TO_END), wants_w = stage.wants(DR_W);
  const int exist = at.chunk.valid - first;
  part.renew();
  if (wants_w) {
    float2 run = before;
    uint8_t* keys = tile + of.half * kHalfTile + first * kRowBytes;
#pragma unroll
    for (int t = 0; t < kBlock; ++t) {
      // First the weight: with a long key it may be as small as the key is long.
      const float weight = tokens.weight_w[first + t];
      run = times(run, part.decay[t]);
      const float2 key = {Pair<Element>::low(part.k[t]) * weight, Pair<Element>::high(part.k[t]) * weight};
      const float2 decayed = times(key, run);
      put(keys, of.at(t), Pair<Element>::pack(decayed.x, decayed.y));
    }
  }
  part.renew();
  if (wants_q) {
    float2 run = before;
    uint8_t* to = row_of(stage.q_from_start, 0);
#pragma unroll
    for (int t = 0; t < kBlock; ++t, to += step) {
      const float norm = tokens.norm_q[first + t];
      run = times(run, part.decay[t]);
      if (t < exist) put(to, 0, scaled<Element>(part.q[t], {run.x * norm, run.y * norm}));
    }
  }
  part.renew();
  if (wants_k) {
    float2 run = after;
    uint8_t* to = row_of(stage.k_to_end, kBlock - 1);
#pragma unroll
    for (int t = kBlock - 1; t >= 0; --t, to -= step) {
      const float norm = tokens.norm_k[first + t];
      if (t < exist) put(to, 0, scaled<Element>(part.k[t], {run.x * norm, run.y * norm}));
      run = times(run, part.decay[t]);
    }
  }
}

// --- One gate for all channels ---------------------------------------------------------------------------------------

// Sums of the gates as results, by one warp; not clamped, so that a gate of -inf has a sum of -inf.
__device__ __forceinline__ void write_scalar_sums(const ChunkArgs& args, const Place& at, int lane) {
  const Activation& activation = args.activation;
  const TensorView& g = activation.g;
  GateParams gate = gate_params(activation, at.head, 0, 1);
  gate.lowest = is_raw(gate.form) || activation.gate_floor == 0.0f ? -INFINITY : activation.gate_floor * kLog2e;
  const int64_t from = at.chunk.sequence_at * g.sequence + at.chunk.token * g.token + at.head * g.head;
  float decay[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int token = 2 * lane + e;
    decay[e] = token < at.chunk.valid ? log2_decay(load_number(g.data, g.dtype, from + token * g.token), gate) : 0.0f;
  }
  float through = decay[0] + decay[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(~0u, through, step);
    if (lane >= step) through += below;
  }
  const float before = __shfl_up_sync(~0u, through, 1), unit = args.stage.sums_base_2 ? 1.0f : kLn2;
  float* to = args.stage.gate_sums + at.token_of_call * args.heads_v + at.head;
  const float sums[2] = {(lane == 0 ? 0.0f : before) + decay[0], through};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int token = 2 * lane + e;
    if (token < at.chunk.valid) to[int64_t{token} * args.heads_v] = sums[e] * unit;
  }
}

// Rows of a tile times a factor of their token, to memory.
template <class Element, class Factor>
__device__ __forceinline__ void write_rows_times(const uint8_t* tile, uint4* rows, int heads, int valid,
                                                 Factor factor) {
#pragma unroll 1
  for (int i = threadIdx.x; i < valid * 16; i += kThreads) {
    const int token = i / 16, piece = i % 16;
    const float by = factor(token);
    const uint4 from =
        *reinterpret_cast<const uint4*>(tile + piece / 8 * kHalfTile + swizzled_offset(token, piece % 8));
    rows[int64_t{token} * heads * 16 + piece] = {scaled<Element>(from.x, {by, by}), scaled<Element>(from.y, {by, by}),
                                                 scaled<Element>(from.z, {by, by}), scaled<Element>(from.w, {by, by})};
  }
}

// q_from_start and k_to_end to memory.
template <class Element>
__device__ __forceinline__ void write_decayed(const uint8_t* q, const uint8_t* k, const PerToken& tokens,
                                              const ChunkArgs& args, const Place& at) {
  const Intermediates& stage = args.stage;
  const int valid = at.chunk.valid;
  const float last = tokens.sums[valid - 1];
  if (stage.wants(DR_Q_FROM_START))
    write_rows_times<Element>(q, pieces_of(stage.q_from_start, at, args.heads_v, kWidth), args.heads_v, valid,
                              [&](int t) { return tokens.norm_q[t] * exp2_approx(tokens.sums[t]); });
  if (stage.wants(DR_K_TO_END))
    write_rows_times<Element>(k, pieces_of(stage.k_to_end, at, args.heads_v, kWidth), args.heads_v, valid,
                              [&](int t) { return tokens.norm_k[t] * exp2_approx(last - tokens.sums[t]); });
}

}  // namespace deltarelay::cuda::sm90::local
