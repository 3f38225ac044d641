// carry: the state that enters every later segment, by folding transitions in order.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

// How a fold of one head is spread over thread blocks. The same tiling gives the same bits.
struct CarryTiling {
  int32_t rows;   // value rows of one block: 8, 16, 32, with pairs also 64
  int32_t split;  // 1: a block alone; 2: two blocks share the channels of these rows
  int32_t share;  // pairs that share what they read of the transitions, as one cluster: 1, 2, 4
  bool operator==(const CarryTiling&) const = default;
};

// `items`: folds times heads.
CarryTiling carry_tiling(int64_t items, int32_t multiprocessors, bool pairs);

// Can the code that is loaded form pairs on this device? Needs load_carry.
bool carry_pairs();

// Blocks that this device runs at a time. Slow: asks the driver. 0: none, or no such tiling.
int32_t carry_resident_blocks(const CarryTiling& tiling);

cudaError_t launch_carry(const CarryArgs& args, int32_t multiprocessors, cudaStream_t stream);
cudaError_t launch_carry(const CarryArgs& args, const CarryTiling& tiling, cudaStream_t stream);

// Brings the kernels to the device and claims their shared memory. Once per device, before any launch.
cudaError_t load_carry();

}  // namespace deltarelay::cuda
