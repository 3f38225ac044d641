// Host side of the Hopper kernels: one function to launch each, one to load it ahead of the first launch.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90 {

// How `prepare` of KDA forms its scores (prepare_kda.cuh). The problem alone says which.
enum class KdaScores {
  kLevels,      // any gates
  kMidFrame,    // gates are bounded so that the frame of the chunk's middle holds them
  kRawBounded,  // the same for raw bounded bf16 gates in pieces of 8 bytes
};
// `chunks`: of a CTA.
cudaError_t launch_prepare_kda(const PrepareArgs& args, DType dtype, KdaScores scores, int32_t chunks,
                               cudaStream_t stream);
cudaError_t load_prepare_kda(DType dtype);

// Tokens of a sequence from which single CTAs of KDA keep sums of gates without a bound (fused/kda/memory.cuh). H200,
// kernel alone, 64 heads, gates of N(0,1) and N(0,2): with sequences of 64 tokens that would take 15 and 2 % longer, of
// 256 tokens 1 % longer and 7 % less, of 1,024 tokens as long and 9 % less.
constexpr int32_t kLongRow = 256;

// What the plan's step says of a walk.
struct WalkShape {
  DType dtype;
  Form form;        // pairs walk summaries too, the others rows to emit only
  bool summarizes;  // pairs: some rows are summarized
  bool suffix;      // these walk their suffix first
  unsigned ctas;    // the grid
  bool long_rows;   // sequences have kLongRow tokens or more, on average
};
cudaError_t launch_walk_kda(const WalkMaps& maps, const WalkArgs& args, const WalkShape& shape, cudaStream_t stream);
cudaError_t launch_walk_gdn(const WalkMaps& maps, const WalkArgs& args, const WalkShape& shape, cudaStream_t stream);
cudaError_t load_walk_kda(DType dtype);
cudaError_t load_walk_gdn(DType dtype);

// Emits and summarizes the rows of args.phase from the inputs as they come. args.prepared is not used. kMidFrame: the
// frame of a chunk's middle holds all gates (in_mid_frame); otherwise each channel has a frame (fused/kda/frames.cuh).
// kCheckpoints: states inside rows are stored. Gates in fp16 come with data in fp16 (element_of).
template <bool kMidFrame, GateSource kSource, bool kCheckpoints>
cudaError_t launch_fused_kda(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream);
template <bool kMidFrame, GateSource kSource, bool kCheckpoints>
cudaError_t load_fused_kda();
template <bool kCheckpoints>
cudaError_t launch_fused_gdn(const FusedMaps& maps, const WalkArgs& args, const Activation& activation,
                             const WalkShape& shape, cudaStream_t stream);
template <bool kCheckpoints>
cudaError_t load_fused_gdn(DType dtype);

}  // namespace deltarelay::cuda::sm90
