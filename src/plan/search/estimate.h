// Predicted time of one way to cut: the first phase (first segments emit, middle ones are summarized, whole sequences
// ride along), the carry, and the last phase (middle and last segments emit, the other whole sequences ride along).
#pragma once
#include <cstdint>

#include "plan/search/costs.h"
#include "plan/search/cut.h"
#include "plan/search/lengths.h"
#include "plan/search/makespan.h"

namespace deltarelay::plan {

struct Estimate {
  ns total = INT64_MAX;
  ns phase1 = 0, carry = 0, phase3 = 0;
  int32_t pieces = 0, in_phase1 = 0;
};

// The groups with the longest pieces one by one, longest first; the others pooled into one of mean length.
class GroupList {
 public:
  DR_HD void add(Group g) {
    int32_t j = size_;
    if (size_ < kGroups - 1) {
      ++size_;
    } else {
      --j;
      bool kept = false;
      if (group_[j].in_phase3 < g.in_phase3) {
        const Group shortest = group_[j];
        group_[j] = g;
        g = shortest;
        kept = true;
      }
      pooled_ += g.rows;
      pool1_ += g.in_phase1 * g.rows;
      pool3_ += g.in_phase3 * g.rows;
      if (!kept) return;
      g = group_[j];
    }
    for (; j > 0 && group_[j - 1].in_phase3 < g.in_phase3; --j) group_[j] = group_[j - 1];
    group_[j] = g;
  }
  DR_HD void close() {
    if (pooled_) group_[size_++] = {pool1_ / pooled_, pool3_ / pooled_, static_cast<int32_t>(pooled_)};
  }
  DR_HD const Group* data() const { return group_; }
  DR_HD int32_t size() const { return size_; }

