// The table of a plan: rows of phases 1 and 3, longest first, and the folds between them.
//
// A sequence with k + 1 segments owns k slots from `base` on. Segment 0 is emitted in phase 1 from the true state and
// leaves its exit state in slot base; segment j = 1 .. k - 1 is summarized in phase 1 into slot base + j; the fold
// turns that into the state after segment j; in phase 3 segment j = 1 .. k is emitted from slot base + j - 1. With two
// segments there is nothing to fold.
#pragma once
#include <cstdint>

#include "kernels/rows.h"
#include "plan/search/costs.h"
#include "plan/search/cut.h"
#include "plan/search/lengths.h"

namespace deltarelay::plan {

struct TableSize {
  int64_t rows1 = 0, folds = 0, rows3 = 0, slots = 0;
};

struct Table {  // memory to write to, of the size that table_size gives
  Row* rows1;
  Fold* folds;
  Row* rows3;
};

// Equal segments from .. from + count - 1 of the sequence at this place. A cut has at most three of them per phase, so
// runs are sorted, not rows.
struct Run {
  ns cost;  // of one segment, for the order of rows
  int32_t place, from, count, base;
};
constexpr int32_t kRunsPerSequence = 3;
// A first segment counts as this many eighths of its time where rows are ordered. So it comes before the summaries that
// it is balanced with: these may turn out short, it does not.
constexpr ns kFirstsAhead = 9;

// Longest first, then in the order of places and segments.
struct RunOrder {
  DR_HD bool operator()(const Run& a, const Run& b) const {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.place != b.place ? a.place < b.place : a.from < b.from;
  }
};

// take(run) for all runs, longest first. They come in the order of places, so those of whole sequences, which are the
// last, are in order already: only what precedes them is sorted. On the host.
template <class Take>
inline void take_in_order(Run* runs, int32_t n, const Take& take) {
  const RunOrder before;
  int32_t ordered = n > 0 ? n - 1 : 0;  // from here on
  while (ordered > 0 && !before(runs[ordered], runs[ordered - 1])) --ordered;
  sort_in_place(runs, ordered, before);
  for (int32_t i = 0, k = ordered; i < ordered || k < n;) {
    take(k == n || (i < ordered && before(runs[i], runs[k])) ? runs[i++] : runs[k++]);
  }
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

// Runs of one sequence in a phase, of which it may have none. A whole sequence runs in phase 1 if it rides there.
DR_HD_CALL inline int32_t runs_of(bool third, const Cut& cut, bool rides, int32_t place, int32_t base, const Costs& c,
                                  Run* runs) {
  int32_t n = 0;
  auto add = [&](ns cost, int32_t from, int32_t segments) {
    if (segments > 0) runs[n++] = {cost, place, from, segments, base};
  };
  if (cut.pieces() == 0) {
    add(ns{cut.first} * c.emit, 0, rides != third);
  } else if (third) {
    add(ns{cut.near_chunks} * c.emit, 1, cut.near_count);
    add(ns{cut.far_chunks} * c.emit, 1 + cut.near_count, cut.far_count);
  } else {  // the last segment is never summarized
    add(first_time(c, cut.first) * kFirstsAhead / 8, 0, 1);
    add(ns{cut.near_chunks} * c.summarize, 1, cut.far_count ? cut.near_count : cut.near_count - 1);
    add(ns{cut.far_chunks} * c.summarize, 1 + cut.near_count, cut.far_count - 1);
  }
  return n;
}

// The row of segment j of a run.
DR_HD inline Row row_of(bool third, const Cut& cut, const Run& run, int32_t j, int32_t sequence) {
  if (cut.pieces() == 0) return {sequence, 0, cut.first, Work::kEmit, -1, -1, -1};
  const Range at = segment_of(cut, j);
  if (third) return {sequence, at.begin, at.chunks, Work::kEmit, run.base + j - 1, -1, -1};
  return {sequence, at.begin, at.chunks, j == 0 ? Work::kEmit : Work::kSummarize, -1, run.base + j, -1};
}

// The table of sequences of which none is cut: all in phase 1, in the order of places.
inline TableSize write_whole_table(const Key* keys, int32_t count, const Table& table) {
  for (int32_t i = 0; i < count; ++i) {
    table.rows1[i] = {keys[i].sequence, 0, keys[i].chunks, Work::kEmit, -1, -1, -1};
  }
  TableSize size;
  size.rows1 = count;
  return size;
}

// take(run, row_at) for the runs of a phase, longest first; row_at(j) is the row of segment j. `runs` is scratch of
// kRunsPerSequence * count entries.
template <class CutOf, class Take>
inline void take_runs(bool third, const Key* keys, int32_t count, const CutOf& cut_of, int32_t in_phase1,
                      const Costs& c, Run* runs, const Take& take) {
  int32_t n = 0, base = 0, wholes = 0;
  for (int32_t i = 0; i < count; ++i) {
    const Cut cut = cut_of(i, keys[i].chunks);
    const bool rides = cut.pieces() == 0 && wholes++ < in_phase1;
    n += runs_of(third, cut, rides, i, base, c, runs + n);
    base += cut.pieces();
  }
  take_in_order(runs, n, [&](const Run& run) {
    const Key key = keys[run.place];
    const Cut cut = cut_of(run.place, key.chunks);
    take(run, [&](int32_t j) { return row_of(third, cut, run, j, key.sequence); });
  });
}

// take(fold) for all of them, in the order of places; returns how many slots they and sequences of two segments have.
template <class CutOf, class Take>
inline int64_t take_folds(const Key* keys, int32_t count, const CutOf& cut_of, const Take& take) {
  int32_t base = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t pieces = cut_of(i, keys[i].chunks).pieces();
    if (pieces > 1) take(Fold{keys[i].sequence, base, pieces - 1, false});
    base += pieces;
  }
  return base;
}

// What the pieces of a cut sequence put on phase 1: the time of one copy, and the longest item.
struct PhaseOne {
  int64_t work = 0, longest = 0;
};

DR_HD inline PhaseOne phase_one(const Cut& cut, int32_t chunks, const Costs& c) {
  if (cut.pieces() == 0) return {};
  const int64_t summed = int64_t{chunks} - cut.first - cut.last();
  const int32_t middle = cut.near_count > (cut.far_count ? 0 : 1) ? cut.near_chunks : 0;
  const int32_t longest = cut.far_count > 1 ? cut.far_chunks : middle;
  return {first_time(c, cut.first) + summed * c.summarize + cut.pieces() * piece_start(c),
          max_of(first_time(c, cut.first), ns{longest} * c.summarize) + piece_start(c)};
}

// Time of all units while the pieces of cut sequences run in phase 1: what whole sequences can share.
DR_HD constexpr int64_t area_of(int64_t work, ns longest, const Costs& c) {
  return max_of(longest, ceil_div(work, c.units)) * c.units;
}
DR_HD constexpr int64_t whole_work(int32_t chunks, const Costs& c) { return c.copies * (ns{chunks} * c.emit + c.item); }

// Whole sequences that ride in phase 1 when the cuts are given, not searched for: as many as its idle units can take
// while the pieces of cut sequences run.
template <class CutOf>
DR_HD inline int32_t riders_for(const Key* keys, int32_t count, const CutOf& cut_of, const Costs& c) {
  int64_t work = 0, wholes = 0;
  ns longest = 0;
  for (int32_t i = 0; i < count; ++i) {
    const Cut cut = cut_of(i, keys[i].chunks);
    const PhaseOne pieces = phase_one(cut, keys[i].chunks, c);
    wholes += cut.pieces() == 0;
    work += pieces.work;
    longest = max_of(longest, pieces.longest);
  }
  if (longest == 0) return static_cast<int32_t>(wholes);  // nothing is cut: one phase
  work *= c.copies;
  const int64_t area = area_of(work, longest, c);
  int32_t riders = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (cut_of(i, keys[i].chunks).pieces() != 0) continue;
    work += whole_work(keys[i].chunks, c);
    if (work > area) break;
    ++riders;
  }
  return riders;
}

}  // namespace deltarelay::plan
