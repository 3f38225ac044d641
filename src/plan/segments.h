// The segments of each sequence, read back from a table.
#pragma once
#include <string>
#include <vector>

#include "plan/cut.h"
#include "plan/plan.h"

namespace deltarelay {

// One list per sequence in order of begin; empty for an empty sequence.
std::vector<std::vector<plan::Range>> segments_of(const SegmentTable& table, int64_t num_seqs);

// "9+14x7+8": chunks of each segment, equal neighbours together.
std::string cut_text(const std::vector<plan::Range>& segments);

}  // namespace deltarelay
