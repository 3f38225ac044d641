// CTAs of the steps that are the same on every architecture, in plain C++: the planner asks, and the launch follows.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"

namespace deltarelay::cuda {

constexpr int32_t kFinishCtas = 2;          // per multiprocessor
constexpr int32_t kAliasesCtas = 4;         // per multiprocessor, at most one a sequence
constexpr int32_t kCheckpointColumns = 32;  // value columns of a CTA
constexpr int32_t kMostSharing = 256;       // CTAs that share the checkpoints of one sequence, head and tile of columns

// Fills in the CTAs of `checkpoints`, `aliases` and `finish`. Other steps are left alone.
inline void spread_shared(const SpreadRequest& request, Step& step) {
  const int64_t units = request.units, sequences = request.sequences;
  switch (step.stage) {
    case Stage::kCheckpoints: {
      const int64_t tiles = (request.problem.dv + kCheckpointColumns - 1) / kCheckpointColumns;
      step.each =
          static_cast<int32_t>(std::clamp<int64_t>(step.rows / std::max<int64_t>(1, sequences), 1, kMostSharing));
      step.ctas = sequences * request.problem.heads_v * tiles * step.each;
      break;
    }
    case Stage::kAliases:
      step.ctas = std::min(sequences, units * kAliasesCtas);
      break;
    case Stage::kFinish:
      step.ctas = units * kFinishCtas;
      break;
    default:
      return;
  }
  step.ctas_stored = step.ctas;
}

}  // namespace deltarelay::cuda
