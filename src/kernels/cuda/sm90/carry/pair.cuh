// carry by pairs of CTAs, from sm_90 on.
//
// Two CTAs own some value rows of a strip. CTA r of a pair holds channels 64 r .. 64 r + 63 of these rows. It
// multiplies them with its 64 rows of every M^T (one flat half, 32 KB). It sends the sums for the columns of the other
// half to the other CTA. To the sums for its own columns it adds what it receives: its half of the next state. The four
// `sender` warps work first. While their message is in flight, the four `owner` warps have the tensor cores.
//
// A warp multiplies 16 key columns (rows of the A operand, M) with the value rows of the CTA (columns of the B operand,
// S), over 64 channels. Lane l has quad = l / 4, member = l % 4. The channels of one member (step.cuh) are neighbours:
// a quarter of the half, 8 KB, one bulk copy. Each quarter starts 32 bytes further from a multiple of 128 bytes than
// the one before. So fragment loads are free of bank conflicts.
#pragma once
#include <cooperative_groups.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/rows/find_fold.cuh"
#include "kernels/cuda/sm90/carry/step.cuh"

namespace deltarelay::cuda {

constexpr int kQuarterRows = 16;
constexpr int kQuarterFloats = kQuarterRows * kStateWidth;
constexpr uint32_t kQuarterBytes = kQuarterFloats * sizeof(float);
constexpr int kSideWarps = kHalfWidth / kColumns;  // senders; there are as many owners
constexpr int kWorkerThreads = 2 * kSideWarps * 32;
constexpr int kWorkersBarrier = 1;

constexpr int kPairThreads = kWorkerThreads + 32;  // one more warp copies

template <int kRows>
struct PairShape {
  static constexpr int kValueTiles = kRows / 8;  // an mma takes 8 value rows
  static constexpr int kSlices = kStateWidth / kRows;
  static constexpr int kStages = kRows == 32 ? 5 : 6;  // steps whose M^T is loaded or in flight
  static constexpr int kSpans = kRows == 8 ? 2 : 1;  // at a time: one value tile alone leaves the tensor cores waiting
  using Slice = StateSlice<kRows, kHalfWidth, kWorkerThreads>;
};

template <int kRows>
struct PairMemory {
  using Of = PairShape<kRows>;
  alignas(128) float transition[Of::kStages][4][kQuarterFloats + 8];
  alignas(128) float state[2][Of::Slice::kFloats];  // of even and odd steps
  alignas(128) float message[2][kSideWarps][Of::kValueTiles][32][4];
  uint64_t full[Of::kStages];      // M^T has arrived: counts its bytes
  uint64_t consumed[Of::kStages];  // the warps of this CTA have M^T in registers
  uint64_t received[2][kSideWarps];
};
static_assert(sizeof(PairMemory<16>) <= 227 * 1024 && sizeof(PairMemory<32>) <= 227 * 1024);

// The same address in the shared memory of CTA `rank` of the pair.
template <class T>
__device__ __forceinline__ T* in_block(T* place, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(place, rank);
}

// One of the eight sender and owner warps.
template <int kRows>
struct PairWarp {
  using Of = PairShape<kRows>;
  static constexpr int kValueTiles = Of::kValueTiles, kSpans = Of::kSpans;

  PairMemory<kRows>& shared;
  RingPosition<Of::kStages> ring;
  int take_m, take_s;  // this lane's places: in a stage; in a half state, for even blocks (^ 16 for odd ones)
  Transition m[2][2];  // [block][span]: the warp's columns of M^T, split and kept before they are needed

  __device__ __forceinline__ PairWarp(PairMemory<kRows>& memory, int column0, int lane) : shared(memory) {
    const int quad = lane / 4, member = lane % 4;
    take_m = member * (kQuarterFloats + 8) + column0 + 2 * quad;
    take_s = Of::Slice::place(quad, 16 * member);
  }

  // Waits for the next M^T and loads this warp's columns of it.
  __device__ __forceinline__ void fetch() {
    wait_parity(&shared.full[ring.stage], ring.parity);
    float2 raw[4][4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const float* from = shared.transition[ring.stage][0] + take_m + b * 4 * kStateWidth;
#pragma unroll
      for (int i = 0; i < 4; ++i) raw[b][i] = *reinterpret_cast<const float2*>(from + i * kStateWidth);
    }
    // The loads above may still wait in the pipeline. The bulk copy that refills the stage does not queue behind them.
    // Without the fence it overtakes them: a warp then reads rows of the M of kStages steps later (H200: one call in
    // 200, for folds of more than kStages steps).
    ptx::fence_proxy_async(ptx::space_shared);
    warp_arrive(&shared.consumed[ring.stage]);
    ring.advance();
#pragma unroll
    for (int b = 0; b < 4; ++b) m[b % 2][b / 2].set(raw[b]);
  }

