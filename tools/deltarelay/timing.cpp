#include "deltarelay/timing.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "deltarelay/deltarelay.hpp"
#include "deltarelay/fma_peak.h"

namespace deltarelay::command {
namespace {

constexpr double kFmaSeconds =
    0.008;  // length of a burst: long compared with a time slice of the system, short compared with one of ours
constexpr double kWarmUpSeconds = 0.05;
constexpr size_t kMinRuns = 5;
constexpr size_t kMaxPlans = 200;
constexpr double kPlanSeconds = 0.05;

// Runs for `seconds`, at least once, and appends the milliseconds of every call.
void run_for(double seconds, check::PlannedRun& run, const dr_tensors& tensors, std::vector<double>& ms) {
  const auto begin = Clock::now();
  do {
    const auto call = Clock::now();
    run.execute(tensors);
    ms.push_back(1e3 * seconds_since(call));
  } while (seconds_since(begin) < seconds);
}

double time_plan_us(const cases::Case& c) {
  const cases::Request request(c);
  std::vector<double> us;
  const auto begin = Clock::now();
  while (us.size() < kMinRuns || (us.size() < kMaxPlans && seconds_since(begin) < kPlanSeconds)) {
    dr_plan* plan = nullptr;
    const auto call = Clock::now();
    wrapper::check(dr_plan_create(&request.problem, &request.options, &plan));
    us.push_back(1e6 * seconds_since(call));
    dr_plan_destroy(plan);
  }
  return percentile(us, 0.5);
}

int64_t bytes_of(int32_t dtype) { return dtype == DR_FP32 ? 4 : 2; }

}  // namespace

namespace {

// Of the rows of sequences in every tensor that a stage reads or writes, and of the pools.
int64_t least_bytes_of_stage(const cases::Case& c) {
  const TensorSizes sizes = cases::sizes_of(c);
  int64_t total = 0;
  for (const TensorEntry& entry : kTensors) {
    if (is_intermediate(entry.tensor)) {
      if (((c.stage.given | c.stage.wanted) & bit_of(entry.tensor)) == 0) continue;
      const int64_t rows = cases::intermediate_rows(c, entry).back();
      total += rows * size_of_axis(sizes, entry.axes[1]) * size_of_axis(sizes, entry.axes[2]) *
               bytes_of(cases::dtype_of_intermediate(c, entry));
    } else if (entry.kind == TensorKind::kRows) {
      const bool used = entry.tensor == Tensor::kO ? c.writes_o() : c.reads_rows(entry.tensor);
      const cases::Rows rows = cases::rows_of(c, entry.tensor);
      if (used) total += c.tokens() * rows.heads * rows.width * bytes_of(rows.dtype);
    }
  }
  for (const cases::State* pool : {&c.initial, &c.final})
    if (pool->use != DR_STATE_NONE) total += c.num_seqs() * c.heads_v * c.dk * c.dv * bytes_of(pool->dtype);
  return total;
}

}  // namespace

int64_t least_bytes(const cases::Case& c) {
  if (c.is_stage()) return least_bytes_of_stage(c);
  const int64_t qk = 2 * int64_t{c.heads_qk} * c.dk * bytes_of(c.dtype);
  const int64_t v = int64_t{c.heads_v} * c.dv * bytes_of(c.dtype);
  const int64_t o = int64_t{c.heads_v} * c.dv * bytes_of(c.output_dtype());
  const int64_t g = int64_t{c.heads_v} * (c.rule == DR_KDA ? c.dk : 1) * bytes_of(c.gate_dtype());
  const int64_t beta = int64_t{c.heads_v} * bytes_of(c.beta_dtype());
  const int64_t state = int64_t{c.heads_v} * c.dk * c.dv;
  int64_t total = c.tokens() * (qk + v + o + g + beta);
  for (const cases::State* pool : {&c.initial, &c.final})
    if (pool->use != DR_STATE_NONE) total += c.num_seqs() * state * bytes_of(pool->dtype);
  if (c.checkpoints != DR_CHECKPOINTS_NONE)
    for (const auto& rows : cases::checkpoint_positions(c))
      total += static_cast<int64_t>(rows.size()) * state * bytes_of(c.checkpoint.dtype);
  return total;
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double weight = at - static_cast<double>(below);
  return values[below] * (1 - weight) + values[above] * weight;
}

Spread spread_of(const std::vector<double>& ms) {
  return {.median = percentile(ms, 0.5),
          .low = percentile(ms, 0.1),
          .high = percentile(ms, 0.9),
          .least = percentile(ms, 0.0),
          .runs = static_cast<int64_t>(ms.size())};
}

cases::Case unsplit_of(const cases::Case& c) {
  cases::Case whole = c;
  whole.segments = DR_SEGMENTS_OFF;
  whole.segment_value = 0;
  whole.invariant = false;
  return whole;
}

Timing timing_of_plan(const cases::Case& c, const check::PlannedRun& run) {
  Timing timing;
  const dr_plan_summary summary = run.summary();
  timing.on_gpu = c.on_gpu();
  timing.backend = summary.backend;
  timing.isa = summary.isa;
  timing.variant = summary.variant;
  timing.plan_text = run.describe(DR_DESCRIBE_TEXT);
  timing.chunk = summary.chunk;
  timing.threads = summary.threads;
  timing.value_tiles = summary.value_tiles;
  timing.segments = summary.max_segments;
  timing.cut_sequences = summary.cut_sequences;
  timing.predicted_ns = summary.predicted_ns;
  timing.predicted_unsplit_ns = summary.unsplit_ns;
  timing.workspace_bytes = run.workspace_bytes();
  timing.plan_us = time_plan_us(c);
  return timing;
}

Timing time_case(const cases::Case& c, const TimedInputs& inputs, const TimingOptions& options,
                 const ShowProgress& progress) {
  if (c.on_gpu()) return time_on_gpu(c, inputs, options, progress);
  const dr_tensors& tensors = inputs.host();
  const double min_seconds = options.min_seconds;
  check::PlannedRun run(c);
  Timing timing = timing_of_plan(c, run);
  std::unique_ptr<check::PlannedRun> unsplit;
  if (timing.cut_sequences > 0 && options.beside_unsplit) unsplit = std::make_unique<check::PlannedRun>(unsplit_of(c));

  std::vector<double> ignored;
  run_for(kWarmUpSeconds, run, tensors, ignored);
  if (unsplit) run_for(kWarmUpSeconds, *unsplit, tensors, ignored);
  measure_fma_gflops(timing.threads, kFmaSeconds);

  std::vector<double> calls;
  std::vector<double> whole_calls;
  std::vector<double> peaks;
  for (int slice = 0; slice < kSlices || calls.size() < kMinRuns; ++slice) {
    run_for(min_seconds / kSlices, run, tensors, calls);
    if (unsplit) run_for(min_seconds / kSlices, *unsplit, tensors, whole_calls);
    peaks.push_back(measure_fma_gflops(timing.threads, kFmaSeconds));
    progress(static_cast<double>(slice + 1) / kSlices);
  }
  timing.call = spread_of(calls);
  timing.unsplit = unsplit ? spread_of(whole_calls) : timing.call;
  // A CPU plan runs on the caller's thread and its helpers, so the host time is the time of the call.
  timing.host_us = timing.call.median * 1e3;
  timing.fma_peak_gflops = percentile(peaks, 0.5);
  return timing;
}

}  // namespace deltarelay::command
