// What cuda-sm80 offers for a problem, as a value.
#include <cstdint>

#include "kernels/cuda/sm80/accepts.h"
#include "kernels/cuda/sm80/stages/stages.h"
#include "kernels/cuda/sm80/tiling.h"

namespace deltarelay::cuda::sm80 {
namespace {

// Products of fp32 data are three of TF32, each at half the rate of a 16-bit one; not all of a chunk's time is
// products. On an H200 at 128: 4.2 and 4.4 times the time of bf16 (KDA, GDN), 3.3 and 3.1 with one product.
constexpr int32_t kFp32Slowdown = 4, kTf32Slowdown = 3;

CostFactors costs_of(const Problem& p, int32_t way) {
  if (p.dtype != DType::kFp32) return {};
  return {.walk = way == kTf32 ? kTf32Slowdown : kFp32Slowdown, .prepare = kFp32Slowdown};
}

}  // namespace

CtaTiling cta_tiling(const Problem& p, int64_t unit_shared_bytes) {
  const auto element = static_cast<int32_t>(size_of(p.dtype));
  const WalkTiling walk = walk_tiling(p.rule, element, width_of(p.dk), tile_of(shape_of(p)), is_fine(element, p.dk));
  return {.value_columns = walk.columns,
          .threads = walk.threads,
          .stages = walk.stages,
          .shared_bytes = walk.shared_bytes,
          .registers = registers_a_thread(walk.threads, walk.together),
          .by_registers = walk.together,
          .by_shared_memory = unit_shared_bytes > 0 ? ctas_in(unit_shared_bytes, walk.shared_bytes) : walk.together};
}

Variants variants(const Problem& p, const Request& request) {
  if (is_stage(p.op)) return stage_variants(p);
  const Shape shape = shape_of(p);
  Variant v;
  v.number = request.math == DR_MATH_TF32 ? kTf32 : kExact;
  v.chunk = kChunk;
  v.panel_columns = tile_of(shape);
  v.value_tiles = tiles_of(p.dv, tile_of(shape));
  v.cta = cta_tiling(p, request.unit_shared_bytes);
  v.state_floats = slot_state_floats(p.dk, p.dv);
  v.transition_floats = slot_transition_floats(p.dk);
  v.record_bytes = record_bytes(p.rule, p.dtype, p.dk);
  v.short_summaries = p.rule == Rule::kGdn || walks_both(shape);  // a suffix may stand for its row (suffix.cuh)
  v.costs = costs_of(p, v.number);
  v.suffix = {.tries = v.short_summaries, .exact = true};
  Variants list;
  list.add(v);
  return list;
}

}  // namespace deltarelay::cuda::sm80
