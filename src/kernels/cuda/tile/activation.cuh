// Gate and write strength from the caller's numbers: kernels/reference/activation.h in fp32, log-decays in base 2.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::cuda {

// Element `index` of a gate or beta tensor (fp32, bf16 or fp16): its bits (load_bits) and its value (number_of). They
// are two functions so that several loads can be in flight before the first value is needed. Plain loads: a kernel that
// was launched early may read data of the previous kernel, which the read-only path does not promise to see.
__device__ __forceinline__ uint32_t load_bits(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kFp32) return static_cast<const uint32_t*>(data)[index];
  return static_cast<const uint16_t*>(data)[index];
}
__device__ __forceinline__ float number_of(uint32_t bits, DType dtype) {
  if (dtype == DType::kFp32) return __uint_as_float(bits);
  return dtype == DType::kBf16 ? __uint_as_float(bits << 16)
                               : __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ __forceinline__ float load_number(const void* data, DType dtype, int64_t index) {
  return number_of(load_bits(data, dtype, index), dtype);
}

// Log-decays below this bound are raised to it. exp2_approx flushes 2^-128 to 0, so -inf, -1000 and a linear gate of 0
// forget exactly. A sum over a chunk of 64 tokens stays within 8192, so inf - inf cannot appear.
constexpr float kLeastLog2Decay = -128.0f;

// Gate constants of one head (KDA: of one channel).
struct GateParams {
  GateForm form;
  float slope;   // raw forms: -exp(a_log) log2(e)
  float bias;    // raw forms
  float bound;   // raw bounded: lower_bound log2(e)
  float lowest;  // clamp: gate_floor log2(e) where one is given, never under kLeastLog2Decay
};

__device__ __forceinline__ bool is_raw(GateForm form) {
  return form == GateForm::kRawSoftplus || form == GateForm::kRawBounded;
}

__device__ __forceinline__ float gate_slope(const Activation& activation, int head) {
  const bool given = is_raw(activation.gate_form) && activation.a_log != nullptr;
  return -kLog2e * (given ? expf(load_number(activation.a_log, activation.dtype_a_log, head)) : 1.0f);
}

// `width`: numbers of dt_bias per head. GDN has one.
__device__ __forceinline__ float gate_bias(const Activation& activation, int head, int channel = 0, int width = 1) {
  const bool given = is_raw(activation.gate_form) && activation.dt_bias != nullptr;
  const int64_t index = static_cast<int64_t>(head) * width + channel;
  return given ? load_number(activation.dt_bias, activation.dtype_dt_bias, index) : 0.0f;
}

__device__ __forceinline__ GateParams gate_params(const Activation& activation, float slope, float bias) {
  const bool floored = !is_raw(activation.gate_form) && activation.gate_floor != 0.0f;
  return {activation.gate_form, slope, bias, activation.lower_bound * kLog2e,
          floored ? fmaxf(activation.gate_floor * kLog2e, kLeastLog2Decay) : kLeastLog2Decay};
}

__device__ __forceinline__ GateParams gate_params(const Activation& activation, int head, int channel, int width) {
  return gate_params(activation, gate_slope(activation, head), gate_bias(activation, head, channel, width));
}

// log(1 + e^x) with a relative error below 1e-5 at both ends. A decay of 1e-4 a token comes from an e^x that small; the
// sum 1 + e^x would keep three of its digits. With e = e^-|x| and s = e / (2 + e) <= 1/3,
//     log(1 + e) = 2 atanh(s) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...)
// The first omitted term, s^10 / 11, is below 2e-6.
__device__ __forceinline__ float softplus(float x) {
  const float e = exp2_approx(-kLog2e * fabsf(x));  // keeps a NaN, which fmaxf below may drop
  const float s = e * reciprocal_approx(2.0f + e), s2 = s * s;
  const float series = fmaf(s2, fmaf(s2, fmaf(s2, fmaf(s2, 1.0f / 9, 1.0f / 7), 1.0f / 5), 1.0f / 3), 1.0f);
  return fmaf(2.0f * s, series, fmaxf(x, 0.0f));
}

// 1 / (1 + 2^-x). Both ends keep their relative accuracy; 2^-x = inf gives 0.
__device__ __forceinline__ float sigmoid_base2(float x) { return reciprocal_approx(1.0f + exp2_approx(-x)); }

// Log-decay in base 2, not yet clamped.
template <GateForm kForm>
__device__ __forceinline__ float log2_decay(float raw, const GateParams& gate) {
  if constexpr (kForm == GateForm::kLog) {
    return raw * kLog2e;
  } else if constexpr (kForm == GateForm::kLinear) {
    return log2f(raw);  // lg2.approx has an absolute error: a decay of 1 - 1e-4 would be off by 2e-3
  } else if constexpr (kForm == GateForm::kRawSoftplus) {
    return gate.slope * softplus(raw + gate.bias);
  } else {
    return gate.bound * sigmoid_base2(-gate.slope * (raw + gate.bias));
  }
}

// A select instead of fmaxf, so that a NaN passes.
__device__ __forceinline__ float clamp_decay(float decay, const GateParams& gate) {
  return decay < gate.lowest ? gate.lowest : decay;
}

// Log-decay in base 2, clamped.
__device__ __forceinline__ float log2_decay(float raw, const GateParams& gate) {
  float decay = 0.0f;
  switch (gate.form) {
    case GateForm::kLog:
      decay = log2_decay<GateForm::kLog>(raw, gate);
      break;
    case GateForm::kLinear:
      decay = log2_decay<GateForm::kLinear>(raw, gate);
      break;
    case GateForm::kRawSoftplus:
      decay = log2_decay<GateForm::kRawSoftplus>(raw, gate);
      break;
    case GateForm::kRawBounded:
      decay = log2_decay<GateForm::kRawBounded>(raw, gate);
      break;
  }
  return clamp_decay(decay, gate);
}

__device__ __forceinline__ float write_strength(float raw, BetaForm form) {
  if (form == BetaForm::kValue) return raw;
  const float strength = sigmoid_base2(raw * kLog2e);
  return form == BetaForm::kTwiceLogit ? 2.0f * strength : strength;
}

}  // namespace deltarelay::cuda
