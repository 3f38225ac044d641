// Number of CTAs that a call of the fused walks starts: one per item, or fewer that take several items.
#include "kernels/cuda/sm90/single_ctas.h"

#include <gtest/gtest.h>

#include <vector>

namespace deltarelay::cuda::sm90 {
namespace {

constexpr int32_t kUnits = 132;
constexpr unsigned kMost = 8;

// A call whose rows have these chunks, longest first.
SingleCtas call_of(const std::vector<int32_t>& chunks, unsigned strips) {
  return {static_cast<unsigned>(chunks.size()) * strips, 0, chunks.front() == chunks.back()};
}

unsigned ctas(const SingleCtas& call) { return single_ctas(call, kMost, kUnits); }

TEST(SingleCtas, OneForEachItemWhileThereIsRoom) {
  EXPECT_EQ(ctas(call_of({7}, 1)), 1u);
  EXPECT_EQ(ctas(call_of({7, 7, 7, 7}, 33)), 132u);
}

TEST(SingleCtas, RowsAlikeShareTheMultiprocessors) {
  EXPECT_EQ(ctas(call_of({7, 7}, 67)), 132u);
  EXPECT_EQ(ctas(call_of(std::vector<int32_t>(8, 32), 64)), 132u);  // four waves
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
  EXPECT_EQ(ctas({134, 0, false}), 134u);
  EXPECT_EQ(ctas({528, 0, false}), 132u);
}

TEST(SingleCtas, RowsThatAreHandedOnHaveACtaForEachShare) { EXPECT_EQ(ctas({134, 66, false}), 66u); }

TEST(SingleCtas, TwinsComeTogether) {
  const auto twins = [](const SingleCtas& call, int32_t units) { return single_ctas(call, kMost, units, 2); };
  EXPECT_EQ(twins(call_of({17}, 2), kUnits), 2u);
  EXPECT_EQ(twins(call_of({17, 17}, 68), kUnits), 132u);
  EXPECT_EQ(twins(call_of({17, 17}, 68), 131), 130u);             // one multiprocessor is unused
  EXPECT_EQ(twins(call_of({17, 17}, 8 * 66 + 2), kUnits), 134u);  // 133 would be enough for single CTAs
}

}  // namespace
}  // namespace deltarelay::cuda::sm90
