#include <cuda_runtime.h>

#include "check/device_generate.h"
#include "check/device_memory.h"
#include "check/element.h"
#include "check/run_error.h"
#include "check/value_rules.h"

namespace deltarelay::check::gpu {
namespace {

constexpr int kThreads = 256;

struct Target {
  void* data;
  cases::Rows of;
  int64_t rows;     // of all sequences
  int64_t seq_len;  // batched; 0: packed, where rows follow each other
};

__device__ void store_at(const Target& to, int64_t element, double value) {
  if (to.of.dtype == DR_FP32) {
    static_cast<float*>(to.data)[element] = static_cast<float>(value);
  } else {
    static_cast<uint16_t*>(to.data)[element] = to.of.dtype == DR_FP16 ? double_to_fp16(value) : double_to_bf16(value);
  }
}

template <Tensor which>
__device__ double value_at(const ValueRules& rules, int64_t index) {
  if constexpr (which == Tensor::kQ) return rules.q(index);
  if constexpr (which == Tensor::kK) return rules.k(index) / rules.key_divisor;
  if constexpr (which == Tensor::kV) return rules.v(index);
  if constexpr (which == Tensor::kG) return rules.gate(index);
  if constexpr (which == Tensor::kBeta) return rules.beta(index);
}

template <Tensor which>
__global__ void __launch_bounds__(kThreads) generate_kernel(ValueRules rules, Target to) {
  const int64_t row_width = to.of.heads * to.of.width;
  const int64_t count = to.rows * row_width;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < count; index += stride) {
    const int64_t row = index / row_width;
    const int64_t head = index % row_width / to.of.width;
    const int64_t start = to.seq_len == 0
                              ? row * to.of.strides.token
                              : row / to.seq_len * to.of.strides.sequence + row % to.seq_len * to.of.strides.token;
    store_at(to, start + head * to.of.strides.head + index % to.of.width, value_at<which>(rules, index));
  }
}

template <Tensor which>
void launch(const ValueRules& rules, const Target& to) {
  if (to.rows == 0) return;
  constexpr unsigned kBlocks = 132 * 16;
  generate_kernel<which><<<kBlocks, kThreads>>>(rules, to);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw RunError(DR_DEVICE_ERROR, std::string("device: generate_kernel: ") + cudaGetErrorString(error));
}

}  // namespace

// A stage has intermediates that belong to its tokens, and no memory for tokens that it does not read.
bool can_generate(const cases::Case& c) {
  return !c.is_stage() && c.keys == cases::KeyProfile::kNormal && c.gate_form != DR_GATE_LINEAR &&
         (c.raw_gate() || c.gate_profile != cases::GateProfile::kMean);
}

void generate_tokens(const cases::Case& c, uint64_t seed, const dr_tensors& tensors) {
  ValueRules rules = rules_of(c);
  rules.seed = seed;
  const auto target = [&](Tensor tensor) {
    void* const data = const_cast<void*>(pointer_of(tensors, entry_of(tensor)));
    return Target{data, cases::rows_of(c, tensor), c.tokens(), c.batched ? c.lengths[0] : 0};
  };
  launch<Tensor::kQ>(rules, target(Tensor::kQ));
  launch<Tensor::kK>(rules, target(Tensor::kK));
  launch<Tensor::kV>(rules, target(Tensor::kV));
  launch<Tensor::kG>(rules, target(Tensor::kG));
  launch<Tensor::kBeta>(rules, target(Tensor::kBeta));
  synchronize();
}

}  // namespace deltarelay::check::gpu
