// Energy of instructions, products and copies, for power-bound kernels (docs/kernels/sm90-fused.md). Each is repeated
// on half of the multiprocessors, so that the clock stays constant, while the driver's energy counter is read. The
// power of the same CTAs waiting is subtracted. Loads the driver's management library at run time; without an energy
// counter the program ends.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "device.cuh"
#include "instruction.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::alone {
namespace {

using cuda::Fragment;
using Element = __nv_bfloat16;
using Product = cuda::Wgmma<Element>;
namespace ptx = cuda::ptx;

constexpr uint32_t kCopyBytes = 16384;
constexpr int kRing = 8, kInFlight = 4;  // copies

struct Args {
  int loops;
  float scale;  // of operands; 0 multiplies zeros
  const uint8_t* from;
  uint8_t* to;
  size_t region;  // bytes that copies read
  float* sink;
};

// Keeps the compiler from removing the result.
__device__ void use(const Args& args, float result) {
  if (result == 12345.0f) *args.sink = result;
}

__global__ void __launch_bounds__(512, 1) wait_kernel(Args args) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.loops; ++i) __nanosleep(1000);
  }
  __syncthreads();
}

// All warps repeat the same instruction (instruction.cuh).
template <Instruction kWhat>
__global__ void __launch_bounds__(512, 1) instruction_kernel(Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  fill_shared(memory, 1.0f);
  InstructionOperands operands(memory);
#pragma unroll 1
  for (int loop = 0; loop < args.loops; ++loop) issue<kWhat>(operands);
  use(args, operands.sum());
}

// Per loop and group, eight products of 64 rows, `kColumns` columns and 16 channels; two groups; A in registers or in
// shared memory.
template <int kColumns, bool kRegisters>
__global__ void __launch_bounds__(256, 1) product_kernel(Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  fill_shared(memory, args.scale);
  float sums[kColumns / 2] = {};
  Fragment rows[8];
  for (int k = 0; k < 8; ++k) {
    for (int i = 0; i < 4; ++i) rows[k].reg[i] = random_pair(32 * threadIdx.x + 4 * k + i, args.scale);
  }
  const uint32_t base = cuda::shared_address(memory);
#pragma unroll 1
  for (int loop = 0; loop < args.loops; ++loop) {
#pragma unroll
    for (Fragment& block : rows) {
      for (uint32_t& pair : block.reg) asm volatile("" : "+r"(pair));
    }
    cuda::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint32_t step = k % 4 * 32, tile = base + loop % 2 * 65536 + k / 4 * kColumns * 128 + step;
      const uint64_t columns = cuda::swizzled_operand(tile);
      if constexpr (kColumns == 128)
        Product::add_transposed(sums, rows[k], columns);
      else if constexpr (kRegisters)
        Product::times(sums, rows[k], columns, true);
      else
        Product::times(sums, cuda::swizzled_operand(base + 131072 + k / 4 * 8192 + step), columns, true);
    }
    cuda::wgmma_commit();
    cuda::wgmma_wait<0>();
    cuda::pin(sums);
  }
  float sum = 0.0f;
  for (const float number : sums) sum += number;
  use(args, sum);
}

// Copies 16 KB per loop to shared memory; with `kCast` each CTA of a pair copies half of them for both.
template <bool kCast>
__global__ void __launch_bounds__(128, 1) load_kernel(Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ uint64_t came[kRing];
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : came) ptx::mbarrier_init(&barrier, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  if constexpr (kCast) asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
  if (threadIdx.x == 0) {
    constexpr uint32_t kOwn = kCast ? kCopyBytes / 2 : kCopyBytes;
    const size_t rank = kCast ? blockIdx.x % 2 : 0, first = kCast ? blockIdx.x / 2 : blockIdx.x;
    for (int i = 0; i < args.loops + kInFlight; ++i) {
      if (i >= kInFlight) cuda::wait_parity(&came[(i - kInFlight) % kRing], (i - kInFlight) / kRing % 2);
      if (i >= args.loops) continue;
      const size_t place = (first * 104729 + size_t{static_cast<unsigned>(i)} * gridDim.x + first) * kCopyBytes;
      const uint8_t* from = args.from + place % args.region + rank * kOwn;
      uint8_t* to = memory + i % kRing * kCopyBytes + rank * kOwn;
      uint64_t* barrier = &came[i % kRing];
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier,
                                     uint32_t{kCopyBytes});
      if constexpr (kCast)
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, kOwn, barrier, uint16_t{3});
      else
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, to, from, kOwn, barrier);
    }
  }
  __syncthreads();
  if constexpr (kCast) asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

