// Waiting and handing over: mbarriers in rings, named barriers, register budgets.
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

// What the launch asked for. A kernel that uses it has no other shared memory, so it is aligned as its first byte: 1024. The address is made
// opaque: where the compiler knows it, it finds it anew at every use, from a special register (the CTA's place in its cluster) that takes long.
__device__ __forceinline__ uint8_t* dynamic_shared_memory() {
  extern __shared__ __align__(1024) uint8_t bytes[];
  return static_cast<uint8_t*>(__cvta_shared_to_generic(opaque(shared_address(bytes))));
}

__device__ __forceinline__ void wait_parity(uint64_t* barrier, uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

// Place in a ring of stages: which stage, and the parity of its barriers at this use. A waiter must walk every use in order: only
// parity is compared, so one that skips a use may pass on the phase before.
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

// The same for one who has every kStep-th use, from one of the first on. Where others use his stages in between (kSkips), he has to know that they have
// before he waits for his own.
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

// A number that is the same in all lanes, where the compiler can see it.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// True for one lane of a whole warp, the same one every time; unlike for a lane that was picked by its number, the compiler knows that it is one,
// and brings what it gives to copies into uniform registers without a loop over lanes.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile("{.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
}

// Ends the life of an mbarrier that nobody waits for, so that another can begin in its place.
__device__ __forceinline__ void invalidate_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// One arrival per warp, after all its lanes are done.
__device__ __forceinline__ void warp_arrive(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
}

// Barrier over `threads` threads of the block; 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same for warps that reach it in code of their own. bar.sync is barrier.sync.aligned: synccheck takes it to be one instruction for all its
// threads. Where the way here is known to be the same for a whole warp (`uniform`), it costs no instruction more.
__device__ __forceinline__ void split_barrier(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same, and whether `mine` holds for any of the threads.
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

// An arrival at split_barrier, without waiting.
__device__ __forceinline__ void split_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A warpgroup's share of the register file. Every warp of the group must execute it.
template <int kCount>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Brings a tensor map (a kernel parameter) to this multiprocessor ahead of its first copy.
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Brings `bytes` of memory into the L2. They and the address are multiples of 16.
__device__ __forceinline__ void prefetch_bytes(const void* data, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(data), "r"(bytes) : "memory");
}

// Number of this warp among all that are resident on the multiprocessor. For balance only: nothing promises that it stays the same.
__device__ __forceinline__ uint32_t warp_slot() {
  uint32_t slot;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(slot));
  return slot;
}

}  // namespace deltarelay::cuda
