// Every rule of the contract, once. What passes here is a request that the reference backend can serve.
#pragma once
#include "deltarelay/deltarelay.h"
#include "problem/problem.h"

namespace deltarelay {

// Checks a problem and resolves its defaults. Throws Error(DR_INVALID).
Problem validate(const dr_problem& given);

// Checks the pointers of one execution against the problem: presence, alignment, host-readable index and checkpoint lists
// when `host_memory`. Throws Error(DR_INVALID). Writes nothing.
void validate_tensors(const Problem& problem, const dr_tensors& tensors, bool host_memory);

// What tensors.num_tokens and num_seqs say, which validate_tensors has checked.
CallCounts counts_of(const Problem& problem, const dr_tensors& tensors);

// Offsets of `num_seqs` packed sequences in host memory, wherever they come from: the first is 0, none is lower than the one
// before, the last is at most num_tokens. Throws Error(DR_INVALID).
void check_offsets(const char* argument, const void* offsets, DType dtype, int64_t num_seqs, int64_t num_tokens);
// An array of indices lies where its type may be read. Throws Error(DR_INVALID).
void check_index_alignment(const char* argument, const void* data, DType dtype);

}  // namespace deltarelay
