// finish: what belongs to no row of the plan. Output rows past the last offset are zero; an empty sequence leaves its
// initial state as its final one.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

struct FinishArgs {
  Tables tables;
  TensorView o;        // [num_tokens, HV, DV]
  int64_t num_tokens;  // rows of a packed tensor
  StateView initial, final;
  const uint8_t* has_initial;  // [num_seqs] or nullptr
  uint32_t* report;            // or nullptr
  int32_t heads_v, dk, dv;
};

// A grid that reads num_seqs + 1 offsets and does what is needed. A caller that knows from host lengths that there is
// neither a tail nor an empty sequence (or no final pool) does not launch it.
cudaError_t launch_finish(const FinishArgs& args, int32_t multiprocessors, cudaStream_t stream);

// Brings the kernel to the device, so that no launch does.
cudaError_t load_finish();

}  // namespace deltarelay::cuda
