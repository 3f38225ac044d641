// Changes of a call that must not change its result, on the GPU.
#include <algorithm>
#include <utility>

#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

using Cut = EachCase;

// Every segmentation agrees with none, and both agree with the reference.
TEST_P(Cut, AgreesWithTheUncutRunAndTheReference) {
  const cases::Case c = forced(GetParam());
  Ran cut(c);
  Ran whole(cases::with_words(c, "segments=off"));
  EXPECT_GE(cut.run.summary().cut_sequences, 1) << cut.run.describe(DR_DESCRIBE_SIGNATURE);
  EXPECT_EQ(whole.run.summary().cut_sequences, 0);
  EXPECT_EQ(cut.run.summary().backend, c.backend);
  expect_undamaged(cut);
  expect_undamaged(whole);
  const check::Reference reference = check::run_reference(cut.host);
  expect_close(check::compare(cut.host, reference), "cut against reference");
  expect_close(check::compare(whole.host, reference), "uncut against reference");
  expect_close(of_two_runs(check::compare(cut.host, whole.host)), "cut against uncut");
}

// Weak gates and normalised keys: strong gates would forget the state at once after a cut.
INSTANTIATE_TEST_SUITE_P(Counts, Cut,
                         testing::ValuesIn(combine({{"kda bf16", "gdn bf16", "kda fp16", "gdn fp16"},
                                                    {"hv=2 gate=log:-0.02,0 l2norm init final"},
                                                    {"seqs=129 segments=2", "seqs=257 segments=3",
                                                     "seqs=1000 segments=7", "seqs=511,0,513,1,640 segments=4",
                                                     "batch=2x400 segments=3", "seqs=700 segments=len:128"}})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Forms, Cut, testing::ValuesIn(cases_in(R"(
  bounded:        kda bf16 hv=4 seqs=4096,1000 init final gate=bounded:-0.05 beta=logit l2norm segments=8
  bounded-deep:   kda bf16 hv=4 seqs=4096 init final gate=bounded:-5 beta=logit l2norm segments=8
  softplus:       kda bf16 hqk=2 hv=4 seqs=2000,77 init final gate=softplus beta=twice l2norm segments=5
  grouped:        gdn bf16 hqk=2 hv=8 seqs=2000,77 init final gate=log:-0.01,0 l2norm segments=5
  in-place:       kda bf16 hv=2 seqs=2000,1999 init=slots final=in-place gate=log:-0.01,0 l2norm segments=6
  two-long:       gdn bf16 hv=2 seqs=5000,5000,4999 init final gate=log:-0.001,0 l2norm segments=4
  no-states:      kda bf16 hv=2 seqs=3000 gate=log:-0.01,0 l2norm segments=9
  frames:         kda bf16 hv=4 seqs=3000,77 init final gate=log:mean:-2.5 beta=logit l2norm segments=4 variant=fused
  frames-init:    kda bf16 hv=4 seqs=4096,1000 init final gate=init:2 beta=logit l2norm segments=8 variant=fused
  exact-forget:   kda bf16 hv=2 seqs=1500 init final gate=log:inf l2norm segments=4
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Portable, Cut,
    testing::ValuesIn(combine({{"kda fp32", "gdn fp32", "kda bf16", "gdn bf16", "kda fp16", "gdn fp16"},
                               {"hv=2 gate=log:-0.02,0 l2norm init final backend=cuda-sm80"},
                               {"dk=64 seqs=129 segments=2", "dk=96 dv=160 seqs=1000 segments=7",
                                "dk=60 dv=100 seqs=511,0,513,1,640 segments=4", "dk=128 batch=2x400 segments=3",
                                "dk=256 dv=64 seqs=700 segments=len:96"}})),
    name_of);

// A head of several strips has the bits of as many heads of 128 values with the same keys, gates and betas. Both have
// the same memory layout of contiguous outputs and of value-major final states.
using Strips = EachCase;

TEST_P(Strips, HaveTheBitsOfHeadsOf128Values) {
  const cases::Case c = forced(GetParam());
  constexpr int64_t kWidth = 128;
  const int64_t in_head = c.dv / kWidth, strips = c.heads_v * in_head;
  Ran wide(c);
  const check::TensorSet& from = wide.host;
  const auto share_gates = [&](check::TensorSet& x) {
    for (int64_t n = 0; n < c.num_seqs(); ++n) {
      for (int64_t strip = 0; strip < strips; ++strip) {
        const int64_t head = strip / in_head, first = strip % in_head * kWidth;
        for (int64_t t = 0; t < c.lengths[static_cast<size_t>(n)]; ++t) {
          auto copy = [&](const check::TokenTensor& to, const check::TokenTensor& source, int64_t to_head,
                          int64_t from_head, int64_t column, int64_t count) {
            for (int64_t i = 0; i < count; ++i)
              to.set(to.at(n, t, to_head, i), source.get(source.at(n, t, from_head, column + i)));
          };
          copy(x.v(), from.v(), strip, head, first, kWidth);
          copy(x.g(), from.g(), strip, head, 0, c.rule == DR_KDA ? kWidth : 1);
          copy(x.beta(), from.beta(), strip, head, 0, 1);
          if (strip >= c.heads_qk) continue;
          copy(x.q(), from.q(), strip, strip, 0, kWidth);
          copy(x.k(), from.k(), strip, strip, 0, kWidth);
        }
        if (!from.initial().used()) continue;
        for (int64_t i = 0; i < kWidth; ++i)
          for (int64_t column = 0; column < kWidth; ++column)
            x.initial().set(x.initial().at(n, strip, i, column),
                            from.initial().get(from.initial().at(n, head, i, first + column)));
      }
    }
  };
  const std::string heads = "dv=128 hqk=" + std::to_string(c.heads_qk) + " hv=" + std::to_string(strips);
  Ran narrow(cases::with_words(c, heads), share_gates);
  expect_undamaged(wide);
  expect_undamaged(narrow);
  EXPECT_EQ(wide.run.summary().cut_sequences, narrow.run.summary().cut_sequences);
  EXPECT_TRUE(wide.host.output_bits() == narrow.host.output_bits());
}

// Twins: two strips of a head, and with three strips the last of one head and the first of the next.
INSTANTIATE_TEST_SUITE_P(Gpu, Strips, testing::ValuesIn(cases_in(R"(
  kda-fused:        kda bf16 hqk=2 hv=4 dv=256 seqs=300,0,33 init final gate=log:-1,0 floor=-5 l2norm segments=off \
      variant=fused
  kda-fused-key:    kda bf16 hqk=1 hv=3 dv=384 seqs=300,65 init=key final gate=log:-1,0 floor=-5 l2norm segments=off \
      variant=fused
  kda-fused-cut:    kda bf16 hqk=1 hv=2 dv=512 seqs=1000,65 init=key:bf16 final gate=log:-0.02,0 floor=-5 l2norm \
      segments=3 variant=fused
  kda-prepared:     kda fp16 hqk=2 hv=4 dv=384 seqs=300,0,33 init final gate=log:-1,0 l2norm segments=off \
      variant=prepared
  kda-prepared-cut: kda bf16 hqk=1 hv=2 dv=512 seqs=1000,65 init=key final gate=log:-0.02,0 l2norm segments=3 \
      variant=prepared
  gdn-single:       gdn bf16 g=fp32 b=fp32 hqk=25 hv=25 dv=384 seqs=300,200 init final gate=log:-1,0 l2norm \
      segments=off variant=fused
  kda-single:       kda bf16 hqk=8 hv=24 dv=384 seqs=300,200 init=key final gate=log:-1,0 floor=-5 l2norm \
      segments=off variant=fused
  gdn-fused:        gdn bf16 g=fp32 b=fp32 hqk=3 hv=3 dv=384 seqs=300,0,33 init final gate=log:-1,0 l2norm \
      segments=off variant=fused
  gdn-twins-256:    gdn bf16 g=fp32 b=fp32 hqk=32 hv=32 dv=256 seqs=1024,600 init final gate=log:-0.02,0 l2norm \
      segments=off variant=fused
  gdn-twins-384:    gdn fp16 g=fp32 b=fp32 hqk=8 hv=24 dv=384 seqs=1024,600 init=key final gate=log:-0.02,0 l2norm \
      segments=off variant=fused
  gdn-twins-raw:    gdn bf16 hqk=4 hv=24 dv=384 seqs=1024,600 init final gate=log:-0.02,0 l2norm segments=off \
      variant=fused
  gdn-relay:        gdn bf16 g=fp32 b=fp32 hqk=16 hv=32 dv=256 seqs=1500x3 init final gate=log:-0.005,0 l2norm \
      segments=off variant=fused
  gdn-fused-cut:    gdn bf16 hqk=1 hv=2 dv=384 seqs=1000,65 init=key final gate=log:-0.02,0 l2norm segments=3 \
      variant=fused
  gdn-prepared:     gdn bf16 hqk=2 hv=4 dv=512 seqs=300,0,33 init final gate=log:-1,0 l2norm segments=off \
      variant=prepared
  gdn-prepared-cut: gdn fp16 hqk=1 hv=2 dv=256 seqs=1000,65 init final gate=log:-0.02,0 l2norm segments=3 \
      variant=prepared
)")),
                         name_of);

// The last chunk of every segment suggests that its suffix is enough for a summary, but nothing before it forgets. M is
// alive after the suffix, so the whole segment must be walked.
using InVain = EachCase;

TEST_P(InVain, ASuffixThatKeepsTheStateIsNoSummary) {
  const cases::Case c = forced(GetParam());
  constexpr int64_t kSegment = 8192, kForgetting = 64;  // tokens
  const auto few_forget = [&](check::TensorSet& x) {
    for (int64_t n = 0; n < c.num_seqs(); ++n)
      for (int64_t t = 0; t < c.lengths[static_cast<size_t>(n)]; ++t)
        for (int64_t head = 0; head < c.heads_v; ++head) {
          x.beta().set(x.beta().at(n, t, head, 0), 0.02);  // small: a strong write forgets too
          for (int64_t i = 0; i < (c.rule == DR_KDA ? c.dk : 1); ++i)
            x.g().set(x.g().at(n, t, head, i), t % kSegment >= kSegment - kForgetting ? -0.0625 : -1e-5);
        }
  };
  Ran cut(c, few_forget);
  Ran whole(cases::with_words(c, "segments=off"), few_forget);
  EXPECT_GE(cut.run.summary().cut_sequences, 1) << cut.run.describe(DR_DESCRIBE_SIGNATURE);
  expect_undamaged(cut);
  expect_close(check::compare(cut.host, check::run_reference(cut.host)), "cut against reference");
  expect_close(of_two_runs(check::compare(cut.host, whole.host)), "cut against uncut");
}

// 34 heads: prepared summaries of KDA try a suffix only if they take more than one wave of the multiprocessors (H200:
// 132). Fused ones walk from the segment's end, and must go on behind the chunks that forget.
INSTANTIATE_TEST_SUITE_P(Walks, InVain, testing::ValuesIn(cases_in(R"(
  kda-fused:      kda bf16 hqk=2 hv=34 seqs=24576 init final gate=log:-0.1,0 floor=-5 l2norm segments=len:8192 \
      variant=fused
  kda-prepared:   kda bf16 hqk=2 hv=34 seqs=24576 init final gate=log:-0.1,0 l2norm segments=len:8192 variant=prepared
  gdn-fused:      gdn bf16 g=fp32 hv=1 seqs=24576 init final gate=log:-0.1,0 l2norm segments=len:8192 variant=fused
  gdn-prepared:   gdn bf16 g=fp32 hv=1 seqs=24576 init final gate=log:-0.1,0 l2norm segments=len:8192 variant=prepared
  gdn-portable:   gdn bf16 g=fp32 hv=1 seqs=24576 init final gate=log:-0.1,0 l2norm segments=len:8192 backend=cuda-sm80
  kda-both:       kda bf16 hv=2 dk=64 dv=64 seqs=24576 init final gate=log:-0.1,0 l2norm segments=len:8192 \
      backend=cuda-sm80
)")),
                         name_of);

// One token forgets everything: in the first, a middle or the last chunk of a segment that is summarized, and as its
// first or last token. Then nothing before that chunk leaves a bit in what comes after it.
using Forgets = EachCase;

TEST_P(Forgets, WhatCameBeforeTheChunkLeavesNoBit) {
  const cases::Case c = forced(GetParam());
  constexpr int64_t kSegment = 1024, kChunk = 64;  // tokens; the longer chunk of both ways
  for (const int64_t token : {kSegment, kSegment + 33, kSegment + 500, 2 * kSegment - 64, 2 * kSegment - 1}) {
    const auto with_past = [&](double scale) {
      return Ran(c, [&](check::TensorSet& x) {
        for (int64_t head = 0; head < c.heads_v; ++head) {
          for (int64_t i = 0; i < (c.rule == DR_KDA ? c.dk : 1); ++i) x.g().set(x.g().at(0, token, head, i), -1000.0);
          for (int64_t t = 0; t < token / kChunk * kChunk; ++t)
            for (int64_t i = 0; i < c.dv; ++i) {
              const int64_t at = x.v().at(0, t, head, i);
              x.v().set(at, scale * x.v().get(at));
            }
        }
      });
    };
    Ran one = with_past(1.0), other = with_past(-0.5);
    EXPECT_GE(one.run.summary().cut_sequences, 1);
    expect_undamaged(one);
    if (token == kSegment + 500)
      expect_close(check::compare(one.host, check::run_reference(one.host)), "against reference");
    int64_t different = 0;
    for (int64_t head = 0; head < c.heads_v; ++head) {
      for (int64_t t = (token / kChunk + 1) * kChunk; t < c.lengths[0]; ++t)
        for (int64_t i = 0; i < c.dv; ++i) {
          const int64_t at = one.host.o().at(0, t, head, i);
          different += one.host.o().get(at) != other.host.o().get(at);
        }
      const check::StateTensor &a = one.host.final_state(), &b = other.host.final_state();
      for (int64_t k = 0; k < c.dk; ++k)
        for (int64_t v = 0; v < c.dv; ++v)
          different += a.get(a.at(a.slots[0], head, k, v)) != b.get(b.at(b.slots[0], head, k, v));
    }
    EXPECT_EQ(different, 0) << "token " << token;
  }
}

INSTANTIATE_TEST_SUITE_P(Walks, Forgets, testing::ValuesIn(cases_in(R"(
  gdn-fused:      gdn bf16 g=fp32 hqk=1 hv=2 seqs=3072 init final gate=log:-0.01,0 l2norm segments=3 variant=fused
  gdn-fused-fp16: gdn fp16 hqk=1 hv=2 seqs=3072 init final gate=log:-0.01,0 l2norm segments=3 variant=fused
  gdn-waves:      gdn bf16 g=fp32 hqk=9 hv=72 seqs=3072 init final gate=log:-0.01,0 l2norm segments=3 variant=fused
  gdn-prepared:   gdn bf16 hqk=1 hv=2 seqs=3072 init final gate=log:-0.01,0 l2norm segments=3 variant=prepared
)")),
                         name_of);

// A truncated carry changes nothing if no transition is below its bound, or if what it drops is too small to change a
// bit.
using Truncated = EachCase;

TEST_P(Truncated, HasTheBitsOfTheExactCarryWhereNothingIsDropped) {
  const cases::Case c = forced(GetParam());
  Ran exact(c);
  Ran truncated(cases::with_words(c, "carry=truncated"));
  expect_undamaged(truncated);
  for (int64_t n = 0; n < c.num_seqs(); ++n)
    for (int64_t head = 0; head < c.heads_v; ++head)
      EXPECT_TRUE(block_of(exact.host, n, head) == block_of(truncated.host, n, head)) << n << ", " << head;
}

INSTANTIATE_TEST_SUITE_P(
    Gates, Truncated,
    testing::ValuesIn(combine({{"kda bf16 variant=prepared", "gdn bf16 variant=prepared", "gdn fp16 variant=fused",
                                "kda fp32 dk=60 dv=100 backend=cuda-sm80", "gdn bf16 dk=128 backend=cuda-sm80"},
                               {"hv=2 seqs=1300,700 beta=logit l2norm init final segments=4"},
                               {"gate=log:-0.01,0", "gate=log:-5,0"}})),
    name_of);

// Gates in fp32 with the numbers of gates in bf16 give their bits: the fused walk has kernels for each.
using WideGates = EachCase;

TEST_P(WideGates, HaveTheBitsOfNarrowOnes) {
  const cases::Case c = forced(GetParam());
  const Ran narrow(c);
  const Ran wide(cases::with_words(c, "g=fp32"), [&](check::TensorSet& x) {
    for (int64_t n = 0; n < c.num_seqs(); ++n)
      for (int64_t t = 0; t < c.lengths[static_cast<size_t>(n)]; ++t)
        for (int64_t head = 0; head < c.heads_v; ++head)
          for (int64_t i = 0; i < c.dk; ++i)
            x.g().set(x.g().at(n, t, head, i), narrow.host.g().get(narrow.host.g().at(n, t, head, i)));
  });
  EXPECT_TRUE(wide.host.output_bits() == narrow.host.output_bits());
}

INSTANTIATE_TEST_SUITE_P(Fused, WideGates,
                         testing::ValuesIn(combine({{"kda bf16 init final l2norm beta=logit variant=fused"},
                                                    {"hv=3 seqs=400,65,33,1", "hqk=16 hv=32 seqs=130x8,33 segments=off",
                                                     "hqk=1 hv=2 seqs=2000,77 segments=5"},
                                                    {"gate=log:-5,0 floor=-5", "gate=bounded:-5", "gate=init:2",
                                                     "gate=log:extreme", "gate=log:mean:-2.5"}})),
                         name_of);

using EachPlan = EachCase;

TEST_P(EachPlan, AbsentInitialStateIsZerosBitForBit) {
  const cases::Case with = forced(GetParam());
  const Ran zeros(with, [](check::TensorSet& x) {
    const check::StateTensor& pool = x.initial();
    for (int64_t i = 0; i < pool.num_slots * pool.stride_slot; ++i) pool.set(i, 0.0);
  });
  cases::Case without = with;
  without.initial = {};
  const Ran absent(without);
  EXPECT_TRUE(zeros.host.output_bits() == absent.host.output_bits());
}

// Value heads that share a query/key head against the same heads with copies of it. The variant is forced: the plan
// takes the group size into account.
TEST_P(EachPlan, GroupedEqualsPlainBitForBit) {
  cases::Case grouped = forced(GetParam());
  if (grouped.backend == kBackend) grouped = cases::with_words(grouped, "variant=prepared");
  grouped.heads_qk = 2;
  grouped.heads_v = 6;
  cases::Case plain = grouped;
  plain.heads_qk = 6;
  const Ran a(grouped);
  const Ran b(plain, [&](check::TensorSet& x) {
    for (int64_t n = 0; n < plain.num_seqs(); ++n)
      for (int64_t t = 0; t < plain.lengths[static_cast<size_t>(n)]; ++t)
        for (int64_t head = 0; head < 6; ++head)
          for (int64_t i = 0; i < plain.dk; ++i) {
            x.q().set(x.q().at(n, t, head, i), a.host.q().get(a.host.q().at(n, t, head / 3, i)));
            x.k().set(x.k().at(n, t, head, i), a.host.k().get(a.host.k().at(n, t, head / 3, i)));
          }
  });
  EXPECT_TRUE(a.host.output_bits() == b.host.output_bits());
}

TEST_P(EachPlan, GdnIsKdaWithTheGateOnEveryChannel) {
  cases::Case gdn = forced(GetParam());
  gdn.rule = DR_GDN;
  cases::Case kda = gdn;
  kda.rule = DR_KDA;
  const Ran scalar(gdn);
  const Ran broadcast(kda, [&](check::TensorSet& x) {
    for (int64_t n = 0; n < gdn.num_seqs(); ++n)
      for (int64_t t = 0; t < gdn.lengths[static_cast<size_t>(n)]; ++t)
        for (int64_t head = 0; head < gdn.heads_v; ++head) {
          const double g = scalar.host.g().get(scalar.host.g().at(n, t, head, 0));
          for (int64_t i = 0; i < gdn.dk; ++i) x.g().set(x.g().at(n, t, head, i), g);
        }
  });
  expect_close(check::compare(broadcast.host, scalar.host), "KDA with a broadcast gate against GDN");
}

// One whole sequence against its two halves, where the test hands the state over.
TEST_P(EachPlan, ConcatenationThroughAState) {
  cases::Case c = cases::with_words(forced(GetParam()), "segments=off");
  c.lengths = {300};
  const Ran whole(c);
  for (const int64_t seam : {int64_t{1}, int64_t{64}, int64_t{153}}) {
    const auto copy_from = [&](int64_t begin) {
      return [&, begin](check::TensorSet& x) {
        const std::pair<const check::TokenTensor*, const check::TokenTensor*> tensors[] = {
            {&whole.host.q(), &x.q()},
            {&whole.host.k(), &x.k()},
            {&whole.host.v(), &x.v()},
            {&whole.host.g(), &x.g()},
            {&whole.host.beta(), &x.beta()}};
        for (const auto& [a, b] : tensors)
          for (int64_t t = 0; t < x.of().lengths[0]; ++t)
            for (int64_t head = 0; head < a->heads; ++head)
              for (int64_t i = 0; i < a->width; ++i) b->set(b->at(0, t, head, i), a->get(a->at(0, begin + t, head, i)));
      };
    };
    const auto copy_state = [&](const check::StateTensor& from, const check::StateTensor& to) {
      for (int64_t head = 0; head < c.heads_v; ++head)
        for (int64_t i = 0; i < c.dk; ++i)
          for (int64_t j = 0; j < c.dv; ++j)
            to.set(to.at(to.slots[0], head, i, j), from.get(from.at(from.slots[0], head, i, j)));
    };
    cases::Case head = c;
    head.lengths = {seam};
    cases::Case tail = c;
    tail.lengths = {c.lengths[0] - seam};
    const Ran first(head, [&](check::TensorSet& x) {
      copy_from(0)(x);
      copy_state(whole.host.initial(), x.initial());
    });
    const Ran second(tail, [&](check::TensorSet& x) {
      copy_from(seam)(x);
      copy_state(first.host.final_state(), x.initial());
    });
    check::Measure measure(1, c.heads_v);
    for (int64_t t = 0; t < c.lengths[0]; ++t) {
      const check::TensorSet& part = t < seam ? first.host : second.host;
      for (int64_t h = 0; h < c.heads_v; ++h)
        for (int64_t i = 0; i < c.dv; ++i)
          measure.add(0, h, part.o().get(part.o().at(0, t < seam ? t : t - seam, h, i)),
                      whole.host.o().get(whole.host.o().at(0, t, h, i)));
    }
    const check::TensorError error = measure.finish("o", c.dtype == DR_FP16 ? 2e-3 : 5e-3);
    EXPECT_TRUE(error.passes()) << "seam " << seam << ": " << error.worst;
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, EachPlan, testing::ValuesIn(cases_in(R"(
  kda:      kda bf16 hv=2 seqs=300,0,65 init final l2norm segments=off
  gdn:      gdn bf16 hv=2 seqs=300,0,65 init final l2norm segments=off
  kda-fp16: kda fp16 hv=2 seqs=300,0,65 init=key final l2norm segments=off
  kda-cut:  kda bf16 hv=2 seqs=300,0,65 init final gate=log:-0.05,0 l2norm segments=3
  gdn-cut:  gdn bf16 hv=2 seqs=300,0,65 init final gate=log:-0.05,0 l2norm segments=3
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Portable, EachPlan, testing::ValuesIn(cases_in(R"(
  kda:      kda bf16 hv=2 dk=64 dv=80 seqs=300,0,65 init final l2norm segments=off backend=cuda-sm80
  gdn:      gdn bf16 hv=2 dk=64 dv=80 seqs=300,0,65 init final l2norm segments=off backend=cuda-sm80
  kda-fp32: kda fp32 hv=2 dk=100 seqs=300,0,65 init=key final l2norm segments=off backend=cuda-sm80
  kda-cut:  kda fp16 hv=2 dk=96 seqs=300,0,65 init final gate=log:-0.05,0 l2norm segments=3 backend=cuda-sm80
  gdn-cut:  gdn fp32 hv=2 dk=96 seqs=300,0,65 init final gate=log:-0.05,0 l2norm segments=3 backend=cuda-sm80
)")),
                         name_of);

using Equalities = OnGpu;

// FlashKDA's first test: with segmentation off the bits do not change.
TEST_F(Equalities, OneSegmentIsNoSegmentsBitForBit) {
  const cases::Case off = forced("kda bf16 hv=4 seqs=4k gate=bounded:-5 l2norm beta=logit init final segments=off");
  cases::Case one = off;
  one.segments = DR_SEGMENTS_COUNT;
  one.segment_value = 1;
  const Ran a(off);
  const Ran b(one);
  EXPECT_TRUE(a.host.output_bits() == b.host.output_bits());
}

// Packed and batched describe the same problem.
TEST_F(Equalities, BatchedIsPackedBitForBit) {
  for (const char* words : {"kda bf16 hv=3 l2norm gate=bounded:-5 beta=logit", "gdn bf16 hqk=1 hv=3 l2norm"}) {
    const Ran packed(forced(std::string(words) + " seqs=200x3 init final segments=off"));
    const Ran batched(forced(std::string(words) + " batch=3x200 init final segments=off"));
    EXPECT_TRUE(packed.host.output_bits() == batched.host.output_bits()) << words;
  }
}

// Strides, state layouts and data behind the last offset must not change results.
TEST_F(Equalities, StridesMoveNoBits) {
  for (const char* words : {"kda bf16 hqk=2 hv=4 l2norm", "gdn bf16 hqk=2 hv=4 l2norm"}) {
    const std::string line = std::string(words) + " seqs=150,0,67 init final";
    const Ran plain(forced(line));
    for (const char* strides : {"strides=packed", "strides=padded", "strides=head-first", "tail=11"}) {
      const Ran other(forced(line + " " + strides));
      for (int64_t n : {0, 2})
        for (int64_t head = 0; head < 4; ++head)
          EXPECT_TRUE(block_of(plain.host, n, head) == block_of(other.host, n, head))
              << words << " " << strides << ": sequence " << n << ", head " << head;
    }
  }
}

// Lengths given to the plan and lengths given at execution fill the same table by the same arithmetic.
TEST_F(Equalities, LengthsAtExecutionCutAlikeForTheSameSegments) {
  for (const char* words :
       {"kda bf16 hv=2 l2norm gate=bounded:-0.05 variant=fused",
        "kda bf16 hv=2 l2norm gate=log:-0.01,0 variant=prepared", "gdn bf16 hv=2 l2norm gate=log:-0.01,0 variant=fused",
        "gdn bf16 hv=2 l2norm gate=log:-0.01,0 variant=prepared"}) {
    const std::string line = std::string(words) + " seqs=700,0,65,300 init final segments=off";
    const Ran early(forced(line));
    const Ran late(forced(line + " lengths=execute"));
    EXPECT_TRUE(early.host.output_bits() == late.host.output_bits()) << words;
  }
}

// A row walked by two CTAs has the bits of a row walked by one. With lengths given at execution no row is handed on.
TEST_F(Equalities, RowsThatAreHandedOnHaveTheSameBits) {
  for (const char* words : {"gdn bf16 hqk=16 hv=64 seqs=1500x3 l2norm gate=log:-0.005,0",
                            "gdn fp16 hqk=16 hv=32 seqs=2500,1900,2600,0,2000,2317 l2norm gate=log:-0.005,0",
                            "kda bf16 hv=32 seqs=1300,1200,1250,1201,0,1190,1280 l2norm gate=bounded:-0.005"}) {
    const std::string line = std::string(words) + " init final segments=off variant=fused";
    const Ran early(forced(line));
    const Ran late(forced(line + " lengths=execute"));
    EXPECT_NE(early.run.describe(DR_DESCRIBE_TEXT).find("rows are handed on"), std::string::npos) << words;
    EXPECT_TRUE(early.host.output_bits() == late.host.output_bits()) << words;
  }
}

// Fused GDN drops the state if a chunk leaves less than 2^-96 of it (docs/numerics.md). A chunk that leaves 2^-92 keeps
// it: 2^100 becomes 2^8, against writes of size 1 since then. Covers pairs, single CTAs and twins.
TEST_F(Equalities, WhatIsLeftOfALargeStateIsKept) {
  const std::pair<const char*, const char*> forms[] = {{"hqk=1 hv=2 seqs=96", ", 2 value tiles a head\n"},
                                                       {"hqk=8 hv=32 seqs=96x8", ", 1 value tile a head\n"},
                                                       {"hqk=16 hv=64 seqs=544x2", " as twins\n"}};
  for (const auto& [words, form] : forms) {
    const cases::Case c =
        forced(std::string("gdn bf16 g=fp32 ") + words + " init final l2norm segments=off variant=fused");
    const Ran ran(c, [&](check::TensorSet& x) {
      const check::StateTensor& initial = x.initial();
      for (int64_t i = 0; i < c.num_seqs() * initial.stride_slot; ++i) initial.set(i, initial.get(i) * 0x1p100);
      for (int64_t n = 0; n < c.num_seqs(); ++n)
        for (int64_t t = 0; t < c.lengths[static_cast<size_t>(n)]; ++t)
          for (int64_t head = 0; head < c.heads_v; ++head) {
            x.beta().set(x.beta().at(n, t, head, 0), 0.02);  // small: a strong write forgets too
            x.g().set(x.g().at(n, t, head, 0), t / 32 == 1 ? -2.0 : -0.01);
          }
    });
    EXPECT_NE(ran.run.describe(DR_DESCRIBE_TEXT).find(form), std::string::npos) << words;
    expect_close(check::compare(ran.host, check::run_reference(ran.host)), words);
  }
}

// An empty sequence copies its initial state to its final state, bit for bit if both have the same type. Without an
// initial state it is zero.
TEST_F(Equalities, EmptySequenceHandsItsStateOn) {
  const Ran ran(forced("kda bf16 hv=2 seqs=0,70,0,0 init final mask"));
  const check::StateTensor& initial = ran.host.initial();
  const check::StateTensor& final_state = ran.host.final_state();
  for (int64_t element = 0; element < initial.stride_slot; ++element)
    for (const int64_t n : {0, 2, 3})
      ASSERT_EQ(final_state.get(n * initial.stride_slot + element), initial.get(n * initial.stride_slot + element));
  const Ran bare(forced("gdn bf16 hv=2 seqs=0,70,0 final"));
  for (int64_t element = 0; element < initial.stride_slot; ++element) {
    ASSERT_EQ(bare.host.final_state().get(element), 0.0);
    ASSERT_EQ(bare.host.final_state().get(2 * initial.stride_slot + element), 0.0);
  }
}

}  // namespace
}  // namespace deltarelay::on_gpu
