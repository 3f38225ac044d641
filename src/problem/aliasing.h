// Memory that an execution writes must not be used for anything else in the same execution.
//
// The check compares the bytes that are really touched (footprint.h), so views of one packed row are legal. Pools of
// states may share memory if no written slot also belongs to another row: final states in place of initial states,
// checkpoints in the pool of final states. The host compares slots if it can read the indices. On a GPU a kernel
// compares them and sets DR_REPORT_ALIASES.
#pragma once
#include <cstddef>
#include <cstdint>

#include "deltarelay/deltarelay.h"
#include "problem/problem.h"

namespace deltarelay {

// Throws Error(DR_INVALID). Call it after validate_tensors, whose rules it relies on. `workspace_bytes` counts the
// bytes in use. Allocates and writes nothing.
void check_aliasing(const Problem& problem, const dr_tensors& tensors, const CallCounts& counts, const void* workspace,
                    size_t workspace_bytes, bool host_memory);

// For two pools with the same distance between slots: slot a of one shares memory with slot b of the other if b - a is
// in this list. Two pools seldom have more than one such shift.
struct SlotShifts {
  static constexpr int32_t kMost = 4;
  int64_t shift[kMost] = {};
  int32_t count = 0;
  int32_t in_place = -1;  // index of the shift at which both slots are the same matrices, element for element
  bool unlike = false;    // the strides differ, so shifts do not describe the overlap
};

// A pool and its pointer, reduced to what decides overlap.
struct PoolMemory {
  const void* data = nullptr;  // nullptr: not used
  int64_t slots = 0;           // rows in use, or all slots that an index can name
  int64_t stride_slot = 0;     // bytes
  int64_t stride_head = 0;     // bytes
  int64_t width = 0;           // bytes of a matrix
  int64_t heads = 0;
  DType dtype = DType::kFp32;
  StateLayout layout = StateLayout::kValueMajor;
};

PoolMemory pool_memory(const Problem& problem, const StatePool& pool, const void* data, int64_t rows);

SlotShifts slot_shifts(const PoolMemory& a, const PoolMemory& b);

}  // namespace deltarelay
