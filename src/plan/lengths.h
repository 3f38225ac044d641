// Sequence lengths as the planner reads them: chunks, longest first.
#pragma once
#include <cstdint>

#include "plan/costs.h"

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

// Heap sort: in place, O(n log n), no recursion; input that is in order already costs one pass.
template <class T, class Before>
DR_HD inline void sort_in_place(T* items, int32_t n, const Before& before) {
  bool ordered = true;
  for (int32_t i = 1; i < n && ordered; ++i) ordered = !before(items[i], items[i - 1]);
  if (ordered) return;
  auto sift = [&](int32_t i, int32_t end) {
    const T value = items[i];
    for (int32_t child = 2 * i + 1; child < end; child = 2 * i + 1) {
      if (child + 1 < end && before(items[child], items[child + 1])) ++child;
      if (!before(value, items[child])) break;
      items[i] = items[child];
      i = child;
    }
    items[i] = value;
  };
  for (int32_t i = n / 2; i-- > 0;) sift(i, n);
  for (int32_t end = n; end-- > 1;) {
    const T largest = items[0];
    items[0] = items[end];
    items[end] = largest;
    sift(0, end);
  }
}

// Longest first; the order of the caller is the only tie-break.
struct KeyOrder {
  DR_HD bool operator()(const Key& a, const Key& b) const {
    return a.chunks != b.chunks ? a.chunks > b.chunks : a.sequence < b.sequence;
  }
};

// Sorts `keys` and fills `sorted` (n entries) and `tail` (n + 1). Empty sequences are left out: they get no row.
DR_HD inline Lengths order_lengths(Key* keys, int32_t n, int32_t* sorted, int64_t* tail) {
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
