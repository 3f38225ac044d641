// carry by pairs of blocks, from sm_90 on.
//
// Two blocks own some value rows of a head. Block r of a pair holds channels 64 r .. 64 r + 63 of these rows: it multiplies
// them with its 64 rows of every Mt (one flat half, 32 KB), sends the sums for the columns of the other half, and adds what it
// is sent to the sums for its own: that is its part of the next state. The four `sender` warps work first; while their message
// travels, the tensor cores belong to the four `owner` warps.
//
// Several pairs with other value rows of the same head form a cluster. Each brings in a share of Mt for all of them.
//
// Work of a warp: 16 key columns (the rows of A = M) times the value rows of the block (columns of B = S), over 64 channels.
// Lane l has g = l / 4, q = l % 4. Column q and q + 4 of A, in product j = 0..7, are channels 16 q + 2 j and 16 q + 2 j + 1; so the
// rows that lanes of one q read are neighbours: a quarter of the half, 8 KB, one bulk copy, 32 bytes of shared memory away
// from a multiple of 128 per q. That makes fragments free of bank conflicts.
#pragma once
#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/carry_step.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/bulk.cuh"

namespace deltarelay::cuda {

constexpr int kHalfWidth = kStateWidth / 2;
constexpr int kQuarterRows = 16;
constexpr int kQuarterFloats = kQuarterRows * kStateWidth;
constexpr uint32_t kQuarterBytes = kQuarterFloats * sizeof(float);
constexpr int kSideWarps = kHalfWidth / kColumns;  // senders, and owners
constexpr int kWorkerThreads = 2 * kSideWarps * 32;
constexpr int kWorkersBarrier = 1;

// setmaxnreg is for code of one architecture only. Without it 64 rows are correct, but spill.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kCanMoveRegisters = false;
#else
constexpr bool kCanMoveRegisters = true;
#endif

template <int kRows, int kShare>
struct PairShape {
  static constexpr int kValueTiles = kRows / 8;  // columns of B, 8 a product
  static constexpr int kSlices = kStateWidth / kRows;
  static constexpr int kCluster = 2 * kShare;
  static constexpr int kStages = kRows == 64 ? 4 : (kRows == 32 ? 5 : 6);  // steps whose Mt is here or under way
  // After the workers, one warp copies. With 64 rows it brings three idle ones: registers move between groups of four.
  static constexpr bool kMovesRegisters = kRows == 64;
  static constexpr int kThreads = kWorkerThreads + (kMovesRegisters ? 128 : 32);
  static_assert(kShare <= kSlices && 4 % kShare == 0);
};

// Half a state of kRows rows. Pieces of four channels are spread so that both the reads of B (16 bytes: channels 16 q + 4 b .. of
// row g) and the writes of results (8 bytes: channels 16 tile + 2 g .. of rows 2 q or 2 q + 1) touch every bank once.
template <int kSliceRows>
struct HalfSlice {
  static constexpr int kRows = kSliceRows, kChannels = kHalfWidth, kThreads = kWorkerThreads;
  static constexpr int kFloats = kRows * kChannels;
  static __device__ __forceinline__ int place(int row, int channel) {
    const int block = (channel >> 2 & 3) ^ (row & 1), quarter = (channel >> 4) ^ (row >> 1 & 3);
    return row * kChannels + (block * 4 + quarter) * 4 + (channel & 3);
  }
};

template <int kRows, int kShare>
struct PairMemory {
  using Of = PairShape<kRows, kShare>;
  alignas(128) float transition[Of::kStages][4][kQuarterFloats + 8];
  alignas(128) float state[2][HalfSlice<kRows>::kFloats];  // of even and odd steps
  alignas(128) float message[2][kSideWarps][Of::kValueTiles][32][4];
  uint64_t full[Of::kStages];      // Mt is there: its bytes
  uint64_t consumed[Of::kStages];  // the warps of this block have it in registers
  uint64_t free[Of::kStages];      // so have all blocks that this one copies for
  uint64_t received[2][kSideWarps];
};
static_assert(sizeof(PairMemory<16, 1>) <= 227 * 1024 && sizeof(PairMemory<32, 1>) <= 227 * 1024 &&
              sizeof(PairMemory<64, 1>) <= 227 * 1024);

// The same place in the shared memory of another block of the cluster.
template <class T>
__device__ __forceinline__ T* in_block(T* place, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return nullptr;
#else
  return cooperative_groups::this_cluster().map_shared_rank(place, rank);
#endif
}

// Sums of one step. `main` adds, outside of the tensor cores, the products of the upper parts, 16 channels at a time; the
// cross products are 2^-11 of it, so that what truncation takes from them does not count.
//
// A product waits about 33 cycles for the one before it in its sum, so the products of at least four, better six, sums take turns.
template <int kValueTiles>
struct PairSums {
  static constexpr int kBlocks = kValueTiles == 1 ? 2 : 1;         // blocks of 16 channels at a time
  static constexpr int kWide = kValueTiles < 4 ? kValueTiles : 4;  // value tiles at a time
  static constexpr int kCross = kValueTiles == 8 ? 1 : 2;          // registers are short with 8
  static constexpr int kGroups = kValueTiles / kWide;
  static constexpr int kUnits = 4 / kBlocks * kGroups;

