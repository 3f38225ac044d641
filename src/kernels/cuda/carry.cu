// One step of a fold, for some value rows v of the transposed state:
//
//     S'[v][k] = B[v][k] + sum over c of S[v][c] Mt[c][k]           Mt: row c holds M e_c
//
// The chain over steps is serial, so what counts is the time of one. Rows of the state fold independently: a block, or a pair of
// blocks that share the channels c, owns some of them and all steps.
//
// Products are 3xTF32: x = high + low, both of 11 bits, x y ~ high high + low high + high low, exact to 2^-21 |x y|
// (docs/kernels/cuda-carry.md). Tensor cores truncate when they add; so only two products in a row are summed there,
// the rest by ordinary additions.
#include <cstdint>

#include "kernels/cuda/carry.cuh"
#include "kernels/cuda/carry_alone.cuh"
#include "kernels/cuda/carry_pair.cuh"

namespace deltarelay::cuda {
namespace {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;  // nor programmatic launches
#else
constexpr bool kHasClusters = true;
#endif

template <int kRows>
__global__ void __launch_bounds__(kAloneThreads, 1) carry_alone_kernel(const __grid_constant__ CarryArgs args) {
  if constexpr (kHasClusters) {
    allow_next_grid();
    wait_for_previous_grid();
  }
  constexpr uint32_t kSlices = kStateWidth / kRows;
  const uint32_t item = blockIdx.x / kSlices;
  const uint32_t index = item / static_cast<uint32_t>(args.heads_v);
  const Fold fold = args.tables.folds[index];  // in bounds, though perhaps not in use
  if (static_cast<int>(index) >= args.tables.counts[1]) return;
  run_alone_fold<kRows>(args, fold, static_cast<int>(item % static_cast<uint32_t>(args.heads_v)),
                        static_cast<int>(blockIdx.x % kSlices) * kRows);
}

template <int kRows, int kShare>
__global__ void __launch_bounds__(PairShape<kRows, kShare>::kThreads, 1)
    carry_pair_kernel(const __grid_constant__ CarryArgs args) {
  if constexpr (kHasClusters) run_pair<kRows, kShare>(args);
}

struct Kernel {
  void (*function)(CarryArgs);
  unsigned threads;
  size_t shared_bytes;
  unsigned blocks_per_item, cluster;
};

template <int kRows>
constexpr Kernel alone() {
  return {carry_alone_kernel<kRows>, kAloneThreads, sizeof(AloneMemory<kRows>), kStateWidth / kRows, 1};
}
template <int kRows, int kShare>
constexpr Kernel pairs() {
  using Of = PairShape<kRows, kShare>;
  return {carry_pair_kernel<kRows, kShare>, Of::kThreads, sizeof(PairMemory<kRows, kShare>), 2 * Of::kSlices,
          Of::kCluster};
}

struct Entry {
  CarryTiling tiling;
  Kernel kernel;
};
constexpr Entry kEntries[] = {
    {{8, 1, 1}, alone<8>()},      {{16, 1, 1}, alone<16>()},    {{32, 1, 1}, alone<32>()},
    {{8, 2, 1}, pairs<8, 1>()},   {{8, 2, 2}, pairs<8, 2>()},   {{8, 2, 4}, pairs<8, 4>()},
    {{16, 2, 1}, pairs<16, 1>()}, {{16, 2, 2}, pairs<16, 2>()}, {{16, 2, 4}, pairs<16, 4>()},
    {{32, 2, 1}, pairs<32, 1>()}, {{32, 2, 2}, pairs<32, 2>()}, {{32, 2, 4}, pairs<32, 4>()},
    {{64, 2, 1}, pairs<64, 1>()}, {{64, 2, 2}, pairs<64, 2>()},
};

const Kernel* find_kernel(const CarryTiling& tiling) {
  for (const Entry& entry : kEntries)
    if (entry.tiling == tiling) return &entry.kernel;
  return nullptr;
}

// What the loaded code can do here. The device is not asked: code may have been made for an older architecture.
struct Abilities {
  bool programmatic;  // it waits for the grid before it by itself
  bool pairs;
};
Abilities abilities() {
  constexpr Kernel kLargest = pairs<16, 2>();
  cudaFuncAttributes found;
  if (cudaFuncGetAttributes(&found, kLargest.function) != cudaSuccess) return {false, false};
  const bool claimed = found.maxDynamicSharedSizeBytes >= static_cast<int>(kLargest.shared_bytes);
  return {found.ptxVersion >= 90, found.ptxVersion >= 90 && claimed};
}

struct Launch {
  cudaLaunchAttribute list[2];
  cudaLaunchConfig_t config{};

