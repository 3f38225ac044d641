// Runs a case: its plan with a guarded workspace, and the reference.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "case/case.h"
#include "check/device_tensors.h"
#include "check/measure.h"
#include "check/memory.h"
#include "check/run_error.h"
#include "check/spoiled.h"
#include "check/tensors.h"

namespace deltarelay::check {

struct CheckOptions {
  // Off: the GPU workspace stays uninitialised, so that compute-sanitizer's initcheck sees reads of memory that was
  // never written.
  bool poison_workspace = true;
  bool compare = true;                  // compare the outputs with the reference
  bool full_columns = false;            // measure every value column, even of large cases
  int32_t reference_threads = 0;        // 0: all; use 1 if cases run side by side
  int64_t alignment = kLeastAlignment;  // of tensors, unless the case gives one
  Fill fill;                            // writes given inputs; empty: inputs are drawn
};

// The plan of a case (or of a request changed by hand) and a workspace of its size, full of NaN, on the case's device.
class PlannedRun {
 public:
  explicit PlannedRun(const cases::Case& c, const CheckOptions& options = {});  // throws RunError
  PlannedRun(const dr_problem& problem, const dr_options& options);             // in host memory; throws RunError
  ~PlannedRun();
  PlannedRun(const PlannedRun&) = delete;
  PlannedRun& operator=(const PlannedRun&) = delete;

  const dr_plan* plan() const { return plan_; }
  dr_plan_summary summary() const;
  std::string describe(int32_t format) const;  // DR_DESCRIBE_*
  int64_t workspace_bytes() const { return workspace_bytes_; }
  void execute(const dr_tensors& tensors);  // in host memory; throws RunError
  // Takes pointers to device memory and returns when the work is queued.
  void execute(const dr_tensors& tensors, const gpu::Stream& stream);
  // Did the library stay inside its workspace?
  bool workspace_intact() const { return workspace_.intact() && device_workspace_.intact(); }
  void poison_workspace();
  // Destroys the plan and keeps the workspace, for a graph that outlives its plan.
  void destroy_plan();

 private:
  void create(const dr_problem& problem, const dr_options& options);
  dr_plan* plan_ = nullptr;
  int64_t workspace_bytes_ = 0;
  GuardedBuffer workspace_;
  gpu::GuardedMemory device_workspace_;
};

// Results of the reference backend on the same inputs, in fp32, contiguous.
struct Reference {
  std::vector<int32_t> columns;    // value columns that were computed; empty: all
  std::vector<float> o;            // [T, HV, DV], rows in order of sequences
  std::vector<float> final_state;  // [N, HV, DV, DK]
  std::vector<float> checkpoint;   // [row, HV, DV, DK]
  // Of a stage, in the order of TensorSet::intermediates(); those that are given are empty.
  std::vector<std::vector<float>> intermediates;
};

// Value columns on which a case is measured. Up to kFullColumns token-heads: all. Above: kSampledColumns, or as many as
// the shortest non-empty sequence needs for a block of kBlockNumbers outputs, but no more than the reference can
// compute within kReferenceWork. The error of a block of few numbers depends on chance. Stages are always measured on
// all columns: they have tensors without value columns.
constexpr int64_t kFullColumns = 64 * 1024;  // token-heads
constexpr int32_t kSampledColumns = 8;
constexpr int64_t kBlockNumbers = 1024;
// Token-heads x columns: 64 times a case at the limit above with 128 columns. One core computes 76,000 x 128 per second
// at DK = 128, so 16 cores need 3.5 s.
constexpr int64_t kReferenceWork = 64 * kFullColumns * 128;
int32_t measured_columns(const cases::Case& c);
// Large stages on a GPU repeat few heads: these are drawn and held to the reference, and the others, which read the
// same numbers, must give the same bits. Drawing, computing and moving gigabytes on the host would take longer than
// anything that is measured there. Returns those heads' case; `c` itself where it has few token-heads, or something
// that is not repeated.
cases::Case fewer_heads(const cases::Case& c);
// The sampled columns: seeded, increasing; empty: all.
std::vector<int32_t> sampled_columns(const cases::Case& c);

Reference run_reference(const TensorSet& tensors, const CheckOptions& options = {});  // throws RunError
// Compares what the case writes: o, final states, checkpoints, wanted intermediates. Leaves out what `spoiled` says is
// open.
std::vector<TensorError> compare(const TensorSet& tensors, const Reference& reference, const Spoiled& spoiled = {});
// Compares the outputs of one run with those of another of the same shape, with the same blocks and measure.
std::vector<TensorError> compare(const TensorSet& tensors, const TensorSet& other);

}  // namespace deltarelay::check
