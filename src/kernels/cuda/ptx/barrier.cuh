// Synchronisation: mbarriers in rings, named barriers, register budgets, prefetches.
#pragma once
#include <cstdint>
#include <cuda/ptx>

#include "kernels/cuda/ptx/grid.cuh"
#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda {

namespace ptx = ::cuda::ptx;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Start of the dynamic shared memory. A kernel that calls this function has no static shared memory, so the first byte
// is aligned to 1024. The address is opaque: the compiler would otherwise recompute a known address at every use, from
// the special register with the CTA's place in its cluster, which has a long latency.
__device__ __forceinline__ uint8_t* dynamic_shared_memory() {
  extern __shared__ __align__(1024) uint8_t bytes[];
  return static_cast<uint8_t*>(__cvta_shared_to_generic(opaque(shared_address(bytes))));
}

// Bytes of dynamic shared memory that the launch asked for.
__device__ __forceinline__ int dynamic_shared_bytes() {
  int bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

__device__ __forceinline__ void wait_parity(uint64_t* barrier, uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

// Position in a ring of stages: the stage, and the parity of its barriers at this use. A waiter must take every use in
// order: a barrier compares the parity alone, so a waiter that skips a use may pass one phase too early.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Position of a user that takes every kStep-th use of a ring, starting at one of the first kStep stages. With kSkips,
// other users take the same stages in between. Then this user must know that their use has begun before it waits for
// its own.
template <int kStages, int kStep>
struct SteppedPosition {
  static constexpr bool kSkips = kStages % kStep != 0;
  int stage;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    stage += kStep;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
};

// A value that is the same in all lanes; the shuffle shows this to the compiler.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// True for one lane of a whole warp, always the same one. Unlike with a lane picked by its number, the compiler knows
// that exactly one lane is active. It moves the arguments of copies into uniform registers without a loop over lanes.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile("{.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
}

// Invalidates an mbarrier that nobody waits for, so that another one can be initialised in its place.
__device__ __forceinline__ void invalidate_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// One arrival of a warp, after all its lanes are done.
__device__ __forceinline__ void warp_arrive(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
}

// Barrier over `threads` threads of the CTA. Barrier 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Barrier for warps that reach it at different instructions. bar.sync is barrier.sync.aligned, and synccheck expects
// all its threads at one instruction. Where the branch to it is uniform in a warp (`uniform`), this barrier costs no
// extra instruction.
__device__ __forceinline__ void split_barrier(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts this warp among the threads of a split_barrier and goes on.
__device__ __forceinline__ void arrive_at_barrier(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same barrier; returns whether `mine` is true in any of the threads.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool mine) {
  int any;
  asm volatile(
      "{.reg .pred mine, any;\n"
      "setp.ne.s32 mine, %3, 0;\n"
      "barrier.cta.red.or.pred any, %1, %2, mine;\n"
      "selp.s32 %0, 1, 0, any;}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(mine))
      : "memory");
  return any != 0;
}

// Arrives at split_barrier without waiting.
__device__ __forceinline__ void split_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers per thread of a warpgroup. Every warp of the group must execute it.
template <int kCount>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Prefetches a tensor map (a kernel parameter) before its first copy.
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Prefetches `bytes` of memory into the L2. Address and size are multiples of 16.
__device__ __forceinline__ void prefetch_bytes(const void* data, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(data), "r"(bytes) : "memory");
}

// Number of this warp among all warps resident on the multiprocessor. Use it for load balance only: it may change.
__device__ __forceinline__ uint32_t warp_slot() {
  uint32_t slot;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(slot));
  return slot;
}

}  // namespace deltarelay::cuda
