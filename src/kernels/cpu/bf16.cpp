// Kernels for bf16 data. Only this file is compiled for processors with native bf16 products (see CMakeLists.txt). No
// function of this file may run before isa.cpp has checked the machine.
#include "kernels/cpu/isa.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) || defined(__AVX512BF16__)

#include "hwy/highway.h"
#include "kernels/cpu/bf16_engine-inl.h"
#include "kernels/cpu/bf16_tiles-inl.h"
#include "kernels/cpu/carry-inl.h"
#if defined(__AVX512BF16__)
#include "kernels/cpu/bf16_avx512-inl.h"
#else
#include "kernels/cpu/bf16_neon-inl.h"
#endif

namespace deltarelay::cpu {

const Kernels* bf16_kernels() {
#if defined(__AVX512BF16__)
  using Tiles = HWY_NAMESPACE::Avx512Tiles;
#else
  using Tiles = HWY_NAMESPACE::NeonTiles;
#endif
  using Engine = HWY_NAMESPACE::Bf16Engine<HWY_NAMESPACE::TilePanel<Tiles>>;
  static constexpr Kernels kKernels{HWY_NAMESPACE::kCols, HWY_NAMESPACE::scratch_bytes<Engine>,
                                    HWY_NAMESPACE::walk_item<Engine>, HWY_NAMESPACE::run_fold, nullptr};
  return &kKernels;
}

}  // namespace deltarelay::cpu

#else

namespace deltarelay::cpu {

const Kernels* bf16_kernels() { return nullptr; }

}  // namespace deltarelay::cpu

#endif
