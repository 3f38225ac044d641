// Instruction sets of the cpu backend: what was compiled, what this machine runs.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/cpu/config.h"

namespace deltarelay::cpu {

struct SimdTarget {
  int64_t highway_target;
  const char* name;
  const Kernels* kernels;
};

// Compiled targets, best first (kernels.cpp).
std::span<const SimdTarget> simd_targets();

// Narrower keys are multiplied in fp32: with few terms in a sum the rounding of its operands does not average out (final
// states of dk <= 16 missed the 5e-3 of bf16 data by a factor of two), and short sums gain little from matrix instructions.
constexpr int32_t kLeastBf16Width = 32;

// One choice of a caller: vectors for fp32 arithmetic, and matrix instructions for bf16 data where `bf16` is not nullptr.
struct Isa {
  const char* name;
  const Kernels* fp32;
  const Kernels* bf16;

  const Kernels& kernels_for(const Problem& problem) const {
    return bf16 != nullptr && problem.dtype == DType::kBf16 && problem.dk >= kLeastBf16Width ? *bf16 : *fp32;
  }
};

// What this machine runs, best first; never empty.
std::span<const Isa> available_isas();

// Kernels for bf16 data with native products; nullptr when none were compiled. Only to be called on a machine that has the
// instructions (isa.cpp asks): the file they are in is compiled with them throughout.
const Kernels* bf16_kernels();
const Kernels* amx_kernels();

}  // namespace deltarelay::cpu
