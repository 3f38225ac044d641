// Sets of slots without heap memory, because an execution does not allocate.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>

#include "problem/slots.h"

namespace deltarelay {

constexpr int64_t kNoSlot = std::numeric_limits<int64_t>::max();

inline int64_t least_slot_from(const StatePool& pool, const void* index, int64_t rows, int64_t from) {
  int64_t least = kNoSlot;
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t slot = slot_of(pool, index, n);
    if (slot >= from && slot < least) least = slot;
  }
  return least;
}

// Holds one window of slot numbers at a time and skips windows without a slot. The work is the number of rows times the
// number of windows that contain a slot.
class SlotWindow {
 public:
  static constexpr int64_t kSlots = 32768;

  explicit SlotWindow(int64_t first) : first_(first) {}
  bool holds(int64_t slot) const { return slot >= first_ && slot - first_ < kSlots; }
  bool contains(int64_t slot) const { return ((words_[word(slot)] >> bit(slot)) & 1u) != 0; }
  void insert(int64_t slot) { words_[word(slot)] |= uint64_t{1} << bit(slot); }

 private:
  size_t word(int64_t slot) const { return static_cast<size_t>(slot - first_) / 64; }
  unsigned bit(int64_t slot) const { return static_cast<unsigned>(slot - first_) % 64; }

  int64_t first_;
  uint64_t words_[kSlots / 64] = {};
};

}  // namespace deltarelay
