// One or many at the same text. A table is filled by a team: one thread on the host, a thread block on a GPU. What a
// team is told to do is written so that its members never see each other at work: every call below begins when all of
// them are there and ends when all are done, and what one wrote is then seen by all. A body runs once for each i, in
// any order; it may write memory that belongs to i and no variable outside, so that code between the calls has the same
// values for every member.
#pragma once
#include <cstdint>

#include "plan/search/costs.h"
#include "plan/search/lengths.h"

namespace deltarelay::plan {

// Values that can be summed up from left to right have a `joined`; a value that was made from nothing changes no other.
struct Sum {
  int64_t value = 0;
  DR_HD Sum joined(const Sum& later) const { return {value + later.value}; }
};
struct Greatest {
  int64_t value = INT64_MIN;
  DR_HD Greatest joined(const Greatest& later) const { return {max_of(value, later.value)}; }
};

// The steps of a bitonic sort, each of exchanges that can be done at once. All of them bring the item that is before
// the other to the earlier place: places from n on then act as if they held items that belong there, and any n will do.
struct SortPair {
  int64_t earlier, later;  // exchanged if later < n and its item is before the other
};
class SortStep {
 public:
  DR_HD explicit SortStep(int64_t n) : n_(n) {}
  DR_HD bool more() const { return (int64_t{1} << merge_) < n_; }
  DR_HD int64_t pairs() const { return ((n_ + (int64_t{2} << log_) - 1) >> (log_ + 1)) << log_; }
  DR_HD SortPair pair(int64_t i) const {
    const int64_t half = int64_t{1} << log_, begin = (i >> log_) << (log_ + 1), at = i & (half - 1);
    // The first step of a merge meets the second of two ordered runs from its end.
    return {begin + at, log_ == merge_ ? begin + 2 * half - 1 - at : begin + half + at};
  }
  DR_HD void advance() {
    if (--log_ < 0) log_ = ++merge_;
  }

 private:
  int64_t n_;
  int32_t merge_ = 0;  // ordered runs of 2^merge items become runs of twice that
  int32_t log_ = 0;    // of the distance of a pair
};

class SerialTeam {
 public:
  // body(i) for i in [0, n).
  template <class Body>
  DR_HD void each(int64_t n, const Body& body) const {
    for (int64_t i = 0; i < n; ++i) body(static_cast<int32_t>(i));
  }
  // body() by one member.
  template <class Body>
  DR_HD void once(const Body& body) const {
    body();
  }
  // Does test(i) hold for any i in [0, n)?
  template <class Test>
  DR_HD bool any(int32_t n, const Test& test) const {
    bool found = false;
    for (int32_t i = 0; i < n; ++i) found |= test(i);
    return found;
  }
  // put(i, what value(0) .. value(i - 1) give together), for i in [0, n); returns what all of them give. No value reads
  // what a put writes.
  template <class T, class Value, class Put>
  DR_HD T scan(int32_t n, const Value& value, const Put& put) const {
    T before;
    for (int32_t i = 0; i < n; ++i) {
      const T here = value(i);
      put(i, before);
      before = before.joined(here);
    }
    return before;
  }
  template <class T, class Before>
  void sort(T* items, int32_t n, const Before& before) const {
    sort_in_place(items, n, before);
  }
  // Of the trials [0, n) whose time is below `bar`, the one with the lowest (time, number) is handed to take, by one
  // member. A result without a trial has a time that none is above.
  template <class Try, class Take>
  DR_HD void least(int32_t n, ns bar, const Try& trial, const Take& take) const {
    decltype(trial(0)) best;
    for (int32_t i = 0; i < n; ++i) {
      const auto next = trial(i);
      if (next.time() < best.time()) best = next;
    }
    if (best.time() < bar) take(best);
  }
};

}  // namespace deltarelay::plan
