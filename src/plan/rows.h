// The table of a plan: rows of phases 1 and 3, longest first, and the folds between them.
//
// A sequence with k + 1 segments owns k slots from `base` on. Segment 0 is emitted in phase 1 from the true state and leaves
// its exit state in slot base; segment j = 1 .. k - 1 is summarized in phase 1 into slot base + j; the fold turns that into the
// state after segment j; in phase 3 segment j = 1 .. k is emitted from slot base + j - 1. With two segments there is nothing to
// fold.
#pragma once
#include <cstdint>

#include "kernels/stages.h"
#include "plan/costs.h"
#include "plan/cut.h"
#include "plan/lengths.h"

namespace deltarelay::plan {

struct TableSize {
  int64_t rows1 = 0, folds = 0, rows3 = 0, slots = 0;
};

struct Table {  // memory to write to, of the size that table_size gives
  Row* rows1;
  Fold* folds;
  Row* rows3;
};

// Equal segments from .. from + count - 1 of the sequence at this place. A cut has at most three of them per phase, so runs are
// sorted, not rows.
struct Run {
  ns cost;  // of one segment
  int32_t place, from, count, base;
};
constexpr int32_t kRunsPerSequence = 3;

DR_HD inline void sort_runs(Run* runs, int32_t n) {
  sort_in_place(runs, n, [](const Run& a, const Run& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.place != b.place ? a.place < b.place : a.from < b.from;
  });
}

// `cut_of(place, chunks)` gives the Cut of a sequence; `in_phase1` whole sequences, the longest, ride in phase 1.
template <class CutOf>
DR_HD inline TableSize table_size(const Key* keys, int32_t count, const CutOf& cut_of, int32_t in_phase1) {
  TableSize size;
  int64_t wholes = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t pieces = cut_of(i, keys[i].chunks).pieces();
    size.slots += pieces;
    size.folds += pieces > 1;
    wholes += pieces == 0;
  }
  const int64_t riders = wholes < in_phase1 ? wholes : in_phase1;
  size.rows1 = size.slots + riders;
  size.rows3 = size.slots + wholes - riders;
  return size;
}

namespace internal {

template <class CutOf>
DR_HD inline int32_t runs_of_phase(bool third, const Key* keys, int32_t count, const CutOf& cut_of, int32_t in_phase1,
                                   const Costs& c, Run* runs) {
  int32_t n = 0, base = 0, wholes = 0;
  auto add = [&](ns cost, int32_t place, int32_t from, int32_t segments) {
    if (segments > 0) runs[n++] = {cost, place, from, segments, base};
  };
  for (int32_t i = 0; i < count; ++i) {
    const Cut cut = cut_of(i, keys[i].chunks);
    if (cut.pieces() == 0) {
      if ((wholes++ < in_phase1) != third) add(ns{keys[i].chunks} * c.emit, i, 0, 1);
      continue;
    }
    if (third) {
      add(ns{cut.near_chunks} * c.emit, i, 1, cut.near_count);
      add(ns{cut.far_chunks} * c.emit, i, 1 + cut.near_count, cut.far_count);
    } else {  // the last segment is never summarized
      add(ns{cut.first} * c.emit, i, 0, 1);
      add(ns{cut.near_chunks} * c.summarize, i, 1, cut.far_count ? cut.near_count : cut.near_count - 1);
      add(ns{cut.far_chunks} * c.summarize, i, 1 + cut.near_count, cut.far_count - 1);
    }
    base += cut.pieces();
  }
  return n;
}

}  // namespace internal

// Writes the table. `runs` is scratch of kRunsPerSequence * count entries. Grid index = row x copies + copy.
template <class CutOf>
DR_HD inline TableSize write_table(const Key* keys, int32_t count, const CutOf& cut_of, int32_t in_phase1,
                                   const Costs& c, Run* runs, const Table& table) {
  TableSize size;
  for (int32_t phase = 1; phase <= 3; phase += 2) {
    const bool third = phase == 3;
    const int32_t n = internal::runs_of_phase(third, keys, count, cut_of, in_phase1, c, runs);
    sort_runs(runs, n);
    Row* row = third ? table.rows3 : table.rows1;
    for (int32_t r = 0; r < n; ++r) {
      const Run& run = runs[r];
      const int32_t sequence = keys[run.place].sequence;
      const Cut cut = cut_of(run.place, keys[run.place].chunks);
      if (cut.pieces() == 0) {
        *row++ = {sequence, 0, keys[run.place].chunks, Work::kEmit, -1, -1, -1};
        continue;
      }
      for (int32_t j = run.from; j < run.from + run.count; ++j) {
        const Range at = segment_of(cut, j);
        if (third) {
          *row++ = {sequence, at.begin, at.chunks, Work::kEmit, run.base + j - 1, -1, -1};
        } else {
          *row++ = {sequence, at.begin, at.chunks, j == 0 ? Work::kEmit : Work::kSummarize, -1, run.base + j, -1};
        }
      }
    }
    (third ? size.rows3 : size.rows1) = row - (third ? table.rows3 : table.rows1);
  }
  int32_t base = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t pieces = cut_of(i, keys[i].chunks).pieces();
    if (pieces > 1) table.folds[size.folds++] = {keys[i].sequence, base, pieces - 1, false};
    base += pieces;
  }
  size.slots = base;
  return size;
}

// Whole sequences that ride in phase 1 when the cuts are given, not searched for: as many as its idle units can take while the
// pieces of cut sequences run.
template <class CutOf>
DR_HD inline int32_t riders_for(const Key* keys, int32_t count, const CutOf& cut_of, const Costs& c) {
  int64_t work = 0, wholes = 0;
  ns longest = 0;
  for (int32_t i = 0; i < count; ++i) {
    const Cut cut = cut_of(i, keys[i].chunks);
    if (cut.pieces() == 0) {
      ++wholes;
      continue;
    }
    const int64_t summed = int64_t{keys[i].chunks} - cut.first - cut.last();
    work += ns{cut.first} * c.emit + summed * c.summarize + int64_t{cut.pieces()} * c.item;
    longest = max_of(longest, ns{cut.first} * c.emit + c.item);
    const int32_t middle = cut.near_count > (cut.far_count ? 0 : 1) ? cut.near_chunks : 0;
    longest = max_of(longest, ns{cut.far_count > 1 ? cut.far_chunks : middle} * c.summarize + c.item);
  }
  if (longest == 0) return static_cast<int32_t>(wholes);  // nothing is cut: one phase
  work *= c.copies;
  const int64_t area = max_of(longest, ceil_div(work, c.units)) * c.units;
  int32_t riders = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (cut_of(i, keys[i].chunks).pieces() != 0) continue;
    work += c.copies * (ns{keys[i].chunks} * c.emit + c.item);
    if (work > area) break;
    ++riders;
  }
  return riders;
}

}  // namespace deltarelay::plan
