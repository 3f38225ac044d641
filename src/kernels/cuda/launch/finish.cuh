// finish: what belongs to no row of the plan. Rows past the last offset of what the call writes become zero. An empty
// sequence copies its initial state to its final one; its summary is M = I, B = 0.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/written_rows.h"

namespace deltarelay::cuda {

struct FinishArgs {
  Tables tables;
  WrittenRows rows[WrittenTensors::kMost];
  int32_t num_rows;
  int64_t num_tokens;          // rows of a packed tensor
  StateView initial, final;    // unused pools: states of empty sequences are left alone
  const uint8_t* has_initial;  // [num_seqs] or nullptr
  float* summaries;            // [num_seqs, HV, DV + DK, DK], nullptr: none
  uint32_t* report;            // or nullptr
  int32_t heads_v, dk, dv;
};

// The grid reads num_seqs + 1 offsets and does what they need. If host lengths show no tail and no empty sequence (or
// there is no final pool), the caller does not launch it.
cudaError_t launch_finish(const FinishArgs& args, int64_t ctas, cudaStream_t stream);

// Loads the kernel onto the device, so that no launch has to.
cudaError_t load_finish();

}  // namespace deltarelay::cuda
