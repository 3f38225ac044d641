// Running a case: its plan with guarded workspace, and the reference beside it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "case/case.h"
#include "check/device_tensors.h"
#include "check/measure.h"
#include "check/memory.h"
#include "check/run_error.h"
#include "check/tensors.h"

namespace deltarelay::check {

struct CheckOptions {
  // Off: the workspace on the GPU is left as it was allocated, so that compute-sanitizer's initcheck sees reads of what was
  // never written.
  bool poison_workspace = true;
  bool compare = true;                  // hold the outputs against the reference
  bool full_columns = false;            // every value column, however large the case is
  int32_t reference_threads = 0;        // 0: all; 1 where cases run side by side
  int64_t alignment = kLeastAlignment;  // of tensors, where the case does not say
  Fill fill;                            // inputs that are given; empty: they are drawn
};

// The plan of a case (or of a request changed by hand) and a workspace of its size, full of NaN, where the case runs.
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
  // Pointers to device memory; returns when the work is queued.
  void execute(const dr_tensors& tensors, const gpu::Stream& stream);
  // Whether the library kept to the workspace it asked for.
  bool workspace_intact() const { return workspace_.intact() && device_workspace_.intact(); }
  void poison_workspace();
  // The plan goes, the workspace stays: for a graph that outlives its plan.
  void destroy_plan();

 private:
  void create(const dr_problem& problem, const dr_options& options);
  dr_plan* plan_ = nullptr;
  int64_t workspace_bytes_ = 0;
  GuardedBuffer workspace_;
  gpu::GuardedMemory device_workspace_;
};

// What the reference backend makes of the same inputs, in fp32, contiguous.
struct Reference {
  std::vector<int32_t> columns;    // value columns that were computed; empty: all
  std::vector<float> o;            // [T, HV, DV], rows in order of sequences
  std::vector<float> final_state;  // [N, HV, DV, DK]
  std::vector<float> checkpoint;   // [row, HV, DV, DK]
};

// Value columns that a case is measured on. All of them up to kFullColumns token-heads. Above, kSampledColumns, or as many as the
// shortest sequence (not empty) needs for a block of kBlockNumbers outputs, all if need be, but no more than the reference can
// compute in kReferenceWork: the error of a block of few numbers is a matter of luck.
constexpr int64_t kFullColumns = 64 * 1024;  // token-heads
constexpr int32_t kSampledColumns = 8;
constexpr int64_t kBlockNumbers = 1024;
// Token-heads x columns: 64 times a case at the limit above with 128 columns. A core does 76,000 x 128 a second at DK = 128, so
// 3.5 s on 16 cores.
constexpr int64_t kReferenceWork = 64 * kFullColumns * 128;
int32_t measured_columns(const cases::Case& c);
// Which they are: seeded, increasing; empty: all.
std::vector<int32_t> sampled_columns(const cases::Case& c);

Reference run_reference(const TensorSet& tensors, const CheckOptions& options = {});  // throws RunError
// o, and final states and checkpoints where the case has them.
std::vector<TensorError> compare(const TensorSet& tensors, const Reference& reference);
// The outputs of one run held against those of another of the same shape, blocks and measure as ever.
std::vector<TensorError> compare(const TensorSet& tensors, const TensorSet& other);

}  // namespace deltarelay::check
