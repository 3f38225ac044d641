// A case as a call on a fake GPU: its plan, and tensors at made-up addresses that nothing reads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "case/case.h"
#include "launches/fake_runtime.h"
#include "launches/parameters.h"

namespace deltarelay::launches {

// How a case is run.
struct Setting {
  int device = 0;
  std::string backend = {}, variant = {};
  bool tf32 = false;
  bool late = false;    // lengths come at execution
  bool report = false;  // the caller wants a report

  std::string text() const;  // "h200 cuda-sm90 fused lengths=plan report=no"
};

// Every setting that may take the case; the library still declines some.
std::vector<Setting> settings_of(const cases::Case& c);

// The case without the words that a setting replaces, and without those that change values only.
cases::Case without_setting(const cases::Case& given);

class PlannedCall {
 public:
  PlannedCall(const cases::Case& given, const Setting& setting);
  ~PlannedCall();
  PlannedCall(const PlannedCall&) = delete;
  PlannedCall& operator=(const PlannedCall&) = delete;

  dr_status status() const { return status_; }             // of making the plan
  const std::string& message() const { return message_; }  // why it was not made
  std::string plan_text() const;
  size_t workspace_bytes() const { return workspace_bytes_; }
  // The caller's tensors, and the workspace.
  const std::vector<Region>& regions() const { return regions_; }

  dr_status execute() const;

  // Where the workspace and the stream seem to be.
  static constexpr uint64_t kWorkspace = uint64_t{64} << 40;
  static constexpr uint64_t kStream = 0x5712ea30;

 private:
  void place_rows(const cases::Case& c, const dr_problem& problem);
  void place_pools(const cases::Case& c, const dr_problem& problem, int64_t checkpoints);
  void place_lists(const cases::Case& c, int64_t checkpoints);
  void place_intermediates(const cases::Case& c);
  static uint64_t place_of(Tensor tensor, int64_t alignment);
  void place(Tensor tensor, int64_t bytes, int64_t alignment);

  Setting setting_;
  dr_status status_ = DR_SUCCESS;
  std::string message_;
  dr_plan* plan_ = nullptr;
  size_t workspace_bytes_ = 0;
  dr_tensors tensors_;
  dr_intermediates intermediates_;
  std::vector<Region> regions_;
};

// The first `count` random cases of each backend.
std::vector<cases::Case> random_cases(uint64_t count);
// Executes, and returns a line for each call that put something onto a stream.
std::string log_of_execution(const PlannedCall& call);
// The log of a case: a block of lines, the first of which is the case.
std::string log_of(const cases::Case& given);
// The log of what was loaded until now, in the form of a case.
std::string log_of_loading();

}  // namespace deltarelay::launches
