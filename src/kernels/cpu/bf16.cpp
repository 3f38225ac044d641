// Kernels for bf16 data. This file alone is compiled for processors with native bf16 products (see CMakeLists.txt), so
// nothing of it may run before bf16_target has asked the machine.
#include "kernels/cpu/isa.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__linux__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "hwy/highway.h"
#include "kernels/cpu/bf16_engine-inl.h"
#include "kernels/cpu/bf16_neon-inl.h"
#include "kernels/cpu/carry-inl.h"

namespace deltarelay::cpu {

Bf16Target bf16_target() {
  using Engine = HWY_NAMESPACE::Bf16Engine<HWY_NAMESPACE::Bf16Product>;
  static const Kernels kKernels{HWY_NAMESPACE::kCols, HWY_NAMESPACE::scratch_bytes<Engine>,
                                HWY_NAMESPACE::walk_item<Engine>, HWY_NAMESPACE::run_fold};
  if ((getauxval(AT_HWCAP2) & HWCAP2_BF16) == 0) return {nullptr, nullptr};
  return {"neon-bf16", &kKernels};
}

}  // namespace deltarelay::cpu

#else

namespace deltarelay::cpu {

Bf16Target bf16_target() { return {nullptr, nullptr}; }

}  // namespace deltarelay::cpu

#endif