  float main[kValueTiles][4];
  float cross[kCross][kBlocks][kValueTiles][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        main[n][i] = 0.0f;
#pragma unroll
        for (int x = 0; x < kCross * kBlocks; ++x) cross[x / kBlocks][x % kBlocks][n][i] = 0.0f;
      }
    }
  }

  // m: kBlocks blocks; s: their channels of kWide tiles from n0 on.
  __device__ __forceinline__ void add(const Transition* m, const float4 (&s)[kBlocks][kWide], int n0) {
    float part[kBlocks][kWide][4];
#pragma unroll
    for (int i = 0; i < kBlocks * kWide * 4; ++i) part[i / (kWide * 4)][i / 4 % kWide][i % 4] = 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t high[kBlocks][kWide][2], low[kBlocks][kWide][2];
#pragma unroll
      for (int u = 0; u < kBlocks; ++u) {
#pragma unroll
        for (int n = 0; n < kWide; ++n) {
          split(j == 0 ? s[u][n].x : s[u][n].z, high[u][n][0], low[u][n][0]);
          split(j == 0 ? s[u][n].y : s[u][n].w, high[u][n][1], low[u][n][1]);
        }
      }
#pragma unroll
      for (int u = 0; u < kBlocks; ++u) {
#pragma unroll
        for (int n = 0; n < kWide; ++n) mma_tf32(part[u][n], m[u].high[j], high[u][n][0], high[u][n][1]);
      }
#pragma unroll
      for (int u = 0; u < kBlocks; ++u) {
#pragma unroll
        for (int n = 0; n < kWide; ++n) mma_tf32(cross[0][u][n0 + n], m[u].low[j], high[u][n][0], high[u][n][1]);
      }
#pragma unroll
      for (int u = 0; u < kBlocks; ++u) {
#pragma unroll
        for (int n = 0; n < kWide; ++n)
          mma_tf32(cross[kCross - 1][u][n0 + n], m[u].high[j], low[u][n][0], low[u][n][1]);
      }
    }
#pragma unroll
    for (int u = 0; u < kBlocks; ++u) {
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) main[n0 + n][i] += part[u][n][i];
      }
    }
  }

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = cross[0][0][n][i];
#pragma unroll
        for (int x = 1; x < kCross * kBlocks; ++x) sum += cross[x / kBlocks][x % kBlocks][n][i];
        main[n][i] += sum;
      }
    }
  }
};

// One of the eight working warps.
template <int kRows, int kShare>
struct PairWarp {
  using Of = PairShape<kRows, kShare>;
  using Memory = PairMemory<kRows, kShare>;
  using Sums = PairSums<Of::kValueTiles>;
  static constexpr bool kHolds = kRows <= 32;  // the warp's part of Mt is split and kept before it is needed

  Memory& shared;
  RingPosition<Of::kStages> ring;
  int take_m, take_s;  // this lane's places: in a stage; in a half state, of even blocks (^ 16 for odd ones)
  Transition m[kHolds ? 4 : 1];

