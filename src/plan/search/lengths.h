// Sequence lengths as the planner reads them: chunks, longest first.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "plan/search/costs.h"

namespace deltarelay::plan {

// Length in chunks of one sequence of the caller. Its position in longest-first order is called its place.
struct Key {
  int32_t chunks;
  int32_t sequence;
};

struct Lengths {
  const int32_t* sorted;  // chunks, longest first, no empty sequence
  const int64_t* tail;    // count + 1 entries: tail[i] = chunks of the sequences at places i, i + 1, ...
  int32_t count;

  DR_HD int64_t chunks(int32_t from, int32_t to) const { return tail[from] - tail[to]; }
  // How many sequences are longer than `limit`.
  DR_HD int32_t longer_than(int32_t limit) const {
    int32_t lo = 0, hi = count;
    while (lo < hi) {
      const int32_t mid = (lo + hi) / 2;
      if (sorted[mid] > limit) {
        lo = mid + 1;
      } else {
        hi = mid;
      }
    }
    return lo;
  }
};

// How many chunks sequences have, on the host. It is asked for every sequence of a call, and chunks of every backend
// are powers of two.
class ChunkCount {
 public:
  explicit ChunkCount(int32_t chunk)
      : chunk_(chunk),
        shift_(std::has_single_bit(static_cast<uint32_t>(chunk)) ? std::countr_zero(static_cast<uint32_t>(chunk))
                                                                 : -1) {}
  int64_t operator()(int64_t tokens) const {
    return shift_ >= 0 ? (tokens + chunk_ - 1) >> shift_ : ceil_div(tokens, chunk_);
  }

 private:
  int64_t chunk_;
  int32_t shift_;  // -1: none
};

// On the host; a thread block has a sort of its own. Orders are total, so both give the same.
template <class T, class Before>
inline void sort_in_place(T* items, int32_t n, const Before& before) {
  if (!std::is_sorted(items, items + n, before)) std::sort(items, items + n, before);
}

// Longest first; the order of the caller is the only tie-break.
struct KeyOrder {
  DR_HD bool operator()(const Key& a, const Key& b) const {
    return a.chunks != b.chunks ? a.chunks > b.chunks : a.sequence < b.sequence;
  }
};

// Sorts `keys` and fills `sorted` (n entries) and `tail` (n + 1). Empty sequences are left out: they get no row.
inline Lengths order_lengths(Key* keys, int32_t n, int32_t* sorted, int64_t* tail) {
  sort_in_place(keys, n, KeyOrder());
  int32_t count = n;
  while (count > 0 && keys[count - 1].chunks <= 0) --count;
  tail[count] = 0;
  for (int32_t i = count; i-- > 0;) {
    sorted[i] = keys[i].chunks;
    tail[i] = tail[i + 1] + keys[i].chunks;
  }
  return {sorted, tail, count};
}

}  // namespace deltarelay::plan
