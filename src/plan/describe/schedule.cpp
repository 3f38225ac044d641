#include "plan/describe/schedule.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "kernels/relay.h"
#include "plan/search/estimate.h"
#include "plan/search/makespan.h"
#include "plan/table.h"

namespace deltarelay {
namespace {

using plan::Costs;
using plan::ns;

ns item_time(const Row& row, const Costs& c) {
  if (row.work == Work::kSummarize) return ns{row.chunks} * c.summarize + plan::piece_start(c);
  const bool is_first = row.slot_out >= 0;
  return is_first ? plan::first_time(c, row.chunks) + plan::piece_start(c) : ns{row.chunks} * c.emit + c.item;
}

// Bytes of one work item: its chunks, the states it reads and writes, the transition it leaves.
int64_t item_bytes(const Row& row, const Costs& c) {
  if (row.work == Work::kSummarize) return int64_t{row.chunks} * c.summarize_bytes + c.transition_bytes;
  return int64_t{row.chunks} * c.emit_bytes + (row.slot_in >= 0 ? 1 : 2) * int64_t{c.state_bytes};
}

// Items of a phase placed one after the other, each on the unit that falls idle first; those of equal time together.
// Units are kept by the time at which they fall idle, and where these lie closer together than an item is long, whole
// rounds are one step. Past kMostSteps, where there are thousands of different rows, what is left is taken as if it
// could be divided among the units.
class PhaseClock {
 public:
  explicit PhaseClock(const Costs& c) : costs_(c) { levels_.push_back({0, c.units}); }

  void place(const Row& row, int64_t rows) {
    const ns each = item_time(row, costs_);
    if (each != each_) flush();
    each_ = each;
    items_ += rows * costs_.copies;
    bytes_ += rows * item_bytes(row, costs_);
  }
  ns end() {
    flush();
    ns end = end_;
    if (divided_ > 0) {
      for (size_t i = head_; i < levels_.size(); ++i) divided_ += (levels_[i].time + shift_) * levels_[i].units;
      end = std::max(end, plan::ceil_div(divided_, costs_.units));
    }
    return std::max(end, plan::memory_time(costs_, bytes_ * costs_.copies));
  }

 private:
  struct Level {
    ns time;  // less shift_
    int64_t units;
  };
  static constexpr int64_t kMostSteps = 1 << 18;

