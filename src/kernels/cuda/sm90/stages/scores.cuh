// From records to rows of Aqk and of the inverse, with their diagonals, one chunk of 64 tokens and one head by a CTA of
// four warps.
//
// GDN: a record has both matrices. KDA: the records of the halves a and b of a chunk have the blocks on the diagonal.
// The blocks below come from tiles of both, in the frame of the border between the halves, so that no exponent is above
// 0:
//     Aqk_ba = q_from_start_b k_to_end_a^T        Akk_ba = beta k_from_start_b k_to_end_a^T
//     inverse_ba = -inverse_b Akk_ba inverse_a
#pragma once
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/stages/scores.h"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90::scores {

constexpr int kChunk = 64, kHalf = kChunk / 2, kThreads = 128;
constexpr int kTileBytes = kHalf * kRowBytes;  // 32 tokens, 64 channels
constexpr int kPadded = kHalf + 4;

// The first row of a chunk in [T, HV, 64], and the step to the next token, in pieces of 8 numbers.
struct Rows {
  uint4* aqk;
  uint4* inverse;
  int64_t step;
};

// Sets number `index` of a piece.
template <class Element>
__device__ __forceinline__ void put(uint4& piece, int index, float value) {
  uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
  const uint32_t bits = Pair<Element>::pack(value, 0.0f) & 0xffffu;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (index / 2 == i) words[i] = index % 2 == 0 ? (words[i] & 0xffff0000u) | bits : (words[i] & 0xffffu) | bits << 16;
  }
  piece = {words[0], words[1], words[2], words[3]};
}

template <class Element>
__device__ __forceinline__ void copy_record(const uint8_t* record, const Rows& rows, int valid) {
  const auto* diagonal = reinterpret_cast<const float*>(record + GdnRecord::kDiagonal);
#pragma unroll 4
  for (int i = threadIdx.x; i < valid * 8; i += kThreads) {
    const int row = i / 8, piece = i % 8;
    const uint32_t from = swizzled_offset(row, piece);
    if (rows.aqk != nullptr) {
      uint4 aqk = *reinterpret_cast<const uint4*>(record + GdnRecord::kAqk + from);
      if (row / 8 == piece) put<Element>(aqk, row % 8, diagonal[row]);
      rows.aqk[row * rows.step + piece] = aqk;
    }
    if (rows.inverse != nullptr) {
      uint4 inverse = *reinterpret_cast<const uint4*>(record + GdnRecord::kInverse + from);
      if (row / 8 == piece) put<Element>(inverse, row % 8, 1.0f);
      rows.inverse[row * rows.step + piece] = inverse;
    }
  }
}

// --- KDA -------------------------------------------------------------------------------------------------------------

struct Shared {
  uint8_t reads[2][2 * kTileBytes];  // per half of the channels: q_from_start, then k_from_start, of b
  uint8_t keys[2][kTileBytes];       // k_to_end of a
  float inverse[2][kHalf][kPadded];  // of a and b, with the diagonal
  float akk[kHalf][kPadded];         // Akk_ba, then Akk_ba inverse_a
  uint64_t ready;
};

// Offset of 16-byte piece `piece` of row `row` in the core matrices of a record.
__device__ __forceinline__ int core_offset(int row, int piece) { return piece * 512 + row / 8 * 128 + row % 8 * 16; }

// The blocks on the diagonal of half `half`, and zeros above those of half 0.
template <class Element>
__device__ __forceinline__ void copy_half(const uint8_t* record, const Rows& rows, int half, int valid) {
  const auto* diagonal = reinterpret_cast<const float*>(record + KdaRecord::kDiagonal);
  const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll 2
  for (int i = threadIdx.x; i < valid * 4; i += kThreads) {
    const int row = i / 4, piece = i % 4;
    uint4 aqk = *reinterpret_cast<const uint4*>(record + KdaRecord::kAqk + core_offset(row, piece));
    uint4 inverse = *reinterpret_cast<const uint4*>(record + KdaRecord::kInverse + core_offset(row, piece));
    if (row / 8 == piece) {
      put<Element>(aqk, row % 8, diagonal[row]);
      put<Element>(inverse, row % 8, 1.0f);
    }
    const int64_t to = (half * kHalf + row) * rows.step + 4 * half + piece;
    if (rows.aqk != nullptr) rows.aqk[to] = aqk;
    if (rows.inverse != nullptr) rows.inverse[to] = inverse;
    if (half > 0) continue;
    if (rows.aqk != nullptr) rows.aqk[to + 4] = none;
    if (rows.inverse != nullptr) rows.inverse[to + 4] = none;
  }
}

template <class Element>
__device__ __forceinline__ void load_inverse(float (&to)[kHalf][kPadded], const uint8_t* record) {
  const int row = threadIdx.x / 4, piece = threadIdx.x % 4;
  const uint4 eight = *reinterpret_cast<const uint4*>(record + KdaRecord::kInverse + core_offset(row, piece));
  const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = 8 * piece + 2 * i;
    to[row][column] = column == row ? 1.0f : Pair<Element>::low(pairs[i]);
    to[row][column + 1] = column + 1 == row ? 1.0f : Pair<Element>::high(pairs[i]);
  }
}

