// Rows that are handed on. Where rows of one length do not fill whole rounds of units (CTAs of a GPU that have a whole head each), all of them are laid
// one behind the other, and every unit takes an equal share of that line. A row that lies across the end of a share is walked by two units: its
// first chunks by the one with the later share, before anything else; the others by the one with the earlier share, behind everything else, from
// the state that the first has left in the workspace. No row is longer than a share, so it is there by then (McNaughton's rule for work that may be
// interrupted). The bits are those of a row walked by one.
//
// Units whose heads have a key in common walk lines of their own side by side, so that q and k come from memory once.
//
// Who takes over waits for a unit that was started before it (shares are numbered against the order of the grid) and that waits for nobody ahead
// of handing on. So there is an end to it on however few multiprocessors a grid runs.
#pragma once
#include <cstdint>

#include "problem/host_device.h"

namespace deltarelay {

struct RelayLine {
  int32_t rows = 0, chunks = 1;  // so many rows of so many chunks
  int32_t shares = 0;
  int32_t side = 1;  // such lines side by side

  DR_HD constexpr int32_t places() const { return shares * side; }                                  // of units
  DR_HD constexpr int64_t share() const { return (int64_t{rows} * chunks + shares - 1) / shares; }  // chunks
  DR_HD constexpr int32_t parts() const { return rows / shares + 3; }  // of a share at most

  // Of what a row is divided into no part is shorter: a state out and in again takes as long as four chunks of GDN.
  static constexpr int32_t kLeastPart = 8;
  // One part in so many has to be gained: where power bounds a call, multiprocessors that are idle in the last round cost little. H200: a thirty-third
  // (gdn-4x8k-h64) is nothing gained, a quarter (3 sequences instead of 4) 14 % of the time.
  static constexpr int32_t kLeastGain = 16;

  // Where share `share` begins, in chunks of the whole line; the last one ends where one behind it would begin. Even where rows are, for of
  // twins an item with an odd number of chunks has one without tokens behind it.
  DR_HD int64_t begin(int32_t share) const {
    if (share == shares) return int64_t{rows} * chunks;
    int64_t at = int64_t{rows} * chunks * share / shares;
    at -= at % 2;
    const int64_t inside = at % chunks;
    if (inside < kLeastPart) return at - inside;
    return chunks - inside < kLeastPart ? at + chunks - inside : at;
  }
};

// Chunks [from, to) of a row; `row` -1: none.
struct RelayPart {
  int32_t row, from, to;
};

// Part `index` of a share, in the order in which they are walked.
DR_HD inline RelayPart relay_part(const RelayLine& line, int32_t share, int32_t index) {
  const int64_t begin = line.begin(share), end = line.begin(share + 1);
  const int64_t row = begin / line.chunks + index, row_end = (row + 1) * line.chunks;
  if (row_end - line.chunks >= end) return {-1, 0, 0};
  const auto behind = [&](int64_t at) { return static_cast<int32_t>(row_end - at); };  // of the row, chunks behind `at`
  const bool enters = row_end - line.chunks<begin, leaves = row_end> end;
  return {static_cast<int32_t>(row), leaves ? behind(end) : 0, enters ? behind(begin) : line.chunks};
}

// Parts that a share can have: who walks it has places for so many.
constexpr int32_t kMostRelayParts = 8;

// The line of `items` rows of one length, of which `side` are walked side by side, for so many units; without a share where nothing is gained: every
// unit hands on and takes over a state more, and the last round may be nearly full. A row has to be shorter than a share by some, or who
// takes over would wait.
DR_HD constexpr RelayLine relay_line(int64_t items, int32_t chunks, int32_t side, int32_t units) {
  if (side < 1 || chunks < 1 || units < 2 * side || items / side > INT32_MAX) return {};
  RelayLine line;
  line.rows = static_cast<int32_t>(items / side);
  line.chunks = chunks;
  line.shares = units / side;
  line.side = side;
  const int64_t rounds = (int64_t{line.rows} + line.shares - 1) / line.shares, share = line.share();
  const bool room = share >= chunks + 2 * RelayLine::kLeastPart && line.parts() <= kMostRelayParts;
  const int64_t gained = rounds * chunks - share;
  return room && gained >= RelayLine::kLeastPart && gained * RelayLine::kLeastGain >= rounds * chunks ? line
                                                                                                      : RelayLine{};
}

// Whether a state has been handed on, without anything that would have to be cleared before: who takes over keeps `taken`, and who hands on
// answers it. Both are anything when the workspace is new; then 64 bits would have to agree by chance.
struct RelayMark {
  uint64_t handed, taken;
  DR_HD static constexpr uint64_t answer(uint64_t taken) { return taken * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u; }
};

}  // namespace deltarelay
