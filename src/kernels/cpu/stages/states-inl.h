// States and summaries of dr_intermediates.
#if defined(DELTARELAY_CPU_STAGES_STATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_STAGES_STATES_INL_H_
#undef DELTARELAY_CPU_STAGES_STATES_INL_H_
#else
#define DELTARELAY_CPU_STAGES_STATES_INL_H_
#endif

#include "kernels/cpu/state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// States of dr_intermediates as a pool: a slot for each chunk, or in DR_CARRY for each summary.
inline StatePool states_pool(const Problem& problem) {
  StatePool pool;
  pool.use = StateUse::kRows;
  pool.layout = problem.chunks.states_layout;
  pool.dtype = problem.chunks.dtype_states;
  pool.stride_head = int64_t{problem.dk} * problem.dv;
  pool.stride_slot = pool.stride_head * problem.heads_v;
  return pool;
}

// Where a panel of a summary lies in [row, HV, DV + DK, DK]. Panels of B come first, then those of M.
struct SummaryPanel {
  MatrixShape shape;
  int64_t offset;  // of B or M
  int32_t column;
};

inline SummaryPanel summary_panel(const Problem& problem, int64_t row, int32_t head, int32_t panel) {
  const int64_t dk = problem.dk, dv = problem.dv;
  const int64_t offset = (row * problem.heads_v + head) * (dv + dk) * dk;
  const int32_t value_panels = panels_for(problem.dv, kCols);
  if (panel < value_panels) return {{problem.dk, problem.dv}, offset, panel * kCols};
  return {{problem.dk, problem.dk}, offset + dv * dk, (panel - value_panels) * kCols};
}

inline void load_summary(const Problem& problem, const void* summaries, int64_t row, int32_t head, int32_t panel,
                         float* lines, float* to) {
  const SummaryPanel at = summary_panel(problem, row, head, panel);
  load_panel(at.shape, StatePool{}, summaries, at.offset, at.column, padded_channels(problem.dk), lines, to);
}

inline void store_summary(const Problem& problem, void* summaries, int64_t row, int32_t head, int32_t panel,
                          float* lines, const float* from) {
  const SummaryPanel at = summary_panel(problem, row, head, panel);
  store_panel(at.shape, StatePool{}, summaries, at.offset, at.column, padded_channels(problem.dk), lines, from);
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
