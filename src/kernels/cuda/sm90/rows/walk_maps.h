// Tensor maps of the kernels, five axes each: {64 channels, tokens, 2 halves, heads, sequences}.
#pragma once
#include <cuda.h>

namespace deltarelay::cuda::sm90 {

struct WalkMaps {
  CUtensorMap q, k;  // GDN only; box: one half of a chunk's channels, for `prepare` both
  CUtensorMap v, o;  // box: one half of a chunk's values
};

// Rows `first` to `first` + `count` - 1 of phase 1 are summaries whose heads are walked in order of what they keep over
// the 32 tokens from `token` on (fused/order.cuh). count 0: in the order of heads.
struct RowOrder {
  int first, count, token, sequence_at;
};

// How gates reach the fused walk of KDA.
enum class GateSource {
  kTiles,      // in bf16: tiles like those of q and k
  kHalfTiles,  // the same in fp16
  kWideTiles,  // in fp32: twice as many (kda/memory.cuh)
};
constexpr bool is_wide(GateSource source) { return source == GateSource::kWideTiles; }

// Maps of the fused walk. Box: one half of a chunk's channels; for v both halves if a CTA has both.
struct FusedMaps {
  CUtensorMap q, k, v, o;
  CUtensorMap g;     // KDA: as the others, fp32 in quarters; GDN: a map of single numbers (make_number_map)
  CUtensorMap beta;  // GDN
  // GDN: TMA can copy g and beta, since both are fp32 at multiples of 16 bytes, log-decays and plain strengths.
  bool copies_gates;
  RowOrder order;
};

}  // namespace deltarelay::cuda::sm90
