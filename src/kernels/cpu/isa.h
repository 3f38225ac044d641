// Instruction sets of the cpu backend: those of the build and those of this machine.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/config.h"

namespace deltarelay::cpu {

struct SimdTarget {
  int64_t highway_target;
  const char* name;
  const Kernels* kernels;
};

// Vector targets of the build, best first (kernels.cpp).
std::span<const SimdTarget> simd_targets();

// Narrower keys are multiplied in fp32. With few terms in a sum the round-off of its bf16 operands does not average
// out: final states with dk <= 16 missed the tolerance 5e-3 of bf16 data by a factor of two. Short sums also gain
// little from matrix instructions.
constexpr int32_t kLeastBf16Width = 32;

// One instruction set to choose: vectors for fp32 arithmetic and, if `bf16` is not nullptr, matrix instructions for
// bf16 data.
struct Isa {
  const char* name;
  const Kernels* fp32;
  const Kernels* bf16;
  bool on_request = false;  // the system must grant `bf16` to the process (amx_permission.h)

  const Kernels& kernels_for(const Problem& problem) const {
    return bf16 != nullptr && problem.dtype == DType::kBf16 && problem.dk >= kLeastBf16Width ? *bf16 : *fp32;
  }
  // Must the system be asked before this problem runs? Stages are in fp32 arithmetic.
  bool asks_for(const Problem& problem) const {
    return on_request && !is_stage(problem.op) && &kernels_for(problem) == bf16;
  }
};

// Instruction sets of this machine, best first; never empty.
std::span<const Isa> available_isas();

struct IsaChoice {
  int32_t index = 0;
  const char* refused = "";  // why the named set cannot run, or why the best one was not chosen; "": neither
};

// The set that a plan takes: the named one, else the best. If the problem needs permission, asks for it with
// `ask`, which returns "" or the reason of a refusal. Then the next set is chosen if none was named. The last of `isas`
// must need no permission.
IsaChoice choose_isa(std::span<const Isa> isas, const Problem& problem, const Request& request, const char* (*ask)());

// Kernels for bf16 data with native products; nullptr if the build has none. Call them only after isa.cpp has checked
// the machine: their whole file is compiled with these instructions.
const Kernels* bf16_kernels();
const Kernels* amx_kernels();

// Stage costs on a CPU with these facts (Backend::costs).
void costs(const dr_device& device, const DeviceSpeed& speed, int32_t index, Rule rule, dr_costs& costs);

}  // namespace deltarelay::cpu
