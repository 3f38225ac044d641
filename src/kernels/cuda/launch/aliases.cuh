// `aliases`: finds a slot that two rows write, or that one sequence writes and another one reads. Only a GPU can read
// indices in its memory. The answer is a bit of the report, so the kernel is launched only with a report.
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
  SlotShifts final_initial, final_checkpoint, checkpoint_initial;  // from slots of the first pool to the second
  uint32_t* report;
};

cudaError_t launch_aliases(const AliasArgs& args, int64_t ctas, cudaStream_t stream);
cudaError_t load_aliases();

}  // namespace deltarelay::cuda
