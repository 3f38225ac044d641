// A pool of the process's own: made when first needed, grows to what is asked for, is made anew in a forked child, and
// ends with the library, whether that is unloaded or the process exits.
#pragma once
#include <cstdint>

#include "deltarelay/deltarelay.h"
#include "kernels/stages.h"

namespace deltarelay {

// Worker 0 is the calling thread. Concurrent calls share the pool's threads; one that finds none free does all its work
// itself, so calls never wait for each other. Without memory for a pool or a thread it does the same: it never fails.
// All workers run to their end, and then the first exception of any is thrown to the caller.
class PoolExecutor final : public Executor {
 public:
  void run(int32_t workers, Body body, void* context) override;
};

// The caller's own parallel_for.
class CallerExecutor final : public Executor {
 public:
  CallerExecutor(dr_parallel_for parallel_for, void* pool) : parallel_for_(parallel_for), pool_(pool) {}
  void run(int32_t workers, Body body, void* context) override;

 private:
  dr_parallel_for parallel_for_;
  void* pool_;
};

}  // namespace deltarelay
