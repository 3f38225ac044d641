// The chunk-local stage: scores, their inverse, w, u, k_to_end, q_from_start and sums of gates from tokens.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/stage_args.h"

namespace deltarelay::cuda::sm90 {

// Tensor maps of 64 tokens. What is neither read nor written has none.
struct LocalMaps {
  CUtensorMap q, k, v;             // boxes of both halves of a head or strip
  CUtensorMap aqk, inverse, w, u;  // boxes of 64 numbers; u: strips as heads. Whole chunks are stored by them
};

struct LocalArgs {
  ChunkArgs call;
  int32_t strips_a_head;
  int32_t group;  // value heads of a key head
  bool reads_q, reads_k, reads_v;
};

// Are scores formed here? They are what aqk, the inverse, w and u come from, unless the inverse is given.
DR_HD inline bool forms_scores(const Intermediates& stage) {
  return stage.wants(DR_AQK | DR_INVERSE) || (stage.wants(DR_W | DR_U) && !stage.gives(DR_INVERSE));
}

// Is all that is wanted made from the inverse, sums of gates, k and v (local_again.cuh)?
DR_HD inline bool makes_again(const Intermediates& stage) {
  return stage.gives(DR_INVERSE | DR_GATE_SUMS) && !stage.wants(DR_AQK | DR_INVERSE | DR_Q_FROM_START | DR_GATE_SUMS);
}

struct LocalLaunch {
  DType dtype;
  bool scalar_gate;
  uint32_t chunks;
};
constexpr uint32_t kMostRows = 65535;  // of a grid's second axis
cudaError_t launch_local(const LocalMaps& maps, const LocalArgs& args, const LocalLaunch& how, cudaStream_t stream);
cudaError_t load_local();

}  // namespace deltarelay::cuda::sm90
