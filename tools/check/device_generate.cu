#include <cuda_runtime.h>

#include "check/device_generate.h"
#include "check/device_memory.h"
#include "check/element.h"
#include "check/run_error.h"
#include "check/value_rules.h"

namespace deltarelay::check::gpu {
namespace {

constexpr int kThreads = 256;

enum class Which { kQ, kK, kV, kGate, kBeta };

struct Target {
  void* data;
  int32_t dtype;
  dr_layout strides;
  int64_t heads, width;
  int64_t rows;     // of all sequences
  int64_t seq_len;  // batched; 0: packed, where rows follow each other
};

__device__ void store_at(const Target& to, int64_t element, double value) {
  if (to.dtype == DR_FP32) {
    static_cast<float*>(to.data)[element] = static_cast<float>(value);
  } else {
    static_cast<uint16_t*>(to.data)[element] = to.dtype == DR_FP16 ? double_to_fp16(value) : double_to_bf16(value);
  }
}

template <Which which>
__device__ double value_at(const ValueRules& rules, int64_t index) {
  if constexpr (which == Which::kQ) return rules.q(index);
  if constexpr (which == Which::kK) return rules.k(index) / rules.key_divisor;
  if constexpr (which == Which::kV) return rules.v(index);
  if constexpr (which == Which::kGate) return rules.gate(index);
  if constexpr (which == Which::kBeta) return rules.beta(index);
}

template <Which which>
__global__ void __launch_bounds__(kThreads) generate_kernel(ValueRules rules, Target to) {
  const int64_t row_width = to.heads * to.width;
  const int64_t count = to.rows * row_width;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < count; index += stride) {
    const int64_t row = index / row_width;
    const int64_t head = index % row_width / to.width;
    const int64_t start = to.seq_len == 0
                              ? row * to.strides.token
                              : row / to.seq_len * to.strides.sequence + row % to.seq_len * to.strides.token;
    store_at(to, start + head * to.strides.head + index % to.width, value_at<which>(rules, index));
  }
}

template <Which which>
void launch(const ValueRules& rules, const Target& to) {
  if (to.rows == 0) return;
  constexpr unsigned kBlocks = 132 * 16;
  generate_kernel<which><<<kBlocks, kThreads>>>(rules, to);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw RunError(DR_DEVICE_ERROR, std::string("device: generate_kernel: ") + cudaGetErrorString(error));
}

}  // namespace

bool can_generate(const cases::Case& c) {
  return c.keys == cases::KeyProfile::kNormal && c.gate_form != DR_GATE_LINEAR &&
         (c.raw_gate() || c.gate_profile != cases::GateProfile::kMean);
}

void generate_tokens(const cases::Case& c, uint64_t seed, const dr_tensors& tensors) {
  ValueRules rules = rules_of(c);
  rules.seed = seed;
  const cases::TensorStrides strides = cases::tensor_strides(c);
  const auto target = [&](const void* data, int32_t dtype, const dr_layout& of, int64_t heads, int64_t width) {
    return Target{const_cast<void*>(data), dtype, of, heads, width, c.tokens(), c.batched ? c.lengths[0] : 0};
  };
  launch<Which::kQ>(rules, target(tensors.q, c.dtype, strides.q, c.heads_qk, c.dk));
  launch<Which::kK>(rules, target(tensors.k, c.dtype, strides.k, c.heads_qk, c.dk));
  launch<Which::kV>(rules, target(tensors.v, c.dtype, strides.v, c.heads_v, c.dv));
  launch<Which::kGate>(rules, target(tensors.g, c.gate_dtype(), strides.g, c.heads_v, c.rule == DR_KDA ? c.dk : 1));
  launch<Which::kBeta>(rules, target(tensors.beta, c.beta_dtype(), strides.beta, c.heads_v, 1));
  synchronize();
}

}  // namespace deltarelay::check::gpu