__global__ void __launch_bounds__(128, 1) store_kernel(Args args) {
  extern __shared__ __align__(1024) uint8_t memory[];
  fill_shared(memory, 1.0f);
  if (threadIdx.x != 0) return;
  for (int i = 0; i < args.loops; ++i) {
    const size_t place = (size_t{static_cast<unsigned>(i)} * gridDim.x + blockIdx.x) * kCopyBytes;
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, args.to + place % args.region,
                       memory + i % kRing * kCopyBytes, uint32_t{kCopyBytes});
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<kInFlight>{});
  }
  ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
}

__global__ void fill_memory_kernel(uint32_t* data, size_t count) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < count; i += gridDim.x * size_t{256})
    data[i] = random_pair(i, 1.0f);
}

// The energy counter of device 0.
class Meter {
 public:
  Meter() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    const auto find = [&](const char* name) { return library == nullptr ? nullptr : dlsym(library, name); };
    const auto init = reinterpret_cast<int (*)()>(find("nvmlInit_v2"));
    const auto device = reinterpret_cast<int (*)(unsigned, void**)>(find("nvmlDeviceGetHandleByIndex_v2"));
    energy_ = reinterpret_cast<int (*)(void*, unsigned long long*)>(find("nvmlDeviceGetTotalEnergyConsumption"));
    unsigned long long now = 0;
    if (init == nullptr || device == nullptr || energy_ == nullptr || init() != 0 || device(0, &device_) != 0 ||
        energy_(device_, &now) != 0) {
      std::fprintf(stderr, "energy: the driver's management library has no energy counter for this device\n");
      std::exit(1);
    }
  }
  // Waits until the counter changes, which it does tens of times per second, and returns seconds and joules.
  std::pair<double, double> tick() const {
    const unsigned long long before = read();
    unsigned long long now = before;
    while (now == before) now = read();
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return {std::chrono::duration<double>(time).count(), 1e-3 * static_cast<double>(now)};
  }

 private:
  unsigned long long read() const {
    unsigned long long millijoules = 0;
    energy_(device_, &millijoules);
    return millijoules;
  }
  void* device_ = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
};

class Table {
 public:
  explicit Table(int ctas) : ctas_(ctas) {}

  // `each`: number of `unit` that a CTA does in one loop.
  template <class Kernel>
  void measure(const char* name, Kernel* kernel, int threads, Args args, double each, const char* unit,
               unsigned cluster = 1) {
    require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), name);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ctas_));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = kSharedBytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    constexpr double kLaunch = 0.01;  // seconds
    const auto run = [&](int launches) {
      cudaEvent_t begin, end;
      require(cudaEventCreate(&begin), "cudaEventCreate");
      require(cudaEventCreate(&end), "cudaEventCreate");
      require(cudaEventRecord(begin), "cudaEventRecord");
      for (int i = 0; i < launches; ++i) require(cudaLaunchKernelEx(&config, kernel, args), name);
      require(cudaEventRecord(end), "cudaEventRecord");
      return [begin, end] {  // waits for the launches and returns seconds
        float ms = 0.0f;
        require(cudaEventSynchronize(end), "the kernel");
        require(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
        return 1e-3 * ms;
      };
    };
    args.loops = 2000;
    run(1)();
    args.loops = 1 + static_cast<int>(2000 * kLaunch / run(1)());
    run(25)();  // until the clock has settled
    constexpr int kLaunches = 90;
    const auto seconds = run(kLaunches);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto first = meter_.tick();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto last = meter_.tick();
    const double rate = each * ctas_ * kLaunches * args.loops / seconds();
    const double watts = (last.second - first.second) / (last.first - first.first);
    if (waiting_ == 0.0) waiting_ = watts;
    std::printf("%-34s %6.1f W  %9.3g %s/s  %8.3g nJ each\n", name, watts, rate, unit, 1e9 * (watts - waiting_) / rate);
    std::fflush(stdout);
  }

 private:
  int ctas_;
  Meter meter_;
  double waiting_ = 0.0;
};

