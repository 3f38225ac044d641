// Invariant plans: the bits of a sequence depend neither on the other sequences of the batch nor on its place in it. A
// prefix that ends on the grain, continued from its fp32 final state, gives the bits of the whole.
//
// Other sequences change every stage of a call: the number of CTAs over the value columns of a head, heads that share a
// CTA of prepare, the phase in which whole sequences run, and the tiling of carry, which follows from folds times
// heads. With 132 multiprocessors up to 4 folded heads are pairs of CTAs with 8 rows, up to 8 with 16, up to 16 with
// 32, and more are single CTAs; with 114 it differs little.
#include <utility>

#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

using Bits = std::vector<std::byte>;

struct Place {
  int64_t sequence = 0;
  int64_t token = 0;
  int64_t head = 0;  // value head; heads that share a query/key head move together
};

// Copies `count` tokens of all heads of `from`, exactly: both sides have the same types.
void copy_tokens(const check::TensorSet& from, Place source, const check::TensorSet& to, Place target, int64_t count) {
  const std::pair<const check::TokenTensor*, const check::TokenTensor*> tensors[] = {{&from.q(), &to.q()},
                                                                                     {&from.k(), &to.k()},
                                                                                     {&from.v(), &to.v()},
                                                                                     {&from.g(), &to.g()},
                                                                                     {&from.beta(), &to.beta()}};
  for (const auto& [a, b] : tensors) {
    const int64_t head0 = target.head * a->heads / from.of().heads_v;
    for (int64_t t = 0; t < count; ++t)
      for (int64_t head = 0; head < a->heads; ++head)
        for (int64_t i = 0; i < a->width; ++i)
          b->set(b->at(target.sequence, target.token + t, head0 + head, i),
                 a->get(a->at(source.sequence, source.token + t, head, i)));
  }
}

void copy_state(const check::StateTensor& from, const check::StateTensor& to, Place target, int64_t heads) {
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < from.dk; ++i)
      for (int64_t column = 0; column < from.dv; ++column)
        to.set(to.at(to.slots[static_cast<size_t>(target.sequence)], target.head + head, i, column),
               from.get(from.at(from.slots[0], head, i, column)));
}

// Output and final state of a sequence in `heads` heads.
Bits bits_of(const check::TensorSet& x, Place place, int64_t heads) {
  Bits bits;
  for (int64_t head = place.head; head < place.head + heads; ++head) {
    const Bits block = block_of(x, place.sequence, head);
    bits.insert(bits.end(), block.begin(), block.end());
  }
  return bits;
}

// A batch with the subject, the one sequence of a case, somewhere in it.
struct Company {
  const char* what;
  std::vector<int64_t> lengths;  // 0 at the subject's place
  int64_t place;
  int64_t times_heads = 1;
  const char* words = "";
};

Bits bits_in(const Company& company, const check::TensorSet& subject) {
  const cases::Case& alone = subject.of();
  cases::Case c = cases::with_words(alone, company.words);
  c.lengths = company.lengths;
  c.lengths[static_cast<size_t>(company.place)] = alone.lengths[0];
  c.heads_qk = static_cast<int32_t>(alone.heads_qk * company.times_heads);
  c.heads_v = static_cast<int32_t>(alone.heads_v * company.times_heads);
  const Place place{.sequence = company.place, .head = c.heads_v - alone.heads_v};
  Ran ran(c, [&](check::TensorSet& x) {
    copy_tokens(subject, {}, x, place, alone.lengths[0]);
    copy_state(subject.initial(), x.initial(), place, alone.heads_v);
  });
  EXPECT_EQ(ran.run.summary().backend, c.backend);
  EXPECT_NE(ran.run.summary().grain, 0) << "not an invariant plan";
  expect_undamaged(ran);
  return bits_of(ran.host, place, alone.heads_v);
}

using Invariant = EachCase;

