// How the launches of cuda-sm80 are spread over CTAs.
#include "kernels/cuda/launch/spread.h"

#include <cstdint>

#include "kernels/cuda/sm80/accepts.h"
#include "kernels/cuda/sm80/grid.h"
#include "kernels/cuda/sm80/stages/stages.h"

namespace deltarelay::cuda::sm80 {

namespace {

void spread_forward(const SpreadRequest& r, Step& step) {
  const Problem& p = r.problem;
  const Shape shape = shape_of(p, r.variant.number);
  if (step.stage == Stage::kPrepare) {
    const uint32_t heads = p.rule == Rule::kGdn ? static_cast<uint32_t>(p.heads_qk) * shares_of(p.group())
                                                : static_cast<uint32_t>(p.heads_v);
    step.each = p.rule == Rule::kGdn ? kHeadsTogether : 1;
    step.ctas = ChunkCounts(static_cast<int32_t>(step.rows)).chunks() * heads;
  } else if (step.stage == Stage::kWalk) {
    const WalkGrid grid = walk_grid(shape, step.rows * p.heads_v, step.summarizes, r.units);
    step.each = grid.columns;
    step.together = grid.both;
    step.ctas = grid.ctas;
  } else if (step.stage == Stage::kCarry) {
    step.each = kCarryRows;
    step.ctas = step.rows * p.heads_v * carry_slices(p.dv);
  }
  step.ctas_stored = step.ctas;
}

}  // namespace

void spread(const SpreadRequest& request, Step& step) {
  if (is_stage(request.problem.op))
    spread_stage(request, step);
  else
    spread_forward(request, step);
  spread_shared(request, step);
}

}  // namespace deltarelay::cuda::sm80