template <Instruction kWhat>
void measure_instruction(Table& table, const char* name, const Args& args) {
  table.measure(name, instruction_kernel<kWhat>, 512, args, 16.0 * count_of(kWhat), "warp");
}

void measure_all() {
  constexpr size_t kMemory = size_t{3} << 30, kInL2 = size_t{16} << 20;
  Args args{};
  uint8_t* from = nullptr;
  require(cudaMalloc(&from, kMemory), "cudaMalloc");
  require(cudaMalloc(&args.to, kMemory), "cudaMalloc");
  require(cudaMalloc(&args.sink, sizeof(float)), "cudaMalloc");
  fill_memory_kernel<<<2048, 256>>>(reinterpret_cast<uint32_t*>(from), kMemory / 4);
  args.from = from;
  args.scale = 1.0f;
  args.region = kMemory;
  Table table(multiprocessors() / 4 * 2);  // even, for pairs
  table.measure("waiting", wait_kernel, 512, args, 1, "loop");
  measure_instruction<Instruction::kFfma>(table, "FFMA", args);
  measure_instruction<Instruction::kFmul>(table, "FMUL", args);
  measure_instruction<Instruction::kPack>(table, "two to bf16", args);
  measure_instruction<Instruction::kLop>(table, "LOP3", args);
  measure_instruction<Instruction::kExp>(table, "exp2", args);
  measure_instruction<Instruction::kShuffle>(table, "shuffle", args);
  measure_instruction<Instruction::kLoad128>(table, "LDS.128 and 4 LOP3", args);
  measure_instruction<Instruction::kStore32>(table, "STS.32", args);
  measure_instruction<Instruction::kStore128>(table, "STS.128", args);
  measure_instruction<Instruction::kMma>(table, "mma.sync m16n8k16", args);
  constexpr double kProducts = 16;
  table.measure("wgmma n32, A in registers", product_kernel<32, true>, 256, args, kProducts, "product");
  table.measure("wgmma n64, A in registers", product_kernel<64, true>, 256, args, kProducts, "product");
  table.measure("wgmma n128, A in registers", product_kernel<128, true>, 256, args, kProducts, "product");
  table.measure("wgmma n32, A in shared memory", product_kernel<32, false>, 256, args, kProducts, "product");
  table.measure("wgmma n64, A in shared memory", product_kernel<64, false>, 256, args, kProducts, "product");
  Args zeros = args;
  zeros.scale = 0.0f;
  table.measure("wgmma n32 of zeros", product_kernel<32, true>, 256, zeros, kProducts, "product");
  Args near = args;
  near.region = kInL2;
  constexpr double kKilobytes = kCopyBytes / 1024.0;
  table.measure("copy from the L2", load_kernel<false>, 128, near, kKilobytes, "KB");
  table.measure("copy from the L2 to two", load_kernel<true>, 128, near, kKilobytes, "KB arriving", 2);
  table.measure("copy from memory", load_kernel<false>, 128, args, kKilobytes, "KB");
  table.measure("copy to the L2", store_kernel, 128, near, kKilobytes, "KB");
  table.measure("copy to memory", store_kernel, 128, args, kKilobytes, "KB");
}

}  // namespace
}  // namespace deltarelay::alone

int main() { deltarelay::alone::measure_all(); }
