// Values that break naive chunk forms: gates at both ends of their range, nearly parallel keys, beta near 2. Every form
// and profile once, with few tokens; long_values_test.cpp has the cases that need many.
#include "forward_case.h"

namespace deltarelay::forward {
namespace {

const std::vector<std::string> kRules = {"kda fp32", "gdn fp32", "kda bf16", "gdn bf16", "kda fp16", "gdn fp16"};

INSTANTIATE_TEST_SUITE_P(ExtremeGates, ForwardCase,
                         testing::ValuesIn(combine({kRules,
                                                    {"hv=2 dk=64 seqs=500,77 init final l2norm"},
                                                    {"gate=log:extreme", "gate=log:inf", "gate=log:zero",
                                                     "gate=log:-5,-5", "gate=linear", "gate=linear:extreme",
                                                     "gate=linear:inf", "gate=log:extreme floor=-5",
                                                     "gate=linear:inf floor=-0.5"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(
    RawGates, ForwardCase,
    testing::ValuesIn(combine({kRules,
                               {"hqk=2 hv=6 dk=64 seqs=300,65 init final"},
                               {"gate=softplus", "gate=softplus no-dt-bias", "gate=bounded:-5", "gate=bounded:-5:low",
                                "gate=bounded:-12.5", "gate=bounded:-300:low", "gate=bounded:-0.1",
                                "gate=bounded:-5 no-a-log", "gate=bounded:-5 no-a-log no-dt-bias"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(WriteStrengths, ForwardCase,
                         testing::ValuesIn(combine({kRules,
                                                    {"hv=2 dk=64 seqs=300,65 init final l2norm"},
                                                    {"beta=value", "beta=one", "beta=zero", "beta=near2", "beta=logit",
                                                     "beta=twice"}})),
                         name_of);

// Here the chunk form itself amplifies round-off, so the wider column of the tolerance table applies.
INSTANTIATE_TEST_SUITE_P(
    Hostile, ForwardCase,
    testing::ValuesIn(combine({kRules,
                               {"hv=2 dk=128 init final"},
                               {"seqs=65,1,300"},
                               {"gate=log:zero keys=correlated", "gate=log:zero keys=correlated beta=one",
                                "gate=log:zero keys=correlated beta=near2", "gate=log:zero l2norm beta=near2",
                                "gate=log:-0.01,0 keys=correlated"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(Scales, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn bf16"},
                                                    {"hv=2 dk=64 seqs=130 init final"},
                                                    {"scale=1", "scale=0.1", "scale=0", "scale=-2.5"}})),
                         name_of);

}  // namespace
}  // namespace deltarelay::forward
