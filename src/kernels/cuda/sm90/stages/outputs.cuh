// o = scale q_from_start S + Aqk V_new, for one chunk of 64 tokens and one strip: a CTA of two warpgroups, one for each
// half of the values. All of a chunk is loaded at once; two CTAs on a multiprocessor hide each other's loads.
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/stages/gate_sums.cuh"
#include "kernels/cuda/sm90/stages/outputs.h"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90::outputs {

constexpr int kGroup = 128, kThreads = 2 * kGroup;
constexpr int kBlocks = kStageChunk / 16;
constexpr int kTileBytes = kStageChunk * kRowBytes;  // 64 tokens, 64 numbers
constexpr int kResident = 2;

struct Shared {
  uint8_t q[2 * kTileBytes];
  uint8_t states[2][2 * kTileBytes];  // per half of the values
  uint8_t v_new[2][kTileBytes];       // likewise; then o
  uint8_t square[2 * kTileBytes];     // aqk, or keys
  float sums[kStageChunk];            // of gates, in base 2
  uint64_t ready;
};
static_assert(kResident * (sizeof(Shared) + 1024) <= 228 * 1024);

template <bool kScores, bool kKeyMajor>
__device__ __forceinline__ void load_tiles(const OutputsMaps& maps, const OutputsArgs& args, Shared& shared,
                                           const ChunkPlace& place, int chunk, int strip) {
  const int head = args.strips.head_of(strip), key_head = head / (args.heads_v / args.heads_qk);
  const int first_half = 2 * (strip - head * args.strips.a_head), token = static_cast<int>(place.token);
  const uint32_t bytes = (kScores ? 10 : 9) * kTileBytes;
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.ready, bytes);
  auto load = [&](uint8_t* to, const CUtensorMap& map, int half, int of_head) {
    const int32_t at[5] = {0, token, half, of_head, place.sequence_at};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, to, &map, at, &shared.ready);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t at[5] = {0, kKeyMajor ? 0 : half * kHalfWidth, kKeyMajor ? first_half + half : 0,
                           kKeyMajor ? head : strip, chunk};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, shared.states[half], &maps.states, at,
                              &shared.ready);
    load(shared.q + half * kTileBytes, maps.q, half, args.raw_q ? key_head : head);
    if (kScores) load(shared.square + half * kTileBytes, maps.keys, half, key_head);
    load(shared.v_new[half], maps.v_new, half, strip);
  }
  if (!kScores) load(shared.square, maps.aqk, 0, head);
}

// Clears rows of a tile past the end: they belong to another sequence, and NaN times a zero of Aqk is NaN.
__device__ __forceinline__ void clear_rows(uint8_t* tile, int valid) {
#pragma unroll 1
  for (int i = threadIdx.x; i < (kStageChunk - valid) * 8; i += kThreads)
    *reinterpret_cast<uint4*>(tile + valid * kRowBytes + i * 16) = make_uint4(0, 0, 0, 0);
}

// The lower triangle of a block of 16 columns; numbers above the diagonal may be anything.
__device__ __forceinline__ void keep_lower(Fragment& block, int first_column, int row, int column) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + 8 * (i % 2), c = first_column + 8 * (i / 2) + column;
    block.reg[i] = c + 1 <= r ? block.reg[i] : c <= r ? block.reg[i] & 0xffffu : 0u;
  }
}

