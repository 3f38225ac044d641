// Weighing the tilings of a plan whose backend and cutting rule are settled.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/describe/schedule.h"
#include "plan/modes.h"
#include "plan/plan.h"
#include "plan/search/costs.h"
#include "plan/search/cut_rules.h"
#include "plan/search/policies.h"

namespace deltarelay {

// The sequences of a plan in longest-first order, with the memory they live in.
struct Ordered {
  std::unique_ptr<std::byte[]> memory;
  std::vector<PolicyCut> policy;
  TableInput input;  // refers to both
};

struct Choice {
  int32_t mode = 0;
  plan::Decision decision;  // of the search, or of the best plan that cuts nothing
  PhaseTimes times;
  plan::ns unsplit = 0;  // the phases alone, as `times`
  RelayLine relay;       // of its rows, where they are handed on
  Ordered sequences;
};

// Throws Error(DR_UNSUPPORTED) where cuts that are asked for make more than kMostSegments segments beyond the first of
// each sequence.
void check_segments(int64_t pieces);

// The fastest table by the plan's rule over all modes. Pure: describing a plan repeats it.
Choice choose_cuts(const Plan& plan, const Modes& modes);

// Its rows: only of the plan that is taken in the end, not of every one that is weighed.
SegmentTable write_chosen(const Choice& choice, const Modes& modes);

// The mode for sequences of equal length, when lengths come at execution.
int32_t choose_tiling(const Plan& plan, const Modes& modes);

// One entry per mode and way to cut, for the description; `plan.rule` decides which are possible.
struct Weighed {
  int32_t mode = 0;
  bool cut = false;
  plan::Decision decision;
  plan::ns predicted = 0;  // with the plan's prepare step
};
std::vector<Weighed> weigh(const Plan& plan, const Modes& modes);

// Whole sequences in the mode in which they are fastest.
plan::Decision decide_whole(const Plan& plan, const Modes& modes);

// Everything whole in one mode: what the picture of the unsplit schedule shows.
SegmentTable whole_table(const Plan& plan, const plan::Costs& costs);

}  // namespace deltarelay
