// Tensors of more than 2^31 elements. They take tens of gigabytes, so these tests are an executable of their own.
#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

using Big = EachCase;

// Compares every token and head with the reference, on a sample of value columns.
TEST_P(Big, AgreesWithTheReference) {
  const cases::Case& c = GetParam();
  ASSERT_GT(c.token_heads() * c.dv, int64_t{1} << 31);
  const check::Outcome outcome = check::check_case(c);
  ASSERT_TRUE(outcome.passed()) << check::report(c, outcome);
  EXPECT_EQ(outcome.sampled, check::kSampledColumns);
}

INSTANTIATE_TEST_SUITE_P(Gpu, Big, testing::ValuesIn(cases_in(R"(
  kda: kda bf16 hv=64 seqs=262208 init final gate=bounded:-5 beta=logit l2norm backend=cuda-sm90
  gdn: gdn bf16 g=fp32 b=fp32 hqk=16 hv=64 seqs=200000,62208 init final gate=log:-0.01,0 l2norm backend=cuda-sm90 \
      segments=4
  portable: gdn bf16 hqk=16 hv=64 dk=64 dv=128 seqs=200000,62208 init final gate=log:-0.01,0 l2norm backend=cuda-sm80 \
      segments=4
)")),
                         name_of);

}  // namespace
}  // namespace deltarelay::on_gpu
