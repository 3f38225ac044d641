#include "kernels/cuda/launch/aliases.cuh"
#include "kernels/cuda/launch/checkpoint.cuh"
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/ptx/grid.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda {
namespace {

constexpr int kThreads = 128;

// Does writing slot `a` of one pool touch slot `b` of the other? `may_be_one`: both may name the same matrices.
__device__ __forceinline__ bool touch(const SlotShifts& shifts, int64_t a, int64_t b, bool may_be_one) {
  if (a < 0 || b < 0) return false;
  for (int i = 0; i < shifts.count; ++i)
    if (b - a == shifts.shift[i] && !(may_be_one && i == shifts.in_place)) return true;
  return false;
}

// A CTA takes the slots that one sequence writes. Its threads compare them with all other slots. Every pair of rows is
// compared: 1,000 sequences are a million pairs, which take about a microsecond.
__global__ void __launch_bounds__(kThreads) aliases_kernel(const __grid_constant__ AliasArgs args) {
  __shared__ unsigned long long sum;
  wait_for_previous_grid();
  allow_next_grid();
  const auto num_seqs = static_cast<int>(args.tables.num_seqs);
  const bool listed = args.checkpoints.pool.index != nullptr;
  bool found = false;
  for (int n = static_cast<int>(blockIdx.x); n < num_seqs; n += static_cast<int>(gridDim.x)) {
    const int64_t final = slot_of(args.final, n);
    SequenceCheckpoints own{};
    if (args.checkpoints.pool.data != nullptr) {
      __syncthreads();  // `sum` of the previous sequence has been read
      own = find_checkpoints<kThreads>(args.tables, args.checkpoints, n, sum);
    }
    for (int m = static_cast<int>(threadIdx.x); m < num_seqs; m += kThreads) {
      const int64_t other_initial = initial_slot(args.initial, args.has_initial, m);
      const int64_t other_final = slot_of(args.final, m);
      found = found || (m != n && final >= 0 && final == other_final);
      found = found || touch(args.final_initial, final, other_initial, m == n);
      for (int64_t row = own.first; row < own.end; ++row) {
        const int64_t slot = slot_of(args.checkpoints.pool, row);
        found = found || touch(args.final_checkpoint, other_final, slot, false);
        found = found || touch(args.checkpoint_initial, slot, other_initial, m == n);
      }
    }
    // Compares each row of this sequence with all earlier rows, of all sequences.
    for (int64_t row = own.first; listed && row < own.end; ++row) {
      const int64_t slot = slot_of(args.checkpoints.pool, row);
      for (int64_t before = threadIdx.x; before < row; before += kThreads)
        found = found || (slot >= 0 && slot == slot_of(args.checkpoints.pool, before));
    }
  }
  if (found) atomicOr(args.report, static_cast<uint32_t>(DR_REPORT_ALIASES));
}

}  // namespace

cudaError_t launch_aliases(const AliasArgs& args, int64_t ctas, cudaStream_t stream) {
  return launch_dependent(aliases_kernel, dim3(static_cast<unsigned>(ctas)), kThreads, 0, stream, args);
}

cudaError_t load_aliases() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, aliases_kernel);
}

}  // namespace deltarelay::cuda
