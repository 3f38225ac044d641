// What cuda-sm80 takes of the stages, what it offers for them, and how their launches are spread.
#include "kernels/cuda/sm80/stages/stages.h"

#include <algorithm>

#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm80/grid.h"
#include "kernels/cuda/sm80/stages/tiles.h"

namespace deltarelay::cuda::sm80 {
namespace {

int64_t align(int64_t bytes) { return static_cast<int64_t>(round_up(static_cast<size_t>(bytes), kWorkspaceAlignment)); }

bool prepares(const Problem& p) { return p.op == Op::kSummary && !p.chunks.gives(DR_W); }

ChainTiles tiles_of_chain(const Problem& p) {
  const bool states = p.chunks.wants(DR_STATES) || p.final.used();
  return chain_tiles(p.dk, p.dv, states, p.chunks.wants(DR_COMPOSED));
}

}  // namespace

std::string decline_this_stage(const Problem& p, const Request& request) {
  std::string reason = decline_stage(p, request);
  if (reason.empty()) reason = decline_math(request);
  if (!reason.empty()) return reason;
  const int64_t chunk = std::max(1, p.chunks.chunk), chunks = p.num_tokens / chunk + p.num_seqs;
  const int32_t tiles = p.op == Op::kCarry ? tiles_of_chain(p).all() : pass_tiles(p.dk, p.dv, true);
  const int64_t blocks = std::max<int64_t>(1, int64_t{p.heads_v} * tiles);
  if (chunks <= kMostBlocks / blocks) return {};
  return found("num_tokens",
               "at most " + std::to_string(kMostBlocks / blocks) + (p.op == Op::kCarry ? " summaries" : " chunks") +
                   " with these heads and widths",
               std::to_string(chunks));
}

Variants stage_variants(const Problem& p) {
  Variant v;
  v.chunk = std::max(1, p.chunks.chunk);  // in a carry a summary
  v.panel_columns = kPassColumns;
  v.value_tiles = 1;
  if (p.op == Op::kStatePass) {
    v.value_tiles = tiles_of(p.dv, kPassColumns);
    v.state_floats = slot_state_floats(p.dk, p.dv);
    v.transition_floats = slot_transition_floats(p.dk);
    v.costs.has_local = false;
  }
  if (p.op == Op::kSummary) v.value_tiles = tiles_of(p.dv, kPassColumns);
  if (p.op == Op::kCarry) v.value_tiles = tiles_of_chain(p).all();
  if (prepares(p)) {
    // With the padding between the tensors of a call, which has one chunk at least.
    const int64_t number = static_cast<int64_t>(size_of(p.dtype)), gates = p.rule == Rule::kKda ? p.dk : 1;
    v.record_bytes = align(v.chunk * ((2 * p.dk + p.dv) * number + gates * 4)) + 4 * 256;
  }
  Variants list;
  list.add(v);
  return list;
}

void spread_stage(const SpreadRequest& r, Step& step) {
  const Problem& p = r.problem;
  switch (step.stage) {
    case Stage::kPrepare:
    case Stage::kChunkLocal:
    case Stage::kOutputs:
      step.each = 1;
      step.ctas = ChunkCounts(static_cast<int32_t>(step.rows)).chunks() * p.heads_v;
      break;
    case Stage::kWalk:
    case Stage::kSummary:
      step.each = kPassColumns;
      step.ctas = step.rows * p.heads_v * pass_tiles(p.dk, p.dv, step.summarizes || step.stage == Stage::kSummary);
      break;
    case Stage::kCarry:
      step.each = kCarryRows;
      step.ctas = step.rows * p.heads_v * carry_slices(p.dv);
      break;
    case Stage::kChains:
      step.each = chain_columns(p.dk);
      step.ctas = step.rows * p.heads_v * tiles_of_chain(p).all();
      break;
    default:
      break;
  }
  step.ctas_stored = step.ctas;
}

// A pass copies W and U as they are. The other stages read q, k and v too.
StageNumbers stage_numbers(const Problem& p) {
  const bool passes = p.op == Op::kStatePass || p.op == Op::kSummary;
  const DType type = prepares(p) ? p.dtype : p.chunks.dtype;
  if (type == DType::kFp32 || (!passes && p.dtype == DType::kFp32)) return StageNumbers::kFp32;
  const bool fine = is_fine(2, p.dk);
  if (type == DType::kBf16) return fine ? StageNumbers::kFineBf16 : StageNumbers::kBf16;
  return fine ? StageNumbers::kFineFp16 : StageNumbers::kFp16;
}

int32_t stage_number(const Problem& p) {
  const auto op = static_cast<int32_t>(p.op) - static_cast<int32_t>(Op::kChunkLocal);
  return op * 5 + static_cast<int32_t>(stage_numbers(p));
}

PreparedPlaces prepared_places(const Problem& p) {
  const int64_t tokens = p.lengths_known && !p.batched() ? p.offsets.back() : p.num_tokens;
  const int64_t rows = tokens * p.heads_v, number = static_cast<int64_t>(size_of(p.dtype));
  PreparedPlaces places{};
  places.u = places.w + align(rows * p.dk * number);
  places.k_to_end = places.u + align(rows * p.dv * number);
  places.gate_sums = places.k_to_end + align(rows * p.dk * number);
  places.bytes = places.gate_sums + align(rows * (p.rule == Rule::kKda ? p.dk : 1) * 4);
  return places;
}

}  // namespace deltarelay::cuda::sm80
