// Aqk and the inverse of a chunk of 64 tokens from the records of `prepare`.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/stage_args.h"

namespace deltarelay::cuda::sm90 {

struct ScoresArgs {
  Tables tables;
  const uint8_t* prepared;  // GDN: a record a chunk; KDA: two
  void *aqk, *inverse;      // [T, HV, 64], or nullptr where not wanted
  int32_t heads_v;
};

cudaError_t launch_scores(const ScoresArgs& args, DType dtype, bool scalar_gate, uint32_t ctas, cudaStream_t stream);
cudaError_t load_scores();

}  // namespace deltarelay::cuda::sm90
