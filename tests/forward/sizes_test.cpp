// Lengths around every multiple of chunk and sub-chunk, widths, head groups, data types, layouts.
#include "forward_case.h"

namespace deltarelay::forward {
namespace {

const std::vector<std::string> kLengths = {"seqs=0",   "seqs=1",   "seqs=15",  "seqs=16",   "seqs=17",  "seqs=31",
                                           "seqs=63",  "seqs=64",  "seqs=65",  "seqs=127",  "seqs=129", "seqs=255",
                                           "seqs=257", "seqs=511", "seqs=513", "seqs=1000", "seqs=4096"};

INSTANTIATE_TEST_SUITE_P(Lengths, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn bf16"}, {"hv=2 dk=64 init final"}, kLengths})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(BatchedLengths, ForwardCase,
                         testing::ValuesIn(combine({{"kda bf16", "gdn fp32"},
                                                    {"hv=2 dk=64 init=key final"},
                                                    {"batch=1x1", "batch=3x15", "batch=2x65", "batch=4x129",
                                                     "batch=2x513"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Mixes, ForwardCase, testing::ValuesIn(cases_in(R"(
  every-length:     kda fp32 hv=2 dk=32 seqs=0,1,15,16,17,31,63,64,65,127,129,255,257,511,513,1000 init final
  every-length-gdn: gdn bf16 hqk=1 hv=2 dk=48 seqs=1000,513,511,257,255,129,127,65,64,63,31,17,16,15,1,0 init final
  empty-front:      kda fp32 hv=2 dk=64 seqs=0,0,70,129 init final
  empty-middle:     gdn fp32 hv=2 dk=64 seqs=70,0,0,0,129 init final
  empty-end:        kda bf16 hv=2 dk=64 seqs=70,129,0,0 init final
  all-empty:        kda fp32 hv=2 dk=64 seqs=0x5 init final
  all-empty-bare:   gdn fp32 hv=2 dk=64 seqs=0x5 final
  tail:             kda fp32 hv=2 dk=64 seqs=70,0,33 tail=130 init final
  tail-bf16:        gdn bf16 hv=3 dk=60 seqs=1 tail=1
  ones:             kda fp32 hv=2 dk=64 seqs=1x40 init final
  wide-offsets:     kda bf16 hv=2 dk=64 seqs=100,200,300 offsets=int64
  late:             kda fp32 hv=2 dk=64 seqs=100,0,200,300 lengths=execute init final
  late-wide:        gdn bf16 hv=2 dk=64 seqs=100,0,200,300 tail=9 lengths=execute offsets=int64 init final
  skewed:           kda fp32 hv=2 dk=64 seqs=3000,10x20 init final
)")),
                         name_of);

const std::vector<std::string> kKeyWidths = {"dk=16",  "dk=32",  "dk=60",  "dk=64", "dk=96",
                                             "dk=100", "dk=128", "dk=192", "dk=256"};
const std::vector<std::string> kValueWidths = {"dv=16",  "dv=32",  "dv=60",  "dv=64", "dv=96",
                                               "dv=100", "dv=128", "dv=192", "dv=256"};
INSTANTIATE_TEST_SUITE_P(Widths, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32 seqs=83 init final"}, kKeyWidths, kValueWidths})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    WidthsOfBf16, ForwardCase,
    testing::ValuesIn(combine({{"gdn bf16 hv=2 seqs=83 init final"}, kKeyWidths, {"dv=60", "dv=128"}})), name_of);
INSTANTIATE_TEST_SUITE_P(OddWidths, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn fp32", "kda bf16", "gdn fp16"},
                                                    {"seqs=70,17 init final"},
                                                    {"dk=1 dv=1", "dk=1 dv=256", "dk=256 dv=1", "dk=3 dv=5",
                                                     "dk=17 dv=31", "dk=127 dv=129", "dk=255 dv=33"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(WideValues, ForwardCase, testing::ValuesIn(cases_in(R"(
  fp32-257:       kda fp32 hv=2 dk=64 dv=257 seqs=83,0,17 init final
  fp32-384:       gdn fp32 hqk=1 hv=2 dk=128 dv=384 seqs=83,17 init=key final=key gate=softplus
  fp32-500:       kda fp32 hqk=1 hv=3 dk=100 dv=500 seqs=70,17 init final=key threads=3
  fp32-512:       gdn fp32 hv=2 dk=256 dv=512 batch=2x70 init=key final threads=2
  bf16-257:       gdn bf16 hv=2 dk=64 dv=257 seqs=83,0,17 init=key final=key
  bf16-384:       kda bf16 hqk=1 hv=2 dk=128 dv=384 seqs=83,17 init final=in-place threads=3
  bf16-500:       gdn bf16 hqk=1 hv=3 dk=100 dv=500 seqs=70,17 tail=3 init=bf16 final=key:bf16
  bf16-512:       kda bf16 hv=2 dk=256 dv=512 seqs=70,17 init=slots:null=0 final=slots:key:fp16 gate=bounded:-5
  fp16-511:       kda fp16 hv=2 dk=32 dv=511 seqs=83,17 strides=packed init final lengths=execute
  narrow-keys:    gdn fp32 hv=2 dk=1 dv=512 seqs=70,17 strides=head-first init final
  checkpoints:    kda fp32 hqk=1 hv=2 dk=64 dv=384 seqs=130,70 init final checkpoints=every:48
  checkpoints-16: gdn bf16 hv=2 dk=128 dv=512 seqs=130,70 checkpoints=list:16,64,80 checkpoint-state=key:bf16
)")),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Groups, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn bf16"},
                                                    {"dk=64 seqs=150,70 gate=softplus init final"},
                                                    {"hqk=1 hv=2", "hqk=1 hv=3", "hqk=2 hv=8", "hqk=3 hv=3",
                                                     "hqk=2 hv=6", "hqk=1 hv=8"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(DataTypes, ForwardCase,
                         testing::ValuesIn(combine({{"kda", "gdn"},
                                                    {"fp32", "bf16", "fp16"},
                                                    {"hv=2 dk=64 seqs=200,33 init final"},
                                                    {"", "o=fp32", "o=bf16", "o=fp16", "g=fp32 b=fp32", "g=bf16 b=fp16",
                                                     "o=fp32 g=fp16 b=bf16"}})),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Layouts, ForwardCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn bf16", "kda fp16"},
                                                    {"hqk=2 hv=4 dk=64 dv=48 init final"},
                                                    {"seqs=100,0,67", "batch=3x67"},
                                                    {"strides=packed", "strides=padded", "strides=head-first"}})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(OddLayouts, ForwardCase, testing::ValuesIn(cases_in(R"(
  packed-odd:  kda bf16 hqk=1 hv=3 dk=33 dv=7 seqs=100,67 strides=packed
  padded-odd:  gdn fp16 hqk=1 hv=3 dk=33 dv=7 seqs=100,67 strides=padded tail=4
  barely-aligned:  kda bf16 hv=3 dk=33 dv=7 seqs=100,67 align=2
  float-aligned:   gdn fp32 hv=3 dk=64 seqs=100,67 align=4
  well-aligned:    kda fp32 hv=2 dk=64 seqs=100,67 align=64
)")),
                         name_of);

// Weak gates and normalised keys: strong gates forget the state that crosses a cut at once.
INSTANTIATE_TEST_SUITE_P(CutLengths, CutCase,
                         testing::ValuesIn(combine({{"kda fp32", "gdn fp32", "kda bf16", "gdn fp16"},
                                                    {"hv=2 dk=64 gate=log:-0.02,0 l2norm init final"},
                                                    {"seqs=129 segments=2", "seqs=257 segments=3",
                                                     "seqs=1000 segments=7", "seqs=511,0,513,1,640 segments=4",
                                                     "batch=2x400 segments=3", "seqs=700 segments=len:128"}})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(CutWidths, CutCase,
                         testing::ValuesIn(combine({{"kda fp32 seqs=300 gate=log:-0.02,0 l2norm init final segments=3"},
                                                    {"dk=16", "dk=60", "dk=100", "dk=128", "dk=192", "dk=256"},
                                                    {"dv=16", "dv=60", "dv=128", "dv=256"}})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(CutOdd, CutCase, testing::ValuesIn(cases_in(R"(
  wide-257:     kda fp32 hv=2 dk=64 dv=257 seqs=300,70 gate=log:-0.02,0 l2norm init final segments=3
  wide-384:     gdn bf16 hqk=1 hv=2 dk=128 dv=384 seqs=300 gate=log:-0.02,0 l2norm init=key final=key segments=3
  wide-500:     gdn fp32 hqk=1 hv=3 dk=100 dv=500 seqs=200 gate=log:-0.02,0 l2norm init final checkpoints=every:48 \
      segments=2
  wide-512:     kda bf16 hv=2 dk=128 dv=512 seqs=300 gate=log:-0.02,0 l2norm init final=key:bf16 segments=len:128
  odd-widths:   kda fp32 hv=2 dk=33 dv=71 seqs=333 segments=3 init final
  narrow:       gdn fp32 hv=2 dk=1 dv=1 seqs=333 segments=3 init final
  grouped:      kda bf16 hqk=2 hv=6 dk=64 seqs=333,200 segments=3 init final gate=softplus
  head-first:   gdn bf16 hqk=1 hv=2 dk=64 batch=2x333 segments=3 strides=head-first init final
  packed-views: kda bf16 hqk=1 hv=2 dk=64 seqs=333,70 segments=3 strides=packed init final
  tail:         kda fp32 hv=2 dk=64 seqs=333,0,70 tail=20 segments=3 init final
)")),
                         name_of);

}  // namespace
}  // namespace deltarelay::forward
