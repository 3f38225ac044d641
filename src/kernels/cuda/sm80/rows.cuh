// Rows of q, k and g in registers, for KDA prepare: a team of lanes has 4 tokens, and a lane has a few neighbouring
// channels of them.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/rows/find_sequence.cuh"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/cuda/tile/warp_sum.cuh"

namespace deltarelay::cuda::sm80 {

constexpr int kRows = 4;  // tokens per team

// How many of a lane's rows and channels exist.
struct Rows {
  int valid;     // rows; may be <= 0
  int channels;  // channels of this lane; may be <= 0
  __device__ __forceinline__ bool all(int of_channels) const { return valid >= kRows && channels >= of_channels; }
};

// A lane's numbers of one row, in their stored type.
template <class Number, int kChannels>
struct Cells {
  static constexpr int kWords = kChannels * sizeof(Number) / 4;
  uint32_t word[kWords];
  __device__ __forceinline__ float get(int c) const {
    if constexpr (sizeof(Number) == 2)
      return c % 2 == 0 ? Pair<Number>::low(word[c / 2]) : Pair<Number>::high(word[c / 2]);
    else
      return __uint_as_float(word[c]);
  }
};

template <int kBytes>
struct VectorOf;
template <>
struct VectorOf<4> {
  using Type = uint32_t;
};
template <>
struct VectorOf<8> {
  using Type = uint2;
};
template <>
struct VectorOf<16> {
  using Type = uint4;
};

// Loads kWords words of each row at once if all of them exist and every row is aligned to them. Otherwise loads number
// by number, with 0 for what does not exist. `first` is this lane's address in the team's first row, `stride` is in
// bytes, `element` is 2 or 4 bytes.
template <int kWords>
__device__ __forceinline__ void load_words(uint32_t (&words)[kRows][kWords], const uint8_t* first, int64_t stride,
                                           int element, bool aligned, const Rows& rows) {
  using Vector = typename VectorOf<kWords * 4>::Type;
  if (aligned && rows.all(kWords * 4 / element)) {
    Vector vector[kRows];
#pragma unroll
    for (int t = 0; t < kRows; ++t) vector[t] = *reinterpret_cast<const Vector*>(first + t * stride);
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[t][w] = reinterpret_cast<const uint32_t*>(&vector[t])[w];
    }
    return;
  }
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
    const int channels = t < rows.valid ? rows.channels : 0;
    const uint8_t* row = first + t * stride;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      words[t][w] = 0;
      if (element == 4) {
        if (w < channels) words[t][w] = reinterpret_cast<const uint32_t*>(row)[w];
      } else {
        const uint16_t* pair = reinterpret_cast<const uint16_t*>(row) + 2 * w;
        if (2 * w < channels) words[t][w] = pair[0];
        if (2 * w + 1 < channels) words[t][w] |= static_cast<uint32_t>(pair[1]) << 16;
      }
    }
  }
}

// Are all rows of a tensor aligned to `bytes`, from an aligned channel on?
__device__ __forceinline__ bool aligned_to(const TensorView& tensor, int element, int bytes) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(tensor.data) |
                        static_cast<uint64_t>((tensor.token | tensor.head | tensor.sequence) * element);
  return bits % static_cast<uint64_t>(bytes) == 0;
}

template <class Number, int kChannels>
__device__ __forceinline__ void load_cells(Cells<Number, kChannels> (&cells)[kRows], const TensorView& tensor,
                                           int64_t first, const Rows& rows) {
  constexpr int kElement = sizeof(Number), kWords = Cells<Number, kChannels>::kWords;
  uint32_t words[kRows][kWords];
  load_words<kWords>(words, static_cast<const uint8_t*>(tensor.data) + first * kElement, tensor.token * kElement,
                     kElement, aligned_to(tensor, kElement, kWords * 4), rows);
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) cells[t].word[w] = words[t][w];
  }
}

// Loads gates as fp32 numbers, before activation.
template <int kChannels>
__device__ __forceinline__ void load_gates(float (&raw)[kRows][kChannels], const TensorView& g, int64_t first,
                                           const Rows& rows) {
  if (g.dtype == DType::kFp32) {
    Cells<float, kChannels> cells[kRows];
    load_cells(cells, g, first, rows);
#pragma unroll
    for (int i = 0; i < kRows * kChannels; ++i)
      raw[i / kChannels][i % kChannels] = cells[i / kChannels].get(i % kChannels);
  } else {
    Cells<__nv_bfloat16, kChannels> cells[kRows];
    load_cells(cells, g, first, rows);
    if (g.dtype == DType::kBf16) {
#pragma unroll
      for (int i = 0; i < kRows * kChannels; ++i)
        raw[i / kChannels][i % kChannels] = cells[i / kChannels].get(i % kChannels);
    } else {
#pragma unroll
      for (int i = 0; i < kRows * kChannels; ++i) {
        const uint32_t word = cells[i / kChannels].word[i % kChannels / 2];
        raw[i / kChannels][i % kChannels] = i % 2 == 0 ? Pair<__half>::low(word) : Pair<__half>::high(word);
      }
    }
  }
}

template <GateForm kForm, bool kClamped, int kChannels>
__device__ __forceinline__ void activate_as(float (&gates)[kRows][kChannels], const GateParams (&params)[kChannels]) {
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float decay = log2_decay<kForm>(gates[t][c], params[c]);
      gates[t][c] = kClamped ? clamp_decay(decay, params[c]) : decay;
    }
  }
}

// Turns raw gates into log2 decays, 0 for tokens past the end and channels past DK. With kMidFrame the lower bound is
// at least kMidFrameGate, so bounded gates cannot reach the clamp. Other gate forms get their floor from that bound.
template <bool kMidFrame, int kChannels>
__device__ __forceinline__ void activate_gates(float (&gates)[kRows][kChannels], const Activation& activation,
                                               const GateParams (&params)[kChannels], const Rows& rows) {
  switch (activation.gate_form) {
    case GateForm::kLog:
      activate_as<GateForm::kLog, true>(gates, params);
      break;
    case GateForm::kLinear:
      activate_as<GateForm::kLinear, true>(gates, params);
      break;
    case GateForm::kRawSoftplus:
      activate_as<GateForm::kRawSoftplus, true>(gates, params);
      break;
    case GateForm::kRawBounded:
      activate_as<GateForm::kRawBounded, !kMidFrame>(gates, params);
      break;
  }
  if (rows.all(kChannels)) return;
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) gates[t][c] = t < rows.valid && c < rows.channels ? gates[t][c] : 0.0f;
  }
}

}  // namespace deltarelay::cuda::sm80
