// DR_STATE_PASS and DR_SUMMARY: a segment of one head, chunk by chunk, with some panels of the state.
//
//   V_new = U - W S
//   S     = diag(decay_chunk) S + k_to_end^T V_new
//
// A summary is the same walk from S = 0 (columns of B) and from S = I with U = 0 (columns of M). If W and U are not
// given, the walk computes them chunk by chunk.
#if defined(DELTARELAY_CPU_STAGES_SEGMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_STAGES_SEGMENT_INL_H_
#undef DELTARELAY_CPU_STAGES_SEGMENT_INL_H_
#else
#define DELTARELAY_CPU_STAGES_SEGMENT_INL_H_
#endif

#include "kernels/cpu/stages/local-inl.h"
#include "kernels/cpu/stages/states-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// decay_chunk from the last of the given sums.
inline void decay_from_sums(const StageArgs& args, const StageChunk& chunk, int32_t tokens, float* decay) {
  const F32 d;
  const Problem& problem = args.problem;
  const int32_t columns = gate_columns(problem), channels = padded_channels(problem.dk);
  const HeadRows<const void*> sums = given_sums(args, chunk);
  load_row(at(sums.base, sums.type, (tokens - 1) * sums.stride), sums.type, columns, decay);
  std::fill(decay + columns, decay + channels, columns == 1 ? decay[0] : 0.0f);
  const Vec to_natural = hn::Set(d, natural_of(problem.chunks));
  for (int32_t c = 0; c < channels; c += kLanes)
    hn::StoreU(exp_of(hn::Mul(hn::LoadU(d, decay + c), to_natural)), d, decay + c);
}

// Leaves what the walk needs of a chunk: -W as a left operand in s.left; k_to_end and decay_chunk; and T in s.triangle,
// unless W and U are given.
inline void take_keys(const StageArgs& args, const StageChunk& chunk, int32_t tokens, const StageScratch& s) {
  const Problem& problem = args.problem;
  const Chunks& chunks = problem.chunks;
  const dr_intermediates& from = *args.tensors.intermediates;
  const void *const w = from.w, *const k_to_end = from.k_to_end;
  const int32_t channels = padded_channels(problem.dk);
  const bool solved = chunks.gives(DR_W | DR_U);
  StageWants wants;
  wants.scores = !solved;
  wants.columns = !chunks.gives(DR_K_TO_END);
  wants.keys = solved ? nullptr : s.keys;
  if (wants.columns || !chunks.gives(DR_GATE_SUMS))
    prepare_stage(args, stage_inputs(args, chunk, tokens, s), tokens, s, wants);
  if (solved) {
    load_panels(rows_of(args, chunk, w, problem.dk), problem.dk, channels, tokens, chunks.chunk, s.keys);
  } else {
    take_inverse(args, chunk, tokens, s);
    solve_keys(problem, tokens, s);
  }
  pack_panels(s.keys, channels, chunks.chunk, -1.0f, s.left);
  if (chunks.gives(DR_GATE_SUMS)) decay_from_sums(args, chunk, tokens, s.operands.decay_chunk);
  if (!chunks.gives(DR_K_TO_END)) return;
  const HeadRows<const void*> rows = rows_of(args, chunk, k_to_end, problem.dk);
  for (int32_t t = 0; t < tokens; ++t) {
    float* row = s.operands.k_to_end + t * channels;
    load_row(at(rows.base, rows.type, t * rows.stride), rows.type, problem.dk, row);
    std::fill(row + problem.dk, row + channels, 0.0f);
  }
}

// U of one panel in s.values.
inline void take_values(const StageArgs& args, const StageChunk& chunk, int32_t tokens, int32_t panel,
                        const StageScratch& s) {
  const Problem& problem = args.problem;
  const int32_t value_panels = panels_for(problem.dv, kCols);
  const void* const u = args.tensors.intermediates->u;
  if (panel >= value_panels) {
    std::fill(s.values, s.values + problem.chunks.chunk * kCols, 0.0f);
  } else if (problem.chunks.gives(DR_U)) {
    load_columns(rows_of(args, chunk, u, problem.dv), panel * kCols, problem.dv, tokens, problem.chunks.chunk,
                 s.values);
  } else {
    values_of_panel(rows_of(args, chunk, args.tensors.v, problem.dtype, problem.v, chunk.head), panel * kCols, args, s,
                    tokens);
  }
}

// Turns U in s.values into V_new, and advances one panel of the state by a chunk.
inline void advance_state(const Problem& problem, int32_t tokens, const StageScratch& s, float* panel) {
  const int32_t channels = padded_channels(problem.dk);
  Tile tile;
  for (int32_t t = 0; t * kRows < tokens; ++t) {
    load(tile, s.values + t * kRows * kCols, kCols);
    multiply(tile, s.left + int64_t{t} * channels * kRows, kRows, panel, problem.dk);
    store(tile, s.values + t * kRows * kCols, kCols);
  }
  for (int32_t c = 0; c < channels; c += kRows) {
    load(tile, panel + c * kCols, kCols);
    scale_rows(tile, s.operands.decay_chunk + c);
    multiply(tile, s.operands.k_to_end + c, channels, s.values, tokens);
    store(tile, panel + c * kCols, kCols);
  }
}

inline void run_segment(const StageArgs& args, const Item& item, std::byte* memory) {
  const Problem& problem = args.problem;
  const Row& row = item.row;
  const int32_t count = problem.chunks.chunk, channels = padded_channels(problem.dk);
  const int64_t length = args.sequences.length(row.sequence), begin = int64_t{row.begin} * count;
  const int64_t end = std::min(length, begin + int64_t{row.chunks} * count);
  const int64_t panel_floats = int64_t{channels} * kCols;
  const bool emits = row.work == Work::kEmit;
  const dr_intermediates& stages = *args.tensors.intermediates;
  const StatePool states = states_pool(problem);
  Carver carver(memory);
  const StageScratch s = carve_stage(problem, item.panels.count, carver);

  enter(args, item, channels, s.lines, s.panels);
  for (int64_t first = begin; first < end; first += count) {
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(count, end - first));
    const StageChunk chunk{row.sequence, first, item.first_checkpoint + first / count, item.head};
    take_keys(args, chunk, tokens, s);
    if (emits && problem.chunks.wants(DR_STATES))
      store_state(problem, states, stages.states, chunk.state, item.head, item.panels, channels, s.lines, s.panels);
    for (int32_t p = 0; p < item.panels.count; ++p) {
      const int32_t panel = item.panels.first + p;
      take_values(args, chunk, tokens, panel, s);
      advance_state(problem, tokens, s, s.panels + p * panel_floats);
      if (emits && problem.chunks.wants(DR_V_NEW))
        store_columns(s.values, panel * kCols, problem.dv, tokens, rows_of(args, chunk, stages.v_new, problem.dv));
    }
  }
  leave(args, item, channels, s.panels);
  if (problem.op == Op::kSummary) {
    for (int32_t p = 0; p < item.panels.count; ++p)
      store_summary(problem, stages.summaries, row.sequence, item.head, item.panels.first + p, s.lines,
                    s.panels + p * panel_floats);
  } else if (emits && end == length) {
    // State after the row's last token, if the carry has already computed it.
    const float* folded = row.slot_folded >= 0
                              ? slot_panels(args.slot_state, row.slot_folded, problem.heads_v, item.head,
                                            panels_for(problem.dv, kCols), item.panels.first, channels)
                              : s.panels;
    store_state(problem, problem.final, args.tensors.final, final_slot(args, row.sequence), item.head, item.panels,
                channels, s.lines, folded);
  }
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
