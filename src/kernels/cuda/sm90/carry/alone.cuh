// carry by single CTAs, each with all channels of its rows. This kernel reads the transitions least often.
//
// A CTA owns 32 value rows and all key columns; each of its eight warps has 16 columns. M^T passes through a ring of
// tiles that belongs to the warp, one tile for each span of channels (step.cuh). Lane l has quad = l / 4, member = l %
// 4.
#pragma once
#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/carry/step.cuh"

namespace deltarelay::cuda {

constexpr int kAloneRows = 32;
constexpr int kAloneValueTiles = kAloneRows / 8;  // an mma takes 8 value rows
constexpr int kAloneWarps = kStateWidth / kColumns;
constexpr int kAloneThreads = 32 * kAloneWarps;
constexpr int kTileChannels = 32;  // a span: what a warp copies and waits for at a time
constexpr int kTilesPerStep = kStateWidth / kTileChannels;
constexpr int kTileFloats = kTileChannels * kColumns;

using WholeSlice = StateSlice<kAloneRows, kStateWidth, kAloneThreads>;

struct AloneMemory {
  // Row r of a tile is channel 16 (r / 8) + r % 8 of the span. A tile has 16 lines of 128 bytes, each of two rows of 64
  // bytes. The 16-byte piece p lies at p ^ (2 (r / 8)): the reads of a half warp (all members, with r / 8 = member) are
  // free of bank conflicts.
  alignas(128) float transition[kAloneWarps][kTilesPerStep][kTileFloats];
  alignas(128) float state[2][WholeSlice::kFloats];  // S of even and odd steps
};

// A warp's ring of tiles of M^T: one step, refilled tile by tile. Only this warp copies, waits for and reads it.
struct TransitionRing {
  const float* next;  // this lane's place in the next M^T to copy
  float* tiles;
  int put, get0, get1;  // this lane's places in a tile: for copies, for reads of even and of odd rows

  __device__ __forceinline__ TransitionRing(const float* transition, int column0, float* ring, int lane) : tiles(ring) {
    const int row = lane / 4;  // 8 rows at a time, 4 pieces of 16 bytes
    next = transition + row * kStateWidth + column0 + lane % 4 * 4;
    put = row / 2 * 32 + (row % 2 * 4 + lane % 4) * 4;
    const int quad = lane / 4, member = lane % 4;
    get0 = member * 128 + ((quad / 2) ^ (2 * member)) * 4 + quad % 2 * 2;
    get1 = get0 ^ 16;
  }

  __device__ __forceinline__ void copy(int x) const {
    const float* from = next + (x / 2 * kHalfWidth + x % 2 * 8) * kStateWidth;
    float* to = tiles + x * kTileFloats;
#pragma unroll
    for (int i = 0; i < 4; ++i)  // rows 8 i + lane / 4
      __pipeline_memcpy_async(to + i * 128 + (put ^ (i * 8)), from + i * 16 * kStateWidth, 16);
  }

  // Channels 16 member + 4 block + {0..3} of a tile, columns 2 quad and 2 quad + 1.
  __device__ __forceinline__ void read(float2 (&m)[4], int x, int block) const {
    const float* tile = tiles + x * kTileFloats + block * 64;
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = *reinterpret_cast<const float2*>(tile + i / 2 * 32 + (i % 2 == 0 ? get0 : get1));
  }
};

__device__ __forceinline__ void run_alone_fold(const CarryArgs& args, const Fold& fold, int strip, int value_row0) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<AloneMemory*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32, quad = lane / 4, member = lane % 4;
  const int column0 = warp * kColumns;
  const int count = fold.count;

  const int64_t step_floats = static_cast<int64_t>(args.strips.all) * kStateFloats;
  const int64_t first = (static_cast<int64_t>(fold.slot) * args.strips.all + strip) * kStateFloats;
  TransitionRing ring(args.slot_transition + first + step_floats, column0, shared.transition[warp][0], lane);
#pragma unroll
  for (int x = 0; x < kTilesPerStep; ++x) {
    if (count > 0) ring.copy(x);
    __pipeline_commit();
  }
  ring.next += step_floats;

