// A table played out in time: every work item on the unit that falls idle first, in the order of the rows.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/search/costs.h"
#include "plan/search/cut_rules.h"

namespace deltarelay {

// Exact for the model: groups of equal items are placed together.
PhaseTimes time_table(const SegmentTable& table, const plan::Costs& costs, const RelayLine& relay = {});

// The same of the table that cuts by a given rule make, which need not be written for it. Uses the scratch of `input`.
PhaseTimes time_cuts(const TableInput& input, const plan::Costs& costs);

struct ScheduledItem {
  int32_t phase, unit;
  plan::ns start, end;
  int32_t sequence, segment, head, tile;
  const char* work;  // "emit", "summarize", "carry"
};

// Work items of a table: rows and folds x heads x tiles, or parts of rows that are handed on.
int64_t scheduled_items(const SegmentTable& table, const plan::Costs& costs, const RelayLine& relay);

// The same schedule item by item. Items of a phase that memory bounds are stretched to the phase's time.
std::vector<ScheduledItem> schedule_table(const SegmentTable& table, const plan::Costs& costs, int32_t tiles,
                                          const RelayLine& relay);

}  // namespace deltarelay
