// One chunk of 64 tokens and one strip by a CTA of two warpgroups.
//
// Every thread has four pieces of 8 channels. It reads k, q, v and G there, writes k_to_end and q_from_start where they
// belong, and lays beta e^G k and beta v into shared memory. Two products by the inverse then give w and u, one half of
// the columns in each warpgroup.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/stages/gate_sums.cuh"
#include "kernels/cuda/sm90/stages/recompute.h"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90::recompute {

constexpr int kGroup = 128, kThreads = 2 * kGroup;
constexpr int kBlocks = kStageChunk / 16;
constexpr int kTileBytes = kStageChunk * kRowBytes;   // 64 tokens, 64 numbers
constexpr int kPieces = kStageChunk * 16 / kThreads;  // of 8 channels, for each thread
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kL2NormEpsilon = 1e-6f;

template <bool kScalar>
struct Shared {
  uint8_t inverse[kTileBytes];
  uint8_t keys[2][kTileBytes];    // beta e^G k, then w; per half of the channels
  uint8_t values[2][kTileBytes];  // beta v, then u
  // G in base 2. KDA: not used where sums are given.
  float sums[kScalar ? kStageChunk : kStageChunk * kWidth];
};

// Where this CTA works.
struct Place {
  ChunkPlace chunk;
  int64_t token_of_call;
  int head, key_head, strip, first_value;
};

struct Eight {
  float value[8];
};
template <class Element>
__device__ __forceinline__ Eight unpack(const uint4& piece) {
  const uint32_t pairs[4] = {piece.x, piece.y, piece.z, piece.w};
  Eight eight;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    eight.value[2 * i] = Pair<Element>::low(pairs[i]);
    eight.value[2 * i + 1] = Pair<Element>::high(pairs[i]);
  }
  return eight;
}
template <class Element>
__device__ __forceinline__ uint4 pack(const Eight& eight) {
  const float* x = eight.value;
  return {Pair<Element>::pack(x[0], x[1]), Pair<Element>::pack(x[2], x[3]), Pair<Element>::pack(x[4], x[5]),
          Pair<Element>::pack(x[6], x[7])};
}
__device__ __forceinline__ Eight load_eight(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

// Sums of the gates of a chunk, in base 2. KDA: thread t sums channel t % 128 over one half of the tokens.
template <bool kScalar>
__device__ __forceinline__ void sum_gates(const ChunkArgs& args, const StageGates& gates, const Place& at,
                                          Shared<kScalar>& shared) {
  const int valid = at.chunk.valid;
  if constexpr (kScalar) {
    if (threadIdx.x >= 32) return;
    const GateRow row = {at.chunk.sequence_at, at.chunk.token, at.token_of_call, at.head, valid};
    const float2 sums = scalar_sums(gates, row, 0, static_cast<int>(threadIdx.x));
    reinterpret_cast<float2*>(shared.sums)[threadIdx.x] = {sums.x * gates.sums_scale, sums.y * gates.sums_scale};
  } else {
    if (gates.sums != nullptr) return;
    constexpr int kHalf = kStageChunk / 2, kAtOnce = 8;
    const int channel = threadIdx.x % kWidth, first = threadIdx.x / kWidth * kHalf;
    const TensorView& g = args.activation.g;
    const GateParams gate = gate_params(args.activation, at.head, channel, kWidth);
    const int64_t from = at.chunk.sequence_at * g.sequence + at.chunk.token * g.token + at.head * g.head + channel;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = first; i < first + kHalf; i += kAtOnce) {
      uint32_t raw[kAtOnce];
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e)
        raw[e] = i + e < valid ? load_bits(g.data, g.dtype, from + (i + e) * g.token) : 0;
#pragma unroll
      for (int e = 0; e < kAtOnce; ++e) {
        sum += i + e < valid ? log2_decay(number_of(raw[e], g.dtype), gate) : 0.0f;
        shared.sums[(i + e) * kWidth + channel] = sum;
      }
    }
    __syncthreads();
    const float before = first == 0 ? 0.0f : shared.sums[(kHalf - 1) * kWidth + channel];
    if (first > 0) {
#pragma unroll 8
      for (int i = first; i < first + kHalf; ++i) shared.sums[i * kWidth + channel] += before;
    }
  }
}

