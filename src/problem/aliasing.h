// Memory that one execution writes belongs to nothing else that it touches.
//
// Compared is what is really touched (footprint.h), so views of one packed row are legal. Pools of states may share memory as
// long as no slot that is written is also another row's: final states in place of initial ones, checkpoints in the pool of
// final states. Which slots those are is known where the host can read the indices; on a GPU it is found out there, and
// reported (DR_REPORT_ALIASES).
#pragma once
#include <cstddef>
#include <cstdint>

#include "deltarelay/deltarelay.h"
#include "problem/problem.h"

namespace deltarelay {

// Throws Error(DR_INVALID). Behind validate_tensors, whose rules the tensors keep. `workspace_bytes`: those that are used.
// Allocates and writes nothing.
void check_aliasing(const Problem& problem, const dr_tensors& tensors, const CallCounts& counts, const void* workspace,
                    size_t workspace_bytes, bool host_memory);

// Slot a of one pool shares memory with slot b of another if b - a is one of these, provided that both pools have slots at
// the same distance; two pools seldom have more than one.
struct SlotShifts {
  static constexpr int32_t kMost = 4;
  int64_t shift[kMost] = {};
  int32_t count = 0;
  int32_t in_place = -1;  // the one at which both slots are the same matrices, element for element
  bool unlike = false;    // strides differ: shifts do not tell
};

// A pool with its pointer, as far as its memory matters.
struct PoolMemory {
  const void* data = nullptr;  // nullptr: not used
  int64_t slots = 0;           // rows in use, or all slots that an index may name
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
