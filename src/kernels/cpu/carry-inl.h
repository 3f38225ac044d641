// carry: folds the transitions of one sequence and head in order, S <- M S + B, for some panels of value columns.
#if defined(DELTARELAY_CPU_CARRY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_CARRY_INL_H_
#undef DELTARELAY_CPU_CARRY_INL_H_
#else
#define DELTARELAY_CPU_CARRY_INL_H_
#endif

#include "kernels/cpu/walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// to += M from, for one panel. M is stored in panels of its columns: kCols consecutive numbers of a row are kCols
// terms.
HWY_INLINE void fold_panel(const float* HWY_RESTRICT transition, const float* HWY_RESTRICT from, int32_t dk,
                           int32_t channels, float* HWY_RESTRICT to) {
  const F32 d;
  const int64_t panel_floats = static_cast<int64_t>(channels) * kCols;
  for (int32_t r = 0; r < channels; r += kRows) {
    Tile tile;
    load(tile, to + r * kCols, kCols);
    for (int32_t i = 0; i < dk; ++i) {
      const float* left = transition + (i / kCols) * panel_floats + r * kCols + i % kCols;
      const Vec lo = hn::LoadU(d, from + i * kCols);
      const Vec hi = hn::LoadU(d, from + i * kCols + kLanes);
      for (int32_t k = 0; k < kRows; ++k) {
        const Vec a = hn::Set(d, left[k * kCols]);
        tile.lo[k] = hn::MulAdd(a, lo, tile.lo[k]);
        tile.hi[k] = hn::MulAdd(a, hi, tile.hi[k]);
      }
    }
    store(tile, to + r * kCols, kCols);
  }
}

inline void run_fold(const StageArgs& args, const Fold& fold, int32_t head, PanelRange range, std::byte* memory) {
  const Problem& problem = args.problem;
  const int32_t channels = padded_channels(problem.dk);
  const int32_t value_panels = panels_for(problem.dv, kCols);
  const int32_t key_panels = panels_for(problem.dk, kCols);
  const int64_t panel_floats = static_cast<int64_t>(channels) * kCols;
  const auto state = [&](int32_t slot) {
    return slot_panels(args.slot_state, slot, problem.heads_v, head, value_panels, range.first, channels);
  };
  if (fold.from_initial)
    load_state(problem, problem.initial, args.tensors.initial, initial_slot(args, fold.sequence), head, range, channels,
               reinterpret_cast<float*>(memory), state(fold.slot));
  for (int32_t j = 1; j <= fold.count; ++j) {
    const float* transition =
        slot_panels(args.slot_transition, fold.slot + j, problem.heads_v, head, key_panels, 0, channels);
    for (int32_t p = 0; p < range.count; ++p)
      fold_panel(transition, state(fold.slot + j - 1) + p * panel_floats, problem.dk, channels,
                 state(fold.slot + j) + p * panel_floats);
  }
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
