// Between the blocks of a cluster: copies from one shared memory to another, arrivals at barriers of another block.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"

namespace deltarelay::cuda {

// Copies `bytes` from this block's shared memory to the place `to` of block `rank`, and counts them at the place `barrier` there. Addresses
// and bytes are multiples of 16.
__device__ __forceinline__ void copy_to_block(void* to, const void* from, uint32_t bytes, uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 place, counter;\n"
      "mapa.shared::cluster.u32 place, %0, %4;\nmapa.shared::cluster.u32 counter, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [place], [%1], %2, [counter];\n}\n" ::"r"(
          shared_address(to)),
      "r"(shared_address(from)), "r"(bytes), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

// Place of this block in its cluster.
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// Blocks in the cluster: 1 for a launch without clusters.
__device__ __forceinline__ int cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return static_cast<int>(size);
}

// Waits until all blocks of the cluster are there. Relaxed: what was initialised before is fenced for the cluster by itself, and no data passes.
__device__ __forceinline__ void cluster_begin() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}

// Waits for all threads of the cluster; what they wrote and where they arrived before is seen behind it.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Waits until all blocks of the cluster are done with each other. Releases: an arrival at a barrier of another block that is still on its way
// would else find that block gone, and a new one in its place.
__device__ __forceinline__ void cluster_end() { cluster_meet(); }

// Stores to the place `to` in block `rank` of the cluster.
__device__ __forceinline__ void store_in_block(uint32_t* to, uint32_t value, int rank) {
  asm volatile(
      "{\n.reg .b32 place;\nmapa.shared::cluster.u32 place, %0, %1;\nst.shared::cluster.u32 [place], %2;\n}\n" ::"r"(
          shared_address(to)),
      "r"(rank), "r"(value)
      : "memory");
}

// Arrives at the place `barrier` in block `rank` of the cluster. Orders what this block has read or waited for, as between its own threads;
// no fence over all memory, as a release in the scope of the cluster would bring.
__device__ __forceinline__ void arrive_in_block(uint64_t* barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 place;\nmapa.shared::cluster.u32 place, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [place];\n}\n" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

}  // namespace deltarelay::cuda
