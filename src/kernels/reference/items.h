// Spreads independent work items over the workers of an executor.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/stages.h"

namespace deltarelay::reference {

// Runs work(worker, i) for every i below `count`. Each thread has a Worker(args, index) of its own, which gets its
// items in increasing order.
template <class Worker, class Work>
void for_each(const StageArgs& args, int64_t count, Executor& executor, const Work& work) {
  struct Context {
    const StageArgs& args;
    const Work& work;
    int64_t count;
    std::atomic<int64_t> ticket{0};
  } context{args, work, count};
  if (count <= 0) return;
  const auto workers = static_cast<int32_t>(std::min<int64_t>(args.tiling.threads, count));
  executor.run(
      workers,
      [](void* opaque, int32_t index) {
        auto& c = *static_cast<Context*>(opaque);
        Worker worker(c.args, index);
        for (int64_t i = c.ticket.fetch_add(1, std::memory_order_relaxed); i < c.count;
             i = c.ticket.fetch_add(1, std::memory_order_relaxed)) {
          c.work(worker, i);
        }
      },
      &context);
}

}  // namespace deltarelay::reference
