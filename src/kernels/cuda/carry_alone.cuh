// carry by single blocks: the kernel for devices and code without clusters.
//
// A block owns 8, 16 or 32 value rows and all key columns; each of its eight warps 16 columns. Mt passes through a ring of tiles that
// belongs to the warp. Lane l has g = l / 4, q = l % 4. Numbers c and k are permuted as the memory likes it:
//     rows g and g + 8 of A        columns k0 + 2 g and k0 + 2 g + 1           8 bytes of Mt
//     columns q and q + 4 of A     channels 4 q + 2 j and 4 q + 2 j + 1 of 16  for the j-th product, j = 0, 1
//     row q and q + 4 of B         the same channels: 16 bytes of S
#pragma once
#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/carry_step.cuh"

namespace deltarelay::cuda {

constexpr int kAloneWarps = kStateWidth / kColumns;
constexpr int kAloneThreads = 32 * kAloneWarps;
constexpr int kTileChannels = 32;  // channels c of one tile of Mt: what a warp copies and waits for at a time
constexpr int kTilesPerStep = kStateWidth / kTileChannels;
constexpr int kTileFloats = kTileChannels * kColumns;

// Slice of the state. 16-byte pieces are spread so that both the reads of B (8 rows, 16 bytes of four lanes each) and the writes of
// results (rows 2 q or 2 q + 1, 8 bytes) touch every bank once.
template <int kSliceRows>
struct WholeSlice {
  static constexpr int kRows = kSliceRows, kChannels = kStateWidth, kThreads = kAloneThreads;
  static constexpr int kFloats = kRows * kChannels;
  static __device__ __forceinline__ int twist(int row) { return (row & 6) ^ ((row & 1) << 2); }
  static __device__ __forceinline__ int place(int row, int channel) {
    return row * kChannels + (((channel >> 2) ^ twist(row)) << 2) + (channel & 3);
  }
};

template <int kRows>
struct AloneMemory {
  // Tile: 16 lines of 128 bytes, each of two rows c of 64 bytes; 16-byte piece p lies at p ^ (2 (c / 4 % 4)).
  alignas(128) float transition[kAloneWarps][kTilesPerStep][kTileFloats];
  alignas(128) float state[2][WholeSlice<kRows>::kFloats];  // S of even and odd steps
};
static_assert(sizeof(AloneMemory<32>) <= 99 * 1024, "sm_86, sm_89, sm_120");

// A warp's ring of tiles of Mt: one step, refilled tile by tile. Copied, waited for and read by this warp alone.
struct TransitionRing {
  const float* next;  // this lane's part of the next Mt to copy
  float* tiles;
  int put, get0, get1;  // this lane's places in a tile: of its copies, of even and of odd rows of 4 q + i

  __device__ __forceinline__ TransitionRing(const float* transition, int column0, float* ring, int lane) : tiles(ring) {
    const int row = lane / 4;  // 8 rows at a time, 4 pieces of 16 bytes
    next = transition + row * kStateWidth + column0 + lane % 4 * 4;
    put = row / 2 * 32 + ((row % 2 * 4 + lane % 4) ^ (row / 4 * 2)) * 4;
    const int g = lane / 4, q = lane % 4;
    get0 = 2 * q * 32 + ((g / 2) ^ (2 * q)) * 4 + g % 2 * 2;
    get1 = get0 ^ 16;
  }

  __device__ __forceinline__ void copy(int x) const {
    const float* from = next + x * (kTileChannels * kStateWidth);
    float* to = tiles + x * kTileFloats;
#pragma unroll
    for (int i = 0; i < 4; ++i)  // rows 8 i + lane / 4: c / 4 % 4 is 2 more for odd i
      __pipeline_memcpy_async(to + i * 128 + (put ^ (i % 2 * 16)), from + i * 8 * kStateWidth, 16);
  }

  // Rows 16 block + 4 q + {0..3} of a tile, columns 2 g and 2 g + 1.
  __device__ __forceinline__ void read(float2 (&m)[4], int x, int block) const {
    const float* tile = tiles + x * kTileFloats + block * 256;
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = *reinterpret_cast<const float2*>(tile + i / 2 * 32 + (i % 2 == 0 ? get0 : get1));
  }
};

// Sums of one step. `main` adds, outside of the tensor cores, the products of the upper parts, 16 channels at a time; the two others
// are 2^-11 of it, so that what truncation takes from them does not count.
template <int kValueTiles>
struct AloneSums {
  float main[kValueTiles][4];
  float low_high[kValueTiles][4];
  float high_low[kValueTiles][4];

  __device__ __forceinline__ void add(const Transition& m, const float4 (&s)[kValueTiles]) {
    float part[kValueTiles][4];
#pragma unroll
    for (int i = 0; i < kValueTiles * 4; ++i) part[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t high[kValueTiles][2], low[kValueTiles][2];
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        split(j == 0 ? s[n].x : s[n].z, high[n][0], low[n][0]);
        split(j == 0 ? s[n].y : s[n].w, high[n][1], low[n][1]);
      }
      // A product waits about 33 cycles for the one before it in its sum: those of one sum stand kValueTiles * 3 apart.
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) mma_tf32(part[n], m.high[j], high[n][0], high[n][1]);
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) mma_tf32(low_high[n], m.low[j], high[n][0], high[n][1]);
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) mma_tf32(high_low[n], m.high[j], low[n][0], low[n][1]);
    }
