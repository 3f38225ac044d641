#include "kernels/cuda/sm80/accepts.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>

#include "kernels/cuda/args.h"
#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm80/tiling.h"

namespace deltarelay::cuda::sm80 {
namespace {

constexpr int32_t kLeastCapability = 80;
// Blocks along the axis of the walk's grid.
constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
constexpr int32_t kWidths[] = {64, 96, 128, 192, 256};
constexpr int32_t kNumWidths = 5;
constexpr DType kTypes[] = {DType::kFp32, DType::kBf16, DType::kFp16};

// `prepare` has a block for every chunk and head, the walk one for every tile of a row, which has a chunk at least.
std::string decline_blocks(const Problem& p) {
  const int64_t chunks = p.num_tokens / kChunk + p.num_seqs;
  const int64_t blocks_a_chunk = int64_t{p.heads_v} * (whole_tiles(p.dv) + whole_tiles(p.dk));
  if (chunks <= kMostBlocks / blocks_a_chunk) return {};
  return found("num_tokens",
               "at most " + std::to_string(kMostBlocks / blocks_a_chunk) + " chunks of " + std::to_string(kChunk) +
                   " tokens with these heads and widths",
               std::to_string(chunks));
}

std::string decline_way(const Problem& p, const Request& request) {
  if (request.variant != nullptr) return found("variant", "none (there is one)", request.variant);
  if (request.math == DR_MATH_TF32 && !takes_way(p, kTf32))
    return found("math", std::string("default with ") + name_of(p.dtype) + " data", "tf32");
  return {};
}

}  // namespace

bool takes_way(const Problem& p, int32_t way) { return way == kExact || p.dtype == DType::kFp32; }

std::string decline(const Problem& p, const Request& request) {
  std::string reason = decline_request(request);
  if (!reason.empty()) return reason;
  if (request.compute_capability < kLeastCapability) {
    return found("compute capability", capability_text(kLeastCapability) + " or higher",
                 capability_text(request.compute_capability));
  }
  reason = decline_operation(p);
  if (reason.empty()) reason = decline_way(p, request);
  return reason.empty() ? decline_blocks(p) : reason;
}

// Machine code runs on its capability and on later ones of the same major number; virtual code is compiled for any
// later GPU when it is loaded. A number without a word is both. From 9.0 on kernels are launched ahead of the end of
// the one before (launch.h) and wait for it themselves: code that was made for earlier GPUs does not, so it is not
// taken there.
bool has_code_for(int32_t compute_capability, const std::string& architectures) {
  std::istringstream list(architectures);
  for (std::string entry; std::getline(list, entry, ',');) {
    const int32_t built = std::atoi(entry.c_str());
    const bool real = entry.find("-virtual") == std::string::npos, ptx = entry.find("-real") == std::string::npos;
    if (compute_capability < built || (compute_capability >= 90 && built < 90)) continue;
    if (ptx || (real && compute_capability / 10 == built / 10)) return true;
  }
  return false;
}

int32_t chunk(const Problem&, int32_t) { return kChunk; }

int32_t panel_columns(const Problem& p, int32_t) { return tile_of(shape_of(p)); }

int32_t value_tiles(const Problem& p) { return tiles_of(p.dv, tile_of(shape_of(p))); }

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

bool short_summaries(const Problem& p) { return p.rule == Rule::kGdn || walks_both(shape_of(p)); }

bool tries_suffixes(const Problem& p, const CallBounds& bounds, int32_t, bool exact) {
  return bounds.folds > 0 && exact && short_summaries(p);
}

Shape shape_of(const Problem& p, int32_t way) {
  const bool mid_frame = p.rule == Rule::kKda && p.least_gate() >= kMidFrameGate;
  return {.rule = p.rule,
          .dtype = p.dtype,
          .dk = p.dk,
          .dv = p.dv,
          .mid_frame = mid_frame,
          .tf32 = way == kTf32 && p.dk >= kPlainChannels};
}

int32_t shape_number(const Problem& p) {
  const auto width = std::find(kWidths, kWidths + kNumWidths, width_of(p.dk)) - kWidths;
  const auto type = std::find(kTypes, kTypes + 3, p.dtype) - kTypes;
  return static_cast<int32_t>((type * 2 + (p.rule == Rule::kKda ? 0 : 1)) * kNumWidths + width);
}

Sizes sizes(const Problem& p, int32_t, const Tiling&) {
  Sizes sizes;
  sizes.state_floats = slot_state_floats(p.dk, p.dv);
  sizes.transition_floats = slot_transition_floats(p.dk);
  sizes.record_bytes = record_bytes(p.rule, p.dtype, p.dk);
  return sizes;
}

}  // namespace deltarelay::cuda::sm80
