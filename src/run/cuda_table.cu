#include <algorithm>
#include <cstring>

#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/ptx/grid.cuh"
#include "problem/number.h"
#include "run/block_team.cuh"
#include "run/cuda_table.h"

namespace deltarelay::cuda {
namespace {

// ---- lengths that the plan knows

// What one launch carries. All parameters of a kernel may have 32,764 bytes (CUDA 12.1, compute capability 7.0); most
// tables are small, and small parameters are cheaper to launch with.
constexpr int32_t kSmallPieces = 248;
constexpr int32_t kLargePieces = 2040;
template <int32_t kPieces>
struct Parcel {
  uint4 piece[kPieces];
};
constexpr int32_t kUnpackThreads =
    64;  // parameters are read word by word from a constant bank: many small blocks share that

template <int32_t kPieces>
__global__ void __launch_bounds__(kUnpackThreads)
    unpack(const __grid_constant__ Parcel<kPieces> parcel, int32_t pieces, uint4* to, uint32_t* report) {
  allow_next_grid();  // a dependent kernel waits for the whole grid before it reads the table
  const int32_t i = static_cast<int32_t>(blockIdx.x * kUnpackThreads + threadIdx.x);
  if (i < pieces) to[i] = parcel.piece[i];
  if (i == 0 && report != nullptr) *report = 0;
}

template <int32_t kPieces>
void send(const std::byte* from, int32_t pieces, uint4* to, uint32_t* report, cudaStream_t stream) {
  Parcel<kPieces> parcel;
  std::memcpy(parcel.piece, from, static_cast<size_t>(pieces) * sizeof(uint4));
  void* arguments[] = {&parcel, &pieces, &to, &report};
  const unsigned blocks = static_cast<unsigned>((pieces + kUnpackThreads - 1) / kUnpackThreads);
  check(cudaLaunchKernel(reinterpret_cast<const void*>(unpack<kPieces>), dim3(blocks), dim3(kUnpackThreads), arguments,
                         0, stream),
        "cudaLaunchKernel of the segment table");
}

// ---- lengths on the device

constexpr int32_t kFastSeqs = 128;  // sequences whose scratch fits shared memory: 24 KB
constexpr int64_t kFastBytes = plan::kTeamSpaceAlone + kFastSeqs * plan::kTeamSpacePerSequence;

struct OffsetOf {
  const void* offsets;
  DType dtype;
  __device__ int64_t operator()(int32_t n) const { return load_index(offsets, dtype, n); }
};

__global__ void __launch_bounds__(kTeamThreads) plan_kernel(const __grid_constant__ PlanTableArgs args) {
  allow_next_grid();  // as above
  __shared__ BlockTeam::Memory memory;
  __shared__ alignas(16) unsigned char fast[kFastBytes];
  // Blocks of carry read a fold together with the number of those in use: the others are 0, not what lay there.
  // Barriers follow before any is written.
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.fold_bound; i += kTeamThreads)
    args.table.rows.folds[i] = {};
  const int32_t num_seqs = args.request.num_seqs;
  const plan::TeamSpace space = plan::team_space(num_seqs <= kFastSeqs ? fast : args.scratch, num_seqs);
  BlockTeam team(memory);
  const bool moved = plan::fill_by(team, args.request, OffsetOf{args.offsets, args.offsets_dtype}, space, args.table);
  if (threadIdx.x == 0 && args.report != nullptr) *args.report = moved ? DR_REPORT_OFFSETS : 0;
}

void load(const void* kernel) {
  cudaFuncAttributes attributes{};  // asking for them loads the kernel
  check(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes of the segment table");
}

}  // namespace

void send_table(const std::vector<std::byte>& image, std::byte* to, uint32_t* report, cudaStream_t stream) {
  const int64_t pieces = static_cast<int64_t>(image.size() / sizeof(uint4));
  for (int64_t sent = 0; sent < pieces;) {
    const std::byte* from = image.data() + static_cast<size_t>(sent) * sizeof(uint4);
    const int32_t now = static_cast<int32_t>(std::min<int64_t>(pieces - sent, kLargePieces));
    uint4* at = reinterpret_cast<uint4*>(to) + sent;
    if (now <= kSmallPieces) {
      send<kSmallPieces>(from, now, at, report, stream);
    } else {
      send<kLargePieces>(from, now, at, report, stream);
    }
    sent += now;
    report = nullptr;
  }
}

void plan_table(const PlanTableArgs& args, cudaStream_t stream) {
  PlanTableArgs copy = args;
  void* arguments[] = {&copy};
  check(cudaLaunchKernel(reinterpret_cast<const void*>(plan_kernel), dim3(1), dim3(kTeamThreads), arguments, 0, stream),
        "cudaLaunchKernel of the planner");
}

void load_table_kernels() {
  load(reinterpret_cast<const void*>(unpack<kSmallPieces>));
  load(reinterpret_cast<const void*>(unpack<kLargePieces>));
  load(reinterpret_cast<const void*>(plan_kernel));
}

}  // namespace deltarelay::cuda