#pragma unroll
    for (int i = 0; i < kValueTiles * 4; ++i) main[i / 4][i % 4] += part[i / 4][i % 4];
  }
};

template <int kRows>
__device__ __forceinline__ void run_alone_fold(const CarryArgs& args, const Fold& fold, int head, int value_row0) {
  using Slice = WholeSlice<kRows>;
  constexpr int kValueTiles = kRows / 8;  // columns of B, 8 a product
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<AloneMemory<kRows>*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
  const int column0 = warp * kColumns;
  const int count = fold.count;

  const int64_t step_floats = static_cast<int64_t>(args.heads_v) * kStateFloats;
  const int64_t first = (static_cast<int64_t>(fold.slot) * args.heads_v + head) * kStateFloats;
  TransitionRing ring(args.slot_transition + first + step_floats, column0, shared.transition[warp][0], lane);
#pragma unroll
  for (int x = 0; x < kTilesPerStep; ++x) {
    if (count > 0) ring.copy(x);
    __pipeline_commit();
  }
  ring.next += step_floats;

  float* const rows = args.slot_state + first + value_row0 * kStateWidth;  // of the slot before step 0
  float* results = rows + step_floats + 2 * q * kStateWidth + column0 + 2 * g;
  float entering[kValueTiles][4];  // B of the next step
  if (count > 0) load_pairs(entering, results);

  if (fold.from_initial) {
    const int64_t slot = initial_slot(args.initial, args.has_initial, fold.sequence);
    fill_from_initial<Slice>(shared.state[0], args.initial, slot, head, value_row0, 0, thread);
  } else {
    fill_from_slot<Slice>(shared.state[0], rows, thread);
  }
  __syncthreads();
  if (fold.from_initial) copy_to_slot<Slice>(rows, shared.state[0], thread);  // emit reads it there

  // This lane's places in a slice: what it reads as B for even blocks of 16 channels (^ 16 for odd ones), and where its results go
  // (one row on, ^ 16 for the second of two rows).
  const int take = Slice::place(g, 4 * q);
  const int give = Slice::place(2 * q, column0 + 2 * g);
  const auto read_state = [&](float4(&s)[kValueTiles], int parity, int block) {
    const float* from = shared.state[parity] + block / 2 * 32;
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n)
      s[n] = *reinterpret_cast<const float4*>(from + n * 8 * kStateWidth + (take ^ (block % 2 * 16)));
  };

  // Mt is split as soon as it is here, not when it is needed: at the end of a step that fills the wait for the last products.
  __pipeline_wait_prior(kTilesPerStep - 1);
  __syncwarp();
  float2 m_next[4];
  Transition m;
  ring.read(m_next, 0, 0);
  m.set(m_next);
  float4 s[kValueTiles], s_next[kValueTiles];
  read_state(s, 0, 0);

  for (int step = 0; step < count; ++step) {
    const bool last = step + 1 == count;
    const int parity = step % 2;
    AloneSums<kValueTiles> sums;
#pragma unroll
    for (int i = 0; i < kValueTiles * 4; ++i) {
      sums.main[i / 4][i % 4] = entering[i / 4][i % 4];
      sums.low_high[i / 4][i % 4] = 0.0f;
      sums.high_low[i / 4][i % 4] = 0.0f;
    }
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const int x = block / 2;
      if (block % 2 == 0) {
        ring.read(m_next, x, 1);
      } else {  // tile x is in registers: wait for the next one, fill its place
        __pipeline_wait_prior(kTilesPerStep - 2);
        __syncwarp();
        if (!last) ring.copy(x);
        __pipeline_commit();
        ring.read(m_next, (x + 1) % kTilesPerStep, 0);
      }
      if (block < 7) read_state(s_next, parity, block + 1);
      sums.add(m, s);
      if (block == 0 && !last) load_pairs(entering, results + step_floats);
      m.set(m_next);
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) s[n] = s_next[n];
    }
#pragma unroll
    for (int i = 0; i < kValueTiles * 4; ++i)
      sums.main[i / 4][i % 4] += sums.low_high[i / 4][i % 4] + sums.high_low[i / 4][i % 4];

    if (!last) {
      float* const to = shared.state[parity ^ 1];
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          *reinterpret_cast<float2*>(to + (8 * n + e) * kStateWidth + (give ^ (e * 16))) =
              make_float2(sums.main[n][e], sums.main[n][e + 2]);
      }
      __syncthreads();
      read_state(s, parity ^ 1, 0);
    }
    store_pairs(sums.main, results);
    results += step_floats;
    ring.next += step_floats;
  }
}

}  // namespace deltarelay::cuda