TEST_P(Invariant, CompanyChangesNoBit) {
  const cases::Case alone = forced(GetParam());
  const Ran ran(alone);
  expect_close(check::compare(ran.host, check::run_reference(ran.host)), "alone");
  const Bits expected = bits_of(ran.host, {}, alone.heads_v);
  const std::vector<Company> companies = {
      {"short sequences and an empty one", {5, 0, 0, 65, 200}, 2},
      {"two long sequences", {0, 2100, 1999}, 0},
      {"six long sequences", {2100, 1999, 3000, 0, 1500, 1024, 2048}, 3},
      {"eleven long sequences and short ones",
       {1600, 1999, 7, 1500, 1024, 2048, 1800, 0, 3000, 1536, 1700, 1900, 300, 1025},
       7},
      {"itself alone, lengths at execution", {0}, 0, 1, "lengths=execute"},
      {"four long sequences, lengths at execution", {0, 3000, 0, 1999, 1024, 1}, 2, 1, "lengths=execute"},
      {"forty sequences", std::vector<int64_t>(40, 1100), 39},
  };
  for (const Company& company : companies)
    EXPECT_TRUE(bits_in(company, ran.host) == expected) << "the bits change beside " << company.what;
}

// Lines with a forced grain: the library's own grain depends on the heads. Their gates have no tensors per head.
using MoreHeads = EachCase;

TEST_P(MoreHeads, HeadsBesideItChangeNoBit) {
  const cases::Case alone = forced(GetParam());
  const Ran ran(alone);
  const Bits expected = bits_of(ran.host, {}, alone.heads_v);
  for (const int64_t times : {2, 4, 8, 16}) {
    const std::string what = std::to_string(times) + " times the heads";
    EXPECT_TRUE(bits_in({what.c_str(), {0}, 0, times}, ran.host) == expected) << what;
    EXPECT_TRUE(bits_in({what.c_str(), {300, 0, 1500}, 1, times}, ran.host) == expected) << what << " and sequences";
  }
}

// The comparison can fail: a cut at another place changes bits.
TEST_P(MoreHeads, AnotherGrainShows) {
  const cases::Case c = forced(GetParam());
  const Ran ran(c);
  const Ran other(cases::with_words(c, "segments=len:512"));
  ASSERT_GT(other.run.summary().grain, ran.run.summary().grain);
  EXPECT_FALSE(bits_of(ran.host, {}, c.heads_v) == bits_of(other.host, {}, c.heads_v));
}

TEST_P(MoreHeads, PrefixThenRestGivesTheBitsOfTheWhole) {
  const cases::Case c = forced(GetParam());
  const Ran whole(c);
  const int64_t length = c.lengths[0], grain = c.segment_value;
  ASSERT_GT(length, 2 * grain);
  for (int64_t seam = grain; seam < length; seam += grain) {
    cases::Case head = c, tail = c;
    head.lengths = {seam};
    tail.lengths = {length - seam};
    const Ran first(head, [&](check::TensorSet& x) {
      copy_tokens(whole.host, {}, x, {}, seam);
      copy_state(whole.host.initial(), x.initial(), {}, c.heads_v);
    });
    const Ran second(tail, [&](check::TensorSet& x) {
      copy_tokens(whole.host, {.token = seam}, x, {}, length - seam);
      copy_state(first.host.final_state(), x.initial(), {}, c.heads_v);
    });
    // Heads are separate tensors, so each is assembled from its two halves of o and the last state.
    for (int64_t h = 0; h < c.heads_v; ++h) {
      const Bits before = block_of(first.host, 0, h), behind = block_of(second.host, 0, h);
      const int64_t o_bytes = seam * c.dv * check::bytes_of(c.output_dtype());
      Bits joined(before.begin(), before.begin() + o_bytes);
      joined.insert(joined.end(), behind.begin(), behind.end());
      EXPECT_TRUE(joined == block_of(whole.host, 0, h)) << "seam " << seam << ", head " << h;
    }
  }
}

