// How long a phase takes: longest-first list scheduling, which is what a GPU does with a grid in that order and what a
// pool of threads does with a shared counter. First a lower bound that rejects most candidates, then the schedule
// itself on levels of equal load.
#pragma once
#include <cstdint>

#include "kernels/relay.h"
#include "plan/search/costs.h"
#include "plan/search/lengths.h"

namespace deltarelay::plan {

DR_HD constexpr ns memory_time(const Costs& c, int64_t bytes) { return c.bytes_per_ns ? bytes / c.bytes_per_ns : 0; }
DR_HD constexpr ns whole_item(const Costs& c, int32_t chunks) { return ns{chunks} * c.emit + c.item; }
// Memory traffic of whole sequences: their chunks, and a state read and written each.
DR_HD inline int64_t whole_bytes(const Lengths& n, const Costs& c, int32_t from, int32_t to) {
  return c.copies * (n.chunks(from, to) * c.emit_bytes + int64_t{to - from} * 2 * c.state_bytes);
}

// Items of cut sequences in one phase, as far as a bound needs them.
struct PhaseLoad {
  int64_t items;  // number
  ns least;       // the shortest
  ns longest;
  int64_t work;  // sum of their times
};

// Lower bound of a phase that runs `load` and the whole sequences at places [from, to): the longest item, the area, and
// "item q x units shares its unit with q items at least as long".
DR_HD_CALL inline ns phase_bound(const Lengths& n, const Costs& c, const PhaseLoad& load, int32_t from, int32_t to) {
  const int64_t copies = c.copies;
  ns bound = load.longest;
  int64_t work = load.work;
  if (to > from) {
    bound = max_of(bound, whole_item(c, n.sorted[from]));
    work += copies * (n.chunks(from, to) * c.emit + int64_t{to - from} * c.item);
  }
  bound = max_of(bound, ceil_div(work, c.units));
  const int64_t total = load.items + copies * (to - from);
  if (total <= c.units) return bound;
  int32_t ahead = to;  // whole sequences at least as long as the items come before them
  if (load.items) {
    int32_t lo = from, hi = to;
    while (lo < hi) {
      const int32_t mid = (lo + hi) / 2;
      if (whole_item(c, n.sorted[mid]) >= load.least) {
        lo = mid + 1;
      } else {
        hi = mid;
      }
    }
    ahead = lo;
  }
  const int64_t before = copies * (ahead - from);
  constexpr int32_t kWaves = 8;  // later waves are covered by the area
  int64_t at = c.units;
  for (int32_t wave = 1; wave <= kWaves && at < total; ++wave, at += c.units) {
    ns each = load.least;
    if (at < before) {
      each = whole_item(c, n.sorted[from + static_cast<int32_t>(at / copies)]);
    } else if (at >= before + load.items) {
      each = whole_item(c, n.sorted[ahead + static_cast<int32_t>((at - before - load.items) / copies)]);
    }
    bound = max_of(bound, (wave + 1) * each);
  }
  return bound;
}

// Units grouped by the time at which they fall idle. When all levels are in use a new one is rounded up into the next.
constexpr int32_t kLevels = 32;
class LoadLevels {
 public:
  DR_HD explicit LoadLevels(int32_t units) : head_(0), size_(1) {
    time_[0] = 0;
    count_[0] = units;
  }
  // `items` work items of `each` ns, every one on the unit that falls idle first.
  DR_HD void place(ns each, int64_t items) {
    while (items > 0) {
      if (items > count_[head_]) items -= skip_rounds(each, items);
      if (items == 0) break;
      const ns start = time_[head_];
      const int32_t taken = count_[head_] < items ? count_[head_] : static_cast<int32_t>(items);
      if ((count_[head_] -= taken) == 0) ++head_;
      items -= taken;
      put(start + each, taken);
    }
  }
  DR_HD ns last() const { return time_[size_ - 1]; }

