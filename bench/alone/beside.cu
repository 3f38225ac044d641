// How much a product and instructions of other warps slow each other down on one multiprocessor. Two warpgroups
// multiply without a pause, as the state groups of a fused walk would, while one or two warps per scheduler repeat an
// instruction. This shows what a kernel can hide and what adds up (docs/kernels/sm90-fused.md, "One port").
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "device.cuh"
#include "instruction.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::alone {
namespace {

constexpr int kGroups = 4;  // two that multiply, two that repeat the instruction
constexpr int kGroupThreads = 128;
constexpr int kColumns = 64;
constexpr int kProducts = 8;  // per loop

struct Args {
  int product_loops, instruction_loops;
  int instruction_groups;  // warps per scheduler that repeat the instruction
  long long* cycles;       // per group
  float* sink;
};

template <Instruction kWhat>
__global__ void __launch_bounds__(kGroups* kGroupThreads, 1) beside_kernel(Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  fill_shared(memory, 1.0f);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  float result = 0.0f;
  long long begin = 0;
  if (group < 2) {
    float sums[kColumns / 2] = {};
    cuda::Fragment rows[kProducts];
    for (int k = 0; k < kProducts; ++k) {
      for (int i = 0; i < 4; ++i) rows[k].reg[i] = random_pair(32 * threadIdx.x + 4 * k + i, 1.0f);
    }
    const uint64_t columns = cuda::swizzled_operand(cuda::shared_address(memory));
    __syncthreads();
    begin = clock64();
#pragma unroll 1
    for (int loop = 0; loop < args.product_loops; ++loop) {
      cuda::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kProducts; ++k)
        cuda::Wgmma<__nv_bfloat16>::times(sums, rows[k], columns + cuda::channel_step(k, kColumns * 128), true);
      cuda::wgmma_commit();
      cuda::wgmma_wait<0>();
      cuda::pin(sums);
    }
    for (const float number : sums) result += number;
  } else {
    InstructionOperands operands(memory);
    __syncthreads();
    begin = clock64();
    const int loops = group - 2 < args.instruction_groups ? args.instruction_loops : 0;
#pragma unroll 1
    for (int loop = 0; loop < loops; ++loop) issue<kWhat>(operands);
    result = operands.sum();
  }
  const long long end = clock64();
  if (threadIdx.x % kGroupThreads == 0) args.cycles[group] = end - begin;
  if (result == 12345.0f) *args.sink = result;  // so that the compiler keeps the result
}

// Cycles of all work of one kind of group, and of one unit: a product of one group, an instruction on one scheduler.
struct Cycles {
  long long all = 0;
  double each = 0.0;
};
struct Times {
  Cycles product, instruction;
};

template <Instruction kWhat>
Times run(const Args& args) {
  require(cudaFuncSetAttribute(beside_kernel<kWhat>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
          "cudaFuncSetAttribute");
  for (int i = 0; i < 2; ++i) beside_kernel<kWhat><<<1, kGroups * kGroupThreads, kSharedBytes>>>(args);
  require(cudaGetLastError(), "launch");
  std::array<long long, kGroups> cycles{};
  require(cudaMemcpy(cycles.data(), args.cycles, sizeof(cycles), cudaMemcpyDeviceToHost), "the kernel");
  auto of = [](long long all, int count) { return Cycles{all, static_cast<double>(all) / std::max(count, 1)}; };
  return {of(std::max(cycles[0], cycles[1]), 2 * kProducts * args.product_loops),
          of(std::max(cycles[2], cycles[3]), args.instruction_groups * count_of(kWhat) * args.instruction_loops)};
}

// Measures each alone, then each beside enough of the other to last longer. If one still lasts longer, it waited for
// the other.
template <Instruction kWhat>
void measure(const char* name, Args args) {
  constexpr int kLoops = 1000, kProductLoops = 200, kMany = 20000;
  for (int groups = 1; groups <= 2; ++groups) {
    args.instruction_groups = groups;
    auto timed = [&](int product_loops, int instruction_loops) {
      args.product_loops = product_loops, args.instruction_loops = instruction_loops;
      return run<kWhat>(args);
    };
    const Times product = timed(kProductLoops, kMany), instruction = timed(kMany, kLoops);
    std::printf("%-20s %d %12.2f ", name, groups, timed(kLoops, 0).product.each);
    if (product.product.all < product.instruction.all)
      std::printf("%12.2f", product.product.each);
    else
      std::printf("%12s", "waits");
    std::printf(" %12.2f %12.2f\n", timed(0, kLoops).instruction.each, instruction.instruction.each);
  }
}

}  // namespace
}  // namespace deltarelay::alone

int main() {
  using namespace deltarelay::alone;
  std::setbuf(stdout, nullptr);
  Args args{};
  require(cudaMalloc(&args.cycles, kGroups * sizeof(*args.cycles)), "cudaMalloc");
  require(cudaMalloc(&args.sink, sizeof(float)), "cudaMalloc");
  std::printf("cycles of a product of 64 x %d x 16, two groups in turns, and of an instruction on a scheduler\n",
              kColumns);
  std::printf("%-20s %s %11s %12s %12s %12s\n", "instruction", "warps", "product", "beside", "instruction", "beside");
  measure<Instruction::kFfma>("FFMA", args);
  measure<Instruction::kFmul>("FMUL", args);
  measure<Instruction::kFadd>("FADD", args);
  measure<Instruction::kPack>("two to bf16", args);
  measure<Instruction::kHfma2>("HFMA2 of bf16", args);
  measure<Instruction::kImad>("IMAD", args);
  measure<Instruction::kLop>("LOP3", args);
  measure<Instruction::kPermute>("PRMT", args);
  measure<Instruction::kExp>("exp2", args);
  measure<Instruction::kShuffle>("shuffle", args);
  measure<Instruction::kLoad128>("LDS.128 and 4 LOP3", args);
  measure<Instruction::kStore32>("STS.32", args);
  measure<Instruction::kStore128>("STS.128", args);
  measure<Instruction::kMma>("mma.sync m16n8k16", args);
}