// One sequence per line. Weak gates: strong ones would forget the state at once after a cut. The last lines of each
// rule have the grain that the library chooses, and a sequence shorter than a grain, which is never cut.
INSTANTIATE_TEST_SUITE_P(Gpu, Invariant, testing::ValuesIn(cases_in(R"(
  kda:          kda bf16 hv=2 seqs=1300 init final gate=bounded:-0.05 beta=logit l2norm invariant segments=len:256
  kda-log:      kda bf16 hv=2 seqs=1300 init final gate=log:-0.02,0 l2norm invariant segments=len:256
  kda-on-grain: kda bf16 hv=2 seqs=1024 init final gate=log:-0.02,0 l2norm invariant segments=len:256
  kda-one-head: kda bf16 hv=1 seqs=700 init final=key gate=log:-0.02,0 l2norm invariant segments=len:128
  kda-own:      kda bf16 hv=2 seqs=3000 init final gate=bounded:-0.05 beta=logit l2norm invariant
  kda-whole:    kda bf16 hv=2 seqs=200 init final gate=bounded:-5 beta=logit l2norm invariant segments=len:256
  gdn:          gdn bf16 g=fp32 b=fp32 hqk=1 hv=2 seqs=1300 init final gate=log:-0.02,0 l2norm invariant \
      segments=len:256
  gdn-softplus: gdn bf16 hqk=1 hv=4 seqs=1300 init final gate=softplus beta=logit l2norm invariant segments=len:256
  gdn-on-grain: gdn bf16 hv=2 seqs=1024 init final gate=log:-0.02,0 l2norm invariant segments=len:256
  gdn-own:      gdn bf16 hqk=1 hv=2 seqs=3000 init final gate=log:-0.02,0 l2norm invariant
  gdn-whole:    gdn bf16 hqk=1 hv=2 seqs=200 init final l2norm invariant segments=len:256
  kda-init:     kda bf16 hv=2 seqs=1300 init final gate=init:2 beta=logit l2norm invariant segments=len:256
  kda-frames:   kda bf16 hv=2 seqs=1300 init final gate=log:mean:-2.5 beta=logit l2norm invariant segments=len:256 \
      variant=fused
  kda-prepared: kda bf16 hv=2 seqs=1300 init final gate=log:-0.02,0 l2norm invariant segments=len:256 \
      variant=prepared
  kda-strips:   kda bf16 hv=2 dv=256 seqs=1300 init final gate=bounded:-0.05 beta=logit l2norm invariant \
      segments=len:256
  gdn-strips:   gdn bf16 hqk=1 hv=2 dv=384 seqs=3000 init final=key gate=log:-0.02,0 l2norm invariant
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Portable, Invariant, testing::ValuesIn(cases_in(R"(
  kda:      kda bf16 hv=2 dk=64 seqs=1300 init final gate=log:-0.02,0 l2norm invariant segments=len:256 \
      backend=cuda-sm80
  kda-fp32: kda fp32 hv=2 dk=60 dv=100 seqs=700 init final gate=log:-0.02,0 l2norm invariant segments=len:128 \
      backend=cuda-sm80
  kda-own:  kda bf16 hv=2 dk=96 seqs=3000 init final gate=bounded:-0.05 beta=logit l2norm invariant backend=cuda-sm80
  gdn:      gdn fp16 hqk=1 hv=2 dk=64 dv=128 seqs=1300 init final gate=log:-0.02,0 l2norm invariant segments=len:256 \
      backend=cuda-sm80
  gdn-own:  gdn fp32 hqk=1 hv=2 dk=64 seqs=3000 init final gate=log:-0.02,0 l2norm invariant backend=cuda-sm80
)")),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Gpu, MoreHeads, testing::ValuesIn(cases_in(R"(
  kda:          kda bf16 hv=2 seqs=1300 init final gate=log:-0.02,0 l2norm invariant segments=len:256
  kda-on-grain: kda bf16 hv=1 seqs=1024 init final gate=log:-0.02,0 l2norm invariant segments=len:256
  gdn:          gdn bf16 g=fp32 b=fp32 hqk=1 hv=2 seqs=1300 init final gate=log:-0.02,0 l2norm invariant \
      segments=len:256
  gdn-on-grain: gdn bf16 hv=1 seqs=1024 init final gate=log:-0.02,0 l2norm invariant segments=len:256
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Portable, MoreHeads, testing::ValuesIn(cases_in(R"(
  kda: kda bf16 hv=2 dk=64 dv=96 seqs=1300 init final gate=log:-0.02,0 l2norm invariant segments=len:256 \
      backend=cuda-sm80
  gdn: gdn fp32 hv=1 dk=64 seqs=1024 init final gate=log:-0.02,0 l2norm invariant segments=len:256 backend=cuda-sm80
)")),
                         name_of);

}  // namespace
}  // namespace deltarelay::on_gpu
