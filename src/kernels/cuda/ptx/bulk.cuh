// Between the blocks of a cluster: bulk copies that one starts for several, arrivals at barriers of another.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"

namespace deltarelay::cuda {

// Copies `bytes` from global memory to the place `to` of every block in `blocks` (bit i: block i of the cluster), and counts them at
// the place `barrier` of each. Addresses and bytes are multiples of 16.
__device__ __forceinline__ void copy_to_blocks(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                               uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
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
