// Where a sequence is cut. Every cut is a first segment followed by at most two runs of equal segments, so that rows of
// a phase can be ordered run by run and any segment can be located without walking the others.
#pragma once
#include <cstdint>

#include "plan/search/costs.h"

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

// The cut of the search: ceil((n - first) / segment) segments follow a first one whose share is `ratio` / 256 of
// theirs. A sequence no longer than `first` becomes two segments, which needs no summary: it merely rests between the
// phases.
struct Shape {
  int32_t segment, first, ratio;
};

struct Pieces {  // the same cut before it is laid out: all that a cost needs
  int32_t first, rest, count;
};

// The cut into `count` + 1 segments of which the first should have `first` chunks.
DR_HD constexpr Pieces fitted_pieces(int32_t n, const Shape& s, uint32_t count, int64_t first) {
  if (first > s.first) first = s.first;
  const int64_t room = int64_t{count} * s.segment;
  if (n - first > room) first = n - room;
  if (first > n - 1) first = n - 1;
  if (first < 1) first = 1;
  const int32_t rest = static_cast<int32_t>(n - first);
  if (static_cast<uint32_t>(rest) < count) count = static_cast<uint32_t>(rest);  // never an empty segment
  return {static_cast<int32_t>(first), rest, static_cast<int32_t>(count)};
}

DR_HD constexpr Pieces balanced_pieces(int32_t n, const Shape& s) {
  if (n < 2) return {n, 0, 0};
  const uint32_t segment = static_cast<uint32_t>(s.segment), ratio = static_cast<uint32_t>(s.ratio);
  const uint32_t count = n <= s.first ? 1u : (static_cast<uint32_t>(n - s.first) + segment - 1) / segment;
  const uint64_t weight = uint64_t{count} * 256u + ratio;
  return fitted_pieces(n, s, count, static_cast<int64_t>((static_cast<uint64_t>(n) * ratio + weight / 2) / weight));
}

// Divides many numbers by one: a product with its inverse is the quotient or one less.
class Divider {
 public:
  DR_HD explicit constexpr Divider(uint32_t by) : by_(by), inverse_(UINT32_MAX / by) {}
  DR_HD constexpr uint32_t operator()(uint32_t a) const {
    const uint32_t quotient = static_cast<uint32_t>(uint64_t{a} * inverse_ >> 32);
    return quotient + (a - quotient * by_ >= by_ ? 1 : 0);
  }

 private:
  uint32_t by_, inverse_;
};

// balanced_pieces of one sequence after the other, longest first: neighbours are mostly cut into as many segments, and
// divided by the same numbers.
class Cutter {
 public:
  DR_HD explicit Cutter(const Shape& s) : shape_(s), by_segment_(static_cast<uint32_t>(s.segment)) {}
  DR_HD Pieces pieces(int32_t n) {
    if (n < 2) return {n, 0, 0};
    const uint32_t segment = static_cast<uint32_t>(shape_.segment), ratio = static_cast<uint32_t>(shape_.ratio);
    const uint32_t count = n <= shape_.first ? 1u : by_segment_(static_cast<uint32_t>(n - shape_.first) + segment - 1);
    const uint64_t weight = uint64_t{count} * 256u + ratio, part = static_cast<uint64_t>(n) * ratio + weight / 2;
    if (count != count_) {
      count_ = count;
      by_count_ = Divider(count);
      by_weight_ = Divider(weight >> 32 ? 1 : static_cast<uint32_t>(weight));
    }
    const bool wide = (part | weight) >> 32 != 0;
    return fitted_pieces(n, shape_, count,
                         static_cast<int64_t>(wide ? part / weight : by_weight_(static_cast<uint32_t>(part))));
  }
  // Chunks of the longest segment behind the first.
  DR_HD int32_t longest(const Pieces& p) const {
    const uint32_t count = static_cast<uint32_t>(p.count), up = static_cast<uint32_t>(p.rest) + count - 1;
    return static_cast<int32_t>(count == count_ ? by_count_(up) : up / count);
  }

 private:
  Shape shape_;
  Divider by_segment_, by_count_{1}, by_weight_{1};
  uint32_t count_ = 0;
};

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

// Segments of exactly `chunks`, the last one what is left; `segments` > 0 asks for that many, the last one then taking
// the surplus (a policy that merges a short tail).
DR_HD constexpr Cut length_cut(int32_t n, int32_t chunks, int32_t segments = 0) {
  if (chunks < 1 || n <= chunks) return whole_cut(n);
  int32_t count = static_cast<int32_t>(ceil_div(n, chunks));
  if (segments > 0 && segments < count) count = segments;
  if (count < 2) return whole_cut(n);
  return {chunks, count - 2, chunks, 1, n - chunks * (count - 1)};
}

}  // namespace deltarelay::plan
