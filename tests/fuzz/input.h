// Input of a fuzz target: bytes, read as choices. The same bytes make the same calls on every machine, whether they
// come from a seed (runner.cpp) or from libFuzzer (libfuzzer_entry.cpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  // Returns a number in [0, count); 0 when the bytes are used up, so 0 must be the simplest choice.
  uint64_t below(uint64_t count) {
    uint64_t value = 0;
    for (uint64_t reach = count - 1; reach != 0; reach >>= 8) value = value << 8 | byte();
    return value % count;
  }
  int64_t in(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  bool one_in(uint64_t count) { return below(count) == count - 1; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

  // Returns a number that often reveals errors: near 0, near powers of two, at limits, or any.
  int64_t odd_number() {
    const int64_t power = static_cast<int64_t>(uint64_t{1} << below(63));
    switch (below(7)) {
      case 0:
        return in(-2, 4);
      case 1:
        return in(0, 300);
      case 2:
        return power + in(-1, 1);
      case 3:
        return -power;
      case 4:
        return one_of<int64_t>({INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, int64_t{INT32_MAX} + 1, UINT32_MAX});
      case 5:
        return 16 * in(0, 64);
      default:
        return static_cast<int64_t>(below(UINT64_MAX));
    }
  }

 private:
  uint8_t byte() { return next_ < size_ ? data_[next_++] : 0; }

  const uint8_t* data_;
  size_t size_;
  size_t next_ = 0;
};

// Ends the program with this message and the way to reproduce the failure.
[[noreturn]] void fail(const std::string& words);

inline void expect(bool holds, const char* rule, const std::string& found) {
  if (!holds) fail(std::string(rule) + ", found: " + found);
}

// The target: runs one input. Each *_fuzz.cpp defines it.
void run_input(Input& input);

}  // namespace fuzz
