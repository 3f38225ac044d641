// Where a sequence is cut. Every cut is a first segment followed by at most two runs of equal segments, so that rows of a
// phase can be ordered run by run and any segment can be located without walking the others.
#pragma once
#include <cstdint>

#include "plan/costs.h"

namespace deltarelay::plan {

struct Cut {
  int32_t first;                                                             // chunks of segment 0
  int32_t near_count;                                                        // segments 1 .. near_count ...
  int32_t near_chunks;                                                       // ... have this many chunks each
  int32_t far_count;                                                         // the last far_count segments ...
  int32_t far_chunks;                                                        // ... have this many
  DR_HD constexpr int32_t pieces() const { return near_count + far_count; }  // segments after the first
  DR_HD constexpr int32_t segments() const { return 1 + pieces(); }
  DR_HD constexpr int32_t last() const { return far_count ? far_chunks : near_count ? near_chunks : first; }
};

struct Range {
  int32_t begin, chunks;
};

DR_HD constexpr Range segment_of(const Cut& c, int32_t j) {
  if (j == 0) return {0, c.first};
  if (j <= c.near_count) return {c.first + (j - 1) * c.near_chunks, c.near_chunks};
  return {c.first + c.near_count * c.near_chunks + (j - 1 - c.near_count) * c.far_chunks, c.far_chunks};
}

DR_HD constexpr Cut whole_cut(int32_t n) { return {n, 0, 0, 0, 0}; }

// A first segment, then `rest` chunks over `pieces` segments that differ by at most one chunk, the longer ones last.
DR_HD constexpr Cut even_cut(int32_t first, int32_t rest, int32_t pieces) {
  if (pieces == 1) return {first, 1, rest, 0, 0};
  const int32_t each = rest / pieces, longer = rest % pieces;
  return {first, pieces - longer, each, longer, each + 1};
}

// The cut of the search: ceil((n - first) / segment) segments follow a first one whose share is `ratio` / 256 of theirs.
// A sequence no longer than `first` becomes two segments, which needs no summary: it merely rests between the phases.
struct Shape {
  int32_t segment, first, ratio;
};

struct Pieces {  // the same cut before it is laid out: all that a cost needs
  int32_t first, rest, count;
};

DR_HD constexpr Pieces balanced_pieces(int32_t n, const Shape& s) {
  if (n < 2) return {n, 0, 0};
  const uint32_t segment = static_cast<uint32_t>(s.segment), ratio = static_cast<uint32_t>(s.ratio);
  uint32_t count = n <= s.first ? 1u : (static_cast<uint32_t>(n - s.first) + segment - 1) / segment;
  const uint64_t weight = uint64_t{count} * 256u + ratio;
  int64_t first = static_cast<int64_t>((static_cast<uint64_t>(n) * ratio + weight / 2) / weight);
  if (first > s.first) first = s.first;
  const int64_t room = int64_t{count} * s.segment;
  if (n - first > room) first = n - room;
  if (first > n - 1) first = n - 1;
  if (first < 1) first = 1;
  const int32_t rest = static_cast<int32_t>(n - first);
  if (static_cast<uint32_t>(rest) < count) count = static_cast<uint32_t>(rest);  // never an empty segment
  return {static_cast<int32_t>(first), rest, static_cast<int32_t>(count)};
}

DR_HD constexpr Cut balanced_cut(int32_t n, const Shape& s) {
  const Pieces p = balanced_pieces(n, s);
  return p.count ? even_cut(p.first, p.rest, p.count) : whole_cut(n);
}

// segments=n: n near-equal segments, or whole when there are fewer chunks.
DR_HD constexpr Cut count_cut(int32_t n, int32_t segments) {
  if (segments < 2 || n < segments) return whole_cut(n);
  const int32_t first = n / segments;
  return even_cut(first, n - first, segments - 1);
}

// Segments of exactly `chunks`, the last one what is left; `segments` > 0 asks for that many, the last one then taking the
// surplus (a policy that merges a short tail).
DR_HD constexpr Cut length_cut(int32_t n, int32_t chunks, int32_t segments = 0) {
  if (chunks < 1 || n <= chunks) return whole_cut(n);
  int32_t count = static_cast<int32_t>(ceil_div(n, chunks));
  if (segments > 0 && segments < count) count = segments;
  if (count < 2) return whole_cut(n);
  return {chunks, count - 2, chunks, 1, n - chunks * (count - 1)};
}

}  // namespace deltarelay::plan
