// Bulk copies that one block starts for several of its cluster.
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

}  // namespace deltarelay::cuda