  float* const rows = args.slot_state + first + value_row0 * kStateWidth;  // in the slot before step 0
  float* results = rows + step_floats + 2 * member * kStateWidth + column0 + 2 * quad;
  if (fold.from_initial) {
    const int64_t slot = initial_slot(args.initial, args.has_initial, fold.sequence);
    fill_from_initial<WholeSlice>(shared.state[0], args.initial, slot, args.strips, strip, value_row0, 0, thread);
  } else {
    fill_from_slot<WholeSlice>(shared.state[0], rows, thread);
  }
  __syncthreads();
  if (fold.from_initial) copy_to_slot<WholeSlice>(rows, shared.state[0], thread);  // emit reads it there

  // This lane's places in a slice. `take`: its B operand for even blocks (^ 16 for odd ones). `give`: its results (the
  // second of two rows is one row further, ^ 16).
  const int take = WholeSlice::place(quad, 16 * member);
  const int give = WholeSlice::place(2 * member, column0 + 2 * quad);
  const auto read_state = [&](float4(&s)[1][kAloneValueTiles], int parity, int block) {
    const float* from = shared.state[parity] + block / 2 * 32;
#pragma unroll
    for (int n = 0; n < kAloneValueTiles; ++n)
      s[0][n] = *reinterpret_cast<const float4*>(from + n * 8 * kStateWidth + (take ^ (block % 2 * 16)));
  };

  // M^T is split into high and low as soon as it arrives. At the end of a step this fills the wait for the last
  // products.
  __pipeline_wait_prior(kTilesPerStep - 1);
  __syncwarp();
  float2 m_next[4];
  Transition m;
  ring.read(m_next, 0, 0);
  m.set(m_next);
  float4 s[1][kAloneValueTiles], s_next[1][kAloneValueTiles];
  read_state(s, 0, 0);

  for (int step = 0; step < count; ++step) {
    const bool last = step + 1 == count;
    const int parity = step % 2;
    float entering[kAloneValueTiles][4];  // B
    load_pairs(entering, results);
    float half[2][kAloneValueTiles][4];
    SpanSums<kAloneValueTiles> sums[1];
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const int x = block / 2;
      if (block % 2 == 0) {
        sums[0].clear();
        ring.read(m_next, x, 1);
      } else {  // tile x is in registers: wait for the next one, refill this one
        __pipeline_wait_prior(kTilesPerStep - 2);
        __syncwarp();
        if (!last) ring.copy(x);
        __pipeline_commit();
        ring.read(m_next, (x + 1) % kTilesPerStep, 0);
      }
      if (block < 7) read_state(s_next, parity, block + 1);
      add_block<1>(sums, &m, s, block % 2);
      m.set(m_next);
#pragma unroll
      for (int n = 0; n < kAloneValueTiles; ++n) s[0][n] = s_next[0][n];
      if (block % 2 == 1) add_span(half[x / 2], sums[0], x % 2);
    }
    float(&result)[kAloneValueTiles][4] = half[0];
#pragma unroll
    for (int i = 0; i < kAloneValueTiles * 4; ++i)
      result[i / 4][i % 4] = (half[0][i / 4][i % 4] + half[1][i / 4][i % 4]) + entering[i / 4][i % 4];

    if (!last) {
      float* const to = shared.state[parity ^ 1];
#pragma unroll
      for (int n = 0; n < kAloneValueTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          *reinterpret_cast<float2*>(to + (8 * n + e) * kStateWidth + (give ^ (e * 16))) =
              make_float2(result[n][e], result[n][e + 2]);
      }
      __syncthreads();
      read_state(s, parity ^ 1, 0);
    }
    store_pairs(result, results);
    results += step_floats;
    ring.next += step_floats;
  }
}

}  // namespace deltarelay::cuda
