// Which state of a pool belongs to a sequence or to a checkpoint.
#pragma once
#include <cstdint>

#include "problem/number.h"
#include "problem/problem.h"

namespace deltarelay {

// Slot of `row` (a sequence or a checkpoint). Returns -1 if nothing is to be read or written.
inline int64_t slot_of(const StatePool& pool, const void* index, int64_t row) {
  if (!pool.used()) return -1;
  if (pool.use == StateUse::kRows) return row;
  const int64_t slot = load_index(index, pool.index_dtype, row);
  return pool.is_null(slot) ? -1 : slot;
}

}  // namespace deltarelay
