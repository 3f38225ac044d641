// Test lists of other projects, under the names that their authors use, on the whole forward pass. Lists for a GPU keep
// their lengths, with scaled head counts. Long cases have weak gates and normalised keys, so that an error at a cut
// shows: strong gates forget the state that crosses a cut at once.
#include "forward_case.h"

namespace deltarelay::forward {
namespace {

// cuLA, intra-card context parallelism for the state pass (29 tests).
INSTANTIATE_TEST_SUITE_P(Cula_IntraCard_AutodispatchMatchesBaseline, CutCase, testing::ValuesIn(cases_in(R"(
  64K-H4-no-gk:        gdn bf16 hv=2 seqs=64k gate=log:-0.001,0 l2norm final segments=8
  64K-H4-gk:           kda bf16 hv=2 seqs=64k gate=log:-0.001,0 l2norm final segments=8
  64K-and-4K-H4-gk:    kda bf16 hv=2 seqs=64k,4k gate=log:-0.001,0 l2norm final segments=8
  64K-H8-gk:           kda bf16 hv=3 dk=64 seqs=64k gate=log:-0.001,0 l2norm final segments=8
  64K-and-four-1K:     kda bf16 hv=2 dk=64 seqs=64k,1kx4 gate=log:-0.001,0 l2norm final segments=16
  two-64K-no-gk:       gdn bf16 hv=2 dk=64 seqs=64k,64k gate=log:-0.001,0 l2norm final segments=9
  two-32K-and-128:     kda fp32 hv=2 dk=64 seqs=32k,128,32k gate=log:-0.001,0 l2norm final segments=4
  64K-and-2K-H8:       kda bf16 hv=3 dk=64 seqs=2k,64k gate=log:-0.001,0 l2norm final segments=8
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cula_IntraCard_AutodispatchWithInitial, CutCase, testing::ValuesIn(cases_in(R"(
  64K-h0:        kda fp32 hv=2 dk=64 seqs=64k gate=log:-0.001,0 l2norm init final segments=8
  64K-and-4K-h0: kda bf16 hv=2 seqs=64k,4k gate=log:-0.001,0 l2norm init final segments=8
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cula_IntraCard_VsFla, ForwardCase, testing::ValuesIn(cases_in(R"(
  32K-H4: kda bf16 hv=2 seqs=32k gate=log:-0.01,0 l2norm final segments=4
  64K-H4: kda bf16 hv=2 seqs=64k gate=log:-0.01,0 l2norm final segments=8
  32K-H8: kda bf16 hv=3 seqs=32k gate=log:-0.01,0 l2norm final segments=4
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cula_IntraCard_VsReference, ForwardCase, testing::ValuesIn(cases_in(R"(
  64K-plain:        gdn bf16 hv=2 dk=64 seqs=64k gate=log:-0.001,0 l2norm final segments=8
  64K-gk-h0:        kda bf16 hv=2 dk=64 seqs=64k gate=log:-0.001,0 l2norm init final segments=8
  64K-4K-gk-h0:     kda bf16 hv=2 dk=64 seqs=64k,4k gate=log:-0.001,0 l2norm init final segments=8
  two-64K-gk:       kda bf16 hv=2 dk=64 seqs=64k,64k gate=log:-0.001,0 l2norm final segments=4
  mixed-h0:         gdn bf16 hv=2 dk=64 seqs=48k,17,16k gate=log:-0.001,0 l2norm init final segments=4
  ragged-gk-h0:     kda bf16 hv=2 dk=64 seqs=65555 gate=log:-0.001,0 l2norm init final segments=8
  short-gk:         kda bf16 hv=4 dk=64 seqs=1000,4k,513 gate=log:-0.001,0 l2norm final
  64K-H8-gk-h0:     kda bf16 hv=3 dk=64 seqs=64k gate=log:-0.001,0 l2norm init final segments=8
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Cula_IntraCard_FinalStatePerSequence, CutCase, testing::ValuesIn(cases_in(R"(
  one-64K:        gdn fp32 hv=2 dk=64 seqs=64k gate=log:-0.0001,0 l2norm final segments=8
  64K-4K-gk-h0:   kda fp32 hv=2 dk=64 seqs=64k,4k gate=log:-0.0001,0 l2norm init final segments=8
  64K-H8-gk-h0:   kda bf16 hv=3 dk=64 seqs=64k,3 gate=log:-0.0001,0 l2norm init final segments=8
  many-gk-h0:     kda bf16 hv=2 dk=64 seqs=20k,1k,20k,0,20k,100 gate=log:-0.0001,0 l2norm init final segments=5
  two-gk:         kda bf16 hv=2 dk=64 seqs=32k,32k gate=log:-0.0001,0 l2norm final segments=8
)")),
                         name_of);

class Stress : public testing::TestWithParam<cases::Case> {};
TEST_P(Stress, RepeatsAreTheSameBits) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  const cases::Case c = on_backend(GetParam());
  SCOPED_TRACE(cases::print(c));
  Ran ran(c);
  const std::vector<std::byte> expected = ran.tensors.output_bits();
  for (int repeat = 0; repeat < 10; ++repeat) {
    ran.tensors.poison();
    ran.run.poison_workspace();
    ran.run.execute(ran.tensors.tensors());
    ASSERT_TRUE(ran.tensors.output_bits() == expected) << "repeat " << repeat;
  }
}
INSTANTIATE_TEST_SUITE_P(Cula_IntraCard_StressRepeat, Stress, testing::ValuesIn(cases_in(R"(
  single-64K-H4-gk-h0:   kda bf16 hv=2 dk=64 seqs=64k gate=log:-0.001,0 l2norm init final segments=8
  multi-64K-4K-H4-gk-h0: kda bf16 hv=2 dk=64 seqs=64k,4k gate=log:-0.001,0 l2norm init final segments=8
)")),
                         name_of);

TEST(Cula_IntraCard, InitialNoneEqualsZeros) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  const cases::Case c =
      on_backend(cases::parse("kda bf16 hv=2 dk=64 seqs=32k gate=log:-0.001,0 l2norm init final segments=8"));
  check::TensorSet zeros(c);
  const check::StateTensor& pool = zeros.initial();
  for (int64_t i = 0; i < pool.num_slots * pool.stride_slot; ++i) pool.set(i, 0.0);
  check::PlannedRun run(c);
  run.execute(zeros.tensors());
  cases::Case none = c;
  none.initial = {};
  const Ran absent(none);
  EXPECT_TRUE(zeros.output_bits() == absent.tensors.output_bits());
}

// FlashKDA, context parallelism of one sequence (5 tests).
TEST(FlashKda_ContextParallel, DisabledEqualsPlain) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  const cases::Case c =
      on_backend(cases::parse("kda bf16 hv=4 seqs=4k gate=bounded:-5 l2norm beta=logit init final segments=off"));
  const Ran off(c);
  const Ran one(cases::with_words(c, "segments=1"));
  EXPECT_TRUE(off.tensors.output_bits() == one.tensors.output_bits());
}
INSTANTIATE_TEST_SUITE_P(FlashKda_ContextParallel, CutCase, testing::ValuesIn(cases_in(R"(
  T-8K:                     kda bf16 hv=16 seqs=8k gate=bounded:-5 l2norm beta=logit final segments=8
  T-64K:                    kda bf16 hv=2 seqs=64k gate=bounded:-5 l2norm beta=logit final segments=16
  final-from-last-segment:  kda bf16 hv=4 seqs=8k gate=bounded:-0.01 l2norm beta=logit final segments=8
  initial-into-first:       kda bf16 hv=4 seqs=8k gate=bounded:-0.01 l2norm beta=logit init segments=8
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FlashKda_Shapes, ForwardCase,
                         testing::ValuesIn(combine({{"kda bf16 gate=bounded:-5 l2norm beta=logit init final"},
                                                    {"batch=1x1024 hv=4", "batch=2x2048 hv=8", "batch=1x4096 hv=16",
                                                     "seqs=256,244,500 hv=4", "seqs=100,200,900,800 hv=4",
                                                     "seqs=101,202,902,1802,1089 hv=4"}})),
                         name_of);

// FLA and sglang, packed prefill, for both rules.
INSTANTIATE_TEST_SUITE_P(
    Fla_PackedPrefill, ForwardCase,
    testing::ValuesIn(combine({{"kda bf16", "gdn bf16", "kda fp16", "gdn fp32"},
                               {"hv=4 l2norm init final"},
                               {"dk=60 seqs=15", "dk=64 seqs=256,244,500 gate=log:extreme",
                                "dk=128 seqs=256,244,500 gate=log:-1,0", "dk=100 seqs=15,85,200,900,800",
                                "dk=256 seqs=100,200,900,1800,1096", "dk=60 seqs=31,65,64", "dk=64 seqs=8192"}})),
    name_of);
INSTANTIATE_TEST_SUITE_P(Fla_SeveralLongSequences, CutCase, testing::ValuesIn(cases_in(R"(
  two:          kda bf16 hv=2 dk=64 seqs=8k,8k gate=log:-0.001,0 l2norm init final segments=4
  two-gdn:      gdn bf16 hv=2 dk=64 seqs=8k,8k gate=log:-0.001,0 l2norm init final segments=4
  three-uneven: kda fp32 hv=2 dk=64 seqs=8k,5000,3,12001 gate=log:-0.001,0 l2norm init final segments=3
  between:      gdn fp32 hv=2 dk=64 seqs=10,8k,0,77,8k,1 gate=log:-0.001,0 l2norm init final segments=5
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Fla_Kda_Chunk, ForwardCase,
    testing::ValuesIn(combine(
        {{"kda bf16", "kda fp16"},
         {"init final"},
         {"batch=1x63 hv=1 dk=64 scale=1 gate=log:-10,0", "batch=2x500 hv=3 dk=60 scale=1 gate=log:-1,0 l2norm",
          "batch=2x1000 hv=3 dk=64 scale=0.1 gate=log:-0.1,0 l2norm",
          "batch=3x1024 hv=4 dk=100 scale=1 gate=log:-10,0 l2norm",
          "batch=4x1024 hv=4 dk=128 scale=0.1 gate=softplus l2norm",
          "batch=2x1500 hv=4 dk=128 scale=0.1 gate=bounded:-5 l2norm beta=logit",
          "batch=4x2048 hv=8 dk=64 scale=0.1 gate=log:-5,0 l2norm", "batch=2x512 hqk=2 hv=4 dk=60 gate=softplus l2norm",
          "batch=2x1024 hqk=2 hv=8 dk=128 gate=bounded:-5 l2norm beta=twice", "batch=1x64 hqk=1 hv=2 dk=64"}})),
    name_of);
INSTANTIATE_TEST_SUITE_P(
    Fla_Gdn_Chunk, ForwardCase,
    testing::ValuesIn(combine({{"gdn bf16", "gdn fp16"},
                               {"init final l2norm"},
                               {"batch=4x1024 hv=4 dk=128 gate=log:zero", "batch=2x75 hv=4 dk=64 gate=log:-100,0",
                                "batch=2x500 hv=3 dk=60", "batch=2x1000 hv=3 dk=64", "batch=3x1024 hv=4 dk=100",
                                "batch=4x1024 hv=4 dk=128", "batch=2x1500 hv=4 dk=128 gate=log:extreme",
                                "batch=4x2048 hv=8 dk=64", "batch=2x256 hqk=2 hv=4 dk=64",
                                "batch=2x512 hqk=2 hv=8 dk=64 beta=logit", "batch=2x1024 hqk=4 hv=8 dk=128",
                                "batch=1x64 hqk=2 hv=4 dk=32 gate=softplus"}})),
    name_of);
INSTANTIATE_TEST_SUITE_P(Fla_Decode, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32 init=slots final=in-place l2norm"},
                                                    {"batch=16x1 hv=16 dk=128", "batch=32x1 hv=8 dk=64",
                                                     "batch=7x1 hv=32 dk=128", "batch=3x1 hqk=2 hv=8 dk=100"},
                                                    {"gate=log", "gate=softplus", "gate=bounded:-5 beta=logit"}})),
                         name_of);

// cuLA SM90's irregular lengths and mixes.
INSTANTIATE_TEST_SUITE_P(Cula_IrregularLengths, ForwardCase,
                         testing::ValuesIn(combine({{"kda bf16 hv=4 dk=128 gate=bounded:-5 l2norm init final"},
                                                    {"seqs=1", "seqs=31", "seqs=63", "seqs=64", "seqs=65", "seqs=127",
                                                     "seqs=129", "seqs=255", "seqs=257", "seqs=511", "seqs=513",
                                                     "seqs=1,63,64,65,129", "seqs=513,31,257,1,511"}})),
                         name_of);
// cuLA's grouped values, uniform and packed.
INSTANTIATE_TEST_SUITE_P(
    Cula_GroupedValues, ForwardCase,
    testing::ValuesIn(combine({{"kda bf16 dk=128 gate=softplus l2norm init final"},
                               {"batch=1x256 hqk=2 hv=4", "batch=2x512 hqk=4 hv=8", "batch=1x1024 hqk=2 hv=8",
                                "batch=2x1024 hqk=4 hv=16", "batch=1x500 hqk=2 hv=4", "batch=1x1000 hqk=4 hv=8",
                                "seqs=300,120,411 hqk=2 hv=4", "seqs=100,7,513,64 hqk=4 hv=8",
                                "seqs=64,65,1,200,77 hqk=2 hv=8", "seqs=10,20,30,40,50,60,70,80,90,100 hqk=4 hv=8"}})),
    name_of);
INSTANTIATE_TEST_SUITE_P(FlashQla_Shapes, ForwardCase,
                         testing::ValuesIn(combine({{"gdn bf16 l2norm init final",
                                                     "gdn fp16 l2norm init=key final=key"},
                                                    {"batch=1x1024 hv=4", "batch=2x2048 hv=8", "batch=1x4096 hv=16",
                                                     "batch=1x1024 hqk=2 hv=8", "batch=2x2048 hqk=4 hv=16",
                                                     "seqs=256,244,500 hv=4", "seqs=101,202,902,1802,1089 hv=4"}})),
                         name_of);
// Splits between cards of FLA's multi-rank tests, here inside one call.
INSTANTIATE_TEST_SUITE_P(Fla_MultiRank, CutCase, testing::ValuesIn(cases_in(R"(
  two-of-three:  kda bf16 hv=4 seqs=3000,4000,3240 gate=softplus l2norm segments=2 final
  two-of-two:    gdn bf16 hv=4 dk=64 seqs=5120,5120 gate=log:-0.01,0 l2norm segments=2 final
  two-of-seven:  kda bf16 hv=4 seqs=1000,1500,2000,2500,1240,1000,1000 gate=log:-0.01,0 l2norm segments=2 final
  four-of-two:   gdn bf16 hv=4 seqs=7000,3240 gate=log:-0.01,0 l2norm segments=4 final
  four-of-one:   kda bf16 hqk=2 hv=4 seqs=10240 gate=log:-0.01,0 l2norm segments=4 final=key
  eight-of-one:  gdn bf16 hv=2 seqs=64k gate=log:-0.001,0 l2norm segments=8 final
)")),
                         name_of);

}  // namespace
}  // namespace deltarelay::forward
