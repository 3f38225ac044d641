// How long a case takes: medians and spread, with what it is held against timed in between.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "case/case.h"

namespace deltarelay::command {

struct Spread {  // milliseconds
  double median = 0;
  double low = 0;   // 10th percentile
  double high = 0;  // 90th percentile
  int64_t runs = 0;
};

struct Timing {
  Spread call;                 // one dr_execute, from call to return
  Spread unsplit;              // the same case with segments=off; equals `call` when nothing is cut
  double plan_us = 0;          // median of dr_plan_create
  double fma_peak_gflops = 0;  // median over the same stretch of time, same number of threads
  std::string backend;
  std::string isa;
  std::string plan_text;
  int32_t chunk = 0;
  int32_t threads = 0;
  int32_t value_tiles = 0;
  int64_t segments = 0;  // most of one sequence
  int64_t cut_sequences = 0;
  int64_t predicted_ns = 0;
  int64_t predicted_unsplit_ns = 0;
  int64_t workspace_bytes = 0;
};

// Times a case that has been checked. Calls, unsplit calls and bursts of FMAs take turns in slices, so that a slow stretch
// of the machine falls on all of them alike. Throws check::RunError.
Timing time_case(const cases::Case& c, double min_seconds, const std::function<void(double share)>& progress);

// Bytes that have to move at least once.
int64_t least_bytes(const cases::Case& c);

}  // namespace deltarelay::command