  __device__ __forceinline__ PairWarp(Memory& memory, int column0, int lane) : shared(memory) {
    const int g = lane / 4, q = lane % 4;
    take_m = q * (kQuarterFloats + 8) + column0 + 2 * g;
    take_s = HalfSlice<kRows>::place(g, 16 * q);
  }

  __device__ __forceinline__ void read(float2 (&raw)[4], int block) const {
    const float* from = shared.transition[ring.stage][0] + take_m + block * 4 * kStateWidth;
#pragma unroll
    for (int i = 0; i < 4; ++i) raw[i] = *reinterpret_cast<const float2*>(from + i * kStateWidth);
  }

  __device__ __forceinline__ void release() {
    warp_arrive(&shared.consumed[ring.stage]);
    ring.advance();
  }

  // Waits for the next Mt.
  __device__ __forceinline__ void fetch() {
    wait_parity(&shared.full[ring.stage], ring.parity);
    if constexpr (kHolds) {
      float2 raw[4][4];
#pragma unroll
      for (int block = 0; block < 4; ++block) read(raw[block], block);
      release();
#pragma unroll
      for (int block = 0; block < 4; ++block) m[block].set(raw[block]);
    }
  }

  __device__ __forceinline__ void read_state(float4 (&s)[Sums::kBlocks][Sums::kWide], const float* state,
                                             int unit) const {
    const int first = unit / Sums::kGroups * Sums::kBlocks, n0 = unit % Sums::kGroups * Sums::kWide;
#pragma unroll
    for (int u = 0; u < Sums::kBlocks; ++u) {
      const int block = first + u;
#pragma unroll
      for (int n = 0; n < Sums::kWide; ++n)
        s[u][n] = *reinterpret_cast<const float4*>(state + (n0 + n) * 8 * kHalfWidth + block / 2 * 32 +
                                                   (take_s ^ (block % 2 * 16)));
    }
  }

  // sums = S Mt over the channels of this block.
  __device__ __forceinline__ void multiply(Sums& sums, const float* state) {
    sums.clear();
    float4 s[Sums::kBlocks][Sums::kWide], next[Sums::kBlocks][Sums::kWide];
    read_state(s, state, 0);
    float2 raw[4];
    if constexpr (!kHolds) {
      read(raw, 0);
      m[0].set(raw);
    }
#pragma unroll
    for (int unit = 0; unit < Sums::kUnits; ++unit) {
      const int block = unit / Sums::kGroups * Sums::kBlocks, group = unit % Sums::kGroups;
      if (unit + 1 < Sums::kUnits) read_state(next, state, unit + 1);
      if constexpr (!kHolds) {
        if (group == 0 && block < 3) read(raw, block + 1);
      }
      sums.add(kHolds ? &m[block] : &m[0], s, group * Sums::kWide);
      if constexpr (!kHolds) {
        if (group + 1 == Sums::kGroups && block < 3) m[0].set(raw);
      }
#pragma unroll
      for (int i = 0; i < Sums::kBlocks * Sums::kWide; ++i)
        s[i / Sums::kWide][i % Sums::kWide] = next[i / Sums::kWide][i % Sums::kWide];
    }
    if constexpr (!kHolds) release();
    sums.finish();
  }
};

struct PairPlace {
  int head, value_row0;
  int rank;  // in the cluster: 2 * share + half
};

// Copies this block's share of every Mt to all blocks of its half. One thread.
template <int kRows, int kShare>
__device__ __forceinline__ void run_copies(PairMemory<kRows, kShare>& shared, const float* half_transition,
                                           int64_t step_floats, int count, int rank) {
  using Of = PairShape<kRows, kShare>;
  constexpr int kOwn = 4 / kShare;  // quarters
  const int half = rank % 2, quarter0 = rank / 2 * kOwn;
  constexpr uint32_t kEven = kShare == 4 ? 0x55 : (kShare == 2 ? 0x5 : 0x1);
  RingPosition<Of::kStages> ring;
  for (int step = 0; step < count; ++step) {
    if (step >= Of::kStages) {
      wait_parity(&shared.consumed[ring.stage], ring.parity ^ 1);
      if constexpr (kShare > 1) {
#pragma unroll
        for (int i = 0; i < kShare; ++i) arrive_in_block(&shared.free[ring.stage], 2 * i + half);
        wait_parity(&shared.free[ring.stage], ring.parity ^ 1);
      }
    }
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.full[ring.stage],
                                   4 * kQuarterBytes);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float* to = shared.transition[ring.stage][quarter0 + i];
      const float* from = half_transition + (quarter0 + i) * kQuarterFloats;
      if constexpr (kShare > 1) {
        copy_to_blocks(to, from, kQuarterBytes, &shared.full[ring.stage], static_cast<uint16_t>(kEven << half));
      } else {
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, uint32_t{kQuarterBytes},
                           &shared.full[ring.stage]);
      }
    }
    half_transition += step_floats;
    ring.advance();
  }
}

