// From a number of the grid to a fold of the call's table.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"

namespace deltarelay::cuda {

// False when the call has fewer folds. `wait` waits for the grid before: a table that came with the launch is constants and is read ahead of that,
// one in memory behind it.
template <class Wait>
__device__ __forceinline__ bool find_fold(const Tables& tables, uint32_t index, Fold& fold, Wait wait) {
  int used;
  auto look = [&](const uint8_t* table) {
    fold = reinterpret_cast<const Fold*>(table + tables.at_folds)[index];  // in bounds, though perhaps not in use
    used = reinterpret_cast<const int32_t*>(table + tables.at_counts)[1];
  };
  if (tables.memory == nullptr) look(tables.image);
  wait();
  if (tables.memory != nullptr) look(tables.memory);
  return static_cast<int>(index) < used;
}

}  // namespace deltarelay::cuda
