// From an index in the grid to a fold of the call's table.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

// Returns false if the call has fewer folds. `wait` waits for the previous grid. A table in the kernel parameters is
// constant and is read before that wait; a table in memory is read after it.
template <class Wait>
__device__ __forceinline__ bool find_fold(const Tables& tables, uint32_t index, Fold& fold, Wait wait) {
  int used;
  auto look = [&](const uint8_t* table) {
    fold = reinterpret_cast<const Fold*>(table + tables.at_folds)[index];  // in bounds, but maybe unused
    used = reinterpret_cast<const int32_t*>(table + tables.at_counts)[1];
  };
  if (tables.memory == nullptr) look(tables.image);
  wait();
  if (tables.memory != nullptr) look(tables.memory);
  return static_cast<int>(index) < used;
}

}  // namespace deltarelay::cuda
