// The SIMD sources, compiled once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kernels.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target, as Highway requires.
#include "hwy/highway.h"
#include "kernels/cpu/carry-inl.h"
#include "kernels/cpu/fp32_engine-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {

extern const StageKernels kStageKernels;  // stages/kernels.cpp

// Every target's namespace defines it; simd_targets collects them below.
extern const Kernels kKernels;
const Kernels kKernels{kCols, scratch_bytes<Fp32Engine>, walk_item<Fp32Engine>, run_fold, &kStageKernels};

}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/cpu/isa.h"

namespace deltarelay::cpu {

std::span<const SimdTarget> simd_targets() {
  static constexpr SimdTarget kTargets[] = {
#if HWY_TARGETS & HWY_AVX3
    {HWY_AVX3, "avx512", &N_AVX3::kKernels},
#endif
#if HWY_TARGETS & HWY_AVX2
    {HWY_AVX2, "avx2", &N_AVX2::kKernels},
#endif
#if HWY_TARGETS & HWY_SSE4
    {HWY_SSE4, "sse4", &N_SSE4::kKernels},
#endif
#if HWY_TARGETS & HWY_NEON
    {HWY_NEON, "neon", &N_NEON::kKernels},
#endif
#if HWY_TARGETS & HWY_EMU128
    {HWY_EMU128, "portable", &N_EMU128::kKernels},
#endif
#if HWY_TARGETS & HWY_SCALAR
    {HWY_SCALAR, "portable", &N_SCALAR::kKernels},
#endif
  };
  return kTargets;
}

}  // namespace deltarelay::cpu
#endif
