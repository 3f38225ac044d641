#include <cstdint>

#include "kernels/cuda/launch/finish.cuh"
#include "kernels/cuda/launch/launch.h"
#include "kernels/cuda/ptx/grid.cuh"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/cuda/tile/state_io.cuh"

namespace deltarelay::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kAtOnce = 8;        // numbers of a state that a thread has in flight
constexpr int kLanesPerRow = 16;  // a 16-bit output row of one head is 16 pieces of 16 bytes

template <class Piece>
__device__ void zero_pieces(const FinishArgs& args, const WrittenRows& rows, int64_t first) {
  const int group = static_cast<int>(threadIdx.x) / kLanesPerRow;
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const int row_pieces = rows.width_bytes / static_cast<int>(sizeof(Piece));
  for (int64_t row = first + blockIdx.x; row < args.num_tokens; row += gridDim.x) {
    for (int head = group; head < args.heads_v; head += kThreads / kLanesPerRow) {
      auto* const pieces =
          reinterpret_cast<Piece*>(static_cast<uint8_t*>(rows.data) + row * rows.token_bytes + head * rows.head_bytes);
      for (int i = lane; i < row_pieces; i += kLanesPerRow) pieces[i] = Piece{};
    }
  }
}

// Stores 16-byte pieces if every row begins and ends at a multiple of 16 bytes, else as much as divides them.
__device__ void zero_tail(const FinishArgs& args, const WrittenRows& rows, int64_t first) {
  const uint64_t places = reinterpret_cast<uintptr_t>(rows.data) | static_cast<uint64_t>(rows.token_bytes) |
                          static_cast<uint64_t>(rows.head_bytes) | static_cast<uint64_t>(rows.width_bytes);
  if (places % 16 == 0) {
    zero_pieces<uint4>(args, rows, first);
  } else if (places % 4 == 0) {
    zero_pieces<uint32_t>(args, rows, first);
  } else {
    zero_pieces<uint16_t>(args, rows, first);
  }
}

// Copies one state by the whole CTA, in the order of the written matrix. If both pools are the same memory, they have
// one layout and type (the contract), and the thread that reads a number also writes it.
__device__ void copy_state(const FinishArgs& args, int64_t sequence, int head) {
  const bool first_thread = threadIdx.x == 0;
  uint32_t* const report = first_thread && head == 0 ? args.report : nullptr;
  const int64_t to = slot_of(args.final, sequence, report);
  const int64_t from = initial_slot(args.initial, args.has_initial, sequence, report);
  if (to < 0) return;
  const int dk = args.dk, dv = args.dv, numbers = dk * dv;
  uint8_t* const written = state_data(args.final, to, head);
  if (from < 0) {
    for (int i = static_cast<int>(threadIdx.x); i < numbers; i += kThreads)
      store_number(written, args.final.dtype, i, 0.0f);
    return;
  }
  const uint8_t* const read = state_data(args.initial, from, head);
  const bool turned = args.initial.layout != args.final.layout;
  const int row = args.final.layout == StateLayout::kValueMajor ? dk : dv;  // numbers in a row of the written matrix
  const int column = numbers / row;
  for (int i0 = static_cast<int>(threadIdx.x); i0 < numbers; i0 += kAtOnce * kThreads) {
    float value[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = i0 + j * kThreads;
      if (i < numbers) value[j] = load_number(read, args.initial.dtype, turned ? i % row * column + i / row : i);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = i0 + j * kThreads;
      if (i < numbers) store_number(written, args.final.dtype, i, value[j]);
    }
  }
}

// The summary of a sequence without tokens: B = 0, then M = I.
__device__ void leave_unit(const FinishArgs& args, int64_t sequence, int head) {
  const int dk = args.dk, numbers = (args.dv + dk) * dk, of_m = args.dv * dk;
  float* const summary = args.summaries + (sequence * args.heads_v + head) * numbers;
  for (int i = static_cast<int>(threadIdx.x); i < numbers; i += kThreads)
    summary[i] = i >= of_m && (i - of_m) / dk == (i - of_m) % dk ? 1.0f : 0.0f;
}

__device__ void finish_empty(const FinishArgs& args, int64_t sequence, int head) {
  if (args.final.data != nullptr) copy_state(args, sequence, head);
  if (args.summaries != nullptr) leave_unit(args, sequence, head);
}

__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ FinishArgs args) {
  allow_next_grid();
  wait_for_previous_grid();
  const Tables& tables = args.tables;
  if (!tables.batched) {
    const int64_t first = tables.token_begin()[tables.num_seqs];
    for (int32_t i = 0; i < args.num_rows && first < args.num_tokens; ++i) zero_tail(args, args.rows[i], first);
  }
  if (args.final.data == nullptr && args.summaries == nullptr) return;

  // Every CTA reads all lengths, 256 at a time. It takes its share of the (empty sequence, head) pairs, in order.
  __shared__ uint32_t empty[kWarps];
  const int heads = args.heads_v;
  const int blocks = static_cast<int>(gridDim.x);
  int64_t pairs = 0;  // before this one, modulo the number of CTAs
  for (int64_t base = 0; base < tables.num_seqs; base += kThreads) {
    const int64_t n = base + threadIdx.x;
    const bool is_empty = n < tables.num_seqs && tables.token_begin()[n] == tables.token_begin()[n + 1];
    const uint32_t mask = __ballot_sync(0xffffffffu, is_empty);
    if (threadIdx.x % 32 == 0) empty[threadIdx.x / 32] = mask;
    if (__syncthreads_or(is_empty) != 0) {
      for (int w = 0; w < kWarps; ++w) {
        for (uint32_t left = empty[w]; left != 0; left &= left - 1) {
          const int64_t sequence = base + 32 * w + __ffs(static_cast<int>(left)) - 1;
          const int64_t ahead = (blockIdx.x + blocks - pairs) % blocks;
          for (int64_t head = ahead; head < heads; head += blocks) finish_empty(args, sequence, static_cast<int>(head));
          pairs = (pairs + heads) % blocks;
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_finish(const FinishArgs& args, int64_t ctas, cudaStream_t stream) {
  return launch_dependent(finish_kernel, dim3(static_cast<unsigned>(ctas)), kThreads, 0, stream, args);
}

cudaError_t load_finish() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, finish_kernel);
}

}  // namespace deltarelay::cuda
