// Runs every line of tests/cases/gpu.txt and gpu_portable.txt in guarded memory and compares it with the reference.
// Checks that the forced backend ran.
#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

using EveryLine = EachCase;

TEST_P(EveryLine, AgreesWithTheReference) {
  const cases::Case& c = GetParam();
  const check::Outcome outcome = check::check_case(c);
  ASSERT_TRUE(outcome.passed()) << check::report(c, outcome);

  // Other backends cannot use device pointers, so the backend that the plan names is the one that ran.
  const dr_plan_summary summary = check::PlannedRun(c).summary();
  EXPECT_EQ(summary.backend, c.backend);
  if (c.segments == DR_SEGMENTS_OFF) EXPECT_EQ(summary.cut_sequences, 0);
  if (c.segments == DR_SEGMENTS_COUNT) EXPECT_EQ(summary.max_segments, c.segment_value);
  // A plan that learns the lengths at execution cannot say what it will cut.
  if (c.segments == DR_SEGMENTS_LENGTH && c.lengths_at == cases::LengthsAt::kPlan) EXPECT_GE(summary.cut_sequences, 1);
}

INSTANTIATE_TEST_SUITE_P(Gpu, EveryLine, testing::ValuesIn(cases::read_file(DR_CASES_DIR "/gpu.txt")), name_of);
INSTANTIATE_TEST_SUITE_P(Portable, EveryLine, testing::ValuesIn(cases::read_file(DR_CASES_DIR "/gpu_portable.txt")),
                         name_of);

using FirstGpu = OnGpu;

TEST_F(FirstGpu, IsADeviceOfTheLibrary) {
  dr_device device;
  dr_device_init(&device);
  ASSERT_EQ(dr_device_find("cuda:0", &device), DR_SUCCESS) << dr_last_error();
  EXPECT_EQ(device.kind, DR_DEVICE_CUDA);
  EXPECT_EQ(device.units, gpu::facts().units);
  EXPECT_EQ(device.compute_capability, 90) << "the tests of this folder are about Hopper";
}

TEST_F(FirstGpu, IsWhereACaseRunsThatAsksForIt) {
  const cases::Case c = cases::parse("kda bf16 hv=2 seqs=300,65 init final device=cuda");
  Ran ran(c);
  EXPECT_STREQ(ran.run.summary().backend, kBackend);
  expect_undamaged(ran);
  expect_close(check::compare(ran.host, check::run_reference(ran.host)), "device=cuda");
}

TEST_F(FirstGpu, TakesThePortableKernelsForWhatHopperHasNone) {
  const cases::Case c = cases::parse("kda fp32 hv=2 dk=60 dv=100 seqs=300,65 init final device=cuda");
  Ran ran(c);
  EXPECT_STREQ(ran.run.summary().backend, kPortable);
  expect_undamaged(ran);
  expect_close(check::compare(ran.host, check::run_reference(ran.host)), "device=cuda");
}

}  // namespace
}  // namespace deltarelay::on_gpu
