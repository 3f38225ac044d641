// The outputs of the stages: o from the state at the start of each chunk and V_new.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/stages/gates.h"

namespace deltarelay::cuda::sm90 {

// Tensor maps of boxes of 64 tokens and 64 numbers; of the states as in StatePassMaps.
struct OutputsMaps {
  CUtensorMap q, keys, aqk, v_new, states, o;  // q: q_from_start, or q. keys or aqk: one of them
};

struct OutputsArgs {
  Tables tables;
  StageGates gates;
  TensorView o;  // chunks that are not whole are stored without TMA
  int32_t heads_qk, heads_v;
  Strips strips;
  float scale;
  bool raw_q;      // q without gates (GDN)
  bool key_major;  // layout of the states
  bool has_aqk;    // else scores come from q, keys and gates (GDN)
  uint32_t ctas;
};

cudaError_t launch_outputs(const OutputsMaps& maps, const OutputsArgs& args, DType dtype, cudaStream_t stream);
cudaError_t load_outputs();

}  // namespace deltarelay::cuda::sm90
