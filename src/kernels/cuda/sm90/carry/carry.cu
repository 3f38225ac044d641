// One step of a fold, for some value rows v of the transposed state:
//
//     S_next^T[v][k] = B^T[v][k] + sum over c of S^T[v][c] M^T[c][k]           row c of M^T is M e_c
//
// Steps depend on each other, so the latency of one step counts. Value rows fold independently: a CTA, or a pair of
// CTAs that share the channels c, owns some rows and walks all steps.
//
// Products are 3xTF32: x = high + low, both of 11 bits, x y ~ high high + low high + high low, exact to 2^-21 |x y|
// (docs/kernels/cuda-carry.md).
#include <cstdint>

#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/sm90/carry/alone.cuh"
#include "kernels/cuda/sm90/carry/carry.cuh"
#include "kernels/cuda/sm90/carry/pair.cuh"

namespace deltarelay::cuda {
namespace {

__global__ void __launch_bounds__(kAloneThreads, 1) carry_alone_kernel(const __grid_constant__ CarryArgs args) {
  allow_next_grid();
  wait_for_previous_grid();
  constexpr uint32_t kSlices = kStateWidth / kAloneRows;
  const uint32_t item = blockIdx.x / kSlices;
  const uint32_t index = item / static_cast<uint32_t>(args.strips.all);
  const int strip = static_cast<int>(item % static_cast<uint32_t>(args.strips.all));
  Fold fold = args.tables.folds()[index];  // in bounds, but maybe unused
  if (static_cast<int>(index) >= args.tables.counts()[1]) return;
  fold.count = live_steps(args, fold, strip);
  if (fold.count == 0 && !fold.from_initial) return;
  run_alone_fold(args, fold, strip, static_cast<int>(blockIdx.x % kSlices) * kAloneRows);
}

template <int kRows>
__global__ void __launch_bounds__(kPairThreads, 1) carry_pair_kernel(const __grid_constant__ CarryArgs args) {
  run_pair<kRows>(args);
}

struct Kernel {
  void (*function)(CarryArgs);
  unsigned threads;
  size_t shared_bytes;
  unsigned cluster;
  int32_t rows;  // value rows of a cluster
};

template <int kRows>
constexpr Kernel pairs() {
  return {carry_pair_kernel<kRows>, kPairThreads, sizeof(PairMemory<kRows>), 2, kRows};
}
constexpr Kernel kPairs[] = {pairs<kPairRows[0]>(), pairs<kPairRows[1]>(), pairs<kPairRows[2]>()};
constexpr Kernel kAlone = {carry_alone_kernel, kAloneThreads, sizeof(AloneMemory), 1, kAloneRows};
static_assert(kCarryWidth == kStateWidth && kSingleRows == kAloneRows);

const Kernel& kernel_for(const CarrySpread& spread) {
  for (const Kernel& kernel : kPairs)
    if (spread.form == Form::kPair && kernel.rows == spread.rows) return kernel;
  return kAlone;
}

}  // namespace

cudaError_t launch_carry(const CarryArgs& args, const CarrySpread& spread, cudaStream_t stream) {
  const Kernel& kernel = kernel_for(spread);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(spread.ctas)),
                          .block = kernel.threads,
                          .shared_bytes = kernel.shared_bytes,
                          .cluster = kernel.cluster};
  return launch_dependent(kernel.function, shape, stream, args);
}

cudaError_t load_carry() {
  for (const Kernel& kernel : kPairs) {
    const cudaError_t status = load_kernel(kernel.function, kernel.shared_bytes);
    if (status != cudaSuccess) return status;
  }
  return load_kernel(kAlone.function, kAlone.shared_bytes);
}

}  // namespace deltarelay::cuda