  Launch(const Kernel& kernel, int64_t items, bool programmatic, cudaStream_t stream) {
    config.gridDim = dim3(static_cast<unsigned>(items * kernel.blocks_per_item));
    config.blockDim = dim3(kernel.threads);
    config.dynamicSmemBytes = kernel.shared_bytes;
    config.stream = stream;
    config.attrs = list;
    if (programmatic) {
      list[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      list[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (kernel.cluster > 1) {
      list[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      list[config.numAttrs++].val.clusterDim = {kernel.cluster, 1, 1};
    }
  }
  Launch(const Launch&) = delete;
};

cudaError_t launch(const CarryArgs& args, const CarryTiling& tiling, const Abilities& can, cudaStream_t stream) {
  if (args.fold_bound <= 0 || args.heads_v <= 0) return cudaSuccess;
  const Kernel* kernel = find_kernel(tiling);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  if (tiling.split == 2 && !can.pairs) return cudaErrorNotSupported;
  const Launch launch(*kernel, static_cast<int64_t>(args.fold_bound) * args.heads_v, can.programmatic, stream);
  return cudaLaunchKernelEx(&launch.config, kernel->function, args);
}

}  // namespace

// The smallest slices whose pairs run all at once; beyond that, blocks alone, which read the transitions least often. Measured on an H200
// (docs/kernels/cuda-carry.md): sharing reads over a cluster of pairs lost everywhere, since fewer such clusters fit.
CarryTiling carry_tiling(int64_t items, int32_t multiprocessors, bool pairs) {
  if (pairs) {
    for (const int32_t rows : {8, 16, 32}) {
      if (items * (kStateWidth / rows) * 2 <= multiprocessors) return {rows, 2, 1};
    }
    return {32, 1, 1};
  }
  int32_t rows = 8;
  while (rows < 32 && items * (kStateWidth / rows) > multiprocessors) rows *= 2;
  return {rows, 1, 1};
}

bool carry_pairs() { return abilities().pairs; }

int32_t carry_resident_blocks(const CarryTiling& tiling) {
  const Kernel* kernel = find_kernel(tiling);
  if (kernel == nullptr || (tiling.split == 2 && !carry_pairs())) return 0;
  int found = 0;
  cudaError_t error;
  if (kernel->cluster > 1) {
    const Launch launch(*kernel, 1, false, nullptr);
    error = cudaOccupancyMaxActiveClusters(&found, kernel->function, &launch.config);
    found *= static_cast<int>(kernel->cluster);
  } else {
    int device = 0, multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel->function, static_cast<int>(kernel->threads),
                                                          kernel->shared_bytes);
    found *= multiprocessors;
  }
  return error == cudaSuccess ? found : 0;
}

cudaError_t launch_carry(const CarryArgs& args, const CarryTiling& tiling, cudaStream_t stream) {
  return launch(args, tiling, abilities(), stream);
}

cudaError_t launch_carry(const CarryArgs& args, int32_t multiprocessors, cudaStream_t stream) {
  const Abilities can = abilities();
  const int64_t items = static_cast<int64_t>(args.fold_bound) * args.heads_v;
  return launch(args, carry_tiling(items, multiprocessors, can.pairs), can, stream);
}

cudaError_t load_carry() {
  for (const Entry& entry : kEntries) {
    const cudaError_t error = cudaFuncSetAttribute(entry.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(entry.kernel.shared_bytes));
    if (error == cudaSuccess) continue;
    if (entry.tiling.split == 1) return error;
    cudaGetLastError();  // too much shared memory for this device: it does without pairs, and no error is left behind
  }
  return cudaSuccess;
}

}  // namespace deltarelay::cuda
