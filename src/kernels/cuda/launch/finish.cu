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

// Stores 16-byte pieces if every row begins and ends at a multiple of 16 bytes, else single elements.
template <class Piece>
__device__ void zero_rows(const FinishArgs& args, int64_t first, int row_pieces, int element_bytes) {
  const int group = static_cast<int>(threadIdx.x) / kLanesPerRow;
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
  auto* const data = static_cast<uint8_t*>(args.o.data);
  for (int64_t row = first + blockIdx.x; row < args.num_tokens; row += gridDim.x) {
    for (int head = group; head < args.heads_v; head += kThreads / kLanesPerRow) {
      auto* const pieces = reinterpret_cast<Piece*>(data + (row * args.o.token + head * args.o.head) * element_bytes);
      for (int i = lane; i < row_pieces; i += kLanesPerRow) pieces[i] = Piece{};
    }
  }
}

__device__ void zero_tail(const FinishArgs& args, int64_t first) {
  const int element_bytes = float_bytes(args.o.dtype);
  const int row_bytes = args.dv * element_bytes;
  const bool whole_pieces =
      ((reinterpret_cast<uintptr_t>(args.o.data) | static_cast<uint64_t>(args.o.token * element_bytes) |
        static_cast<uint64_t>(args.o.head * element_bytes) | static_cast<uint64_t>(row_bytes)) &
       15) == 0;
  if (whole_pieces) {
    zero_rows<uint4>(args, first, row_bytes / 16, element_bytes);
  } else if (element_bytes == 4) {
    zero_rows<uint32_t>(args, first, args.dv, element_bytes);
  } else {
    zero_rows<uint16_t>(args, first, args.dv, element_bytes);
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

__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ FinishArgs args) {
  allow_next_grid();
  wait_for_previous_grid();
  const Tables& tables = args.tables;
  if (!tables.batched) {
    const int64_t first = tables.token_begin()[tables.num_seqs];
    if (first < args.num_tokens) zero_tail(args, first);
  }
  if (args.final.data == nullptr) return;

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
          for (int64_t head = ahead; head < heads; head += blocks) copy_state(args, sequence, static_cast<int>(head));
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
