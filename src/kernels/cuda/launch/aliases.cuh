// `aliases`: is a slot that one row writes also written by another, or read by another sequence? Indices on the GPU can be asked only there;
// the answer is a bit of the report, so nobody launches this without one.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "problem/aliasing.h"

namespace deltarelay::cuda {

struct AliasArgs {
  Tables tables;
  StateView initial, final;
  CheckpointView checkpoints;
  const uint8_t* has_initial;                                      // [num_seqs] or nullptr
  SlotShifts final_initial, final_checkpoint, checkpoint_initial;  // from slots of the first to those of the second
  uint32_t* report;
};

cudaError_t launch_aliases(const AliasArgs& args, int32_t multiprocessors, cudaStream_t stream);
cudaError_t load_aliases();

}  // namespace deltarelay::cuda
