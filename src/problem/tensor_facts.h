// Each tensor of deltarelay/tensor_list.hpp, as one problem needs it.
#pragma once
#include <cstdint>

#include "deltarelay/tensor_list.hpp"
#include "problem/footprint.h"
#include "problem/problem.h"

namespace deltarelay {

enum class Need : int32_t {
  kAlways,   // a pointer is required, unless the tensor has no elements
  kMay,      // a pointer or NULL
  kNever,    // must be NULL
  kIgnored,  // not read
};

struct TensorFacts {
  Need need = Need::kAlways;
  bool written = false;
  const char* reason = "";  // why kNever
  int64_t element_bytes = 0;
  int64_t alignment = 0;             // required of the pointer, in bytes: as promised, at least the size of an element
  const Strides* strides = nullptr;  // kRows
  const StatePool* pool = nullptr;   // kPool, kIndex
};

// The strides and alignment of a tensor of tokens (kRows) in a problem.
struct RowsField {
  Strides Problem::*strides;
  int64_t Alignments::*alignment;
};
RowsField rows_field(Tensor tensor);

// `pool` is needed for kState and kStateIndex. Bytes count as DR_INT32 here.
DType dtype_of(const Problem& problem, TensorType type, const StatePool* pool);

TensorFacts facts_of(const Problem& problem, const TensorEntry& entry);

// Input rows end with the last sequence, so q and o may have different `tokens`.
TensorSizes sizes_of(const Problem& problem, int64_t tokens, int64_t sequences, int64_t checkpoint_rows);

// Bytes that a call touches in a tensor that is not a pool.
Footprint footprint_of(const Problem& problem, const TensorEntry& entry, const TensorFacts& facts,
                       const TensorSizes& sizes, const void* data);

}  // namespace deltarelay
