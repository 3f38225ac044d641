#include "plan/schedule.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "kernels/relay.h"
#include "plan/estimate.h"
#include "plan/makespan.h"

namespace deltarelay {
namespace {

using plan::Costs;
using plan::ns;

ns item_time(const Row& row, const Costs& c) {
  if (row.work == Work::kSummarize) return ns{row.chunks} * c.summarize + c.item;
  const bool is_first = row.slot_out >= 0;
  return (is_first ? plan::first_time(c, row.chunks) : ns{row.chunks} * c.emit) + c.item;
}

// Bytes of one work item: its chunks, the states it reads and writes, the transition it leaves.
int64_t item_bytes(const Row& row, const Costs& c) {
  if (row.work == Work::kSummarize) return int64_t{row.chunks} * c.summarize_bytes + c.transition_bytes;
  return int64_t{row.chunks} * c.emit_bytes + (row.slot_in >= 0 ? 1 : 2) * int64_t{c.state_bytes};
}

ns memory_bound(const std::vector<Row>& rows, const Costs& c) {
  if (c.bytes_per_ns == 0) return 0;
  int64_t bytes = 0;
  for (const Row& row : rows) bytes += item_bytes(row, c);
  return plan::memory_time(c, bytes * c.copies);
}

ns rows_time(const std::vector<Row>& rows, const Costs& c) {
  using Level = std::pair<ns, int64_t>;  // time at which this many units fall idle
  std::priority_queue<Level, std::vector<Level>, std::greater<>> idle;
  idle.push({0, c.units});
  ns end = 0;
  for (size_t i = 0; i < rows.size();) {
    const ns each = item_time(rows[i], c);
    size_t next = i + 1;
    while (next < rows.size() && item_time(rows[next], c) == each) ++next;
    int64_t items = static_cast<int64_t>(next - i) * c.copies;
    while (items > 0) {
      Level level = idle.top();
      idle.pop();
      while (!idle.empty() && idle.top().first == level.first) {  // levels of equal time merge, so there are few
        level.second += idle.top().second;
        idle.pop();
      }
      const int64_t taken = std::min(items, level.second);
      if (level.second > taken) idle.push({level.first, level.second - taken});
      idle.push({level.first + each, taken});
      end = std::max(end, level.first + each);
      items -= taken;
    }
    i = next;
  }
  return end;
}

// The rows as a line of which every unit has a share, where they are handed on; else without one.
RelayLine relay_of(const SegmentTable& table, const Costs& c) {
  const std::vector<Row>& rows = table.rows1;
  if (c.relay_side == 0 || rows.empty() || table.num_slots > 0 || !table.rows3.empty()) return {};
  for (const Row& row : rows) {
    if (row.chunks != rows[0].chunks) return {};
  }
  return relay_line(static_cast<int64_t>(rows.size()) * c.copies, rows[0].chunks, c.relay_side, c.units);
}

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
    for (size_t i = first_; i < items_.size(); ++i) {
      ScheduledItem& item = items_[i];
      item.start = begin + (end_ > 0 ? item.start * length / end_ : 0);
      item.end = begin + (end_ > 0 ? item.end * length / end_ : 0);
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

// Rows that are handed on: every unit has its own parts of them, one after the other. A part that is not the first of its row is its second segment.
Player play_relay(const RelayLine& line, const std::vector<Row>& rows, const Costs& c,
                  std::vector<ScheduledItem>& items) {
  Player player(c.units, 1, items);
  for (int32_t place = 0; place < line.places(); ++place) {
    const int32_t share = line.shares - 1 - place / line.side;
    ns at = 0;
    for (int32_t i = 0; i < line.parts(); ++i) {
      const RelayPart part = relay_part(line, share, i);
      if (part.row < 0) break;
      const int32_t item = part.row * line.side + place % line.side;
      const ns end = at + ns{part.to - part.from} * c.emit + c.item;
      player.put({1, place, at, end, rows[static_cast<size_t>(item / c.copies)].sequence, part.from > 0 ? 1 : 0,
                  item % c.copies, 0, "emit"});
      at = end;
    }
  }
  return player;
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

PhaseTimes time_table(const SegmentTable& table, const Costs& c) {
  PhaseTimes times;
  const RelayLine line = relay_of(table, c);
  times.phase1 = line.shares > 0 ? plan::relay_time(line, c) : rows_time(table.rows1, c);
  times.phase1 = std::max(times.phase1, memory_bound(table.rows1, c));
  if (!has_two_phases(table)) return times;
  int64_t chain = 0, folds = 0;
  for (const Fold& fold : table.folds) {
    chain = std::max<int64_t>(chain, fold.count);
    folds += fold.count;
  }
  times.carry = plan::carry_time(c, chain, folds);
  times.phase3 = std::max(rows_time(table.rows3, c), memory_bound(table.rows3, c));
  return times;
}

int64_t scheduled_items(const SegmentTable& table, const Costs& c) {
  const RelayLine line = relay_of(table, c);
  if (line.shares > 0) {
    int64_t parts = 0;
    for (int32_t share = 0; share < line.shares; ++share) {
      for (int32_t i = 0; i < line.parts() && relay_part(line, share, i).row >= 0; ++i) parts += line.side;
    }
    return parts;
  }
  return static_cast<int64_t>(table.rows1.size() + table.folds.size() + table.rows3.size()) * c.copies;
}

std::vector<ScheduledItem> schedule_table(const SegmentTable& table, const Costs& c, int32_t tiles) {
  const PhaseTimes times = time_table(table, c);
  const SegmentNumbers numbers(table);
  const int32_t heads = c.copies / tiles;
  std::vector<ScheduledItem> items;
  items.reserve(static_cast<size_t>(scheduled_items(table, c)));
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
  const RelayLine line = relay_of(table, c);
  if (line.shares > 0) {
    play_relay(line, table.rows1, c, items).finish(0, times.phase1);
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
