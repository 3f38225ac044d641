// The state of a work item in panels, and where states lie in the tensors of a call.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/reference/panels.h"
#include "kernels/reference/states.h"
#include "kernels/stages.h"
#include "problem/number.h"

namespace deltarelay::reference {

// Where a [DK, columns] matrix of one head lies in a tensor.
struct StateAt {
  int64_t base;  // elements; below 0: there is none
  DType type;
  StateLayout layout;
  int32_t columns;
};

// Panels of a [DK, columns] matrix. Columns behind its last one are 0.
class StatePanels {
 public:
  StatePanels(double* memory, int32_t dk) : memory_(memory), dk_(dk) {}

  // Selects panels [first_panel, first_panel + num_panels) and sets them to zero.
  void reset(int32_t columns, int32_t first_panel, int32_t num_panels) {
    num_panels_ = num_panels;
    first_ = first_panel * kPanel;
    end_ = std::min(columns, first_ + num_panels * kPanel);
    std::fill(memory_, panel(num_panels), 0.0);
  }

  int32_t count() const { return num_panels_; }
  // Panel p below count(), [DK, kPanel].
  double* panel(int32_t p) const { return memory_ + int64_t{p} * dk_ * kPanel; }
  // Its first column.
  int32_t column(int32_t p) const { return first_ + p * kPanel; }

  // Makes column first + i that of the unit matrix, with its 1 in row i.
  void set_unit(int32_t first) {
    for (int32_t c = std::max(first, first_); c < end_; ++c) at(c - first, c) = 1.0;
  }

  void load(const void* data, const StateAt& from) {
    if (from.base < 0) return;
    for (int32_t c = first_; c < end_; ++c) {
      for (int32_t i = 0; i < dk_; ++i) at(i, c) = load_as_double(data, from.type, element(from, i, c));
    }
  }

  void store(void* data, const StateAt& to) const {
    if (to.base < 0) return;
    for (int32_t c = first_; c < end_; ++c) {
      for (int32_t i = 0; i < dk_; ++i) store_double(data, to.type, element(to, i, c), at(i, c));
    }
  }

 private:
  double& at(int32_t i, int32_t column) const {
    const int32_t own = column - first_;
    return panel(own / kPanel)[i * kPanel + own % kPanel];
  }
  int64_t element(const StateAt& s, int32_t i, int32_t column) const {
    return s.base + element_of(s.layout, dk_, s.columns, i, column);
  }

  double* memory_;  // [panel, DK, kPanel]
  int32_t dk_;
  int32_t num_panels_ = 0;
  int32_t first_ = 0;  // column
  int32_t end_ = 0;    // behind the last column
};

// The state of a pool that belongs to a sequence.
inline StateAt state_of(const Problem& p, const StatePool& pool, const void* index, int64_t sequence, int32_t head) {
  const int64_t slot = slot_of(pool, index, sequence);
  return {slot < 0 ? -1 : slot * pool.stride_slot + head * pool.stride_head, pool.dtype, pool.layout, p.dv};
}

// The state that a sequence starts from.
inline StateAt initial_of(const StageArgs& args, int64_t sequence, int32_t head) {
  StateAt state = state_of(args.problem, args.problem.initial, args.tensors.initial_index, sequence, head);
  if (args.problem.initial_mask && args.tensors.has_initial[sequence] == 0) state.base = -1;
  return state;
}

// The place of the state that it ends with.
inline StateAt final_of(const StageArgs& args, int64_t sequence, int32_t head) {
  return state_of(args.problem, args.problem.final, args.tensors.final_index, sequence, head);
}

// A row of the intermediate `states`.
inline StateAt state_row(const Problem& p, int64_t row, int32_t head) {
  return {(row * p.heads_v + head) * p.dk * p.dv, p.chunks.dtype_states, p.chunks.states_layout, p.dv};
}

// A row of `summaries` or `composed`: the columns of B, then those of M.
inline StateAt summary_row(const Problem& p, int64_t row, int32_t head) {
  const int32_t columns = p.dv + p.dk;
  return {(row * p.heads_v + head) * columns * p.dk, DType::kFp32, StateLayout::kValueMajor, columns};
}

}  // namespace deltarelay::reference
