// DR_OUTPUTS: O = scale q_from_start S + Aqk V_new for one chunk, from the state at its start.
#if defined(DELTARELAY_CPU_STAGES_OUTPUTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTARELAY_CPU_STAGES_OUTPUTS_INL_H_
#undef DELTARELAY_CPU_STAGES_OUTPUTS_INL_H_
#else
#define DELTARELAY_CPU_STAGES_OUTPUTS_INL_H_
#endif

#include "kernels/cpu/stages/chunk-inl.h"
#include "kernels/cpu/stages/states-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltarelay::cpu::HWY_NAMESPACE {
namespace {  // internal linkage: several translation units compile this file with different instructions
namespace hn = hwy::HWY_NAMESPACE;

// Leaves scale q_from_start in s.left and Aqk in s.triangle, as left operands.
inline void take_queries(const StageArgs& args, const StageChunk& chunk, int32_t tokens, const StageScratch& s) {
  const Problem& problem = args.problem;
  const Chunks& chunks = problem.chunks;
  const dr_intermediates& from = *args.tensors.intermediates;
  const void *const aqk = from.aqk, *const q_from_start = from.q_from_start;
  StageWants wants;
  wants.scores = !chunks.gives(DR_AQK);
  if (!chunks.gives(DR_Q_FROM_START)) wants.queries = s.queries;
  if (wants.scores || wants.queries != nullptr)
    prepare_stage(args, stage_inputs(args, chunk, tokens, s), tokens, s, wants);
  if (chunks.gives(DR_Q_FROM_START))
    load_panels(rows_of(args, chunk, q_from_start, problem.dk), problem.dk, padded_channels(problem.dk), tokens,
                chunks.chunk, s.queries);
  pack_panels(s.queries, padded_channels(problem.dk), chunks.chunk, problem.scale, s.left);
  if (chunks.gives(DR_AQK)) {
    load_triangle(rows_of(args, chunk, aqk, chunks.chunk), tokens, chunks.chunk, s.square);
    pack_panels(s.square, chunks.chunk, chunks.chunk, 1.0f, s.triangle);
  } else {
    scale_row(s.operands.aqk, problem.scale, chunks.chunk * chunks.chunk, s.triangle);
  }
}

inline void chunk_outputs(const StageArgs& args, const StageChunk& chunk, int32_t tokens, const StageScratch& s) {
  const Problem& problem = args.problem;
  const int32_t count = problem.chunks.chunk, channels = padded_channels(problem.dk);
  const dr_intermediates& from = *args.tensors.intermediates;
  const StatePool pool = states_pool(problem);
  const void* const v_new = from.v_new;
  const HeadRows<const void*> values = rows_of(args, chunk, v_new, problem.dv);
  const HeadRows<void*> o = rows_of(args, chunk, args.tensors.o, problem.dtype_o, problem.o, chunk.head);
  take_queries(args, chunk, tokens, s);
  for (int32_t p = 0; p * kCols < problem.dv; ++p) {
    load_state(problem, pool, from.states, chunk.state, chunk.head, {p, 1}, channels, s.lines, s.panels);
    load_columns(values, p * kCols, problem.dv, tokens, count, s.values);
    for (int32_t t = (tokens + kRows - 1) / kRows - 1; t >= 0; --t) {  // in place, the last rows first
      Tile tile;
      clear(tile);
      multiply(tile, s.left + int64_t{t} * channels * kRows, kRows, s.panels, problem.dk);
      multiply(tile, s.triangle + t * count * kRows, kRows, s.values, (t + 1) * kRows);
      store(tile, s.values + t * kRows * kCols, kCols);
    }
    store_columns(s.values, p * kCols, problem.dv, tokens, o);
  }
}

}  // namespace
}  // namespace deltarelay::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