 private:
  Group group_[kGroups];
  int32_t size_ = 0;
  int64_t pooled_ = 0;
  ns pool1_ = 0, pool3_ = 0;
};

// The pieces of a sequence whose longest one behind the first segment has `last` chunks.
DR_HD inline Group group_of(const Costs& c, const Pieces& p, int32_t last) {
  return {max_of(first_time(c, p.first), p.count > 1 ? ns{last} * c.summarize : 0) + piece_start(c),
          ns{last} * c.emit + c.item, p.count};
}

// Time to prepare all chunks, where that is a step before the first phase: what all units or memory can do, at least
// one item. It is the same for every cut and tiling, so the search leaves it out.
DR_HD inline ns prepare_time(const Costs& c, int64_t chunks) {
  const int64_t items = chunks * c.heads;
  if (items == 0) return 0;
  return max_of(max_of(ceil_div(items * c.prepare, c.units), c.prepare), memory_time(c, items * c.prepare_bytes));
}

// Time of the carry: barriers, then the longest chain of folds, the throughput of all of them, or the bytes they move.
DR_HD inline ns carry_time(const Costs& c, int64_t longest_chain, int64_t folds) {
  const ns chain = longest_chain * c.carry, work = folds * c.copies * c.carry_unit / c.units;
  const int64_t bytes = folds * c.copies * (int64_t{c.transition_bytes} + c.state_bytes);
  return c.barrier + max_of(max_of(chain, work), memory_time(c, bytes));
}

// How many whole sequences from place `from` on (the longest first) fit into `room` ns of idle units.
DR_HD inline int32_t wholes_that_fit(const Lengths& n, const Costs& c, int32_t from, int64_t room) {
  int32_t lo = from, hi = n.count;
  while (lo < hi) {
    const int32_t mid = (lo + hi + 1) / 2;
    if (c.copies * (n.chunks(from, mid) * c.emit + int64_t{mid - from} * c.item) <= room) {
      lo = mid;
    } else {
      hi = mid - 1;
    }
  }
  return lo - from;
}

// A time that no cut by `shape` stays below, from sums alone: what all units have to do at least. A sequence emits all
// of its chunks, and summarizes all but those of its first and its last segment.
DR_HD inline ns least_cut_time(const Lengths& n, const Costs& c, const Shape& shape, int32_t cut_seqs) {
  const int64_t chunks = n.chunks(0, cut_seqs), first = int64_t{cut_seqs} * shape.first,
                last = int64_t{cut_seqs} * shape.segment, wholes = n.count - cut_seqs;
  const int64_t summed = max_of(0, chunks - first - last), pieces = max_of(cut_seqs, (chunks - first) / shape.segment);
  const int64_t work = n.tail[0] * c.emit + summed * c.summarize + pieces * (piece_start(c) + c.item) + wholes * c.item;
  return c.barrier + work * c.copies / c.units;
}

// The `cut_seqs` longest sequences are cut by `shape`. Gives up (total INT64_MAX) as soon as it cannot stay below
// `give_up`.
DR_HD_CALL inline Estimate cut_time(const Lengths& n, const Costs& c, const Limits& limits, const Shape& shape,
                                    int32_t cut_seqs, ns give_up) {
  const int64_t copies = c.copies;
  int64_t pieces = 0, emit1 = 0, summed = 0, emit3 = 0;  // chunks of one copy, but for `pieces`
  int32_t top_first = 0, top_middle = 0, top_last = 0, most_pieces = 0;
  ns least1 = INT64_MAX, least3 = INT64_MAX;
  const int64_t most_rows = min_of(limits.max_rows, ceil_div(int64_t{limits.max_waves} * c.units, copies));
  Cutter cutter(shape);
  if (cut_seqs > most_rows || least_cut_time(n, c, shape, cut_seqs) >= give_up) return {};
  for (int32_t i = 0; i < cut_seqs; ++i) {
    const Pieces p = cutter.pieces(n.sorted[i]);
    if (p.count < 1 || p.count >= limits.max_segments) return {};
    const int32_t last = cutter.longest(p);
    pieces += p.count;
    if (pieces > most_rows) return {};
    emit1 += p.first;
    summed += p.rest - last;  // the last segment needs no summary
    emit3 += p.rest;
    if (p.first > top_first) top_first = p.first;
    if (p.count > 1 && last > top_middle) top_middle = last;
    if (last > top_last) top_last = last;
    if (p.count > most_pieces) most_pieces = p.count;
    // The longest sequences come first and mostly set both phases: a hopeless trial ends here.
    const ns longest1 = max_of(first_time(c, top_first), ns{top_middle} * c.summarize);
    if (longest1 + ns{top_last} * c.emit + c.barrier >= give_up) return {};
    const Group group = group_of(c, p, last);
    least1 = min_of(least1, group.in_phase1);
    least3 = min_of(least3, group.in_phase3);
  }
  const int64_t items = pieces * copies, transitions = pieces - cut_seqs;
  const PhaseLoad load1{items, least1, max_of(first_time(c, top_first), ns{top_middle} * c.summarize) + piece_start(c),
                        copies * (first_time(c, emit1) + summed * c.summarize + pieces * piece_start(c))};
  const PhaseLoad load3{items, least3, ns{top_last} * c.emit + c.item, copies * (emit3 * c.emit + pieces * c.item)};
  const int64_t bytes1 = copies * (emit1 * c.emit_bytes + summed * c.summarize_bytes +
                                   transitions * c.transition_bytes + int64_t{cut_seqs} * 2 * c.state_bytes);
  const int64_t bytes3 = copies * (emit3 * c.emit_bytes + pieces * c.state_bytes);
  const ns carry = carry_time(c, most_pieces - 1, transitions);
  const ns base1 = max_of(phase_bound(n, c, load1, cut_seqs, cut_seqs), memory_time(c, bytes1));
  const ns base3 = max_of(phase_bound(n, c, load3, cut_seqs, cut_seqs), memory_time(c, bytes3));
  if (base1 + carry + base3 >= give_up) return {};
  GroupList groups;  // few trials come this far
  for (int32_t i = 0; i < cut_seqs; ++i) {
    const Pieces p = cutter.pieces(n.sorted[i]);
    groups.add(group_of(c, p, cutter.longest(p)));
  }
  groups.close();

  // Whole sequences: the longest ride in phase 1, the others in phase 3. As many as fit the idle area, all, or none.
  const int32_t fitting = wholes_that_fit(n, c, cut_seqs, base1 * c.units - load1.work);
  const int32_t wholes = n.count - cut_seqs;
  const int32_t choices[3] = {fitting, wholes, 0};
  Estimate best;
  for (int32_t t = 0; t < 3; ++t) {
    if (t > 0 && choices[t] == fitting) continue;
    const int32_t to = cut_seqs + choices[t];
    ns phase1 =
        max_of(phase_bound(n, c, load1, cut_seqs, to), memory_time(c, bytes1 + whole_bytes(n, c, cut_seqs, to)));
    ns phase3 = max_of(phase_bound(n, c, load3, to, n.count), memory_time(c, bytes3 + whole_bytes(n, c, to, n.count)));
    if (phase1 + carry + phase3 >= min_of(give_up, best.total)) continue;
    if (items + copies * choices[t] > c.units) {
      phase1 = list_time(n, c, groups.data(), groups.size(), false, phase1, cut_seqs, to, kGroups);
    }
    if (items + copies * (wholes - choices[t]) > c.units) {
      phase3 = list_time(n, c, groups.data(), groups.size(), true, phase3, to, n.count, kGroups);
    }
    if (phase1 + carry + phase3 < best.total) {
      best = {phase1 + carry + phase3, phase1, carry, phase3, static_cast<int32_t>(pieces), choices[t]};
    }
    if (wholes == 0) break;
  }
  return best;
}

}  // namespace deltarelay::plan
