// Running a case: its plan with guarded workspace, and the reference beside it.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "case/case.h"
#include "check/measure.h"
#include "check/memory.h"
#include "check/tensors.h"

namespace deltarelay::check {

// The library said no, or something around it broke.
class RunError : public std::runtime_error {
 public:
  RunError(dr_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  dr_status status() const { return status_; }

 private:
  dr_status status_;
};

// The plan of a case (or of a request changed by hand) and a workspace of its size, full of NaN.
class PlannedRun {
 public:
  explicit PlannedRun(const cases::Case& c);                         // throws RunError
  PlannedRun(const dr_problem& problem, const dr_options& options);  // throws RunError
  ~PlannedRun();
  PlannedRun(const PlannedRun&) = delete;
  PlannedRun& operator=(const PlannedRun&) = delete;

  const dr_plan* plan() const { return plan_; }
  dr_plan_summary summary() const;
  std::string describe(int32_t format) const;  // DR_DESCRIBE_*
  void execute(const dr_tensors& tensors);     // throws RunError
  // Whether the library kept to the workspace it asked for.
  bool workspace_intact() const { return workspace_.intact(); }
  void poison_workspace() { workspace_.poison(); }

 private:
  void create(const dr_problem& problem, const dr_options& options);
  dr_plan* plan_ = nullptr;
  GuardedBuffer workspace_;
};

// What the reference backend makes of the same inputs, in fp32, contiguous.
struct Reference {
  std::vector<int32_t> columns;    // value columns that were computed; empty: all
  std::vector<float> o;            // [T, HV, DV], rows in order of sequences
  std::vector<float> final_state;  // [N, HV, DV, DK]
  std::vector<float> checkpoint;   // [row, HV, DV, DK]
};

// All columns up to kFullColumns token-heads, else kSampledColumns seeded ones.
constexpr int64_t kFullColumns = 64 * 1024;
constexpr int32_t kSampledColumns = 8;
std::vector<int32_t> sampled_columns(const cases::Case& c);  // empty: all

Reference run_reference(const TensorSet& tensors);  // throws RunError
// o, and final states and checkpoints where the case has them.
std::vector<TensorError> compare(const TensorSet& tensors, const Reference& reference);
// The outputs of one run held against those of another of the same shape, blocks and measure as ever.
std::vector<TensorError> compare(const TensorSet& tensors, const TensorSet& other);

}  // namespace deltarelay::check
