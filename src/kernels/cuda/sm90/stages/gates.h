// The gates of a stage, as kernel parameters.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda::sm90 {

// Gates of a stage: sums of the log-decays inside a chunk, [T, HV, 128] (KDA) or [T, HV] (GDN), or, without sums, the
// gates themselves.
struct StageGates {
  const float* sums;
  float sums_scale;  // from sums, given or formed, to base 2
  int32_t heads;
  Activation activation;
};

}  // namespace deltarelay::cuda::sm90
