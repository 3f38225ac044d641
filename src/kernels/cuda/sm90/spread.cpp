// How the launches of cuda-sm90 are spread over CTAs.
#include "kernels/cuda/sm90/carry/spread.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch/spread.h"
#include "kernels/cuda/sm90/accepts.h"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/records/prepare_grid.h"
#include "kernels/cuda/sm90/single_ctas.h"

namespace deltarelay::cuda::sm90 {
namespace {

void spread_prepare(const SpreadRequest& r, Step& step) {
  const Problem& p = r.problem;
  if (p.rule == Rule::kGdn) {
    const GdnGrid grid = gdn_grid(step.rows, p.heads_qk, p.group(), r.units);
    step.each = grid.heads;
    step.ctas = grid.ctas;
  } else {
    const KdaGrid grid = kda_grid(static_cast<int32_t>(step.rows), p.heads_v);
    step.each = grid.chunks;
    step.ctas = int64_t{p.heads_v} * grid.y;
  }
}

void spread_walk(const SpreadRequest& r, Step& step) {
  const int64_t items = step.rows * r.problem.heads_v * r.variant.strips;
  step.each = kHalfWidth * halves_a_cta(step.form);
  step.ctas = items * ctas(step.form);
  if (r.variant.number == kFused && has_whole_strip(step.form)) {
    const SingleCtas call{static_cast<unsigned>(items), r.relay.places(), r.alike};
    step.ctas = single_ctas(call, kMostItems, r.units, static_cast<unsigned>(ctas(step.form)));
    step.ctas_stored =
        single_ctas({call.items, call.places, false}, kMostItems, r.units, static_cast<unsigned>(ctas(step.form)));
    return;
  }
  step.ctas_stored = step.ctas;
  step.ordered = step.backwards && step.ctas > r.units && step.rows > 1;
}

// Every sequence and strip by a pair.
void spread_summary(const SpreadRequest& r, Step& step) {
  step.has_form = true;
  step.form = Form::kPair;
  step.each = kHalfWidth;
  step.ctas = step.rows * r.problem.heads_v * r.variant.strips * ctas(step.form);
}

// A CTA for every chunk and strip.
void spread_outputs(const SpreadRequest& r, Step& step) {
  step.each = kWidth;
  step.ctas = step.rows * r.problem.heads_v * r.variant.strips;
}

// A CTA for every chunk and head, with all its strips.
void spread_chunk_local(const SpreadRequest& r, Step& step) {
  step.each = r.variant.strips * kWidth;
  step.ctas = step.rows * r.problem.heads_v;
}

void spread_carry(const SpreadRequest& r, Step& step) {
  const CarrySpread spread = carry_spread(step.rows * r.problem.heads_v * r.variant.strips, r.units);
  step.has_form = true;
  step.form = spread.form;
  step.each = spread.rows;
  step.ctas = spread.ctas;
}

}  // namespace

void spread(const SpreadRequest& request, Step& step) {
  if (step.stage == Stage::kPrepare) spread_prepare(request, step);
  if (step.stage == Stage::kWalk) spread_walk(request, step);
  if (step.stage == Stage::kSummary) spread_summary(request, step);
  if (step.stage == Stage::kChunkLocal) spread_chunk_local(request, step);
  if (step.stage == Stage::kOutputs) spread_outputs(request, step);
  if (step.stage == Stage::kCarry) spread_carry(request, step);
  if (step.stage != Stage::kWalk) step.ctas_stored = step.ctas;
  spread_shared(request, step);
}

}  // namespace deltarelay::cuda::sm90