  // Reads block `block` of kSpans spans from `span` on.
  __device__ __forceinline__ void read_state(float4 (&s)[kSpans][kValueTiles], const float* state, int span,
                                             int block) const {
#pragma unroll
    for (int i = 0; i < kSpans * kValueTiles; ++i)
      s[i / kValueTiles][i % kValueTiles] = *reinterpret_cast<const float4*>(
          state + i % kValueTiles * 8 * kHalfWidth + (span + i / kValueTiles) * 32 + (take_s ^ (block * 16)));
  }

  // half = S^T M^T over the channels of this CTA.
  __device__ __forceinline__ void multiply(float (&half)[kValueTiles][4], const float* state) const {
    constexpr int kUnits = 4 / kSpans;  // a unit is one block of kSpans spans
    float4 s[kSpans][kValueTiles], next[kSpans][kValueTiles];
    read_state(s, state, 0, 0);
    SpanSums<kValueTiles> sums[kSpans];
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int span = unit / 2, block = unit % 2;
      if (unit + 1 < kUnits) read_state(next, state, (unit + 1) / 2, (unit + 1) % 2);
      if (block == 0) {
#pragma unroll
        for (int p = 0; p < kSpans; ++p) sums[p].clear();
      }
      add_block(sums, &m[block][span], s, block);
      if (block == 1) {
#pragma unroll
        for (int p = 0; p < kSpans; ++p) add_span(half, sums[p], span + p);
      }
#pragma unroll
      for (int i = 0; i < kSpans * kValueTiles; ++i)
        s[i / kValueTiles][i % kValueTiles] = next[i / kValueTiles][i % kValueTiles];
    }
  }
};

struct PairPlace {
  int strip, value_row0;
  int rank;  // in the pair: selects this CTA's half of the channels
};

// Copies this CTA's half of every M^T. Called by one thread.
template <int kRows>
__device__ __forceinline__ void run_copies(PairMemory<kRows>& shared, const float* half_transition, int64_t step_floats,
                                           int count) {
  using Of = PairShape<kRows>;
  RingPosition<Of::kStages> ring;
  for (int step = 0; step < count; ++step) {
    if (step >= Of::kStages) wait_parity(&shared.consumed[ring.stage], ring.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.full[ring.stage],
                                   4 * kQuarterBytes);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, shared.transition[ring.stage][i],
                         half_transition + i * kQuarterFloats, uint32_t{kQuarterBytes}, &shared.full[ring.stage]);
    half_transition += step_floats;
    ring.advance();
  }
}

// Sums for the columns of the other CTA. The message of step i overwrites that of step i - 2, which has been read: all
// warps of this CTA have since waited for messages of step i - 1, which the other CTA sent after it had finished step i
// - 2.
template <int kRows>
__device__ __forceinline__ void run_sender(PairMemory<kRows>& shared, const PairPlace& place, int count, int tile,
                                           int lane) {
  using Of = PairShape<kRows>;
  PairWarp<kRows> warp(shared, (place.rank ^ 1) * kHalfWidth + tile * kColumns, lane);
  auto* const message = in_block(&shared.message[0][tile][0][lane][0], place.rank ^ 1);
  uint64_t* const received = in_block(&shared.received[0][tile], place.rank ^ 1);
  warp.fetch();
  for (int step = 0; step < count; ++step) {
    const int parity = step % 2;
    split_barrier(kWorkersBarrier, kWorkerThreads);  // the state that enters this step is complete
    float half[Of::kValueTiles][4];
    warp.multiply(half, shared.state[parity]);
#pragma unroll
    for (int n = 0; n < Of::kValueTiles; ++n)
      ptx::st_async(message + (parity * kSideWarps * Of::kValueTiles + n) * 128, half[n],
                    received + parity * kSideWarps);
    if (step + 1 < count) warp.fetch();
  }
}

