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
  if (row.work == Work::kSummarize) return ns{row.chunks} * c.summarize + plan::piece_start(c);
  const bool is_first = row.slot_out >= 0;
  return is_first ? plan::first_time(c, row.chunks) + plan::piece_start(c) : ns{row.chunks} * c.emit + c.item;
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
  times.phase1 = relay.shares > 0 ? plan::relay_time(relay, rows, c) : rows_time(table.rows1, c);
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