  void flush() {
    while (items_ > 0) {
      if (steps_ > kMostSteps) {
        divided_ += items_ * each_;
        items_ = 0;
        return;
      }
      const Level first = levels_[head_];
      if (levels_.back().time - first.time < each_ && items_ >= costs_.units) {
        shift_ += items_ / costs_.units * each_;
        items_ %= costs_.units;
        end_ = std::max(end_, levels_.back().time + shift_);
        continue;
      }
      const int64_t taken = std::min(items_, first.units);
      levels_[head_].units -= taken;
      if (levels_[head_].units == 0) ++head_;
      items_ -= taken;
      put(first.time + each_, taken);
    }
  }
  void put(ns time, int64_t units) {
    end_ = std::max(end_, time + shift_);
    size_t i = levels_.size();
    while (i > head_ && levels_[i - 1].time > time) --i;
    steps_ += 1 + static_cast<int64_t>(levels_.size() - i) / 8;
    if (i > head_ && levels_[i - 1].time == time) {
      levels_[i - 1].units += units;
    } else if (i == head_ && head_ > 0) {
      levels_[--head_] = {time, units};
    } else {
      levels_.insert(levels_.begin() + static_cast<std::ptrdiff_t>(i), {time, units});
    }
    if (head_ > 64 && 2 * head_ > levels_.size()) {
      levels_.erase(levels_.begin(), levels_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
  }

  const Costs& costs_;
  std::vector<Level> levels_;  // from head_ on, earliest first
  size_t head_ = 0;
  ns shift_ = 0, end_ = 0;
  ns each_ = 0;        // items that are not placed yet: time of one ...
  int64_t items_ = 0;  // ... and how many
  int64_t bytes_ = 0, divided_ = 0, steps_ = 0;
};

ns rows_time(const std::vector<Row>& rows, const Costs& c) {
  PhaseClock clock(c);
  for (const Row& row : rows) clock.place(row, 1);
  return clock.end();
}

// Of rows whose time is known.
ns memory_bound(const std::vector<Row>& rows, const Costs& c) {
  if (c.bytes_per_ns == 0) return 0;
  int64_t bytes = 0;
  for (const Row& row : rows) bytes += item_bytes(row, c);
  return plan::memory_time(c, bytes * c.copies);
}

class CarryClock {
 public:
  void place(const Fold& fold) {
    chain_ = std::max<int64_t>(chain_, fold.count);
    folds_ += fold.count;
  }
  ns end(const Costs& c) const { return plan::carry_time(c, chain_, folds_); }

 private:
  int64_t chain_ = 0, folds_ = 0;
};

bool has_two_phases(const SegmentTable& table) { return table.num_slots > 0 || !table.rows3.empty(); }

// Places the items of one phase from `begin` on; each is (time, fill function).
class Player {
 public:
  Player(int32_t units, int32_t phase, std::vector<ScheduledItem>& items)
      : phase_(phase), items_(items), first_(items.size()) {
    for (int32_t u = 0; u < units; ++u) idle_.push({0, u});
  }
  void play(ns time, int32_t sequence, int32_t segment, int32_t head, int32_t tile, const char* work) {
    const auto [start, unit] = idle_.top();
    idle_.pop();
    idle_.push({start + time, unit});
    put({phase_, unit, start, start + time, sequence, segment, head, tile, work});
  }
  void put(const ScheduledItem& item) {
    end_ = std::max(end_, item.end);
    items_.push_back(item);
  }
  // Shifts the phase to `begin` and stretches it to `length`.
  void finish(ns begin, ns length) {
    // A phase of an hour squared is beyond 63 bits.
    const auto stretched = [&](ns time) {
      return end_ > 0 ? begin + static_cast<ns>(static_cast<__int128>(time) * length / end_) : begin;
    };
    for (size_t i = first_; i < items_.size(); ++i) {
      items_[i].start = stretched(items_[i].start);
      items_[i].end = stretched(items_[i].end);
    }
  }

 private:
  using Idle = std::pair<ns, int32_t>;
  std::priority_queue<Idle, std::vector<Idle>, std::greater<>> idle_;
  int32_t phase_;
  std::vector<ScheduledItem>& items_;
  size_t first_;
  ns end_ = 0;
};

// Rows that are handed on: every unit has its own parts of them, one after the other. A part that is not the first of
// its row is its second segment.
template <class Put>
void for_each_part(const RelayLine& line, const std::vector<Row>& rows, Put&& put) {
  const auto chunks_of = [&](int32_t row) { return rows[static_cast<size_t>(row)].chunks; };
  for (int32_t place = 0; place < line.places(); ++place) {
    const RelayShare share =
        relay_share(line, static_cast<int32_t>(rows.size()), chunks_of, line.shares - 1 - place / line.side);
    for (int32_t i = 0; i < share.parts(line); ++i) put(place, i, share.part(line, chunks_of, i));
  }
}

// Number of each segment inside its sequence, for labels: the place of its begin among those of the sequence.
class SegmentNumbers {
 public:
  explicit SegmentNumbers(const SegmentTable& table) {
    for (const auto* rows : {&table.rows1, &table.rows3}) {
      for (const Row& row : *rows) begins_.emplace_back(row.sequence, row.begin);
    }
    std::sort(begins_.begin(), begins_.end());
    begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
  }
  int32_t of(int32_t sequence, int32_t begin) const {
    const auto first = std::lower_bound(begins_.begin(), begins_.end(), std::make_pair(sequence, -1));
    return static_cast<int32_t>(std::lower_bound(first, begins_.end(), std::make_pair(sequence, begin)) - first);
  }

 private:
  std::vector<std::pair<int32_t, int32_t>> begins_;
};

}  // namespace

PhaseTimes time_table(const SegmentTable& table, const Costs& c, const RelayLine& relay) {
  PhaseTimes times;
  const auto rows = static_cast<int64_t>(table.rows1.size());
  times.phase1 = relay.shares > 0 ? std::max(plan::relay_time(relay, rows, c), memory_bound(table.rows1, c))
                                  : rows_time(table.rows1, c);
  if (!has_two_phases(table)) return times;
  CarryClock carry;
  for (const Fold& fold : table.folds) carry.place(fold);
  times.carry = carry.end(c);
  times.phase3 = rows_time(table.rows3, c);
  return times;
}

PhaseTimes time_cuts(const TableInput& input, const Costs& c) {
  const int32_t riders = riders_of(input, c);
  int64_t rows3 = 0;
  auto time_of = [&](bool third) {
    PhaseClock clock(c);
    take_runs_of(input, riders, c, third, [&](const plan::Run& run, const auto& row_at) {
      clock.place(row_at(run.from), run.count);
      if (third) rows3 += run.count;
    });
    return clock.end();
  };
  PhaseTimes times;
  CarryClock carry;
  const int64_t slots = take_folds_of(input, [&](const Fold& fold) { carry.place(fold); });
  times.phase1 = time_of(false);
  times.phase3 = time_of(true);
  if (slots > 0 || rows3 > 0) times.carry = carry.end(c);
  return times;
}

int64_t scheduled_items(const SegmentTable& table, const Costs& c, const RelayLine& relay) {
  if (relay.shares > 0) {
    int64_t parts = 0;
    for_each_part(relay, table.rows1, [&](int32_t, int32_t, const RelayPart&) { ++parts; });
    return parts;
  }
  return static_cast<int64_t>(table.rows1.size() + table.folds.size() + table.rows3.size()) * c.copies;
}

std::vector<ScheduledItem> schedule_table(const SegmentTable& table, const Costs& c, int32_t tiles,
                                          const RelayLine& relay) {
  const PhaseTimes times = time_table(table, c, relay);
  const SegmentNumbers numbers(table);
  const int32_t heads = c.copies / tiles;
  std::vector<ScheduledItem> items;
  items.reserve(static_cast<size_t>(scheduled_items(table, c, relay)));
  auto play_rows = [&](const std::vector<Row>& rows, int32_t phase, ns begin, ns length) {
    Player player(c.units, phase, items);
    for (const Row& row : rows) {
      const int32_t segment = numbers.of(row.sequence, row.begin);
      for (int32_t head = 0; head < heads; ++head) {
        for (int32_t tile = 0; tile < tiles; ++tile) {
          player.play(item_time(row, c), row.sequence, segment, head, tile,
                      row.work == Work::kEmit ? "emit" : "summarize");
        }
      }
    }
    player.finish(begin, length);
  };
  if (relay.shares > 0) {
    Player player(c.units, 1, items);
    ns at = 0;
    for_each_part(relay, table.rows1, [&](int32_t place, int32_t index, const RelayPart& part) {
      if (index == 0) at = 0;
      const ns end = at + ns{part.to - part.from} * c.emit + c.item;
      const int32_t strip = part.head * relay.side + place % relay.side;  // numbered through all heads
      player.put({1, place, at, end, table.rows1[static_cast<size_t>(part.row)].sequence, part.from > 0 ? 1 : 0,
                  strip / tiles, strip % tiles, "emit"});
      at = end;
    });
    player.finish(0, times.phase1);
    return items;
  }
  play_rows(table.rows1, 1, 0, times.phase1);
  if (!has_two_phases(table)) return items;
  Player player(c.units, 2, items);
  for (const Fold& fold : table.folds) {
    for (int32_t head = 0; head < heads; ++head) {
      for (int32_t tile = 0; tile < tiles; ++tile) {
        player.play(ns{fold.count} * std::max(c.carry, 1), fold.sequence, 0, head, tile, "carry");
      }
    }
  }
  player.finish(times.phase1 + std::min<ns>(c.barrier, times.carry), std::max<ns>(0, times.carry - c.barrier));
  play_rows(table.rows3, 3, times.phase1 + times.carry, times.phase3);
  return items;
}

}  // namespace deltarelay
