// Rows that are handed on: who walks what.
#include "kernels/relay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace deltarelay {
namespace {

// A line of rows of these chunks.
struct Rows {
  std::vector<int32_t> chunks;
  RelayLine line;

  Rows(std::vector<int32_t> lengths, int32_t heads, int32_t side, int32_t units) : chunks(std::move(lengths)) {
    std::sort(chunks.begin(), chunks.end(), std::greater<>());
    const int64_t all = std::accumulate(chunks.begin(), chunks.end(), int64_t{0});
    line = relay_line(all, chunks[0], heads, side, units);
  }
  int32_t count() const { return static_cast<int32_t>(chunks.size()); }
  auto chunks_of() const {
    return [this](int32_t row) { return chunks[static_cast<size_t>(row)]; };
  }
  std::vector<RelayPart> parts(int32_t share) const {
    const RelayShare own = relay_share(line, count(), chunks_of(), share);
    std::vector<RelayPart> parts;
    for (int32_t i = 0; i < own.parts(line); ++i) parts.push_back(own.part(line, chunks_of(), i));
    EXPECT_LT(own.part(line, chunks_of(), static_cast<int32_t>(own.parts(line))).row, 0);
    return parts;
  }
  std::string name() const {
    std::string text = std::to_string(line.shares) + " shares of " + std::to_string(line.length) + ", " +
                       std::to_string(line.heads) + " heads of rows of";
    for (const int32_t c : chunks) text += " " + std::to_string(c);
    return text;
  }
};

template <class Check>
void for_each_line(Check&& check) {
  std::mt19937 random(7);
  auto draw = [&](int32_t from, int32_t to) { return std::uniform_int_distribution<int32_t>(from, to)(random); };
  int64_t lines = 0;
  for (int32_t trial = 0; trial < 4000; ++trial) {
    const int32_t units[] = {2, 3, 5, 65, 66, 132, 148}, mosts[] = {1, 9, 40, 300, 4000};
    const int32_t most = mosts[trial % 5], side = draw(1, 2), heads = side * draw(1, 40);
    std::vector<int32_t> chunks(static_cast<size_t>(draw(1, trial % 3 == 0 ? 3 : 60)), draw(1, most));
    if (trial % 2 == 0) {
      for (int32_t& c : chunks) c = draw(1, most);
    }
    const Rows rows(chunks, heads, side, units[trial % 7]);
    if (rows.line.shares == 0) continue;
    SCOPED_TRACE(rows.name());
    check(rows);
    ++lines;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(lines, 2000);
}

TEST(Relay, EveryChunkIsWalkedOnce) {
  for_each_line([](const Rows& rows) {
    const RelayLine& line = rows.line;
    std::vector<std::vector<RelayPart>> walked(rows.chunks.size() * static_cast<size_t>(line.heads));
    int64_t most = 0;
    for (int32_t share = 0; share < line.shares; ++share) {
      const std::vector<RelayPart> parts = rows.parts(share);
      most = std::max(most, static_cast<int64_t>(parts.size()));
      for (const RelayPart& part : parts) {
        ASSERT_TRUE(0 <= part.row && part.row < rows.count() && 0 <= part.head && part.head < line.heads);
        walked[static_cast<size_t>(part.row * line.heads + part.head)].push_back(part);
      }
    }
    EXPECT_EQ(most, most_relay_parts(line, rows.count(), rows.chunks_of()));
    for (std::vector<RelayPart>& parts : walked) {
      ASSERT_TRUE(parts.size() == 1 || parts.size() == 2);
      const int32_t chunks = rows.chunks[static_cast<size_t>(parts[0].row)];
      if (parts.size() == 2) std::swap(parts[0], parts[1]);  // shares count against time
      EXPECT_EQ(parts.front().from, 0);
      EXPECT_EQ(parts.back().to, chunks);
      EXPECT_EQ(parts.front().to, parts.size() == 2 ? parts.back().from : chunks);
      if (parts.size() == 1) continue;
      EXPECT_EQ(parts.front().to % 2, 0) << "or twins have a chunk without tokens behind it";
      for (const RelayPart& part : parts) EXPECT_GE(part.to - part.from, RelayLine::kLeastPart);
    }
  });
}

TEST(Relay, WhatOneHandsOnTheNextTakesOver) {
  for_each_line([](const Rows& rows) {
    RelayPart handed{-1, 0, 0, 0};  // by share + 1
    for (int32_t share = rows.line.shares - 1; share >= 0; --share) {
      const std::vector<RelayPart> parts = rows.parts(share);
      bool takes_over = false;
      for (size_t i = 0; i < parts.size(); ++i) {
        const bool hands_on = parts[i].to < rows.chunks[static_cast<size_t>(parts[i].row)];
        EXPECT_TRUE(!hands_on || i == 0) << "only the first part is handed on";
        if (parts[i].from == 0) continue;
        EXPECT_EQ(i + 1, parts.size()) << "only the last part is taken over";
        EXPECT_EQ(parts[i].row, handed.row);
        EXPECT_EQ(parts[i].head, handed.head);
        EXPECT_EQ(parts[i].from, handed.to);
        takes_over = true;
      }
      EXPECT_EQ(takes_over, handed.row >= 0);
      handed = {-1, 0, 0, 0};
      if (!parts.empty() && parts[0].to < rows.chunks[static_cast<size_t>(parts[0].row)]) handed = parts[0];
    }
    EXPECT_LT(handed.row, 0) << "nobody is behind the first share";
  });
}

TEST(Relay, NobodyWaitsAndNoShareIsLong) {
  for_each_line([](const Rows& rows) {
    for (int32_t share = 0; share < rows.line.shares; ++share) {
      int64_t at = 0;
      for (const RelayPart& part : rows.parts(share)) {
        EXPECT_GE(at, part.from) << "it was handed on after so many chunks";
        at += part.to - part.from;
      }
      EXPECT_LE(at, rows.line.length + 2 * RelayLine::kLeastPart);
    }
  });
}

TEST(Relay, OneShareIsNone) {
  EXPECT_EQ(relay_line(256, 256, 1, 1, 66).shares, 0) << "one row";
  EXPECT_EQ(relay_line(5 * 256, 256, 32, 0, 132).shares, 0) << "units that cannot";
  EXPECT_EQ(relay_line(5 * 256, 256, 32, 4, 3).shares, 0) << "fewer units than walk side by side";
}

TEST(Relay, SharesAreAsLongAsTheLongestRow) {
  const Rows even({256, 256, 256}, 64, 4, 132);
  EXPECT_EQ(even.line.shares, 33);
  EXPECT_EQ(even.line.heads, 16);
  EXPECT_EQ(even.line.places(), 132);
  EXPECT_EQ(even.line.length, 374);
  const Rows uneven({1000, 10, 10}, 66, 1, 132);
  EXPECT_EQ(uneven.line.length, 1016);
  EXPECT_EQ(uneven.line.shares, 67);
}

TEST(Relay, MarksAreAnsweredWhateverTheyWere) {
  for (const uint64_t before : {uint64_t{0}, ~uint64_t{0}, uint64_t{1}, uint64_t{0x5a5a5a5a5a5a5a5a}}) {
    const uint64_t answer = RelayMark::answer(before);
    EXPECT_NE(answer, before) << "memory that holds one number everywhere is no answer";
    EXPECT_NE(RelayMark::answer(answer), answer) << "nor is the answer of the call before";
  }
}

}  // namespace
}  // namespace deltarelay
