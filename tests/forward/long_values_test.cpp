// Values that break naive chunk forms over many tokens, whole and cut: accumulated round-off. Left out under
// sanitizers, which reach the same code with fewer tokens (values_test.cpp) and cuts elsewhere.
#include "forward_case.h"

namespace deltarelay::forward {
namespace {

const std::vector<std::string> kRules = {"kda fp32", "gdn fp32", "kda bf16", "gdn bf16", "kda fp16", "gdn fp16"};

INSTANTIATE_TEST_SUITE_P(MeanGate, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn fp32", "kda bf16", "gdn bf16"},
                                                    {"hv=2 dk=64 seqs=700 init final l2norm"},
                                                    {"gate=log:mean:0", "gate=log:mean:-0.0001", "gate=log:mean:-0.01",
                                                     "gate=log:mean:-0.1", "gate=log:mean:-1", "gate=log:mean:-5",
                                                     "gate=log:mean:-20", "gate=log:mean:-50"}})),
                         name_of);

// Here the chunk form itself amplifies round-off, so the wider column of the tolerance table applies.
INSTANTIATE_TEST_SUITE_P(
    Hostile, ForwardCase,
    testing::ValuesIn(combine({kRules,
                               {"hv=2 dk=128 init final"},
                               {"seqs=2048"},
                               {"gate=log:zero keys=correlated", "gate=log:zero keys=correlated beta=one",
                                "gate=log:zero keys=correlated beta=near2", "gate=log:zero l2norm beta=near2",
                                "gate=log:-0.01,0 keys=correlated"}})),
    name_of);

INSTANTIATE_TEST_SUITE_P(HostileCut, CutCase,
                         testing::ValuesIn(combine({kRules,
                                                    {"hv=2 dk=64 seqs=1000,300 segments=4 init final"},
                                                    {"gate=log:extreme", "gate=log:inf", "gate=log:zero l2norm",
                                                     "gate=log:zero keys=correlated", "gate=log:zero l2norm beta=near2",
                                                     "gate=bounded:-5:low l2norm",
                                                     "gate=softplus l2norm beta=twice"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Correlated, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn fp32", "kda fp16"},
                                                    {"hv=2 dk=128 seqs=600 keys=correlated"},
                                                    {"beta=value", "beta=one", "l2norm beta=twice"}})),
                         name_of);

}  // namespace
}  // namespace deltarelay::forward
