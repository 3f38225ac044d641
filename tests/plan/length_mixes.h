// Random lengths in the six families of the planner study, from a seeded generator whose numbers are the same
// everywhere.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace deltarelay::test {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t in(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(next() % static_cast<uint64_t>(most - least + 1));
  }
  // Spread over the orders of magnitude between least and most.
  int64_t magnitude(int64_t least, int64_t most) {
    int64_t low = least;
    while (low * 2 <= most && in(0, 3) != 0) low *= 2;
    return std::min(most, in(low, 2 * low));
  }
  template <class T>
  T one_of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(in(0, static_cast<int64_t>(choices.size()) - 1))];
  }

 private:
  uint64_t state_;
};

enum class Family { kSingle, kLongAndShort, kSeveralLong, kUniform, kSkewed, kTiny };
constexpr int32_t kFamilies = 6;

// Lengths in tokens.
inline std::vector<int64_t> random_lengths(Random& random, Family family) {
  std::vector<int64_t> lengths;
  auto add = [&](int64_t count, int64_t least, int64_t most) {
    for (int64_t i = 0; i < count; ++i) lengths.push_back(random.magnitude(least, most));
  };
  switch (family) {
    case Family::kSingle:
      add(1, 64, 262144);
      break;
    case Family::kLongAndShort:
      add(random.in(1, 63), 16, 4096);
      add(1, 8192, 262144);
      break;
    case Family::kSeveralLong:
      add(random.in(2, 8), 2048, 65536);
      break;
    case Family::kUniform:
      lengths.assign(static_cast<size_t>(random.in(1, 64)), random.magnitude(64, 65536));
      break;
    case Family::kSkewed:
      add(random.in(2, 64), 16, 131072);
      break;
    case Family::kTiny:
      add(random.in(1, 64), 1, 256);
      break;
  }
  if (random.in(0, 3) == 0) lengths.insert(lengths.begin() + random.in(0, static_cast<int64_t>(lengths.size())), 0);
  return lengths;
}

}  // namespace deltarelay::test
