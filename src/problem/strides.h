// Strides and extents: defaults resolved, overlap and overflow refused.
#pragma once
#include <cstdint>

#include "problem/problem.h"

namespace deltarelay {

// A tensor of the problem: [sequences, tokens, heads, width], width contiguous. Packed tensors have one sequence.
struct TensorShape {
  int64_t sequences;
  int64_t tokens;
  int64_t heads;
  int64_t width;
  DType dtype;
  bool batched;
};

// Strides of `given` with zeros replaced by defaults. A default stride is the extent of the axes inside it, in the
// order of the shape: head = width, token = heads * head, sequence = tokens * token. An axis with one index always gets
// the stride of a contiguous tensor. `argument` is a name such as "problem.layout_q".
Strides resolve_strides(const char* argument, const dr_layout& given, const TensorShape& shape);

// The same for the two outer axes [num_slots, heads] of a state pool: stride_head = width, stride_slot = heads * head.
void resolve_state_strides(const char* argument, const dr_state& given, int64_t heads, int64_t width, StatePool* pool);

}  // namespace deltarelay
