// An intermediate of the stages (dr_intermediates) in memory: rows of heads of numbers, contiguous.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "check/element.h"
#include "deltarelay/tensor_list.hpp"

namespace deltarelay::check {

struct StageTensor {
  const TensorEntry* entry = nullptr;
  std::byte* data = nullptr;
  int32_t dtype = DR_FP32;
  bool given = false;  // read by the call; otherwise written
  int64_t rows = 0, heads = 0, width = 0;
  int64_t chunk = 0;            // of aqk and inverse, whose rows have a triangle of numbers; of others 0
  std::vector<int64_t> starts;  // sequence n has the rows from starts[n] to starts[n + 1]; a tail follows

  int64_t count() const { return rows * heads * width; }
  int64_t bytes() const { return count() * bytes_of(dtype); }
  int64_t at(int64_t row, int64_t head, int64_t i) const { return (row * heads + head) * width + i; }
  double get(int64_t element) const { return load(data, dtype, element); }
  void set(int64_t element, double value) const { store(data, dtype, element, value); }
  // Has row t of a sequence a number in column i? The others are written as zero and never read. The columns past the
  // end of a short chunk are among those: they belong to later tokens.
  bool holds(int64_t t, int64_t i) const { return chunk == 0 || i <= t % chunk; }
};

}  // namespace deltarelay::check
