// Times a case: medians and spread, interleaved with what it is compared with.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "case/case.h"
#include "check/check.h"

namespace deltarelay::command {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
constexpr int kSlices = 12;  // of the time of a case, in which calls and unsplit calls take turns

struct Spread {  // milliseconds
  double median = 0;
  double low = 0;   // 10th percentile
  double high = 0;  // 90th percentile
  double least = 0;
  int64_t runs = 0;
};

struct Timing {
  bool on_gpu = false;
  Spread call;         // CPU: one dr_execute, from call to return; GPU: all its work, replayed as a graph
  Spread unsplit;      // the same case with segments=off; equals `call` if nothing is cut
  double host_us = 0;  // median of one dr_execute from call to return, with an empty queue
  double plan_us = 0;  // median of dr_plan_create
  // CPU only
  double fma_peak_gflops = 0;  // median over the same time, with the same number of threads
  // GPU only
  double back_to_back_ms = 0;  // one replay in a series without events in between
  int64_t input_sets = 0;      // alternating sets of tensors, so that none is in the L2 cache
  int64_t graph_nodes = 0;     // kernels and copies of one call

  std::string backend;
  std::string isa;
  std::string variant;
  std::string plan_text;
  int32_t chunk = 0;
  int32_t threads = 0;
  int32_t value_tiles = 0;
  int64_t segments = 0;  // largest number of one sequence
  int64_t cut_sequences = 0;
  int64_t predicted_ns = 0;
  int64_t predicted_unsplit_ns = 0;
  int64_t workspace_bytes = 0;
};

using ShowProgress = std::function<void(double share)>;

// The case with every sequence whole.
cases::Case unsplit_of(const cases::Case& c);

// The tensors on which a case is timed. On the CPU: those of the check. On a GPU: several sets that together are much
// larger than the cache.
class TimedInputs {
 public:
  explicit TimedInputs(check::Trial& trial);
  ~TimedInputs();
  TimedInputs(const TimedInputs&) = delete;
  TimedInputs& operator=(const TimedInputs&) = delete;

  const dr_tensors& host() const { return trial_.tensors().tensors(); }
  const std::vector<check::gpu::DeviceTensors*>& sets() const { return sets_; }  // GPU: at least one

 private:
  check::Trial& trial_;
  std::vector<std::unique_ptr<check::gpu::DeviceTensors>> others_;
  std::vector<check::gpu::DeviceTensors*> sets_;
};

struct TimingOptions {
  double min_seconds = 0.5;    // per timed plan
  bool beside_unsplit = true;  // if something is cut, also time the case with segments=off, in turn
};

// Times a case that has been checked. Calls, unsplit calls and, on the CPU, bursts of FMAs take turns in slices, so
// that a slow period of the machine affects all of them alike. Throws check::RunError.
Timing time_case(const cases::Case& c, const TimedInputs& inputs, const TimingOptions& options,
                 const ShowProgress& progress);

// Bytes that must move at least once.
int64_t least_bytes(const cases::Case& c);

// ---- shared by timing.cpp and gpu_timing.cpp ----

// Facts of the plan, and how long planning takes.
Timing timing_of_plan(const cases::Case& c, const check::PlannedRun& run);
double percentile(std::vector<double> values, double share);
Spread spread_of(const std::vector<double>& ms);
Timing time_on_gpu(const cases::Case& c, const TimedInputs& inputs, const TimingOptions& options,
                   const ShowProgress& progress);

}  // namespace deltarelay::command
