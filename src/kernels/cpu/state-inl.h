// Moves states between the caller's pools ([DV, DK] or [DK, DV], fp32 or 16 bits) and panels ([channel][kCols] fp32).
#if defined(DELTARELAY_CPU_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_STATE_INL_H_
#undef DELTARELAY_CPU_STATE_INL_H_
#else
#define DELTARELAY_CPU_STATE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/slots.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Value columns that are transposed together.
inline constexpr int32_t kTransposed = 4;
// Floats of the line buffer below.
inline constexpr int64_t kLineFloats = static_cast<int64_t>(kTransposed) * kMaxKeyWidth;

// to[i][j] = from[j][i] for a 4 x 4 block.
HWY_INLINE void transpose_block(const float* HWY_RESTRICT from, int64_t from_stride, float* HWY_RESTRICT to,
                                int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int32_t i = 0; i < kTransposed; ++i)
    for (int32_t j = 0; j < kTransposed; ++j) to[i * to_stride + j] = from[j * from_stride + i];
#else
  const hn::FixedTag<float, kTransposed> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_stride);
  const auto r2 = hn::LoadU(d, from + 2 * from_stride), r3 = hn::LoadU(d, from + 3 * from_stride);
  const auto lo02 = hn::InterleaveLower(d, r0, r2), hi02 = hn::InterleaveUpper(d, r0, r2);
  const auto lo13 = hn::InterleaveLower(d, r1, r3), hi13 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, lo02, lo13), d, to);
  hn::StoreU(hn::InterleaveUpper(d, lo02, lo13), d, to + to_stride);
  hn::StoreU(hn::InterleaveLower(d, hi02, hi13), d, to + 2 * to_stride);
  hn::StoreU(hn::InterleaveUpper(d, hi02, hi13), d, to + 3 * to_stride);
#endif
}

// Widths of a matrix: channels, and columns of DK numbers each.
struct MatrixShape {
  int32_t dk, columns;
};

// Loads one panel: value columns [column, column + kCols) of the state at `base + offset`. Channels and columns outside
// the state become zero. `lines` is a buffer of kLineFloats floats.
inline void load_panel(MatrixShape shape, const StatePool& pool, const void* base, int64_t offset, int32_t column,
                       int32_t channels, float* HWY_RESTRICT lines, float* HWY_RESTRICT panel) {
  const int32_t columns = std::min(kCols, shape.columns - column);
  if (pool.layout == StateLayout::kKeyMajor) {
    std::fill(panel, panel + static_cast<int64_t>(channels) * kCols, 0.0f);
    for (int32_t c = 0; c < shape.dk; ++c)
      load_row(at(base, pool.dtype, offset + static_cast<int64_t>(c) * shape.columns + column), pool.dtype, columns,
               panel + c * kCols);
    return;
  }
  static_assert(kCols % kTransposed == 0 || HWY_TARGET == HWY_SCALAR);
  for (int32_t v = 0; v < kCols; v += std::min(kTransposed, kCols)) {
    for (int32_t i = 0; i < kTransposed; ++i) {
      float* line = lines + i * kMaxKeyWidth;
      const int32_t given = v + i < columns ? shape.dk : 0;
      if (given > 0)
        load_row(at(base, pool.dtype, offset + static_cast<int64_t>(column + v + i) * shape.dk), pool.dtype, given,
                 line);
      std::fill(line + given, line + channels, 0.0f);
    }
    for (int32_t c = 0; c < channels; c += kTransposed) {
#if HWY_TARGET == HWY_SCALAR  // here a panel is narrower than a block
      for (int32_t j = 0; j < kTransposed; ++j)
        for (int32_t i = 0; i < kCols; ++i) panel[(c + j) * kCols + i] = lines[i * kMaxKeyWidth + c + j];
#else
      transpose_block(lines + c, kMaxKeyWidth, panel + c * kCols + v, kCols);
#endif
    }
  }
}

inline void store_panel(MatrixShape shape, const StatePool& pool, void* base, int64_t offset, int32_t column,
                        int32_t channels, float* HWY_RESTRICT lines, const float* HWY_RESTRICT panel) {
  const int32_t columns = std::min(kCols, shape.columns - column);
  if (pool.layout == StateLayout::kKeyMajor) {
    for (int32_t c = 0; c < shape.dk; ++c)
      store_row(panel + c * kCols, columns,
                at(base, pool.dtype, offset + static_cast<int64_t>(c) * shape.columns + column), pool.dtype);
    return;
  }
  for (int32_t v = 0; v < columns; v += std::min(kTransposed, kCols)) {
    for (int32_t c = 0; c < channels; c += kTransposed) {
#if HWY_TARGET == HWY_SCALAR
      for (int32_t j = 0; j < kTransposed; ++j)
        for (int32_t i = 0; i < kCols; ++i) lines[i * kMaxKeyWidth + c + j] = panel[(c + j) * kCols + i];
#else
      transpose_block(panel + c * kCols + v, kCols, lines + c, kMaxKeyWidth);
#endif
    }
    for (int32_t i = 0; i < std::min(std::min(kTransposed, kCols), columns - v); ++i)
      store_row(lines + i * kMaxKeyWidth, shape.dk,
                at(base, pool.dtype, offset + static_cast<int64_t>(column + v + i) * shape.dk), pool.dtype);
  }
}

// Loads the panels of a state, or zeros if there is no state.
inline void load_state(const Problem& problem, const StatePool& pool, const void* base, int64_t slot, int32_t head,
                       PanelRange range, int32_t channels, float* lines, float* panels) {
  for (int32_t p = 0; p < range.count; ++p) {
    float* panel = panels + static_cast<int64_t>(p) * channels * kCols;
    if (slot < 0) {
      std::fill(panel, panel + static_cast<int64_t>(channels) * kCols, 0.0f);
    } else {
      load_panel({problem.dk, problem.dv}, pool, base, slot * pool.stride_slot + head * pool.stride_head,
                 (range.first + p) * kCols, channels, lines, panel);
    }
  }
}

inline void store_state(const Problem& problem, const StatePool& pool, void* base, int64_t slot, int32_t head,
                        PanelRange range, int32_t channels, float* lines, const float* panels) {
  if (slot < 0) return;
  for (int32_t p = 0; p < range.count; ++p)
    store_panel({problem.dk, problem.dv}, pool, base, slot * pool.stride_slot + head * pool.stride_head,
                (range.first + p) * kCols, channels, lines, panels + static_cast<int64_t>(p) * channels * kCols);
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
