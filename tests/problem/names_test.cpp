#include <set>
#include <string>

#include "refusal.h"

namespace deltarelay::test {
namespace {

template <typename Enum>
void expect_distinct(int32_t first, int32_t last) {
  std::set<std::string> names;
  for (int32_t i = first; i <= last; ++i) names.insert(name_of(static_cast<Enum>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(last - first + 1));
  EXPECT_EQ(names.count("?"), 0u);
}

TEST(Names, EveryValueHasItsOwn) {
  expect_distinct<Rule>(1, 2);
  expect_distinct<DType>(1, 5);
  expect_distinct<GateForm>(0, 3);
  expect_distinct<BetaForm>(0, 2);
  expect_distinct<StateLayout>(1, 2);
  expect_distinct<Checkpoints>(0, 3);
  EXPECT_STREQ(name_of(static_cast<Rule>(9)), "?");
}

TEST(Names, UnsupportedIsAnotherStatus) {
  try {
    fail_unsupported("cpu: no");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), DR_UNSUPPORTED);
    EXPECT_STREQ(error.what(), "cpu: no");
  }
}

}  // namespace
}  // namespace deltarelay::test
