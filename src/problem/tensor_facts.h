// The list of tensors (deltarelay/tensor_list.hpp) as one problem has them.
#pragma once
#include <cstdint>

#include "deltarelay/tensor_list.hpp"
#include "problem/footprint.h"
#include "problem/problem.h"

namespace deltarelay {

enum class Need : int32_t {
  kAlways,   // a pointer, unless it has no elements
  kMay,      // a pointer, or NULL
  kNever,    // NULL
  kIgnored,  // not looked at
};

struct TensorFacts {
  Need need = Need::kAlways;
  const char* reason = "";  // why kNever
  int64_t element_bytes = 0;
  int64_t alignment = 0;             // bytes that are asked of the pointer: promised, and never less than an element
  const Strides* strides = nullptr;  // kRows
  const StatePool* pool = nullptr;   // kPool, kIndex
};

// Where a problem keeps how a tensor of tokens (kRows) lies.
struct RowsField {
  Strides Problem::*strides;
  int64_t Alignments::*alignment;
};
RowsField rows_field(Tensor tensor);

// `pool`: of kState and kStateIndex. Bytes count as DR_INT32 here.
DType dtype_of(const Problem& problem, TensorType type, const StatePool* pool);

TensorFacts facts_of(const Problem& problem, const TensorEntry& entry);

// Rows of inputs end with the last sequence, so `tokens` of q and of o may differ.
TensorSizes sizes_of(const Problem& problem, int64_t tokens, int64_t sequences, int64_t checkpoint_rows);

// What is touched of a tensor that is no pool.
Footprint footprint_of(const Problem& problem, const TensorEntry& entry, const TensorFacts& facts,
                       const TensorSizes& sizes, const void* data);

}  // namespace deltarelay
