#include "problem/footprint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>
#include <vector>

namespace deltarelay::test {
namespace {

struct Layout {
  int64_t start, width;
  FootprintAxis axes[3];

  Footprint footprint() const { return {reinterpret_cast<const void*>(start), width, {axes[0], axes[1], axes[2]}}; }
  std::set<int64_t> bytes() const {
    std::set<int64_t> all;
    for (int64_t i = 0; i < axes[0].count; ++i) {
      for (int64_t j = 0; j < axes[1].count; ++j) {
        for (int64_t k = 0; k < axes[2].count; ++k) {
          const int64_t at = start + i * axes[0].stride + j * axes[1].stride + k * axes[2].stride;
          for (int64_t b = 0; b < width; ++b) all.insert(at + b);
        }
      }
    }
    return all;
  }
};

// Axes nested in random order with random gaps. Uses strides of `like` if they fit, so that interleaved views occur.
Layout draw(std::mt19937& random, const Layout* like) {
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  Layout layout{pick(1000, 1100), pick(1, 6), {}};
  int64_t extent = layout.width;
  for (FootprintAxis& axis : layout.axes) {
    axis.count = pick(0, 20) == 0 ? 0 : pick(1, 5);
    axis.stride = extent + (pick(0, 1) == 0 ? 0 : pick(0, 12));
    if (like != nullptr && pick(0, 2) > 0) {
      for (const FootprintAxis& other : like->axes)
        if (other.stride >= extent && pick(0, 1) == 0) axis.stride = other.stride;
    }
    if (axis.count > 1) extent += (axis.count - 1) * axis.stride;
  }
  std::shuffle(std::begin(layout.axes), std::end(layout.axes), random);
  return layout;
}

TEST(Footprint, AgreesWithSetsOfBytes) {
  std::mt19937 random(29);
  int shared = 0, apart_inside = 0, unknown = 0;
  constexpr int kRounds = 12000;
  for (int round = 0; round < kRounds; ++round) {
    const Layout a = draw(random, nullptr), b = draw(random, &a);
    const std::set<int64_t> bytes_a = a.bytes(), bytes_b = b.bytes();
    bool expected = false;
    for (const int64_t byte : bytes_b) expected = expected || bytes_a.count(byte) != 0;
    const bool ranges_meet = !bytes_a.empty() && !bytes_b.empty() && *bytes_a.begin() <= *bytes_b.rbegin() &&
                             *bytes_b.begin() <= *bytes_a.rbegin();
    for (const Shared found : {compare(a.footprint(), b.footprint()), compare(b.footprint(), a.footprint())}) {
      if (found == Shared::kUnknown) {
        ++unknown;
        continue;
      }
      ASSERT_EQ(found == Shared::kBytes, expected) << "round " << round;
    }
    shared += expected;
    apart_inside += ranges_meet && !expected;
  }
  // Both answers must occur often, or the test would prove nothing.
  EXPECT_GT(shared, kRounds / 10);
  EXPECT_GT(apart_inside, kRounds / 50);
  EXPECT_EQ(unknown, 0);
}

// Rows of a packed projection at the sizes of real models: one step per level.
TEST(Footprint, InterleavedViewsAreToldApart) {
  constexpr int64_t kRow = 3 * 64 * 128 * 2, kTokens = 131072, kHead = 256;
  const auto view = [](int64_t column, int64_t heads) {
    return Footprint(reinterpret_cast<const void*>(int64_t{1} << 40 | column), kHead,
                     {{kTokens, kRow}, {heads, kHead}});
  };
  EXPECT_EQ(compare(view(0, 64), view(64 * kHead, 64)), Shared::kNothing);
  EXPECT_EQ(compare(view(0, 64), view(2 * 64 * kHead, 64)), Shared::kNothing);
  EXPECT_EQ(compare(view(0, 65), view(64 * kHead, 64)), Shared::kBytes);
  EXPECT_EQ(compare(view(0, 64), view(64 * kHead, 129)), Shared::kBytes);  // into the next row
  // Heads interleaved: v and o of a head beside each other.
  const auto beside = [](int64_t column) {
    return Footprint(reinterpret_cast<const void*>(int64_t{1} << 40 | column), kHead,
                     {{kTokens, 128 * kHead}, {64, 2 * kHead}});
  };
  EXPECT_EQ(compare(beside(0), beside(kHead)), Shared::kNothing);
  EXPECT_EQ(compare(beside(0), beside(kHead - 2)), Shared::kBytes);
  EXPECT_EQ(compare(beside(0), beside(64 * 2 * kHead - kHead)), Shared::kNothing);
}

TEST(Footprint, OfAnySize) {
  const auto at = [](uint64_t address) { return reinterpret_cast<const void*>(address); };
  constexpr int64_t kHuge = (int64_t{1} << 62) - 4096;
  const Footprint low(at(16), 8, {{2, kHuge}}), high(at(~uint64_t{0} - 4096), 8, {{2, kHuge}});
  EXPECT_EQ(compare(low, high), Shared::kNothing);
  EXPECT_EQ(compare(low, Footprint(at(16 + kHuge + 7), 1, {})), Shared::kBytes);
  EXPECT_EQ(compare(low, Footprint(at(16 + kHuge + 8), 1, {})), Shared::kNothing);
  EXPECT_EQ(compare(Footprint(at(16), kHuge, {}), low), Shared::kBytes);
  EXPECT_EQ(compare(Footprint(nullptr, 8, {}), low), Shared::kNothing);
  EXPECT_EQ(compare(Footprint(at(16), 8, {{0, 8}}), low), Shared::kNothing);
}

// Strides without a common divisor: the answer may be "unknown", and it must come at once.
TEST(Footprint, GivesUpInGoodTime) {
  const Footprint a(reinterpret_cast<const void*>(int64_t{1} << 40), 2, {{100000, 1000003}, {1000, 911}});
  const Footprint b(reinterpret_cast<const void*>((int64_t{1} << 40) + 5), 2, {{100000, 1000033}, {1000, 937}});
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) compare(a, b);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(taken.count(), 0.5);  // 5 ms each: far above the usual time, far below a search
}

}  // namespace
}  // namespace deltarelay::test
