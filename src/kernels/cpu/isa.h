// Instruction sets of the cpu backend: what was compiled, what this machine runs.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/cpu/config.h"

namespace deltarelay::cpu {

struct SimdTarget {
  int64_t highway_target;
  const char* name;
  const Kernels* kernels;
};

// Compiled targets, best first (kernels.cpp).
const std::vector<SimdTarget>& simd_targets();

// One choice of a caller: vectors for fp32 arithmetic, and matrix instructions for bf16 data where `bf16` is not nullptr.
struct Isa {
  const char* name;
  const Kernels* fp32;
  const Kernels* bf16;

  const Kernels& kernels_for(const Problem& problem) const {
    return bf16 != nullptr && problem.dtype == DType::kBf16 ? *bf16 : *fp32;
  }
};

// What this machine runs, best first; never empty.
const std::vector<Isa>& available_isas();

// Kernels for bf16 data with native products, and the name of the instruction set they belong to; nullptr when they were not
// compiled for this processor family or when this machine lacks them.
struct Bf16Target {
  const char* name;
  const Kernels* kernels;
};
Bf16Target bf16_target();

}  // namespace deltarelay::cpu
