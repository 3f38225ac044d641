#include "plan/ops/stages.h"

#include <algorithm>
#include <cstdint>

#include "plan/ops/forward.h"
#include "plan/ops/step_list.h"
#include "plan/search/lengths.h"

namespace deltarelay {
namespace {

Stage stage_of(Op op) {
  switch (op) {
    case Op::kChunkLocal:
      return Stage::kChunkLocal;
    case Op::kOutputs:
      return Stage::kOutputs;
    case Op::kSummary:
      return Stage::kSummary;
    case Op::kCarry:
      return Stage::kChains;
    default:
      return Stage::kStatePass;
  }
}

}  // namespace

Steps stage_steps(const Plan& plan, const CallBounds& bounds) {
  if (plan.variant.transition_floats > 0) return forward_steps(plan, bounds);
  const Problem& p = plan.problem;
  const bool gpu = on_gpu(plan);
  StepList list(plan, bounds);
  list.table();
  if (bounds.chunks > 0) list.prepare();
  // A sequence without tokens has no row. The kernels of a GPU that fold chains go by sequences.
  const int64_t rows = gpu && p.op == Op::kCarry ? bounds.sequences : bounds.rows1;
  Step step{.stage = stage_of(p.op), .rows = is_chained(p.op) ? rows : bounds.chunks};
  step.items = is_chained(p.op) ? step.rows * plan.costs.copies : step.rows * p.heads_v;
  step.predicted_ns = plan.times.phase1;
  BufferSet buffers(BufferId::kScratch);
  if (gpu) buffers = BufferSet(BufferId::kTable, BufferId::kPrepared);
  if (!gpu || step.rows > 0) list.add(step, buffers);
  if (gpu) {
    list.aliases();
    list.finish(p.op == Op::kSummary || p.op == Op::kStatePass);
  }
  return list.steps();
}

void time_stage(Plan& plan) {
  if (is_chained(plan.problem.op) || !plan.problem.lengths_known) return;
  const int64_t items = plan.num_chunks * plan.problem.heads_v;
  plan.times = {.phase1 = plan::ceil_div(items, std::max(1, plan.costs.units)) * plan.costs.emit};
  plan.predicted_ns = plan.unsplit_ns = plan.times.total();
}

}  // namespace deltarelay