// Sums for the columns of the other block. The message of step i goes where that of step i - 2 was: it has been read, since all
// of this block's warps have since waited for messages of step i - 1, which the other block sent after it had finished step i - 2.
template <int kRows, int kShare>
__device__ __forceinline__ void run_sender(PairMemory<kRows, kShare>& shared, const PairPlace& place, int count,
                                           int tile, int lane) {
  using Of = PairShape<kRows, kShare>;
  PairWarp<kRows, kShare> warp(shared, (place.rank % 2 ^ 1) * kHalfWidth + tile * kColumns, lane);
  auto* const message = in_block(&shared.message[0][tile][0][lane][0], place.rank ^ 1);
  uint64_t* const received = in_block(&shared.received[0][tile], place.rank ^ 1);
  warp.fetch();
  for (int step = 0; step < count; ++step) {
    const int parity = step % 2;
    named_barrier(kWorkersBarrier, kWorkerThreads);  // the state that enters this step is there
    typename PairWarp<kRows, kShare>::Sums sums;
    warp.multiply(sums, shared.state[parity]);
#pragma unroll
    for (int n = 0; n < Of::kValueTiles; ++n)
      ptx::st_async(message + (parity * kSideWarps * Of::kValueTiles + n) * 128, sums.main[n],
                    received + parity * kSideWarps);
    if (step + 1 < count) warp.fetch();
  }
}

// Sums for the columns of this block, and the new state.
template <int kRows, int kShare>
__device__ __forceinline__ void run_owner(PairMemory<kRows, kShare>& shared, const PairPlace& place, float* results,
                                          int64_t step_floats, int count, int tile, int lane) {
  using Of = PairShape<kRows, kShare>;
  constexpr bool kAhead = kRows <= 16;  // B of the next step is loaded during this one
  constexpr uint32_t kMessageBytes = Of::kValueTiles * 512;
  const int g = lane / 4, q = lane % 4;
  const int column0 = place.rank % 2 * kHalfWidth + tile * kColumns;
  PairWarp<kRows, kShare> warp(shared, column0, lane);
  const int give =
      HalfSlice<kRows>::place(2 * q, tile * kColumns + 2 * g);  // one row on, ^ 16 for the second of two rows
  results += 2 * q * kStateWidth + column0 + 2 * g;
  float entering[Of::kValueTiles][4];
  if (kAhead && count > 0) load_pairs(entering, results);
  named_barrier(kWorkersBarrier, kWorkerThreads);
  for (int step = 0; step < count; ++step) {
    const bool last = step + 1 == count;
    const int parity = step % 2;
    uint64_t* const received = &shared.received[parity][tile];
    if (lane == 0)
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, received, kMessageBytes);
    float ahead[Of::kValueTiles][4];
    if constexpr (kAhead) {
      if (!last) load_pairs(ahead, results + step_floats);
    } else {
      load_pairs(entering, results);
    }
    warp.fetch();
    typename PairWarp<kRows, kShare>::Sums sums;
    warp.multiply(sums, shared.state[parity]);
#pragma unroll
    for (int i = 0; i < Of::kValueTiles * 4; ++i) sums.main[i / 4][i % 4] += entering[i / 4][i % 4];
    wait_parity(received, static_cast<uint32_t>(step / 2 % 2));
#pragma unroll
    for (int n = 0; n < Of::kValueTiles; ++n) {
      const float4 sent = *reinterpret_cast<const float4*>(shared.message[parity][tile][n][lane]);
      sums.main[n][0] += sent.x;
      sums.main[n][1] += sent.y;
      sums.main[n][2] += sent.z;
      sums.main[n][3] += sent.w;
    }
    if (!last) {
      float* const to = shared.state[parity ^ 1];
#pragma unroll
      for (int n = 0; n < Of::kValueTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          *reinterpret_cast<float2*>(to + (8 * n + e) * kHalfWidth + (give ^ (e * 16))) =
              make_float2(sums.main[n][e], sums.main[n][e + 2]);
      }
      named_barrier(kWorkersBarrier, kWorkerThreads);
    }
    store_pairs(sums.main, results);
    results += step_floats;
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < Of::kValueTiles * 4; ++i) entering[i / 4][i % 4] = ahead[i / 4][i % 4];
    }
  }
}

