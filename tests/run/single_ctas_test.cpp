// Number of CTAs that a call of the fused walks starts: one per item, or fewer that take several items.
#include "kernels/cuda/sm90/single_ctas.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace deltarelay::cuda::sm90 {
namespace {

constexpr int32_t kUnits = 132;
constexpr unsigned kMost = 8;

// A call whose rows of `phase` have these chunks, longest first.
WalkArgs call_of(const std::vector<int32_t>& chunks, int32_t heads, int32_t phase = 1) {
  WalkArgs args{};
  args.phase = phase;
  args.row_bound = static_cast<int32_t>(chunks.size());
  args.heads_v = heads;
  args.strips = {heads, 1};
  Tables& tables = args.tables;
  std::vector<Row> rows;
  for (const int32_t count : chunks) {
    Row row{};
    row.chunks = count;
    rows.push_back(row);
  }
  const auto rows_bytes = static_cast<uint32_t>(rows.size() * sizeof(Row));
  tables.at_counts = 0;
  tables.at_rows1 = tables.at_rows3 = 16;
  // The other phase has no rows, because nobody may read them.
  const int32_t counts[4] = {phase == 1 ? args.row_bound : 0, 0, phase == 3 ? args.row_bound : 0, 0};
  EXPECT_LE(16 + rows_bytes, Tables::kImageBytes);
  std::memcpy(tables.image, counts, sizeof(counts));
  std::memcpy(tables.image + 16, rows.data(), rows_bytes);
  return args;
}

unsigned ctas(const WalkArgs& args) { return single_ctas(args, kMost, kUnits); }

TEST(SingleCtas, OneForEachItemWhileThereIsRoom) {
  EXPECT_EQ(ctas(call_of({7}, 1)), 1u);
  EXPECT_EQ(ctas(call_of({7, 7, 7, 7}, 33)), 132u);
}

TEST(SingleCtas, RowsAlikeShareTheMultiprocessors) {
  EXPECT_EQ(ctas(call_of({7, 7}, 67)), 132u);
  EXPECT_EQ(ctas(call_of(std::vector<int32_t>(8, 32), 64)), 132u);     // four waves
  EXPECT_EQ(ctas(call_of(std::vector<int32_t>(8, 32), 64, 3)), 132u);  // phase 3
}

TEST(SingleCtas, RowsThatDifferAreLeftToTheHardwareWhileRoundsAreFew) {
  EXPECT_EQ(ctas(call_of({8, 7}, 67)), 134u);
  EXPECT_EQ(ctas(call_of({8, 7, 7}, 175)), 525u);
  EXPECT_EQ(ctas(call_of({8, 7, 7, 7}, 132)), 132u);  // four waves
}

TEST(SingleCtas, NoCtaTakesMoreThanItCan) {
  EXPECT_EQ(ctas(call_of({7, 7}, 8 * 66)), 132u);
  EXPECT_EQ(ctas(call_of({7, 7}, 8 * 66 + 1)), 133u);
  EXPECT_EQ(ctas(call_of({9, 1}, 10000)), 2500u);
}

TEST(SingleCtas, ATableThatOnlyTheDeviceCanReadTellsNothing) {
  WalkArgs args = call_of({7, 7}, 67);
  const uint8_t elsewhere = 0;
  args.tables.memory = &elsewhere;
  EXPECT_EQ(ctas(args), 134u);
  args.strips.all = 264;
  EXPECT_EQ(ctas(args), 132u);
}

TEST(SingleCtas, StripsCountLikeHeads) {
  WalkArgs args = call_of({8, 7}, 25);
  args.strips = {75, 3};
  EXPECT_EQ(ctas(args), 150u);
  EXPECT_EQ(args.strips.head_of(0), 0);
  EXPECT_EQ(args.strips.head_of(2), 0);
  EXPECT_EQ(args.strips.head_of(3), 1);
  EXPECT_EQ(args.strips.head_of(74), 24);
}

TEST(SingleCtas, TwinsComeTogether) {
  const auto twins = [](const WalkArgs& args, int32_t units) { return single_ctas(args, kMost, units, 2); };
  EXPECT_EQ(twins(call_of({17}, 2), kUnits), 2u);
  EXPECT_EQ(twins(call_of({17, 17}, 68), kUnits), 132u);
  EXPECT_EQ(twins(call_of({17, 17}, 68), 131), 130u);             // one multiprocessor is unused
  EXPECT_EQ(twins(call_of({17, 17}, 8 * 66 + 2), kUnits), 134u);  // 133 would be enough for single CTAs
}

}  // namespace
}  // namespace deltarelay::cuda::sm90