// kScores: Aqk is formed here, else it is given. kKeyMajor: layout of the states.
template <class Element, bool kScores, bool kKeyMajor>
__device__ __forceinline__ void make_outputs(const OutputsMaps& maps, const OutputsArgs& args, Shared& shared,
                                             const ChunkPlace& place, int strip) {
  using Product = Wgmma<Element>;
  const int half = uniform(static_cast<int>(threadIdx.x) / kGroup), lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, row = 16 * warp + lane / 4, column = 2 * (lane % 4);
  const uint32_t own = swizzled_offset(16 * warp + lane % 16, lane / 16);
  const uint32_t q = shared_address(shared.q) + own, square = shared_address(shared.square);
  const uint64_t states = swizzled_operand(shared_address(shared.states[half]));
  float out[32], scores[32];
  Fragment read[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) read[k] = load_matrix((q ^ (k % 4 * 32)) + k / 4 * kTileBytes);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if constexpr (kKeyMajor)  // [128 keys][64 values]
      Product::times_transposed(out, read[k], states + operand_step(k * 16 * kRowBytes), k > 0);
    else  // [2 halves of the keys][64 values][64 keys]
      Product::times(out, read[k], states + channel_step(k, kTileBytes), k > 0);
  }
  Fragment weights[kBlocks];
  if constexpr (!kScores) {
    wgmma_commit();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      weights[b] = load_matrix((square + own) ^ (b * 32));
      keep_lower(weights[b], 16 * b, row, column);
    }
    wgmma_wait<0>();
    pin(out);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k)
      Product::times(scores, read[k], swizzled_operand(square) + channel_step(k, kTileBytes), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(out);
    pin(scores);
    const float sum[2] = {shared.sums[row], shared.sums[row + 8]};
#pragma unroll
    for (int n = 0; n < kStageChunk / 8; ++n) {
      const float2 other = *reinterpret_cast<const float2*>(&shared.sums[8 * n + column]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = row + 8 * (i / 2), c = 8 * n + column + i % 2;
        const float decay = exp2_approx(sum[i / 2] - (i % 2 == 0 ? other.x : other.y)) * args.scale;
        scores[4 * n + i] = c <= r ? scores[4 * n + i] * decay : 0.0f;
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) weights[b] = pack_block<Element>(scores, b);
  }
  float factor[2] = {args.scale, args.scale};
  if (args.raw_q) {
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] *= exp2_approx(shared.sums[row + 8 * r]);
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) out[i] *= factor[i / 2 % 2];
    // Here, not between the products.
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int r = 0; r < 4; ++r) weights[b].reg[r] = opaque(weights[b].reg[r]);
  }
  const uint64_t values = swizzled_operand(shared_address(shared.v_new[half]));
  wgmma_fence();
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    Product::times_transposed(out, weights[b], values + operand_step(b * 16 * kRowBytes), true);
  wgmma_commit();
  wgmma_wait<0>();
  pin(out);

  // o over V_new, of which this group has read the last.
  named_barrier(1 + half, kGroup);
  const uint32_t to = shared_address(shared.v_new[half]) + own;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) store_matrix(to ^ (b * 32), pack_block<Element>(out, b));
  ptx::fence_proxy_async(ptx::space_shared);
  named_barrier(1 + half, kGroup);
  const int thread = threadIdx.x % kGroup;
  if (place.valid == kStageChunk) {
    if (thread == 0) {
      const int32_t at[5] = {0, static_cast<int32_t>(place.token), half, strip, place.sequence_at};
      ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &maps.o, at, shared.v_new[half]);
      ptx::cp_async_bulk_commit_group();
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
    }
    return;
  }
  Element* o = static_cast<Element*>(args.o.data) + place.sequence_at * args.o.sequence + place.token * args.o.token +
               strip * args.o.head + half * kHalfWidth;
#pragma unroll 1
  for (int i = thread; i < place.valid * 8; i += kGroup) {
    *reinterpret_cast<uint4*>(o + i / 8 * args.o.token + i % 8 * 8) =
        *reinterpret_cast<const uint4*>(shared.v_new[half] + swizzled_offset(i / 8, i % 8));
  }
}

// Grid: (chunk, strip), strips fastest, so that neighbours read the same rows of q and k.
template <class Element, bool kScores, bool kKeyMajor>
__global__ void __launch_bounds__(kThreads, kResident)
    outputs_kernel(const __grid_constant__ OutputsMaps maps, const __grid_constant__ OutputsArgs args) {
  auto& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  allow_next_grid();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.ready, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  wait_for_previous_grid();
  const auto strips = static_cast<uint32_t>(args.strips.all);
  const int strip = static_cast<int>(blockIdx.x % strips), chunk = static_cast<int>(blockIdx.x / strips);
  ChunkPlace place;
  if (!find_chunk(args.tables, chunk, kStageChunk, place)) return;
  if (threadIdx.x == 0) load_tiles<kScores, kKeyMajor>(maps, args, shared, place, chunk, strip);
  if (args.raw_q && threadIdx.x / 32 == 1) {
    const int64_t before = args.tables.batched ? args.tables.token_begin()[place.sequence] : 0;
    const GateRow row = {place.sequence_at, place.token, before + place.token, args.strips.head_of(strip), place.valid};
    const int lane = threadIdx.x % 32;
    const float2 sums = scalar_sums(args.gates, row, 0, lane);
    const float scale = args.gates.sums_scale;
    reinterpret_cast<float2*>(shared.sums)[lane] = {sums.x * scale, sums.y * scale};
  }
  __syncthreads();
  wait_parity(&shared.ready, 0);
  if (place.valid < kStageChunk) {
    for (auto& tile : shared.v_new) clear_rows(tile, place.valid);
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
  }
  make_outputs<Element, kScores, kKeyMajor>(maps, args, shared, place, strip);
}

}  // namespace deltarelay::cuda::sm90::outputs