template <int kRows, int kShare>
__device__ __forceinline__ void run_pair_fold(PairMemory<kRows, kShare>& shared, const CarryArgs& args,
                                              const Fold& fold, const PairPlace& place) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int half = place.rank % 2;
  const int64_t step_floats = static_cast<int64_t>(args.heads_v) * kStateFloats;
  const int64_t first = (static_cast<int64_t>(fold.slot) * args.heads_v + place.head) * kStateFloats;
  using Of = PairShape<kRows, kShare>;
  if (warp >= 2 * kSideWarps) {
    if constexpr (Of::kMovesRegisters && kCanMoveRegisters) lower_registers<40>();
    if (warp == 2 * kSideWarps && lane == 0)
      run_copies<kRows, kShare>(shared, args.slot_transition + first + step_floats + half * (kStateFloats / 2),
                                step_floats, fold.count, place.rank);
    return;
  }
  if constexpr (Of::kMovesRegisters && kCanMoveRegisters) raise_registers<232>();
  using Slice = HalfSlice<kRows>;
  float* const rows = args.slot_state + first + place.value_row0 * kStateWidth;  // of the slot before step 0
  float* const own = rows + half * kHalfWidth;
  if (fold.from_initial) {
    const int64_t slot = initial_slot(args.initial, args.has_initial, fold.sequence);
    fill_from_initial<Slice>(shared.state[0], args.initial, slot, place.head, place.value_row0, half * kHalfWidth,
                             thread);
    named_barrier(kWorkersBarrier, kWorkerThreads);
    copy_to_slot<Slice>(own, shared.state[0], thread);  // emit reads it there
  } else {
    fill_from_slot<Slice>(shared.state[0], own, thread);
  }
  if (fold.count == 0) return;
  if (warp < kSideWarps) {
    run_sender<kRows, kShare>(shared, place, fold.count, warp, lane);
  } else {
    run_owner<kRows, kShare>(shared, place, rows + step_floats, step_floats, fold.count, warp - kSideWarps, lane);
  }
}

template <int kRows, int kShare>
__device__ __forceinline__ void run_pair(const CarryArgs& args) {
  using Of = PairShape<kRows, kShare>;
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<PairMemory<kRows, kShare>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Of::kStages; ++i) {
      ptx::mbarrier_init(&shared.full[i], 1);
      ptx::mbarrier_init(&shared.consumed[i], 2 * kSideWarps);
      ptx::mbarrier_init(&shared.free[i], kShare);
    }
    for (int i = 0; i < 2 * kSideWarps; ++i) ptx::mbarrier_init(&shared.received[i / kSideWarps][i % kSideWarps], 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  ptx::barrier_cluster_arrive(ptx::sem_release);
  allow_next_grid();
  wait_for_previous_grid();
  const int block = static_cast<int>(blockIdx.x % (2 * Of::kSlices));
  const uint32_t item = blockIdx.x / (2 * Of::kSlices);
  const uint32_t index = item / static_cast<uint32_t>(args.heads_v);
  const Fold fold = args.tables.folds[index];  // in bounds, though perhaps not in use
  const int used = args.tables.counts[1];
  ptx::barrier_cluster_wait(ptx::sem_acquire);
  if (static_cast<int>(index) >= used) return;  // all blocks of the cluster
  const PairPlace place{static_cast<int>(item % static_cast<uint32_t>(args.heads_v)), block / 2 * kRows,
                        block % Of::kCluster};
  run_pair_fold<kRows, kShare>(shared, args, fold, place);
}

}  // namespace deltarelay::cuda
