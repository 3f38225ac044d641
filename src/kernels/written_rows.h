// Tensors of tokens that a call writes. What lies behind the last sequence becomes zero in them.
#pragma once
#include <cstdint>

#include "deltarelay/deltarelay.h"
#include "problem/problem.h"

namespace deltarelay {

// A tensor [num_tokens, HV, width]; in a carry [num_tokens, HV, matrix].
struct WrittenRows {
  void* data;
  int64_t token_bytes, head_bytes;  // from a token, and a head, to the next
  int32_t width_bytes;
};

struct WrittenTensors {
  static constexpr int32_t kMost = 8;
  WrittenRows rows[kMost];
  int32_t count = 0;
  const WrittenRows* begin() const { return rows; }
  const WrittenRows* end() const { return rows + count; }
};

WrittenTensors written_tensors(const Problem& problem, const dr_tensors& tensors);

}  // namespace deltarelay
