// Tensor maps of the kernels, five axes each: {64 channels, tokens, 2 halves, heads, sequences}.
#pragma once
#include <cuda.h>

namespace deltarelay::cuda::sm90 {

struct WalkMaps {
  CUtensorMap q, k;  // GDN only; box: one half of a chunk, for `prepare` both
  CUtensorMap v, o;  // box: one half of a chunk
};

// Of the fused walk; box: one half of a chunk each, of v both where a CTA has both.
struct FusedMaps {
  CUtensorMap q, k, g, v, o;
};

}  // namespace deltarelay::cuda::sm90
