// Rows that are handed on: who walks what.
#include "kernels/relay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace deltarelay {
namespace {

std::string name(const RelayLine& line) {
  return std::to_string(line.rows) + " rows of " + std::to_string(line.chunks) + " chunks, " +
         std::to_string(line.shares) + " shares";
}

// One line of many lengths and units, where it is worth it.
template <class Check>
void for_each_line(Check&& check) {
  int64_t lines = 0;
  for (const int32_t units : {2, 3, 5, 65, 66, 132, 148}) {
    for (int32_t rows = 1; rows < 900; rows += rows < 300 ? 1 : 7) {
      for (const int32_t chunks : {1, 2, 7, 16, 31, 32, 33, 64, 100, 128, 255, 256, 257, 1000, 100000}) {
        const RelayLine line = relay_line(rows, chunks, 1, units);
        if (line.shares == 0) continue;
        SCOPED_TRACE(name(line));
        check(line);
        ++lines;
        if (testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(lines, 5000);
}

TEST(Relay, EveryChunkIsWalkedOnce) {
  for_each_line([](const RelayLine& line) {
    std::vector<int32_t> walked(static_cast<size_t>(line.rows), 0);  // of each row, whatever the order
    for (int32_t share = 0; share < line.shares; ++share) {
      for (int32_t i = 0; i < line.parts(); ++i) {
        const RelayPart part = relay_part(line, share, i);
        if (part.row < 0) break;
        ASSERT_LT(part.row, line.rows);
        ASSERT_TRUE(0 <= part.from && part.from < part.to && part.to <= line.chunks);
        walked[static_cast<size_t>(part.row)] += part.to - part.from;
      }
      ASSERT_LT(relay_part(line, share, line.parts()).row, 0) << "more parts than a share has";
      ASSERT_LE(line.parts(), kMostRelayParts);
    }
    for (const int32_t chunks : walked) ASSERT_EQ(chunks, line.chunks);
  });
}

TEST(Relay, WhatOneHandsOnTheNextTakesOver) {
  for_each_line([](const RelayLine& line) {
    RelayPart handed{-1, 0, 0};  // by share + 1
    for (int32_t share = line.shares - 1; share >= 0; --share) {
      const RelayPart first = relay_part(line, share, 0);
      RelayPart last = first;
      for (int32_t i = 1; i < line.parts(); ++i) {
        const RelayPart part = relay_part(line, share, i);
        if (part.row < 0) break;
        ASSERT_EQ(part.to, line.chunks) << "only the first part is handed on";
        ASSERT_EQ(last.from, 0) << "only the last part is taken over";
        last = part;
      }
      ASSERT_EQ(last.from > 0, handed.row >= 0);
      if (handed.row >= 0) {
        ASSERT_EQ(last.row, handed.row);
        ASSERT_EQ(last.from, handed.to);
      }
      handed = first.to < line.chunks ? first : RelayPart{-1, 0, 0};
    }
    ASSERT_LT(handed.row, 0) << "nobody is behind the first share";
  });
}

TEST(Relay, NobodyWaitsAndSharesAreAlike) {
  for_each_line([](const RelayLine& line) {
    for (int32_t share = 0; share < line.shares; ++share) {
      const int64_t length = line.begin(share + 1) - line.begin(share);
      ASSERT_LE(length, line.share() + 2 * RelayLine::kLeastPart);
      // What is taken over is begun at length - (chunks - from), and was handed on at from.
      ASSERT_GE(length, line.chunks);
    }
    const int64_t rounds = (line.rows + line.shares - 1) / line.shares;
    ASSERT_LT(line.share(), rounds * line.chunks);
  });
}

TEST(Relay, NoPartIsShort) {
  for_each_line([](const RelayLine& line) {
    for (int32_t share = 0; share < line.shares; ++share) {
      for (int32_t i = 0; i < line.parts(); ++i) {
        const RelayPart part = relay_part(line, share, i);
        if (part.row < 0) break;
        ASSERT_GE(part.to - part.from, std::min(RelayLine::kLeastPart, line.chunks));
      }
    }
  });
}

TEST(Relay, NotWhereNothingIsGained) {
  EXPECT_EQ(relay_line(64, 256, 1, 66).shares, 0) << "fewer rows than units";
  EXPECT_EQ(relay_line(132, 256, 1, 66).shares, 0) << "whole rounds";
  EXPECT_EQ(relay_line(512, 32, 1, 132).shares, 0) << "a round that is nearly full";
  EXPECT_EQ(relay_line(256, 256, 4, 132).shares, 0) << "a round that is nearly full, of long rows";
  EXPECT_EQ(relay_line(67, 256, 1, 66).shares, 0) << "a row as long as a share";
  EXPECT_EQ(relay_line(600, 256, 1, 66).shares, 0) << "more parts than a unit has places for";
  EXPECT_EQ(relay_line(80, 256, 0, 132).shares, 0) << "rows that are not handed on";
  EXPECT_EQ(relay_line(80, 256, 2, 3).shares, 0) << "one share";
}

TEST(Relay, UnitsOfOneKeyWalkSideBySide) {
  const RelayLine line = relay_line(192, 256, 4, 132);
  EXPECT_EQ(line.shares, 33);
  EXPECT_EQ(line.side, 4);
  EXPECT_EQ(line.rows, 48);
  EXPECT_EQ(line.places(), 132);
  EXPECT_EQ(line.share(), 373);
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
