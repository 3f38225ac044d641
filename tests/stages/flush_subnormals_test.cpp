// The setting for subnormal numbers holds while the cpu backend runs, and is the caller's own afterwards.
#include "kernels/cpu/flush_subnormals.h"

#include <gtest/gtest.h>

#include <vector>

#include "deltarelay/deltarelay.hpp"

namespace deltarelay {
namespace {

// 2^-129: a subnormal number, unless those count as zero.
float below_the_smallest() {
  volatile float small = 0x1p-126f;
  volatile float eighth = 0.125f;
  return small * eighth;
}

TEST(FlushSubnormals, LastsAsLongAsTheObject) {
#if !defined(__x86_64__) && !defined(__aarch64__)
  GTEST_SKIP() << "this processor has no such setting";
#endif
  EXPECT_GT(below_the_smallest(), 0.0f);
  {
    const cpu::FlushSubnormals outer;
    EXPECT_EQ(below_the_smallest(), 0.0f);
    { const cpu::FlushSubnormals inner; }
    EXPECT_EQ(below_the_smallest(), 0.0f) << "the outer one is still there";
  }
  EXPECT_GT(below_the_smallest(), 0.0f);
}

// One thread: the caller's own runs the backend.
TEST(FlushSubnormals, AnExecutionLeavesTheCallersSetting) {
  Problem problem(DR_GDN);
  problem.batched(1, 8).heads(1, 1).widths(4, 4).types(DR_FP32);
  Options options;
  options.backend = "cpu";
  options.threads = 1;
  const Plan plan(problem, options);
  std::vector<float> rows(8 * 4, 0.5f), numbers(8, 0.0f), o(8 * 4, -1.0f);
  const Workspace workspace(plan.workspace_bytes());
  Tensors t;
  t.q = t.k = t.v = rows.data();
  t.g = t.beta = numbers.data();
  t.o = o.data();
  plan.execute(t, workspace);
  EXPECT_EQ(o[0], 0.0f) << "beta is 0";
  EXPECT_GT(below_the_smallest(), 0.0f);
}

}  // namespace
}  // namespace deltarelay
