// The table of a plan: rows of both phases and the folds between them.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/rows.h"

namespace deltarelay {

struct SegmentTable {
  std::vector<Row> rows1;
  std::vector<Fold> folds;
  std::vector<Row> rows3;
  int64_t num_slots = 0;
};

}  // namespace deltarelay
