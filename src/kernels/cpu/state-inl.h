// States between the caller's pools ([DV, DK] or [DK, DV], fp32 or 16 bits) and panels ([channel][kCols] fp32).
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
namespace {  // internal linkage: several translation units compile this text with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// One panel: value columns [column, column + kCols) of the state at `pool + offset`. `line` is a row of max(DK, kCols) floats.
inline void load_panel(const Problem& problem, const StatePool& pool, const void* base, int64_t offset, int32_t column,
                       int32_t channels, float* HWY_RESTRICT line, float* HWY_RESTRICT panel) {
  const int32_t columns = std::min(kCols, problem.dv - column);
  std::fill(panel, panel + static_cast<int64_t>(channels) * kCols, 0.0f);
  if (pool.layout == StateLayout::kKeyMajor) {
    for (int32_t c = 0; c < problem.dk; ++c)
      load_row(at(base, pool.dtype, offset + static_cast<int64_t>(c) * problem.dv + column), pool.dtype, columns,
               panel + c * kCols);
    return;
  }
  for (int32_t v = 0; v < columns; ++v) {
    load_row(at(base, pool.dtype, offset + static_cast<int64_t>(column + v) * problem.dk), pool.dtype, problem.dk,
             line);
    for (int32_t c = 0; c < problem.dk; ++c) panel[c * kCols + v] = line[c];
  }
}

inline void store_panel(const Problem& problem, const StatePool& pool, void* base, int64_t offset, int32_t column,
                        float* HWY_RESTRICT line, const float* HWY_RESTRICT panel) {
  const int32_t columns = std::min(kCols, problem.dv - column);
  if (pool.layout == StateLayout::kKeyMajor) {
    for (int32_t c = 0; c < problem.dk; ++c)
      store_row(panel + c * kCols, columns,
                at(base, pool.dtype, offset + static_cast<int64_t>(c) * problem.dv + column), pool.dtype);
    return;
  }
  for (int32_t v = 0; v < columns; ++v) {
    for (int32_t c = 0; c < problem.dk; ++c) line[c] = panel[c * kCols + v];
    store_row(line, problem.dk, at(base, pool.dtype, offset + static_cast<int64_t>(column + v) * problem.dk),
              pool.dtype);
  }
}

// Panels of a state, or zeros when there is none.
inline void load_state(const Problem& problem, const StatePool& pool, const void* base, int64_t slot, int32_t head,
                       PanelRange range, int32_t channels, float* line, float* panels) {
  for (int32_t p = 0; p < range.count; ++p) {
    float* panel = panels + static_cast<int64_t>(p) * channels * kCols;
    if (slot < 0) {
      std::fill(panel, panel + static_cast<int64_t>(channels) * kCols, 0.0f);
    } else {
      load_panel(problem, pool, base, slot * pool.stride_slot + head * pool.stride_head, (range.first + p) * kCols,
                 channels, line, panel);
    }
  }
}

inline void store_state(const Problem& problem, const StatePool& pool, void* base, int64_t slot, int32_t head,
                        PanelRange range, int32_t channels, float* line, const float* panels) {
  if (slot < 0) return;
  for (int32_t p = 0; p < range.count; ++p)
    store_panel(problem, pool, base, slot * pool.stride_slot + head * pool.stride_head, (range.first + p) * kCols, line,
                panels + static_cast<int64_t>(p) * channels * kCols);
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
