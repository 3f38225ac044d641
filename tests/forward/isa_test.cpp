// Every instruction set of this machine, on a list that reaches every path of a kernel.
#include <algorithm>

#include "forward_case.h"

namespace deltarelay::forward {
namespace {

// Sanitizers look for errors that a third whole chunk does not add. One-lane kernels take them minutes otherwise.
cases::Case of_few_chunks(cases::Case c) {
  constexpr int64_t kChunk = 64;
  for (int64_t& length : c.lengths) length = std::min(length, 2 * kChunk + length % kChunk);
  return c;
}

std::vector<cases::Case> on_every_isa(const std::vector<cases::Case>& lines) {
  std::vector<cases::Case> all;
  for (int32_t i = 0; i < dr_isa_count(); ++i) {
    for (const cases::Case& c : lines) {
      cases::Case line = cases::with_words(c, std::string("backend=cpu isa=") + dr_isa_name(i));
      if (DR_SANITIZED != 0 && c.segments == DR_SEGMENTS_AUTO) line = of_few_chunks(line);
      std::string isa = dr_isa_name(i);
      line.name = c.name + "-on-" + isa;
      all.push_back(line);
    }
  }
  return all;
}

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
