// The relay: rows handed on from one unit to another. A unit is a CTA, or a cluster, that walks whole heads.
//
// If rows do not fill whole waves of units, all heads of all rows are laid on one line, and every unit takes an equal
// share of that line. Two units walk a head that lies across the end of a share. The unit with the later share walks
// its first chunks, before its other work, and leaves the state in the workspace. The unit with the earlier share walks
// the remaining chunks, after its other work, from that state. No row is longer than a share, so the state is ready in
// time (McNaughton's rule for preemptive scheduling). The bits equal those of a row walked by one unit.
//
// Units whose heads share a key head walk separate lines side by side, so that q and k are read from memory once.
//
// The unit that takes over waits only for a unit that was started earlier: shares are numbered against the order of the
// grid. A unit waits for nobody before it hands on. So the grid finishes on any number of multiprocessors.
#pragma once
#include <cstdint>

#include "problem/host_device.h"

namespace deltarelay {

// What a kind of unit can do in a relay.
struct RelayUnits {
  int32_t side = 0;   // heads of one key head that a unit's cluster walks side by side; 0: no relay
  int32_t parts = 0;  // largest number of parts in a share
};

// How the heads of all rows are shared out.
struct RelayLine {
  int32_t shares = 0;  // 0: no row is handed on
  int32_t length = 0;  // chunks per share; the last share may be shorter
  int32_t heads = 1;   // heads per row on one line
  int32_t side = 1;    // lines walked side by side

  DR_HD constexpr int32_t places() const { return shares * side; }  // number of units

  // Shortest part of a divided row, in chunks. Storing and loading a state takes as long as four chunks of GDN.
  static constexpr int32_t kLeastPart = 8;
  // Largest number of rows. Every unit searches all rows for its share, so more rows do not pay.
  static constexpr int32_t kMostRows = 64;
};

// The line for rows with `chunks` chunks in all and `longest` chunks in the longest row, if `side` heads are walked
// side by side. Shares are longer than the longest row by 2 kLeastPart, so that a state is ready before it is needed.
DR_HD constexpr RelayLine relay_line(int64_t chunks, int32_t longest, int32_t heads, int32_t side, int32_t units) {
  if (side < 1 || units < side) return {};
  const int64_t all = chunks * (heads / side), shares = units / side;
  int64_t length = (all + shares - 1) / shares;
  if (length < longest + 2 * RelayLine::kLeastPart) length = longest + 2 * RelayLine::kLeastPart;
  length += length % 2;
  if (length >= all || length > INT32_MAX) return {};  // one share is enough
  return {static_cast<int32_t>((all + length - 1) / length), static_cast<int32_t>(length), heads / side, side};
}

// A place on the line: `inside` chunks of a head of a row lie before it.
struct RelayPlace {
  int32_t row, head, inside;
  DR_HD constexpr int64_t number(const RelayLine& line) const { return int64_t{row} * line.heads + head; }
};

// Walks along the line. chunks_of(i) is the number of chunks of row i.
template <class ChunksOf>
class RelayCursor {
 public:
  DR_HD RelayCursor(const RelayLine& line, int32_t rows, const ChunksOf& chunks_of)
      : line_(line), rows_(rows), chunks_of_(chunks_of) {}

  // Place where share `share` begins and the share before it ends. Ask for shares in increasing order. The part that is
  // handed on has an even number of chunks. Twins walk an empty chunk after an odd number of chunks if another item
  // follows; an item always follows the part that is handed on, and none follows the other part.
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
  int64_t before_ = 0;  // chunks of the line before row_
};

// Chunks [from, to) of a head of a row; row -1 means none.
struct RelayPart {
  int32_t row, head, from, to;
};

// The parts of a share, in the order in which a unit walks them.
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
// Largest number of parts of any share.
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

// Says whether a state has been handed on, without clearing memory first. The receiver keeps `taken`; the sender writes
// the answer to it. In a new workspace both are arbitrary, and a false answer would need 64 bits to agree by chance.
struct RelayMark {
  uint64_t handed, taken;
  DR_HD static constexpr uint64_t answer(uint64_t taken) { return taken * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u; }
};

}  // namespace deltarelay