// Sums of the gates as results: not clamped, so that a gate of -inf has a sum of -inf. One thread a channel.
template <bool kScalar>
__device__ __forceinline__ void write_sums(const ChunkArgs& args, const Place& at) {
  constexpr int kColumns = kScalar ? 1 : kWidth, kAtOnce = 8;
  const int channel = threadIdx.x, valid = at.chunk.valid;
  if (channel >= kColumns) return;
  const Activation& activation = args.activation;
  const TensorView& g = activation.g;
  GateParams gate = gate_params(activation, at.head, channel, kColumns);
  gate.lowest = is_raw(gate.form) || activation.gate_floor == 0.0f ? -INFINITY : activation.gate_floor * kLog2e;
  const int64_t from = at.chunk.sequence_at * g.sequence + at.chunk.token * g.token + at.head * g.head + channel;
  const float unit = args.stage.sums_base_2 ? 1.0f : kLn2;
  float* const to = args.stage.gate_sums + (at.token_of_call * args.heads_v + at.head) * kColumns + channel;
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < valid; i += kAtOnce) {
    uint32_t raw[kAtOnce];
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) raw[e] = i + e < valid ? load_bits(g.data, g.dtype, from + (i + e) * g.token) : 0;
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      if (i + e >= valid) break;
      sum += log2_decay(number_of(raw[e], g.dtype), gate);
      to[static_cast<int64_t>(i + e) * args.heads_v * kColumns] = sum * unit;
    }
  }
}

// G of 8 channels of a token, in base 2.
template <bool kScalar>
__device__ __forceinline__ Eight sums_at(const StageGates& gates, const Place& at, const Shared<kScalar>& shared,
                                         int token, int piece) {
  Eight sums;
  if constexpr (kScalar) {
    const float sum = shared.sums[token];
#pragma unroll
    for (float& x : sums.value) x = sum;
  } else if (gates.sums == nullptr) {
    sums = load_eight(shared.sums + token * kWidth + 8 * piece);
  } else {
    sums = load_eight(gates.sums + ((at.token_of_call + token) * gates.heads + at.head) * kWidth + 8 * piece);
#pragma unroll
    for (float& x : sums.value) x *= gates.sums_scale;
  }
  return sums;
}

// 1 / |x| over the 16 lanes that have a token's pieces.
__device__ __forceinline__ float inverse_norm(const Eight& x, bool normalise) {
  if (!normalise) return 1.0f;
  float square = 0.0f;
#pragma unroll
  for (const float v : x.value) square = fmaf(v, v, square);
#pragma unroll
  for (int step = 1; step < 16; step *= 2) square += __shfl_xor_sync(~0u, square, step);
  return rsqrtf(square + kL2NormEpsilon);
}

// The rows of a tensor of the call as pieces.
__device__ __forceinline__ const uint4* pieces_of(const TensorView& tensor, const Place& at, int head, int token) {
  return reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(tensor.data) +
                                        at.chunk.sequence_at * tensor.sequence +
                                        (at.chunk.token + token) * tensor.token + head * tensor.head);
}
// Those of a contiguous tensor [T, heads, width].
__device__ __forceinline__ uint4* pieces_of(void* data, const Place& at, int64_t heads, int head, int width,
                                            int token) {
  return reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) + ((at.token_of_call + token) * heads + head) * width);
}

