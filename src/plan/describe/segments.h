// The segments of each sequence, read back from a table.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/search/cut.h"

namespace deltarelay {

// One list per sequence in order of begin; empty for an empty sequence.
class SegmentLists {
 public:
  SegmentLists(const SegmentTable& table, int64_t num_seqs);
  size_t size() const { return begin_.size() - 1; }
  std::span<const plan::Range> operator[](size_t sequence) const {
    return {ranges_.data() + begin_[sequence], begin_[sequence + 1] - begin_[sequence]};
  }

 private:
  std::vector<size_t> begin_;        // [num_seqs + 1]
  std::vector<plan::Range> ranges_;  // of all sequences, one after the other
};

// "9+14x7+8": chunks of each segment, equal neighbours together.
std::string cut_text(std::span<const plan::Range> segments);

}  // namespace deltarelay
