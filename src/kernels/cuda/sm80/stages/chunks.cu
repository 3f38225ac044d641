// Launches chunk-local and outputs. fp32 numbers, and keys of few channels (kPlainChannels), take three products.
#include "kernels/cuda/sm80/stages/launch.h"
#include "kernels/cuda/sm80/stages/load.cuh"
#include "kernels/cuda/sm80/stages/local.cuh"
#include "kernels/cuda/sm80/stages/outputs.cuh"

namespace deltarelay::cuda::sm80 {
namespace {

bool takes_one(StageNumbers numbers) { return numbers == StageNumbers::kBf16 || numbers == StageNumbers::kFp16; }

cudaError_t launch(void (*kernel)(ChunkArgs), size_t shared, const ChunkArgs& args, cudaStream_t stream) {
  const dim3 grid = ChunkGrid::of(args.chunks, static_cast<uint32_t>(args.heads_v));
  return launch_dependent(kernel, grid, kStageThreads, shared, stream, args);
}

}  // namespace

cudaError_t launch_local(const ChunkArgs& args, StageNumbers numbers, cudaStream_t stream) {
  return launch(takes_one(numbers) ? local_kernel<1> : local_kernel<3>, sizeof(LocalShared), args, stream);
}

cudaError_t launch_outputs(const ChunkArgs& args, StageNumbers numbers, cudaStream_t stream) {
  return launch(takes_one(numbers) ? outputs_kernel<1> : outputs_kernel<3>, sizeof(OutputsShared), args, stream);
}

cudaError_t load_local(StageNumbers numbers) {
  return load_resident(takes_one(numbers) ? local_kernel<1> : local_kernel<3>, sizeof(LocalShared));
}

cudaError_t load_outputs(StageNumbers numbers) {
  return load_resident(takes_one(numbers) ? outputs_kernel<1> : outputs_kernel<3>, sizeof(OutputsShared));
}

}  // namespace deltarelay::cuda::sm80
