// Spreads work over workers. The assignment of work to workers never changes a bit of the result.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/cpu/config.h"
#include "kernels/cpu/flush_subnormals.h"

namespace deltarelay::cpu {

// Panels of tile `tile` if `tiles` tiles share `panels` panels: near-equal counts, some may be 0.
inline PanelRange tile_range(int32_t panels, int32_t tiles, int32_t tile) {
  const int32_t first = static_cast<int32_t>(static_cast<int64_t>(panels) * tile / tiles);
  const int32_t last = static_cast<int32_t>(static_cast<int64_t>(panels) * (tile + 1) / tiles);
  return {first, last - first};
}

// Calls body(memory, worker, item) once for each item in [0, count). Free workers take items in increasing order. Each
// worker has its own Memory.
struct NoMemory {};
template <class Memory, class Body>
void for_each(const StageArgs& args, Executor& executor, int64_t count, Body body) {
  struct Shared {
    std::atomic<int64_t> next{0};
    int64_t count;
    Body* body;
  } shared{{}, count, &body};
  const auto workers = static_cast<int32_t>(std::min<int64_t>(args.tiling.threads, count));
  if (workers <= 0) return;
  executor.run(
      workers,
      [](void* context, int32_t worker) {
        auto& s = *static_cast<Shared*>(context);
        const FlushSubnormals flush;
        Memory memory;
        for (int64_t i; (i = s.next.fetch_add(1, std::memory_order_relaxed)) < s.count;) (*s.body)(memory, worker, i);
      },
      &shared);
}

}  // namespace deltarelay::cpu
