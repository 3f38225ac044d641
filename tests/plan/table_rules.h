// What every table must satisfy, checked by running it on symbols: a slot holds "the state of sequence s after chunk e"
// or "the transition of sequence s over chunks b..e", and every row and fold must find what it reads.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/stages.h"
#include "plan/plan.h"
#include "plan/search/costs.h"

namespace deltarelay::test {

class TableRules {
 public:
  // Lengths in chunks of every sequence.
  explicit TableRules(std::vector<int32_t> chunks) : chunks_(std::move(chunks)), emitted_(chunks_.size()) {}

  void check(const SegmentTable& table, const plan::Costs& costs) {
    slots_.assign(static_cast<size_t>(table.num_slots), {});
    expect_order(table.rows1, costs);
    expect_order(table.rows3, costs);
    // Kernels of the third phase read inputs and records before the carry has ended, since the first phase waited for
    // them (sm90/stage.cuh).
    EXPECT_TRUE(table.rows3.empty() || !table.rows1.empty());
    for (const Row& row : table.rows1) run_row(row, true);
    for (const Fold& fold : table.folds) run_fold(fold);
    for (const Row& row : table.rows3) run_row(row, false);
    for (size_t n = 0; n < chunks_.size(); ++n) expect_cover(n);
    for (const Slot& slot : slots_) EXPECT_NE(slot.kind, Slot::kEmpty) << "a slot that nobody writes";
  }

 private:
  struct Slot {
    enum Kind { kEmpty, kState, kTransition } kind = kEmpty;
    int32_t sequence = -1, begin = 0, end = 0;
  };

  Slot* slot(int32_t index) {
    if (index < 0 || index >= static_cast<int32_t>(slots_.size())) {
      ADD_FAILURE() << "slot " << index << " of " << slots_.size();
      return nullptr;
    }
    return &slots_[static_cast<size_t>(index)];
  }
  void expect_state(int32_t index, int32_t sequence, int32_t at) {
    const Slot* s = slot(index);
    if (s == nullptr) return;
    EXPECT_EQ(s->kind, Slot::kState) << "slot " << index;
    EXPECT_EQ(s->sequence, sequence) << "slot " << index;
    EXPECT_EQ(s->end, at) << "slot " << index;
  }
  void fill(int32_t index, Slot content) {
    Slot* s = slot(index);
    if (s == nullptr) return;
    EXPECT_EQ(s->kind, Slot::kEmpty) << "slot " << index << " is written twice";
    *s = content;
  }

  void run_row(const Row& row, bool first_phase) {
    ASSERT_GE(row.sequence, 0);
    ASSERT_LT(static_cast<size_t>(row.sequence), chunks_.size());
    EXPECT_GE(row.chunks, 1) << "an empty segment";
    const int32_t end = row.begin + row.chunks;
    EXPECT_LE(end, chunks_[static_cast<size_t>(row.sequence)]);
    if (row.work == Work::kSummarize) {
      EXPECT_TRUE(first_phase);
      EXPECT_EQ(row.slot_in, -1);
      EXPECT_EQ(row.slot_folded, -1);
      fill(row.slot_out, {Slot::kTransition, row.sequence, row.begin, end});
      return;
    }
    emitted_[static_cast<size_t>(row.sequence)].emplace_back(row.begin, end);
    if (row.slot_in >= 0) {
      EXPECT_FALSE(first_phase) << "states that enter a segment exist only after the carry";
      expect_state(row.slot_in, row.sequence, row.begin);
    } else {
      EXPECT_EQ(row.begin, 0) << "only a segment that starts its sequence has the initial state";
    }
    if (row.slot_out >= 0) {
      EXPECT_TRUE(first_phase);
      fill(row.slot_out, {Slot::kState, row.sequence, 0, end});
    }
    if (row.slot_folded >= 0) expect_state(row.slot_folded, row.sequence, end);
  }

  void run_fold(const Fold& fold) {
    EXPECT_GE(fold.count, 1) << "an empty fold";
    if (fold.from_initial) fill(fold.slot, {Slot::kState, fold.sequence, 0, 0});
    const Slot* before = slot(fold.slot);
    for (int32_t j = 1; j <= fold.count && before != nullptr; ++j) {
      Slot* next = slot(fold.slot + j);
      if (next == nullptr) return;
      EXPECT_EQ(before->kind, Slot::kState);
      EXPECT_EQ(before->sequence, fold.sequence);
      EXPECT_EQ(next->kind, Slot::kTransition);
      EXPECT_EQ(next->sequence, fold.sequence);
      EXPECT_EQ(next->begin, before->end);
      next->kind = Slot::kState;
      before = next;
    }
  }

  void expect_order(const std::vector<Row>& rows, const plan::Costs& costs) {
    plan::ns last = INT64_MAX;
    for (const Row& row : rows) {
      const plan::ns extra = row.slot_out >= 0 ? costs.first_extra : 0;
      const plan::ns time = row.chunks * (row.work == Work::kEmit ? costs.emit + extra : costs.summarize);
      const bool first = row.work == Work::kEmit && row.slot_out >= 0;
      const plan::ns place = first ? time * plan::kFirstsAhead / 8 : time;
      EXPECT_LE(place, last) << "rows are longest first, a first segment ahead of the summaries beside it";
      last = place;
    }
  }

  void expect_cover(size_t n) {
    auto& parts = emitted_[n];
    std::sort(parts.begin(), parts.end());
    int32_t at = 0;
    for (const auto& [begin, end] : parts) {
      EXPECT_EQ(begin, at) << "sequence " << n;
      at = end;
    }
    EXPECT_EQ(at, chunks_[n]) << "sequence " << n << " is emitted whole";
  }

  std::vector<int32_t> chunks_;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> emitted_;
  std::vector<Slot> slots_;
};

}  // namespace deltarelay::test