template <class Element, bool kScalar>
__device__ __forceinline__ void weigh_tokens(const RecomputeArgs& all, const StageGates& gates, const Place& at,
                                             Shared<kScalar>& shared) {
  const ChunkArgs& args = all.call;
  const Intermediates& stage = args.stage;
  const int valid = at.chunk.valid, piece = threadIdx.x % 16;
  const bool first_strip = at.first_value == 0;
  const bool wants_w = first_strip && stage.wants(DR_W), wants_u = stage.wants(DR_U);
  const bool wants_k = first_strip && stage.wants(DR_K_TO_END), wants_q = first_strip && stage.wants(DR_Q_FROM_START);
  const bool reads_gates = wants_w || wants_k || wants_q;  // else there may be none
  const uint4 none = make_uint4(0, 0, 0, 0);
  uint4 keys[kPieces], queries[kPieces], values[kPieces], inverse[kPieces / 2];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int token = (threadIdx.x + i * kThreads) / 16;
    const bool exists = token < valid;
    keys[i] = exists && (wants_w || wants_k) ? pieces_of(args.k, at, at.key_head, token)[piece] : none;
    queries[i] = exists && wants_q ? pieces_of(args.q, at, at.key_head, token)[piece] : none;
    values[i] = exists && wants_u ? pieces_of(args.v, at, at.head, token)[at.first_value / 8 + piece] : none;
  }
#pragma unroll
  for (int i = 0; i < kPieces / 2; ++i) {
    const int token = (threadIdx.x + i * kThreads) / 8;
    inverse[i] = token < valid && (wants_w || wants_u)
                     ? pieces_of(stage.inverse, at, args.heads_v, at.head, kStageChunk, token)[threadIdx.x % 8]
                     : none;
  }
  if (reads_gates) sum_gates<kScalar>(args, gates, at, shared);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPieces / 2; ++i) {
    const int token = (threadIdx.x + i * kThreads) / 8;
    *reinterpret_cast<uint4*>(shared.inverse + swizzled_offset(token, threadIdx.x % 8)) = inverse[i];
  }
  const Eight last = reads_gates ? sums_at<kScalar>(gates, at, shared, valid - 1, piece) : Eight{};
  const TensorView& b = args.activation.beta;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int token = (threadIdx.x + i * kThreads) / 16;
    const bool exists = token < valid;
    const Eight sums = reads_gates ? sums_at<kScalar>(gates, at, shared, exists ? token : valid - 1, piece) : Eight{};
    const Eight k = unpack<Element>(keys[i]), q = unpack<Element>(queries[i]), v = unpack<Element>(values[i]);
    const float norm_k = inverse_norm(k, args.activation.l2norm && (wants_w || wants_k));
    const float norm_q = inverse_norm(q, args.activation.l2norm && wants_q);
    float beta = 0.0f;
    if (exists && (wants_w || wants_u)) {
      const int64_t from = at.chunk.sequence_at * b.sequence + (at.chunk.token + token) * b.token + at.head * b.head;
      beta = write_strength(load_number(b.data, b.dtype, from), args.activation.beta_form);
    }
    Eight weighed_k, weighed_v, to_end, from_start;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float decay = exp2_approx(sums.value[c]);
      weighed_k.value[c] = exists ? beta * norm_k * decay * k.value[c] : 0.0f;
      weighed_v.value[c] = exists ? beta * v.value[c] : 0.0f;
      to_end.value[c] = norm_k * exp2_approx(last.value[c] - sums.value[c]) * k.value[c];
      from_start.value[c] = norm_q * decay * q.value[c];
    }
    const uint32_t to = swizzled_offset(token, piece % 8);
    if (wants_w) *reinterpret_cast<uint4*>(shared.keys[piece / 8] + to) = pack<Element>(weighed_k);
    if (wants_u) *reinterpret_cast<uint4*>(shared.values[piece / 8] + to) = pack<Element>(weighed_v);
    if (!exists) continue;
    if (wants_k) pieces_of(stage.k_to_end, at, args.heads_v, at.head, kWidth, token)[piece] = pack<Element>(to_end);
    if (wants_q)
      pieces_of(stage.q_from_start, at, args.heads_v, at.head, kWidth, token)[piece] = pack<Element>(from_start);
  }
}