 private:
  // Levels that lie closer together than an item is long take items in turn, and stay as far apart as they are: whole
  // rounds of that at once, up to the next level. Returns how many items that is. Without it heads by the million would
  // take rounds by the million.
  DR_HD int64_t skip_rounds(ns each, int64_t items) {
    int32_t end = head_ + 1;
    int64_t units = count_[head_];
    for (; end < size_ && time_[end] - time_[head_] < each; ++end) units += count_[end];
    int64_t rounds = items / units;
    if (rounds > 0 && end < size_) rounds = min_of(rounds, (time_[end] - time_[end - 1] - 1) / each);
    for (int32_t i = head_; rounds > 0 && i < end; ++i) time_[i] += rounds * each;
    return rounds * units;
  }
  DR_HD void put(ns time, int32_t units) {
    int32_t i = size_;
    while (i > head_ && time_[i - 1] > time) --i;
    if (i > head_ && time_[i - 1] == time) {
      count_[i - 1] += units;
      return;
    }
    if (size_ == kLevels) {
      if (head_ == 0) {
        if (i < size_) {
          count_[i] += units;
        } else {
          time_[size_ - 1] = time;
          count_[size_ - 1] += units;
        }
        return;
      }
      for (int32_t j = head_; j < size_; ++j) {
        time_[j - head_] = time_[j];
        count_[j - head_] = count_[j];
      }
      i -= head_;
      size_ -= head_;
      head_ = 0;
    }
    for (int32_t j = size_; j > i; --j) {
      time_[j] = time_[j - 1];
      count_[j] = count_[j - 1];
    }
    time_[i] = time;
    count_[i] = units;
    ++size_;
  }
  ns time_[kLevels];
  int32_t count_[kLevels];
  int32_t head_, size_;  // live levels are [head_, size_), earliest first
};

// Equal pieces of cut sequences: time of one in either phase, and how many rows.
struct Group {
  ns in_phase1, in_phase3;
  int32_t rows;
};
constexpr int32_t kGroups = 8;  // 24 would gain 0.05 % on average

// The phase list-scheduled: groups of pieces (longest first) and whole sequences [from, to) merged by time. What is
// left after `max_groups` groups counts through `bound` alone.
DR_HD_CALL inline ns list_time(const Lengths& n, const Costs& c, const Group* group, int32_t groups, bool third,
                               ns bound, int32_t from, int32_t to, int32_t max_groups) {
  LoadLevels levels(c.units);
  int32_t i = from, k = 0;
  for (int32_t placed = 0; (k < groups || i < to) && placed < max_groups; ++placed) {
    const ns whole = i < to ? whole_item(c, n.sorted[i]) : -1;
    const ns piece = k < groups ? (third ? group[k].in_phase3 : group[k].in_phase1) : -1;
    if (k < groups && piece >= whole) {
      levels.place(piece, int64_t{group[k].rows} * c.copies);
      ++k;
      continue;
    }
    int32_t next = i + 1;
    while (next < to && n.sorted[next] == n.sorted[i]) ++next;
    levels.place(whole, int64_t{next - i} * c.copies);
    i = next;
  }
  return max_of(bound, levels.last());
}

// Rows that are handed on: a share of them, and the start-up of its parts, as many as there are on average and one
// more.
DR_HD inline ns relay_time(const RelayLine& line, int64_t rows, const Costs& c) {
  return ns{line.length} * c.emit + (ceil_div(rows * line.heads, line.shares) + 1) * c.item;
}

// Nothing is cut: one phase of whole sequences, each walked by one unit, or handed on.
struct WholeTime {
  ns time;
  RelayLine relay;
};
DR_HD_CALL inline WholeTime time_wholes(const Lengths& n, const Costs& c) {
  const ns memory = memory_time(c, whole_bytes(n, c, 0, n.count));
  const ns bound = phase_bound(n, c, {0, 0, 0, 0}, 0, n.count);
  const ns time = max_of(list_time(n, c, nullptr, 0, false, bound, 0, n.count, 2 * kGroups), memory);
  if (c.relay.side == 0 || n.count == 0 || n.count > RelayLine::kMostRows) return {time, {}};
  // A sixteenth has to be gained: where power bounds a call, units that are idle in the last round cost little (H200:
  // of gdn-4x8k-h64 a thirty-third less is nothing gained; of three such sequences a quarter is 14 % of the time).
  constexpr int32_t kLeastGain = 16;
  const RelayLine line = relay_line(n.chunks(0, n.count), n.sorted[0], c.copies, c.relay.side, c.units);
  if (line.shares == 0) return {time, {}};
  const ns relayed = max_of(relay_time(line, n.count, c), memory);
  if (relayed > time - time / kLeastGain) return {time, {}};
  const auto chunks_of = [&n](int32_t row) { return n.sorted[row]; };
  if (most_relay_parts(line, n.count, chunks_of) > c.relay.parts) return {time, {}};
  return {relayed, line};
}
DR_HD inline ns whole_time(const Lengths& n, const Costs& c) { return time_wholes(n, c).time; }

}  // namespace deltarelay::plan
