// One instruction, repeated by a warp: its energy (energy.cu), and its interference with a product (beside.cu).
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "device.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/number.cuh"

namespace deltarelay::alone {

// Shared memory for operands; instructions use 128 KB of it.
constexpr int kSharedBytes = 160 * 1024;

inline __device__ uint32_t random_pair(size_t index, float scale) {
  return cuda::Pair<__nv_bfloat16>::pack(scale * normal_of(2 * index, 1), scale * normal_of(2 * index + 1, 1));
}

// Fills all of it with all threads of the CTA, for products too.
inline __device__ void fill_shared(uint8_t* memory, float scale) {
  for (int i = static_cast<int>(threadIdx.x); i < kSharedBytes / 4; i += static_cast<int>(blockDim.x))
    reinterpret_cast<uint32_t*>(memory)[i] = random_pair(i + size_t{977} * blockIdx.x, scale);
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
  __syncthreads();
}

enum class Instruction {
  kFfma,
  kFmul,
  kFadd,
  kPack,
  kHfma2,
  kImad,
  kLop,
  kPermute,
  kExp,
  kShuffle,
  kLoad128,
  kStore32,
  kStore128,
  kMma
};

// Of the 64 instructions that issue() stands for: those that are four times as wide count a quarter.
constexpr int count_of(Instruction what) {
  const bool wide = what == Instruction::kLoad128 || what == Instruction::kStore128 || what == Instruction::kMma;
  return wide ? 16 : 64;
}

// Numbers of a thread; 16 at a time are independent.
struct InstructionOperands {
  uint32_t base, mask;
  float factor, term;
  float x[16];
  uint32_t y[16];

  __device__ explicit InstructionOperands(const uint8_t* memory)
      : base(cuda::shared_address(memory)),
        mask(threadIdx.x * 0x9e3779b9u),
        factor(0.97f + 0.01f * normal_of(threadIdx.x, 2)),
        term(0.1f * normal_of(threadIdx.x, 3)) {
    for (int i = 0; i < 16; ++i)
      x[i] = normal_of(16 * threadIdx.x + i, 4), y[i] = random_pair(16 * threadIdx.x + i, 1.0f);
  }
  __device__ float sum() const {
    float all = 0.0f;
    for (int i = 0; i < 16; ++i) all += x[i] + static_cast<float>(y[i]);
    return all;
  }
};

template <Instruction kWhat>
__device__ __forceinline__ void issue(InstructionOperands& of) {
  auto& x = of.x;
  auto& y = of.y;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int n = 0; n < 64; ++n) {
    const int i = n % 16, round = n / 16;
    const uint32_t word = of.base + (thread * 4 + i * 2048 + round * 32768) % 131072;
    const uint32_t four = of.base + (thread * 16 + i / 4 * 8192 + round * 32768) % 131072;
    const float other = x[(i + 1 + round) % 16];
    const uint32_t other_pair = y[(i + 5 + round) % 16];
    uint32_t a, b, c, d;
    if constexpr (kWhat == Instruction::kFfma) {
      asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[i]) : "f"(of.factor), "f"(of.term));
    } else if constexpr (kWhat == Instruction::kFmul) {
      asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(x[i]) : "f"(round % 2 == 0 ? 0.97f : 1.0309f));
    } else if constexpr (kWhat == Instruction::kFadd) {
      asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(x[i]) : "f"(round % 2 == 0 ? of.term : -of.term));
    } else if constexpr (kWhat == Instruction::kPack) {
      asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y[i]) : "f"(__uint_as_float(y[i])), "f"(other));
    } else if constexpr (kWhat == Instruction::kHfma2) {
      asm volatile("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(y[i]) : "r"(0x3f783f78u), "r"(other_pair));
    } else if constexpr (kWhat == Instruction::kImad) {
      asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(y[i]) : "r"(of.mask), "r"(other_pair));
    } else if constexpr (kWhat == Instruction::kLop) {
      asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(y[i]) : "r"(of.mask), "r"(~of.mask * 3));
    } else if constexpr (kWhat == Instruction::kPermute) {
      asm volatile("prmt.b32 %0, %0, %1, 0x5410;" : "+r"(y[i]) : "r"(other_pair));
    } else if constexpr (kWhat == Instruction::kExp) {
      asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[i]));
    } else if constexpr (kWhat == Instruction::kShuffle) {
      y[i] = __shfl_sync(~0u, y[i], static_cast<int>(of.mask % 32));
    } else if constexpr (kWhat == Instruction::kStore32) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(word), "r"(y[i]) : "memory");
    } else if constexpr (kWhat == Instruction::kLoad128) {
      if (i % 4 != 0) continue;
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(four));
      y[i] ^= a, y[i + 1] ^= b, y[i + 2] ^= c, y[i + 3] ^= d;
    } else if constexpr (kWhat == Instruction::kStore128) {
      if (i % 4 != 0) continue;
      asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(four), "r"(y[i]), "r"(y[i + 1]), "r"(y[i + 2]),
                   "r"(y[i + 3])
                   : "memory");
    } else if constexpr (kWhat == Instruction::kMma) {
      if (i % 4 != 0) continue;
      const cuda::Fragment operand = {y[i], y[(i + 3) % 16], y[(i + 7) % 16], y[(i + 9) % 16]};
      cuda::mma<__nv_bfloat16>(reinterpret_cast<float(&)[4]>(x[i]), operand, y[(round + 5) % 16], y[(i + 6) % 16]);
    }
  }
}

}  // namespace deltarelay::alone
