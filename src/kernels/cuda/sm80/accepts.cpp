#include "kernels/cuda/sm80/accepts.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>

#include "kernels/cuda/args.h"
#include "kernels/cuda/decline.h"
#include "kernels/cuda/sm80/stages/stages.h"

namespace deltarelay::cuda::sm80 {
namespace {

constexpr int32_t kLeastCapability = 80;
// Blocks along the axis of the walk's grid.
constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
constexpr int32_t kForwardShapes = 2 * 3 * kNumWidths;
static_assert(kForwardShapes + kStageShapes <= Backend::kMostShapes);
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

std::string decline_options(const Problem& p, const Request& request) {
  if (request.variant != nullptr) return found("variant", "none (there is one)", request.variant);
  if (request.math == DR_MATH_TF32 && p.dtype != DType::kFp32)
    return found("math", std::string("default with ") + name_of(p.dtype) + " data", "tf32");
  return {};
}

}  // namespace

std::string decline(const Problem& p, const Request& request) {
  std::string reason = decline_request(request);
  if (!reason.empty()) return reason;
  if (request.compute_capability < kLeastCapability) {
    return found("compute capability", capability_text(kLeastCapability) + " or higher",
                 capability_text(request.compute_capability));
  }
  if (is_stage(p.op)) return decline_this_stage(p, request);
  reason = decline_operation(p);
  if (reason.empty()) reason = decline_options(p, request);
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
  if (is_stage(p.op)) return kForwardShapes + stage_number(p);
  const auto width = std::find(kWidths, kWidths + kNumWidths, width_of(p.dk)) - kWidths;
  const auto type = std::find(kTypes, kTypes + 3, p.dtype) - kTypes;
  return static_cast<int32_t>((type * 2 + (p.rule == Rule::kKda ? 0 : 1)) * kNumWidths + width);
}

}  // namespace deltarelay::cuda::sm80
