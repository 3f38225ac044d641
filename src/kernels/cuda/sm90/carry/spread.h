// How the folds of a call are spread over CTAs, in plain C++: the planner asks, and the launch follows.
#pragma once
#include <cstdint>

#include "kernels/form.h"

namespace deltarelay::cuda {

struct CarrySpread {
  Form form;     // pairs of CTAs that share the channels, or single CTAs with all of them
  int32_t rows;  // value rows of a CTA, or of a pair
  int64_t ctas;
};

constexpr int32_t kCarryWidth = 128;          // value rows of a strip
constexpr int32_t kPairRows[] = {8, 16, 32};  // slices of pairs
constexpr int32_t kSingleRows = 32;           // slices of single CTAs

// The smallest slices whose pairs fit into one wave. Beyond that single CTAs, which read the transitions least often.
// Measured on an H200 (docs/kernels/cuda-carry.md). Every choice gives the same bits (step.cuh). An item is a fold of
// one strip.
constexpr CarrySpread carry_spread(int64_t items, int32_t multiprocessors) {
  for (const int32_t rows : kPairRows) {
    const int64_t ctas = items * (2 * (kCarryWidth / rows));
    if (ctas <= multiprocessors) return {Form::kPair, rows, ctas};
  }
  return {Form::kSingle, kSingleRows, items * (kCarryWidth / kSingleRows)};
}

}  // namespace deltarelay::cuda
