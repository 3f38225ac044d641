// Kernels for bf16 data with AMX. Compiled for processors that have AMX (see CMakeLists.txt); isa.cpp checks the
// machine before the first call.
#include "kernels/cpu/isa.h"

// Clang 14 has names of its own for these instructions.
#if (defined(__AMX_BF16__) || defined(__AMXBF16__)) && defined(__AVX512BF16__)

#include "hwy/highway.h"
#include "kernels/cpu/bf16_amx-inl.h"
#include "kernels/cpu/bf16_engine-inl.h"
#include "kernels/cpu/carry-inl.h"

namespace deltarelay::cpu {

const Kernels* amx_kernels() {
  using Engine = HWY_NAMESPACE::Bf16Engine<HWY_NAMESPACE::AmxPanel>;
  static constexpr Kernels kKernels{HWY_NAMESPACE::kCols, HWY_NAMESPACE::scratch_bytes<Engine>,
                                    HWY_NAMESPACE::walk_item<Engine>, HWY_NAMESPACE::run_fold, nullptr};
  return &kKernels;
}

}  // namespace deltarelay::cpu

#else

namespace deltarelay::cpu {

const Kernels* amx_kernels() { return nullptr; }

}  // namespace deltarelay::cpu

#endif
