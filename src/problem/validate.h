// Every rule of the API, checked once. The reference backend can serve every request that passes.
#pragma once
#include "deltarelay/deltarelay.h"
#include "problem/problem.h"

namespace deltarelay {

// Checks a problem and resolves its defaults. Throws Error(DR_INVALID).
Problem validate(const dr_problem& given);

// Checks the pointers of one execution against the problem: presence and alignment; if `host_memory`, also the values
// of index arrays and checkpoint lists. Throws Error(DR_INVALID). Writes nothing.
void validate_tensors(const Problem& problem, const dr_tensors& tensors, bool host_memory);

// Rows and sequences of this call, from tensors.num_tokens and num_seqs. Call it after validate_tensors.
CallCounts counts_of(const Problem& problem, const dr_tensors& tensors);

// Checks the offsets of `num_seqs` packed sequences in host memory: the first is 0, none is below its predecessor, the
// last is at most num_tokens. Throws Error(DR_INVALID).
void check_offsets(const char* argument, const void* offsets, DType dtype, int64_t num_seqs, int64_t num_tokens);
// Checks that an index array is aligned for its type. Throws Error(DR_INVALID).
void check_index_alignment(const char* argument, const void* data, DType dtype);

}  // namespace deltarelay
