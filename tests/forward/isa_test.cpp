// Every instruction set of this machine, on a list that reaches every path of a kernel.
#include "forward_case.h"

namespace deltarelay::forward {
namespace {

INSTANTIATE_TEST_SUITE_P(EveryIsa, ForwardCase, testing::ValuesIn(on_every_isa(cases_in(R"(
  kda:           kda fp32 hv=2 dk=128 seqs=300,65,0,1 init final
  gdn:           gdn fp32 hv=2 dk=128 seqs=300,65,0,1 init final
  kda-bf16:      kda bf16 hv=2 dk=128 seqs=300,65,0,1 init final
  gdn-bf16:      gdn bf16 hv=2 dk=128 seqs=300,65,0,1 init final
  kda-fp16:      kda fp16 hv=2 dk=128 seqs=300,65,0,1 init final
  gdn-fp16:      gdn fp16 hv=2 dk=128 seqs=300,65,0,1 init final
  odd:           kda fp32 hqk=1 hv=3 dk=33 dv=71 seqs=150,17 init=key final=key
  odd-bf16:      gdn bf16 hqk=1 hv=3 dk=60 dv=100 seqs=150,17 init=key final=key
  tiny:          kda fp32 hv=1 dk=1 dv=1 seqs=70
  widest:        gdn fp32 hv=1 dk=256 seqs=130 init final
  softplus:      kda bf16 hv=3 dk=64 seqs=200 gate=softplus l2norm beta=logit init final
  bounded:       gdn fp32 hv=3 dk=64 seqs=200 gate=bounded:-5 l2norm beta=twice init final
  linear:        kda fp16 hv=2 dk=64 seqs=200 gate=linear:inf
  extreme:       kda fp32 hv=2 dk=64 seqs=300 gate=log:extreme init final
  hostile:       kda fp32 hv=1 dk=128 seqs=600 gate=log:zero keys=correlated beta=near2
  hostile-bf16:  gdn bf16 hv=1 dk=128 seqs=600 gate=log:zero keys=correlated
  cut:           kda fp32 hv=2 dk=64 seqs=500,70 segments=3 init final=in-place
  cut-bf16:      gdn bf16 hv=2 dk=64 seqs=500,70 segments=3 init final checkpoints=every:48
  out-fp16:      kda fp32 o=fp16 hv=2 dk=40 dv=72 seqs=150,17 init=rows:bf16 final=rows:fp16
  out-bf16:      gdn fp16 o=bf16 g=bf16 b=fp32 hv=2 dk=40 dv=72 seqs=150,17 init=rows:fp16 final=rows:key:bf16
  out-fp32:      kda bf16 o=fp32 g=fp16 b=fp16 hv=2 dk=40 dv=72 seqs=150,17 init=rows:key:fp16 final=rows:fp32
  bf16-to-fp16:  gdn bf16 o=fp16 g=fp32 b=bf16 hv=2 dk=64 seqs=150,17 init final=rows:fp16 checkpoints=every:64
  slots:         kda bf16 hv=2 dk=32 seqs=70,65,1,0,30 init=slots:null=1:negative final=slots:key:fp16
  packed-views:  kda bf16 hqk=1 hv=2 dk=64 batch=2x70 strides=packed
  head-first:    gdn fp32 hqk=2 hv=4 dk=48 seqs=70,33 tail=3 strides=head-first
)"))),
                         name_of);

TEST(Isa, NamesAreListedBestFirstAndUnknownOnesRefused) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  ASSERT_GE(dr_isa_count(), 1);
  EXPECT_EQ(dr_isa_name(dr_isa_count()), nullptr);
  EXPECT_EQ(dr_isa_name(-1), nullptr);
  const cases::Case c = cases::parse("kda fp32 hv=1 dk=64 seqs=70 backend=cpu");
  const check::PlannedRun best(c);
  EXPECT_STREQ(best.summary().isa, dr_isa_name(0));
  for (int32_t i = 0; i < dr_isa_count(); ++i) {
    const check::PlannedRun run(cases::with_words(c, std::string("isa=") + dr_isa_name(i)));
    EXPECT_STREQ(run.summary().isa, dr_isa_name(i)) << "the instruction set that was asked for did not run";
  }
  const check::Outcome unknown = check::check_case(cases::with_words(c, "isa=no-such-set"));
  EXPECT_FALSE(unknown.passed());
  EXPECT_NE(unknown.message.find("isa"), std::string::npos) << unknown.message;
}

}  // namespace
}  // namespace deltarelay::forward
