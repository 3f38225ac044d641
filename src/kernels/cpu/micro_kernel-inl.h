// The only product of the cpu backend: a tile of kRows x kCols fp32 accumulators in registers. Its left operand is
// packed (kRows consecutive numbers per step); its right operand is a panel of kCols columns.
//
// Re-included for every instruction set by foreach_target.h.
#if defined(DELTARELAY_CPU_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_MICRO_KERNEL_INL_H_
#undef DELTARELAY_CPU_MICRO_KERNEL_INL_H_
#else
#define DELTARELAY_CPU_MICRO_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/config.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Loops over the rows of a tile must be unrolled early. Otherwise the compiler keeps the tile in memory.
#ifndef DR_UNROLL
#define DR_UNROLL _Pragma("GCC unroll 16")
#endif

using F32 = hn::ScalableTag<float>;
using Vec = hn::Vec<F32>;
inline constexpr int32_t kLanes = static_cast<int32_t>(hn::MaxLanes(F32()));
inline constexpr int32_t kCols = 2 * kLanes;

// Rows of a tile. 2 * kRows accumulators hide the FMA latency (4 cycles x 4 pipes on a Neoverse-V1, 4 x 2 on x86) and
// must fit beside the operands: 16 of 32 registers on NEON and AVX-512, 8 of 16 on older x86.
#if HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX3
inline constexpr int32_t kRows = 8;
#else
inline constexpr int32_t kRows = 4;
#endif
static_assert(kChunk % kRows == 0 && kChannelPad % kRows == 0 && kChannelPad % kLanes == 0);
inline constexpr int32_t kRowTiles = kChunk / kRows;

struct Tile {
  HWY_INLINE Tile() {}  // explicit, because an implicit constructor would lack the target attribute
  Vec lo[kRows];
  Vec hi[kRows];
};

// tile += sum over i < steps of left[i * left_stride + row] * panel[i * kCols + column]
HWY_INLINE void multiply(Tile& tile, const float* HWY_RESTRICT left, int64_t left_stride,
                         const float* HWY_RESTRICT panel, int32_t steps) {
  const F32 d;
#if HWY_TARGET == HWY_NEON
  static_assert(kRows == 8 && kLanes == 4);
  for (int32_t i = 0; i < steps; ++i) {  // the FMA takes a lane of the left operand directly
    const Vec a = hn::LoadU(d, left);
    const Vec b = hn::LoadU(d, left + 4);
    const Vec lo = hn::LoadU(d, panel);
    const Vec hi = hn::LoadU(d, panel + 4);
    left += left_stride;
    panel += kCols;
    tile.lo[0] = hn::MulAdd(hn::Broadcast<0>(a), lo, tile.lo[0]);
    tile.hi[0] = hn::MulAdd(hn::Broadcast<0>(a), hi, tile.hi[0]);
    tile.lo[1] = hn::MulAdd(hn::Broadcast<1>(a), lo, tile.lo[1]);
    tile.hi[1] = hn::MulAdd(hn::Broadcast<1>(a), hi, tile.hi[1]);
    tile.lo[2] = hn::MulAdd(hn::Broadcast<2>(a), lo, tile.lo[2]);
    tile.hi[2] = hn::MulAdd(hn::Broadcast<2>(a), hi, tile.hi[2]);
    tile.lo[3] = hn::MulAdd(hn::Broadcast<3>(a), lo, tile.lo[3]);
    tile.hi[3] = hn::MulAdd(hn::Broadcast<3>(a), hi, tile.hi[3]);
    tile.lo[4] = hn::MulAdd(hn::Broadcast<0>(b), lo, tile.lo[4]);
    tile.hi[4] = hn::MulAdd(hn::Broadcast<0>(b), hi, tile.hi[4]);
    tile.lo[5] = hn::MulAdd(hn::Broadcast<1>(b), lo, tile.lo[5]);
    tile.hi[5] = hn::MulAdd(hn::Broadcast<1>(b), hi, tile.hi[5]);
    tile.lo[6] = hn::MulAdd(hn::Broadcast<2>(b), lo, tile.lo[6]);
    tile.hi[6] = hn::MulAdd(hn::Broadcast<2>(b), hi, tile.hi[6]);
    tile.lo[7] = hn::MulAdd(hn::Broadcast<3>(b), lo, tile.lo[7]);
    tile.hi[7] = hn::MulAdd(hn::Broadcast<3>(b), hi, tile.hi[7]);
  }
#else
  for (int32_t i = 0; i < steps; ++i) {  // a broadcast from memory costs a load and no shuffle
    const Vec lo = hn::LoadU(d, panel);
    const Vec hi = hn::LoadU(d, panel + kLanes);
    DR_UNROLL
    for (int32_t r = 0; r < kRows; ++r) {
      const Vec a = hn::Set(d, left[r]);
      tile.lo[r] = hn::MulAdd(a, lo, tile.lo[r]);
      tile.hi[r] = hn::MulAdd(a, hi, tile.hi[r]);
    }
    left += left_stride;
    panel += kCols;
  }
#endif
}

HWY_INLINE void load(Tile& tile, const float* HWY_RESTRICT from, int64_t stride) {
  const F32 d;
  DR_UNROLL
  for (int32_t r = 0; r < kRows; ++r) {
    tile.lo[r] = hn::LoadU(d, from + r * stride);
    tile.hi[r] = hn::LoadU(d, from + r * stride + kLanes);
  }
}

HWY_INLINE void store(const Tile& tile, float* HWY_RESTRICT to, int64_t stride) {
  const F32 d;
  DR_UNROLL
  for (int32_t r = 0; r < kRows; ++r) {
    hn::StoreU(tile.lo[r], d, to + r * stride);
    hn::StoreU(tile.hi[r], d, to + r * stride + kLanes);
  }
}

HWY_INLINE void clear(Tile& tile) {
  const F32 d;
  DR_UNROLL
  for (int32_t r = 0; r < kRows; ++r) tile.lo[r] = tile.hi[r] = hn::Zero(d);
}

// Multiplies row r of the tile by scale[r].
HWY_INLINE void scale_rows(Tile& tile, const float* HWY_RESTRICT scale) {
  const F32 d;
  DR_UNROLL
  for (int32_t r = 0; r < kRows; ++r) {
    const Vec s = hn::Set(d, scale[r]);
    tile.lo[r] = hn::Mul(tile.lo[r], s);
    tile.hi[r] = hn::Mul(tile.hi[r], s);
  }
}

// Forward substitution inside the tile: row i += sum over j < i of left[j * kRows + i] * row j. The chain over j is
// serial, but all rows below j advance together.
HWY_INLINE void substitute(Tile& tile, const float* HWY_RESTRICT left) {
  const F32 d;
  DR_UNROLL
  for (int32_t j = 0; j + 1 < kRows; ++j) {
    DR_UNROLL
    for (int32_t i = j + 1; i < kRows; ++i) {
      const Vec a = hn::Set(d, left[j * kRows + i]);
      tile.lo[i] = hn::MulAdd(a, tile.lo[j], tile.lo[i]);
      tile.hi[i] = hn::MulAdd(a, tile.hi[j], tile.hi[i]);
    }
  }
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
