// A thread block as the team of plan/search/team.h.
#pragma once
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "plan/search/costs.h"
#include "plan/search/team.h"

namespace deltarelay::cuda {

constexpr int32_t kTeamThreads =
    256;  // round 0 of the search has 177 trials, and a barrier of more warps costs every step
constexpr int32_t kTeamWarps = kTeamThreads / 32;

class BlockTeam {
 public:
  struct Memory {  // shared
    plan::ns time[kTeamWarps];
    int32_t number[kTeamWarps];
  };
  __device__ explicit BlockTeam(Memory& memory) : memory_(memory) {}

  template <class Body>
  __device__ void each(int64_t n, const Body& body) {
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kTeamThreads) body(static_cast<int32_t>(i));
    __syncthreads();
  }

  template <class Body>
  __device__ void once(const Body& body) {
    __syncthreads();
    if (threadIdx.x == 0) body();
    __syncthreads();
  }

  template <class Test>
  __device__ bool any(int32_t n, const Test& test) {
    bool found = false;
    for (int32_t i = threadIdx.x; i < n; i += kTeamThreads) found |= test(i);
    return __syncthreads_or(found) != 0;
  }

  template <class T, class Value, class Put>
  __device__ T scan(int32_t n, const Value& value, const Put& put) {
    using Scan = cub::BlockScan<T, kTeamThreads, cub::BLOCK_SCAN_WARP_SCANS>;
    __shared__ typename Scan::TempStorage storage;
    T before_all;
    for (int32_t first = 0; first < n; first += kTeamThreads) {
      const int32_t i = first + static_cast<int32_t>(threadIdx.x);
      const T here = i < n ? value(i) : T();
      T before, all;
      Scan(storage).ExclusiveScan(here, before, T(), Joined(), all);
      __syncthreads();  // every value has been taken, and the storage is free
      if (i < n) put(i, before_all.joined(before));
      before_all = before_all.joined(all);
    }
    __syncthreads();
    return before_all;
  }

  // The order is total, so the result is that of any other sort.
  template <class T, class Before>
  __device__ void sort(T* items, int32_t n, const Before& before) {
    if (!any(n - 1, [&](int32_t i) { return before(items[i + 1], items[i]); })) return;
    for (plan::SortStep step(n); step.more(); step.advance()) {
      for (int64_t pair = threadIdx.x; pair < step.pairs(); pair += kTeamThreads) {
        const plan::SortPair at = step.pair(pair);
        if (at.later >= n || !before(items[at.later], items[at.earlier])) continue;
        const T moved = items[at.later];
        items[at.later] = items[at.earlier];
        items[at.earlier] = moved;
      }
      __syncthreads();
    }
  }

  template <class Try, class Take>
  __device__ void least(int32_t n, plan::ns bar, const Try& trial, const Take& take) {
    decltype(trial(0)) best;
    int32_t number = INT32_MAX;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += kTeamThreads) {
      const auto next = trial(i);
      if (next.time() >= best.time()) continue;
      best = next;
      number = i;
    }
    plan::ns time = best.time();
    int32_t winner = number;
    for (int32_t distance = 16; distance > 0; distance /= 2) {
      lower(time, winner, __shfl_xor_sync(~0u, time, distance), __shfl_xor_sync(~0u, winner, distance));
    }
    if (threadIdx.x % 32 == 0) {
      memory_.time[threadIdx.x / 32] = time;
      memory_.number[threadIdx.x / 32] = winner;
    }
    __syncthreads();
    for (int32_t warp = 0; warp < kTeamWarps; ++warp) lower(time, winner, memory_.time[warp], memory_.number[warp]);
    if (number == winner && time < bar) take(best);
    __syncthreads();
  }

 private:
  struct Joined {
    template <class T>
    __device__ T operator()(const T& earlier, const T& later) const {
      return earlier.joined(later);
    }
  };
  static __device__ void lower(plan::ns& time, int32_t& number, plan::ns other_time, int32_t other_number) {
    if (other_time > time || (other_time == time && other_number >= number)) return;
    time = other_time;
    number = other_number;
  }

  Memory& memory_;
};

}  // namespace deltarelay::cuda