// Sums for the columns of this CTA, and the new state.
template <int kRows>
__device__ __forceinline__ void run_owner(PairMemory<kRows>& shared, const PairPlace& place, float* results,
                                          int64_t step_floats, int count, int tile, int lane) {
  using Of = PairShape<kRows>;
  constexpr bool kAhead = kRows <= 16;  // B of the next step is loaded during this one
  constexpr uint32_t kMessageBytes = Of::kValueTiles * 512;
  const int quad = lane / 4, member = lane % 4;
  const int column0 = place.rank * kHalfWidth + tile * kColumns;
  PairWarp<kRows> warp(shared, column0, lane);
  const int give =
      Of::Slice::place(2 * member, tile * kColumns + 2 * quad);  // the second of two rows: one row further, ^ 16
  results += 2 * member * kStateWidth + column0 + 2 * quad;
  float entering[Of::kValueTiles][4];
  if (kAhead && count > 0) load_pairs(entering, results);
  split_barrier(kWorkersBarrier, kWorkerThreads);
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
    float result[Of::kValueTiles][4];
    warp.multiply(result, shared.state[parity]);
    wait_parity(received, static_cast<uint32_t>(step / 2 % 2));
#pragma unroll
    for (int n = 0; n < Of::kValueTiles; ++n) {
      const float4 sent = *reinterpret_cast<const float4*>(shared.message[parity][tile][n][lane]);
      result[n][0] = (result[n][0] + sent.x) + entering[n][0];
      result[n][1] = (result[n][1] + sent.y) + entering[n][1];
      result[n][2] = (result[n][2] + sent.z) + entering[n][2];
      result[n][3] = (result[n][3] + sent.w) + entering[n][3];
    }
    if (!last) {
      float* const to = shared.state[parity ^ 1];
#pragma unroll
      for (int n = 0; n < Of::kValueTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          *reinterpret_cast<float2*>(to + (8 * n + e) * kHalfWidth + (give ^ (e * 16))) =
              make_float2(result[n][e], result[n][e + 2]);
      }
      split_barrier(kWorkersBarrier, kWorkerThreads);
    }
    store_pairs(result, results);
    results += step_floats;
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < Of::kValueTiles * 4; ++i) entering[i / 4][i % 4] = ahead[i / 4][i % 4];
    }
  }
}

template <int kRows>
__device__ __forceinline__ void run_pair_fold(PairMemory<kRows>& shared, const CarryArgs& args, const Fold& fold,
                                              const PairPlace& place) {
  const int thread = static_cast<int>(threadIdx.x), warp = uniform(thread / 32), lane = thread % 32;
  const int half = place.rank;
  const int64_t step_floats = static_cast<int64_t>(args.strips.all) * kStateFloats;
  const int64_t first = (static_cast<int64_t>(fold.slot) * args.strips.all + place.strip) * kStateFloats;
  if (warp == 2 * kSideWarps) {
    if (lane == 0)
      run_copies<kRows>(shared, args.slot_transition + first + step_floats + half * (kStateFloats / 2), step_floats,
                        fold.count);
    return;
  }
  using Slice = typename PairShape<kRows>::Slice;
  float* const rows = args.slot_state + first + place.value_row0 * kStateWidth;  // in the slot before step 0
  float* const own = rows + half * kHalfWidth;
  if (fold.from_initial) {
    const int64_t slot = initial_slot(args.initial, args.has_initial, fold.sequence);
    fill_from_initial<Slice>(shared.state[0], args.initial, slot, args.strips, place.strip, place.value_row0,
                             half * kHalfWidth, thread);
    split_barrier(kWorkersBarrier, kWorkerThreads);
    copy_to_slot<Slice>(own, shared.state[0], thread);  // emit reads it there
  } else {
    fill_from_slot<Slice>(shared.state[0], own, thread);
  }
  if (fold.count == 0) return;
  if (warp < kSideWarps) {
    run_sender<kRows>(shared, place, fold.count, warp, lane);
  } else {
    run_owner<kRows>(shared, place, rows + step_floats, step_floats, fold.count, warp - kSideWarps, lane);
  }
}

template <int kRows>
__device__ __forceinline__ void run_pair(const CarryArgs& args) {
  using Of = PairShape<kRows>;
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<PairMemory<kRows>*>(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Of::kStages; ++i) {
      ptx::mbarrier_init(&shared.full[i], 1);
      ptx::mbarrier_init(&shared.consumed[i], 2 * kSideWarps);
    }
    for (int i = 0; i < 2 * kSideWarps; ++i) ptx::mbarrier_init(&shared.received[i / kSideWarps][i % kSideWarps], 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  ptx::barrier_cluster_arrive(ptx::sem_release);
  allow_next_grid();
  const int block = static_cast<int>(blockIdx.x % (2 * Of::kSlices));
  const uint32_t item = blockIdx.x / (2 * Of::kSlices);
  Fold fold;
  const bool found =
      find_fold(args.tables, item / static_cast<uint32_t>(args.strips.all), fold, [] { wait_for_previous_grid(); });
  ptx::barrier_cluster_wait(ptx::sem_acquire);
  if (!found) return;  // the same for both CTAs
  const PairPlace place{static_cast<int>(item % static_cast<uint32_t>(args.strips.all)), block / 2 * kRows, block % 2};
  fold.count = live_steps(args, fold, place.strip);  // the same for both CTAs
  if (fold.count == 0 && !fold.from_initial) return;
  run_pair_fold<kRows>(shared, args, fold, place);
}

}  // namespace deltarelay::cuda
