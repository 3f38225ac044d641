// DR_CARRY: the fold of a chain of given summaries, for some panels. A panel holds columns of the state, from the
// initial one; columns of B of the composed summary, from 0; or columns of its M, from I.
#if defined(DELTARELAY_CPU_STAGES_CHAIN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_STAGES_CHAIN_INL_H_
#undef DELTARELAY_CPU_STAGES_CHAIN_INL_H_
#else
#define DELTARELAY_CPU_STAGES_CHAIN_INL_H_
#endif

#include "kernels/cpu/carry-inl.h"
#include "kernels/cpu/stages/states-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

struct ChainScratch {
  float* transition;  // M of one summary
  float* next;        // one panel
  float* panels;
  float* lines;
};

inline ChainScratch carve_chain(const Problem& problem, int32_t panels, Carver& carver) {
  const int64_t panel_floats = int64_t{padded_channels(problem.dk)} * kCols;
  ChainScratch s;
  s.transition = carver.take(panels_for(problem.dk, kCols) * panel_floats);
  s.next = carver.take(panel_floats);
  s.panels = carver.take(panels * panel_floats);
  s.lines = carver.take(kLineFloats);
  return s;
}

inline void enter_chain(const StageArgs& args, int64_t sequence, int32_t head, int32_t panel, float* lines, float* to) {
  const Problem& problem = args.problem;
  const int32_t channels = padded_channels(problem.dk), value_panels = panels_for(problem.dv, kCols);
  if (panel < value_panels) {
    load_state(problem, problem.initial, args.tensors.initial, initial_slot(args, sequence), head, {panel, 1}, channels,
               lines, to);
    return;
  }
  std::fill(to, to + int64_t{channels} * kCols, 0.0f);
  const int32_t column = (panel - 2 * value_panels) * kCols;  // of M
  for (int32_t i = std::max(column, 0); i < std::min(column + kCols, problem.dk); ++i)
    to[i * kCols + (i - column)] = 1.0f;
}

inline void run_chain(const StageArgs& args, int64_t sequence, int32_t head, PanelRange range, std::byte* memory) {
  const Problem& problem = args.problem;
  const dr_intermediates& stages = *args.tensors.intermediates;
  const int32_t channels = padded_channels(problem.dk), value_panels = panels_for(problem.dv, kCols);
  const int32_t key_panels = panels_for(problem.dk, kCols);
  const int64_t panel_floats = int64_t{channels} * kCols;
  const StatePool states = states_pool(problem);
  Carver carver(memory);
  const ChainScratch s = carve_chain(problem, range.count, carver);

  for (int32_t p = 0; p < range.count; ++p)
    enter_chain(args, sequence, head, range.first + p, s.lines, s.panels + p * panel_floats);
  const int64_t first =
      args.sequences.seq_len > 0 ? sequence * args.sequences.seq_len : args.sequences.offsets[sequence];
  for (int64_t row = first; row < first + args.sequences.length(sequence); ++row) {
    for (int32_t m = 0; m < key_panels; ++m)
      load_summary(problem, stages.summaries, row, head, value_panels + m, s.lines, s.transition + m * panel_floats);
    for (int32_t p = 0; p < range.count; ++p) {
      float* panel = s.panels + p * panel_floats;
      const int32_t index = range.first + p;
      if (index < value_panels && problem.chunks.wants(DR_STATES))
        store_state(problem, states, stages.states, row, head, {index, 1}, channels, s.lines, panel);
      if (index < 2 * value_panels)
        load_summary(problem, stages.summaries, row, head, index % value_panels, s.lines, s.next);
      else
        std::fill(s.next, s.next + panel_floats, 0.0f);
      fold_panel(s.transition, panel, problem.dk, channels, s.next);
      std::copy(s.next, s.next + panel_floats, panel);
    }
  }
  for (int32_t p = 0; p < range.count; ++p) {
    const int32_t index = range.first + p;
    const float* panel = s.panels + p * panel_floats;
    if (index < value_panels)
      store_state(problem, problem.final, args.tensors.final, final_slot(args, sequence), head, {index, 1}, channels,
                  s.lines, panel);
    else
      store_summary(problem, stages.composed, sequence, head, index - value_panels, s.lines, panel);
  }
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
