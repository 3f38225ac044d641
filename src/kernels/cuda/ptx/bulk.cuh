// Between the CTAs of a cluster: copies from one shared memory to another, arrivals at barriers of another CTA.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"

namespace deltarelay::cuda {

// Copies `bytes` from this CTA's shared memory to address `to` of CTA `rank`. The bytes complete on `barrier` of that
// CTA. Addresses and size are multiples of 16.
__device__ __forceinline__ void copy_to_block(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 place, counter;\n"
      "mapa.shared::cluster.u32 place, %0, %4;\nmapa.shared::cluster.u32 counter, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [place], [%1], %2, [counter];\n}\n" ::"r"(
          shared_address(to)),
      "r"(shared_address(from)), "r"(bytes), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

// Rank of this CTA in its cluster.
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// CTAs of the cluster: 1 for a launch without clusters.
__device__ __forceinline__ int cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return static_cast<int>(size);
}

// Waits until all CTAs of the cluster have started. Relaxed: barrier initialisation has its own cluster fence, and no
// data passes here.
__device__ __forceinline__ void cluster_begin() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}

// Waits for all threads of the cluster. Their earlier writes and arrivals are visible afterwards. Or in two steps:
// arrives without waiting, and waits later.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ void cluster_meet() {
  cluster_arrive();
  cluster_wait();
}

// Waits until no CTA of the cluster needs another one. Has release semantics: an arrival still in flight at a barrier
// of another CTA would otherwise reach a new CTA in its place.
__device__ __forceinline__ void cluster_end() { cluster_meet(); }

// Stores to address `to` of CTA `rank`.
__device__ __forceinline__ void store_in_block(uint32_t* to, uint32_t value, int rank) {
  asm volatile(
      "{\n.reg .b32 place;\nmapa.shared::cluster.u32 place, %0, %1;\nst.shared::cluster.u32 [place], %2;\n}\n" ::"r"(
          shared_address(to)),
      "r"(rank), "r"(value)
      : "memory");
}

// Arrives at barrier `barrier` of CTA `rank`. It orders the CTA's earlier reads and waits, as between its own threads.
// A release at cluster scope would add a fence over all memory.
__device__ __forceinline__ void arrive_in_block(uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 place;\nmapa.shared::cluster.u32 place, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [place];\n}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

}  // namespace deltarelay::cuda
