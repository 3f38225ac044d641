// Rows that are handed on. Where rows do not fill whole rounds of units (CTAs of a GPU that have a whole head each), all heads of all rows are laid one
// behind the other, and every unit takes an equal share of that line. A head of a row that lies across the end of a share is walked by two
// units: its first chunks by the one with the later share, before anything else; the others by the one with the earlier share, behind everything
// else, from the state that the first has left in the workspace. No row is longer than a share, so it is there by then (McNaughton's rule for
// work that may be interrupted). The bits are those of a row walked by one.
//
// Units whose heads have a key in common walk lines of their own side by side, so that q and k come from memory once.
//
// Who takes over waits for a unit that was started before it (shares are numbered against the order of the grid) and that waits for nobody ahead
// of handing on. So there is an end to it on however few multiprocessors a grid runs.
#pragma once
#include <cstdint>

#include "problem/host_device.h"

namespace deltarelay {

// Units that can hand rows on to each other.
struct RelayUnits {
  int32_t side = 0;   // items that are walked side by side: those of a unit's cluster and of one key; 0: they cannot
  int32_t parts = 0;  // that a share may have
};

struct RelayLine {
  int32_t shares = 0;  // 0: no row is handed on
  int32_t length = 0;  // of a share, in chunks; the last one may be shorter
  int32_t heads = 1;   // of a row, in one line
  int32_t side = 1;    // such lines side by side

  DR_HD constexpr int32_t places() const { return shares * side; }  // of units

  // Of what a row is divided into no part is shorter: a state out and in again takes as long as four chunks of GDN.
  static constexpr int32_t kLeastPart = 8;
  // More are not worth looking for: every unit goes through them for its share.
  static constexpr int32_t kMostRows = 64;
};

// The line of rows with `chunks` chunks in all and `longest` in the longest, of which `side` heads are walked side by side. Who takes over has
// some time to spare.
DR_HD constexpr RelayLine relay_line(int64_t chunks, int32_t longest, int32_t heads, int32_t side, int32_t units) {
  if (side < 1 || units < side) return {};
  const int64_t all = chunks * (heads / side), shares = units / side;
  int64_t length = (all + shares - 1) / shares;
  if (length < longest + 2 * RelayLine::kLeastPart) length = longest + 2 * RelayLine::kLeastPart;
  length += length % 2;
  if (length >= all || length > INT32_MAX) return {};  // one share
  return {static_cast<int32_t>((all + length - 1) / length), static_cast<int32_t>(length), heads / side, side};
}

// A place on the line: `inside` chunks behind the beginning of a head of a row.
struct RelayPlace {
  int32_t row, head, inside;
  DR_HD constexpr int64_t number(const RelayLine& line) const { return int64_t{row} * line.heads + head; }
};

// Walks along the line: chunks_of(i) are those of row i.
template <class ChunksOf>
class RelayCursor {
 public:
  DR_HD RelayCursor(const RelayLine& line, int32_t rows, const ChunksOf& chunks_of)
      : line_(line), rows_(rows), chunks_of_(chunks_of) {}

  // Where share `share` begins, and the one before it ends; asked for in order. The part that is handed on has an even number of chunks: twins
  // walk a chunk without tokens behind an odd number if another item follows, which is so for that part and never for the other, the last.
  DR_HD RelayPlace begin(int32_t share) {
    const int64_t at = int64_t{line_.length} * share;
    for (; row_ < rows_; ++row_) {
      const int64_t all = int64_t{chunks_of_(row_)} * line_.heads;
      if (at < before_ + all) break;
      before_ += all;
    }
    if (row_ == rows_) return {rows_, 0, 0};
    const int32_t chunks = chunks_of_(row_);
    RelayPlace place{row_, static_cast<int32_t>((at - before_) / chunks),
                     static_cast<int32_t>((at - before_) % chunks)};
    place.inside -= (chunks - place.inside) % 2;
    if (place.inside < RelayLine::kLeastPart) {
      place.inside = 0;
    } else if (chunks - place.inside < RelayLine::kLeastPart) {
      place.inside = 0;
      if (++place.head == line_.heads) place = {row_ + 1, 0, 0};
    }
    return place;
  }

 private:
  const RelayLine& line_;
  int32_t rows_;
  const ChunksOf& chunks_of_;
  int32_t row_ = 0;
  int64_t before_ = 0;  // chunks of the line ahead of it
};

// Chunks [from, to) of a head of a row; `row` -1: none.
struct RelayPart {
  int32_t row, head, from, to;
};

// Parts of a share, in the order in which they are walked.
struct RelayShare {
  RelayPlace begin, end;

  DR_HD constexpr int64_t parts(const RelayLine& line) const {
    return end.number(line) - begin.number(line) + (end.inside > 0 ? 1 : 0);
  }
  template <class ChunksOf>
  DR_HD RelayPart part(const RelayLine& line, const ChunksOf& chunks_of, int32_t index) const {
    if (index >= parts(line)) return {-1, 0, 0, 0};
    const int64_t number = begin.number(line) + index;
    const auto row = static_cast<int32_t>(number / line.heads), head = static_cast<int32_t>(number % line.heads);
    const int32_t chunks = chunks_of(row);
    const bool enters = index == 0, leaves = number == end.number(line);
    return {row, head, leaves ? chunks - end.inside : 0, enters ? chunks - begin.inside : chunks};
  }
};
template <class ChunksOf>
DR_HD inline RelayShare relay_share(const RelayLine& line, int32_t rows, const ChunksOf& chunks_of, int32_t share) {
  RelayCursor<ChunksOf> cursor(line, rows, chunks_of);
  const RelayPlace begin = cursor.begin(share);
  return {begin, cursor.begin(share + 1)};
}
// The most parts of one of them.
template <class ChunksOf>
DR_HD inline int64_t most_relay_parts(const RelayLine& line, int32_t rows, const ChunksOf& chunks_of) {
  RelayCursor<ChunksOf> cursor(line, rows, chunks_of);
  RelayShare share{{}, cursor.begin(0)};
  int64_t most = 0;
  for (int32_t i = 1; i <= line.shares; ++i) {
    share = {share.end, cursor.begin(i)};
    if (share.parts(line) > most) most = share.parts(line);
  }
  return most;
}

// Whether a state has been handed on, without anything that would have to be cleared before: who takes over keeps `taken`, and who hands on
// answers it. Both are anything when the workspace is new; then 64 bits would have to agree by chance.
struct RelayMark {
  uint64_t handed, taken;
  DR_HD static constexpr uint64_t answer(uint64_t taken) { return taken * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u; }
};

}  // namespace deltarelay
