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
  CUtensorMap q, k, v, o;
  CUtensorMap g;     // KDA as the others; GDN a map of numbers (make_number_map)
  CUtensorMap beta;  // GDN
  bool
      copies_gates;  // whether g and beta of GDN can be copied: log-decays and strengths in fp32 at multiples of 16 bytes
};

}  // namespace deltarelay::cuda::sm90
