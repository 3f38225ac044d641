// The state pass of the stages: what its kernels are told, and how they are launched.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/stages/gates.h"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90 {

// Tensor maps. Box: one half of a chunk's channels or values; of the states one half of the values and all keys.
struct StatePassMaps {
  CUtensorMap w, keys, u, v_new, states;  // keys: k_to_end, or k
};

// What a state pass and a summary know beyond a walk. The tensors of the stages are contiguous.
struct StatePassArgs {
  WalkArgs walk;  // o: v_new, or no data where it is not wanted
  StageGates gates;
  bool wants_states;
  bool key_major;     // layout of the states
  bool scales_v_new;  // keys are k: rows of V_new take the decay to the end of the chunk (GDN)
  float* summaries;   // [N, HV, DV + 128, 128]: summaries of whole sequences in place of slots; nullptr: slots
};

struct StatePassLaunch {
  DType dtype;
  bool scalar_gate;  // GDN
  Form form;         // pairs walk summaries too, single CTAs rows to emit only
  unsigned ctas;
};
cudaError_t launch_state_pass(const StatePassMaps& maps, const StatePassArgs& args, const StatePassLaunch& launch,
                              cudaStream_t stream);
cudaError_t load_state_pass();

}  // namespace deltarelay::cuda::sm90