// d = a b for 16 x 16 numbers of 32 x 32 matrices in TF32: rows from 16 (warp / 2), columns from 16 (warp % 2).
__device__ __forceinline__ void multiply(float (&d)[2][4], const float (&a)[kHalf][kPadded],
                                         const float (&b)[kHalf][kPadded], int warp, int lane) {
  const int row = 16 * (warp / 2) + lane / 4, column = 16 * (warp % 2) + lane / 4, k = lane % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
#pragma unroll
  for (int s = 0; s < kHalf; s += 8) {
    const uint32_t left[4] = {as_tf32(a[row][s + k]), as_tf32(a[row + 8][s + k]), as_tf32(a[row][s + k + 4]),
                              as_tf32(a[row + 8][s + k + 4])};
#pragma unroll
    for (int n = 0; n < 2; ++n)
      mma_tf32(d[n], left, as_tf32(b[s + k][column + 8 * n]), as_tf32(b[s + k + 4][column + 8 * n]));
  }
}

// The blocks below the diagonal: rows of b, columns of a.
template <class Element>
__device__ __forceinline__ void make_cross(const uint8_t* a, const uint8_t* b, Shared& shared, const Rows& rows,
                                           int valid) {
  const int lane = threadIdx.x % 32, warp = uniform(static_cast<int>(threadIdx.x) / 32);
  load_inverse<Element>(shared.inverse[0], a);
  load_inverse<Element>(shared.inverse[1], b);
  wait_parity(&shared.ready, 0);
  float product[16];  // warps 0, 1: rows of Aqk_ba; warps 2, 3: rows of Akk_ba
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    Wgmma<Element>::times(product, swizzled_operand(shared_address(shared.reads)) + channel_step(k, 2 * kTileBytes),
                          swizzled_operand(shared_address(shared.keys)) + channel_step(k, kTileBytes), k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(product);
  const int row = 16 * (warp % 2) + lane / 4, column = 2 * (lane % 4);
  const auto* factor = reinterpret_cast<const float*>(b + (warp < 2 ? KdaRecord::kQueryFactor : KdaRecord::kBeta));
  auto store = [&](uint4* to, int of_row, int of_column, float low, float high) {
    if (to == nullptr || of_row >= valid) return;
    reinterpret_cast<uint32_t*>(to + (kHalf + of_row) * rows.step)[of_column / 2] = Pair<Element>::pack(low, high);
  };
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = factor[row + 8 * r];
      const float low = product[4 * n + 2 * r] * scale, high = product[4 * n + 2 * r + 1] * scale;
      if (warp < 2) {
        store(rows.aqk, row + 8 * r, 8 * n + column, low, high);
      } else {
        shared.akk[row + 8 * r][8 * n + column] = low;
        shared.akk[row + 8 * r][8 * n + column + 1] = high;
      }
    }
  }
  __syncthreads();
  float d[2][4];
  multiply(d, shared.akk, shared.inverse[0], warp, lane);
  __syncthreads();
  const int own_row = 16 * (warp / 2) + lane / 4, own_column = 16 * (warp % 2) + column;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) shared.akk[own_row + 8 * (i / 2)][own_column + 8 * n + i % 2] = d[n][i];
  }
  __syncthreads();
  multiply(d, shared.inverse[1], shared.akk, warp, lane);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      store(rows.inverse, own_row + 8 * r, own_column + 8 * n, -d[n][2 * r], -d[n][2 * r + 1]);
  }
}

__device__ __forceinline__ void load_tiles(const uint8_t* a, const uint8_t* b, Shared& shared) {
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.ready, 6 * kTileBytes);
  auto load = [&](uint8_t* to, const uint8_t* from) {
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, kTileBytes, &shared.ready);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    load(shared.reads[half], b + KdaRecord::kQuery + half * kTileBytes);
    load(shared.reads[half] + kTileBytes, b + KdaRecord::kRead + half * kTileBytes);
    load(shared.keys[half], a + KdaRecord::kUpdate + half * kTileBytes);
  }
}

// Grid: (chunk, head), heads fastest.
template <class Element, bool kScalar>
__global__ void __launch_bounds__(kThreads) scores_kernel(const __grid_constant__ ScoresArgs args) {
  auto& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  allow_next_grid();
  const auto heads = static_cast<uint32_t>(args.heads_v);
  const int head = static_cast<int>(blockIdx.x % heads), chunk = static_cast<int>(blockIdx.x / heads);
  if (!kScalar && threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.ready, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  wait_for_previous_grid();
  ChunkPlace place;
  if (!find_chunk(args.tables, chunk, kChunk, place)) return;
  const int64_t token = (args.tables.batched ? args.tables.token_begin()[place.sequence] : 0) + place.token;
  const int64_t first = (token * args.heads_v + head) * (kChunk / 8), step = int64_t{args.heads_v} * (kChunk / 8);
  auto at_first = [first](void* matrix) { return matrix == nullptr ? nullptr : static_cast<uint4*>(matrix) + first; };
  const Rows rows = {at_first(args.aqk), at_first(args.inverse), step};
  if constexpr (kScalar) {
    const uint8_t* record = args.prepared + (static_cast<int64_t>(chunk) * args.heads_v + head) * GdnRecord::kBytes;
    copy_record<Element>(record, rows, place.valid);
  } else {
    const uint8_t* a = args.prepared + (static_cast<int64_t>(2 * chunk) * args.heads_v + head) * KdaRecord::kBytes;
    const uint8_t* b = a + static_cast<int64_t>(args.heads_v) * KdaRecord::kBytes;
    const bool has_b = place.valid > kHalf;
    if (has_b && threadIdx.x == 0) load_tiles(a, b, shared);
    copy_half<Element>(a, rows, 0, min(place.valid, kHalf));
    if (!has_b) return;
    copy_half<Element>(b, rows, 1, place.valid - kHalf);
    __syncthreads();
    make_cross<Element>(a, b, shared, rows, place.valid - kHalf);
  }
}

}  // namespace deltarelay::cuda::sm90::scores