// inverse times a tile, in its place: one half of the columns by each warpgroup.
template <class Element>
__device__ __forceinline__ void multiply(const uint8_t* inverse, uint8_t* tile, int warp, int lane, int half) {
  const uint32_t own = swizzled_offset(16 * warp + lane % 16, lane / 16);
  const uint32_t rows = shared_address(inverse) + own, to = shared_address(tile) + own;
  const uint64_t columns = swizzled_operand(shared_address(tile));
  const int row = 16 * warp + lane / 4, column = 2 * (lane % 4);
  float product[32];
  Fragment left[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    left[b] = load_matrix(rows ^ (b * 32));
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // numbers above the diagonal may be anything
      const int r = row + 8 * (i % 2), c = 16 * b + 8 * (i / 2) + column;
      left[b].reg[i] = opaque(c + 1 <= r ? left[b].reg[i] : c <= r ? left[b].reg[i] & 0xffffu : 0u);
    }
  }
  wgmma_fence();
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    Wgmma<Element>::times_transposed(product, left[b], columns + operand_step(b * 16 * kRowBytes), b > 0);
  wgmma_commit();
  wgmma_wait<0>();
  pin(product);
  named_barrier(1 + half, kGroup);  // all warps have read the tile
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) store_matrix(to ^ (b * 32), pack_block<Element>(product, b));
}

__device__ __forceinline__ void store_tile(const uint8_t* tile, uint4* rows, int64_t pieces_a_token, int valid) {
#pragma unroll 4
  for (int i = threadIdx.x % kGroup; i < valid * 8; i += kGroup)
    rows[i / 8 * pieces_a_token + i % 8] = *reinterpret_cast<const uint4*>(tile + swizzled_offset(i / 8, i % 8));
}

// Grid: (chunk, strip), strips fastest, so that neighbours read the same rows of q and k.
template <class Element, bool kScalar>
__global__ void __launch_bounds__(kThreads, 2) recompute_kernel(const __grid_constant__ RecomputeArgs all) {
  auto& shared = *reinterpret_cast<Shared<kScalar>*>(dynamic_shared_memory());
  allow_next_grid();
  wait_for_previous_grid();
  const ChunkArgs& args = all.call;
  const auto strips = static_cast<uint32_t>(all.strips.all);
  Place at;
  if (!find_chunk(args.tables, static_cast<int>(blockIdx.x / strips), kStageChunk, at.chunk)) return;
  at.strip = static_cast<int>(blockIdx.x % strips);
  at.head = all.strips.head_of(at.strip);
  at.key_head = at.head / (args.heads_v / args.heads_qk);
  at.first_value = (at.strip - at.head * all.strips.a_head) * kWidth;
  at.token_of_call = (args.tables.batched ? args.tables.token_begin()[at.chunk.sequence] : 0) + at.chunk.token;
  const Intermediates& stage = args.stage;
  const bool sums = stage.gives(DR_GATE_SUMS);
  const StageGates gates = {sums ? stage.gate_sums : nullptr, sums && !stage.sums_base_2 ? kLog2e : 1.0f, args.heads_v,
                            args.activation};
  weigh_tokens<Element, kScalar>(all, gates, at, shared);
  if (at.first_value == 0 && stage.wants(DR_GATE_SUMS)) write_sums<kScalar>(args, at);
  const bool wants_w = at.first_value == 0 && stage.wants(DR_W), wants_u = stage.wants(DR_U);
  if (!wants_w && !wants_u) return;
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  const int half = uniform(static_cast<int>(threadIdx.x) / kGroup), lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  if (wants_w) multiply<Element>(shared.inverse, shared.keys[half], warp, lane, half);
  if (wants_u) multiply<Element>(shared.inverse, shared.values[half], warp, lane, half);
  named_barrier(1 + half, kGroup);
  if (wants_w)
    store_tile(shared.keys[half], pieces_of(stage.w, at, args.heads_v, at.head, kWidth, 0) + 8 * half,
               int64_t{args.heads_v} * 16, at.chunk.valid);
  if (wants_u)
    store_tile(shared.values[half], pieces_of(stage.u, at, strips, at.strip, kWidth, 0) + 8 * half,
               int64_t{strips} * 16, at.chunk.valid);
}

}  // namespace deltarelay::cuda::sm90::recompute
