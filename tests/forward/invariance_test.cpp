// Promises about bits and equalities: what may change without changing the result.
#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "forward_case.h"

namespace deltarelay::forward {
namespace {

using Bits = std::vector<std::byte>;

// Bits of `count` tokens of sequence n from `begin` on, every head.
Bits output_of(const check::TensorSet& x, int64_t n, int64_t begin, int64_t count) {
  Bits bits;
  const check::TokenTensor& o = x.o();
  const int64_t size = check::bytes_of(o.dtype);
  for (int64_t t = begin; t < begin + count; ++t) {
    for (int64_t head = 0; head < o.heads; ++head) {
      const std::byte* row = o.data + o.at(n, t, head, 0) * size;
      bits.insert(bits.end(), row, row + o.width * size);
    }
  }
  return bits;
}

Bits final_of(const check::TensorSet& x, int64_t n) {
  const check::StateTensor& s = x.final_state();
  const int64_t size = check::bytes_of(s.state.dtype);
  const std::byte* state = s.data + s.at(s.slots[static_cast<size_t>(n)], 0, 0, 0) * size;
  return Bits(state, state + s.stride_head * x.of().heads_v * size);
}

struct Place {
  int64_t sequence;
  int64_t token;
};

// Copies the inputs of `count` tokens exactly: both sides have the same types.
void copy_tokens(const check::TensorSet& from, Place source, const check::TensorSet& to, Place target, int64_t count) {
  const std::pair<const check::TokenTensor*, const check::TokenTensor*> tensors[] = {{&from.q(), &to.q()},
                                                                                     {&from.k(), &to.k()},
                                                                                     {&from.v(), &to.v()},
                                                                                     {&from.g(), &to.g()},
                                                                                     {&from.beta(), &to.beta()}};
  for (const auto& [a, b] : tensors) {
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t head = 0; head < a->heads; ++head) {
        for (int64_t i = 0; i < a->width; ++i) {
          b->set(b->at(target.sequence, target.token + t, head, i),
                 a->get(a->at(source.sequence, source.token + t, head, i)));
        }
      }
    }
  }
}

void copy_state(const check::StateTensor& from, int64_t n, const check::StateTensor& to, int64_t m, int64_t heads) {
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < from.dk; ++i) {
      for (int64_t c = 0; c < from.dv; ++c) {
        to.set(to.at(to.slots[static_cast<size_t>(m)], head, i, c),
               from.get(from.at(from.slots[static_cast<size_t>(n)], head, i, c)));
      }
    }
  }
}

void expect_close(const check::TensorSet& x, const check::TensorSet& y) {
  for (const check::TensorError& error : check::compare(x, y)) {
    EXPECT_TRUE(error.passes()) << error.tensor << ": worst " << error.worst << " at sequence " << error.worst_sequence
                                << ", head " << error.worst_head << ", tolerance " << error.tolerance;
  }
}

class SamePlan : public testing::TestWithParam<cases::Case> {};

TEST_P(SamePlan, SameBitsForAnyThreadsAndAnyRepeat) {
  const cases::Case c = on_backend(GetParam());
  Ran first(cases::with_words(c, "threads=1"));
  const Bits expected = first.tensors.output_bits();
  for (const char* threads : {"threads=1", "threads=2", "threads=3", "threads=7"}) {
    const cases::Case line = cases::with_words(c, threads);
    SCOPED_TRACE(cases::print(line));
    Ran ran(line);
    EXPECT_EQ(ran.run.describe(DR_DESCRIBE_SIGNATURE), first.run.describe(DR_DESCRIBE_SIGNATURE));
    EXPECT_TRUE(ran.tensors.output_bits() == expected);
    for (int repeat = 0; repeat < (DR_SANITIZED != 0 ? 1 : 3); ++repeat) {
      ran.tensors.poison();
      ran.run.poison_workspace();
      ran.run.execute(ran.tensors.tensors());
      EXPECT_TRUE(ran.tensors.output_bits() == expected) << "repeat " << repeat;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, SamePlan, testing::ValuesIn(cases_in(R"(
  one-head:      kda fp32 hv=1 dk=128 seqs=700 init final segments=off
  one-head-gdn:  gdn fp32 hv=1 dk=128 seqs=700 init final segments=off
  one-head-bf16: kda bf16 hv=1 dk=128 seqs=700 init final segments=off
  wide:          kda fp32 hv=1 dk=100 dv=250 seqs=300 init final segments=off
  cut:           kda fp32 hv=1 dk=128 seqs=700 init final segments=4
  cut-gdn:       gdn bf16 hv=2 dk=64 seqs=700,130,0,400 init final segments=2
  many:          kda bf16 hqk=1 hv=3 dk=64 seqs=70,1,0,65,200,33,16 init final=slots checkpoints=every:32 segments=off
  reference:     kda fp32 hv=1 dk=64 dv=150 seqs=100,65 init final backend=reference
)")),
                         name_of);

// ThreadSanitizer sees every instruction set here, SSE4 among them, which AddressSanitizer does not.
INSTANTIATE_TEST_SUITE_P(EveryIsa, SamePlan, testing::ValuesIn(on_every_isa(cases_in(R"(
  fp32: kda fp32 hv=2 dk=32 dv=40 seqs=100,33 init final checkpoints=every:32 segments=2
  bf16: gdn bf16 o=fp16 hv=2 dk=32 dv=40 seqs=100,33 init=key:bf16 final=rows:bf16 segments=2
  fp16: kda fp16 o=bf16 hv=2 dk=32 dv=40 seqs=100,33 init final=rows:key:fp16 segments=off
)"))),
                         name_of);

// Spreading columns over threads must happen here, and must not change the bits.
TEST(Tiling, ValueColumnsAreSpreadAndBitsStay) {
  if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
  for (const char* rule : {"kda fp32", "gdn fp32", "kda bf16", "gdn bf16"}) {
    const cases::Case c =
        on_backend(cases::parse(std::string(rule) + " hv=1 dk=128 seqs=1024 init final segments=off"));
    const Ran one(cases::with_words(c, "threads=1"));
    const Ran four(cases::with_words(c, "threads=4"));
    EXPECT_GT(four.run.summary().value_tiles, one.run.summary().value_tiles) << rule;
    EXPECT_TRUE(one.tensors.output_bits() == four.tensors.output_bits()) << rule;
  }
}

// A call with fewer tokens and sequences than the bounds of its plan gives the bits of a plan that fits.
TEST(LateCounts, FewerThanTheBoundsGiveTheSameBits) {
  for (const char* line :
       {"kda bf16 hv=2 dk=64 seqs=130,0,65 tail=4 init final lengths=execute invariant",
        "gdn fp32 hv=2 dk=64 seqs=300,1,77 init=slots final=slots checkpoints=every:32 lengths=execute segments=off",
        "kda fp32 hv=1 dk=16 seqs=40,3 tail=2 final lengths=execute backend=reference"}) {
    const cases::Case c = cases::parse(line);
    const Ran exact(c), fewer(cases::with_words(c, "bound=3000x77"));
    EXPECT_GT(fewer.run.workspace_bytes(), exact.run.workspace_bytes()) << line;
    EXPECT_TRUE(exact.tensors.output_bits() == fewer.tensors.output_bits()) << line;
  }
}

// Only ThreadSanitizer finds in another run what it has not found in ten.
#if defined(__SANITIZE_THREAD__)
constexpr int kManyRuns = 100, kConcurrentRuns = 20;
#else
constexpr int kManyRuns = DR_SANITIZED != 0 ? 10 : 1000, kConcurrentRuns = DR_SANITIZED != 0 ? 5 : 20;
#endif

TEST(Repeats, ManyRunsGiveTheSameBits) {
  for (const char* line :
       {"kda bf16 hv=2 dk=64 seqs=130,65 init final", "gdn fp32 hv=2 dk=64 seqs=300 init final segments=2"}) {
    const cases::Case c = on_backend(cases::parse(line));
    if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
    SCOPED_TRACE(cases::print(c));
    Ran ran(c);
    const Bits expected = ran.tensors.output_bits();
    for (int repeat = 0; repeat < kManyRuns; ++repeat) {
      ran.tensors.poison();
      ran.run.execute(ran.tensors.tensors());
      ASSERT_TRUE(ran.tensors.output_bits() == expected) << "repeat " << repeat;
    }
  }
}

// A caller's thread pool that runs items in an unusual order.
TEST(CallersPool, SameBits) {
  const dr_parallel_for backwards = [](void* pool, int64_t count, dr_parallel_body body, void* context) {
    *static_cast<int64_t*>(pool) += count;
    std::vector<std::thread> threads;
    for (int64_t i = count - 1; i >= 0; --i) threads.emplace_back(body, context, i);
    for (std::thread& thread : threads) thread.join();
  };
  const cases::Case c = on_backend(cases::parse("kda fp32 hv=2 dk=64 seqs=300,130 init final segments=off threads=3"));
  const Ran own(c);
  check::TensorSet x(c);
  cases::Request request(c);
  int64_t calls = 0;
  request.options.parallel_for = backwards;
  request.options.parallel_pool = &calls;
  check::PlannedRun run(request.problem, request.options);
  run.execute(x.tensors());
  EXPECT_GT(calls, 0) << "the caller's pool was not used";
  EXPECT_TRUE(x.output_bits() == own.tensors.output_bits());
}

// One plan, two threads, one workspace each.
TEST(SharedPlan, ConcurrentExecutions) {
  const cases::Case c = on_backend(cases::parse("gdn fp32 hv=2 dk=64 seqs=300,130 init final segments=off threads=2"));
  const Ran expected(c);
  const check::PlannedRun shared(c);
  size_t bytes = 0;
  ASSERT_EQ(dr_plan_workspace_bytes(shared.plan(), &bytes), DR_SUCCESS);
  const auto work = [&](bool& same) {
    check::TensorSet x(c);
    check::GuardedBuffer workspace(static_cast<int64_t>(bytes), 256);
    same = true;
    for (int repeat = 0; repeat < kConcurrentRuns; ++repeat) {
      x.poison();
      same = same && dr_execute(shared.plan(), &x.tensors(), workspace.data(), bytes, nullptr) == DR_SUCCESS;
      same = same && x.output_bits() == expected.tensors.output_bits() && workspace.intact();
    }
  };
  bool first = false;
  bool second = false;
  std::thread other(work, std::ref(second));
  work(first);
  other.join();
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
}

class EachPlan : public testing::TestWithParam<cases::Case> {};

TEST_P(EachPlan, AbsentInitialStateIsZeros) {
  const cases::Case with = on_backend(GetParam());
  SCOPED_TRACE(cases::print(with));
  cases::Case without = with;
  without.initial = {};
  check::TensorSet zeros(with);
  const check::StateTensor& pool = zeros.initial();
  for (int64_t i = 0; i < pool.num_slots * pool.stride_slot; ++i) pool.set(i, 0.0);
  check::PlannedRun run(with);
  run.execute(zeros.tensors());
  const Ran absent(without);
  EXPECT_TRUE(zeros.output_bits() == absent.tensors.output_bits());
}

// Value heads that share a query/key head, against the same heads with their own copies.
TEST_P(EachPlan, GroupedEqualsRepeated) {
  cases::Case grouped = on_backend(GetParam());
  grouped.heads_qk = 2;
  grouped.heads_v = 6;
  cases::Case plain = grouped;
  plain.heads_qk = 6;
  SCOPED_TRACE(cases::print(grouped));
  const Ran a(grouped);
  check::TensorSet repeated(plain);
  for (int64_t n = 0; n < plain.num_seqs(); ++n) {
    for (int64_t t = 0; t < plain.lengths[static_cast<size_t>(n)]; ++t) {
      for (int64_t head = 0; head < 6; ++head) {
        for (int64_t i = 0; i < plain.dk; ++i) {
          repeated.q().set(repeated.q().at(n, t, head, i), a.tensors.q().get(a.tensors.q().at(n, t, head / 3, i)));
          repeated.k().set(repeated.k().at(n, t, head, i), a.tensors.k().get(a.tensors.k().at(n, t, head / 3, i)));
        }
      }
    }
  }
  check::PlannedRun run(plain);
  run.execute(repeated.tensors());
  EXPECT_TRUE(repeated.output_bits() == a.tensors.output_bits());
}

TEST_P(EachPlan, GdnIsKdaWithTheGateOnEveryChannel) {
  cases::Case gdn = on_backend(GetParam());
  gdn.rule = DR_GDN;
  cases::Case kda = gdn;
  kda.rule = DR_KDA;
  SCOPED_TRACE(cases::print(gdn));
  const Ran scalar(gdn);
  check::TensorSet broadcast(kda);
  for (int64_t n = 0; n < gdn.num_seqs(); ++n) {
    for (int64_t t = 0; t < gdn.lengths[static_cast<size_t>(n)]; ++t) {
      for (int64_t head = 0; head < gdn.heads_v; ++head) {
        const double g = scalar.tensors.g().get(scalar.tensors.g().at(n, t, head, 0));
        for (int64_t i = 0; i < gdn.dk; ++i) broadcast.g().set(broadcast.g().at(n, t, head, i), g);
      }
    }
  }
  check::PlannedRun run(kda);
  run.execute(broadcast.tensors());
  expect_close(broadcast, scalar.tensors);
}

// Two calls through an fp32 state against one call, divided at any token.
TEST_P(EachPlan, ConcatenationThroughAState) {
  const cases::Case c = cases::with_words(on_backend(GetParam()), "segments=off");
  SCOPED_TRACE(cases::print(c));
  const Ran whole(c);
  const int64_t length = c.lengths[0];
  for (const int64_t seam : {int64_t{1}, int64_t{64}, length / 2 + 3}) {
    check::TensorSet joined(c);
    cases::Case head = c;
    head.lengths = {seam};
    cases::Case tail = c;
    tail.lengths = {length - seam};
    check::TensorSet first(head);
    copy_tokens(whole.tensors, {0, 0}, first, {0, 0}, seam);
    copy_state(whole.tensors.initial(), 0, first.initial(), 0, c.heads_v);
    check::PlannedRun run_first(head);
    run_first.execute(first.tensors());
    check::TensorSet second(tail);
    copy_tokens(whole.tensors, {0, seam}, second, {0, 0}, length - seam);
    copy_state(first.final_state(), 0, second.initial(), 0, c.heads_v);
    check::PlannedRun run_second(tail);
    run_second.execute(second.tensors());
    // Join the results of the two calls and compare sequence 0 with the single call.
    check::Measure measure(1, c.heads_v);
    for (int64_t t = 0; t < length; ++t) {
      const check::TensorSet& part = t < seam ? first : second;
      for (int64_t h = 0; h < c.heads_v; ++h) {
        for (int64_t i = 0; i < c.dv; ++i) {
          measure.add(0, h, part.o().get(part.o().at(0, t < seam ? t : t - seam, h, i)),
                      whole.tensors.o().get(whole.tensors.o().at(0, t, h, i)));
        }
      }
    }
    const double tolerance = c.dtype == DR_FP32 ? 2e-5 : 5e-3;
    const check::TensorError error = measure.finish("o", tolerance);
    EXPECT_TRUE(error.passes()) << "seam " << seam << ": " << error.worst;
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, EachPlan, testing::ValuesIn([] {
                           std::vector<cases::Case> all = cases_in(R"(
  kda-fp32:     kda fp32 hv=2 dk=64 seqs=300,0,65 init final segments=off
  gdn-fp32:     gdn fp32 hv=2 dk=64 seqs=300,0,65 init final segments=off
  kda-bf16:     kda bf16 hv=2 dk=128 dv=60 seqs=300,0,65 init=key final segments=off
)");
                           if (!nothing_to_test()) {
                             for (const cases::Case& c : cases_in(R"(
  kda-cut:      kda fp32 hv=2 dk=64 seqs=300,0,65 init final segments=3
  gdn-cut:      gdn fp32 hv=2 dk=64 seqs=300,0,65 init final segments=3
  kda-bf16-cut: kda bf16 hv=2 dk=64 seqs=300,0,65 init final segments=3
  gdn-bf16-cut: gdn bf16 hv=2 dk=64 seqs=300,0,65 init final segments=3
)")) {
                               all.push_back(c);
                             }
                           }
                           return all;
                         }()),
                         name_of);

// Invariant mode: the bits of a sequence depend neither on the other sequences nor on its position.
class Invariant : public testing::TestWithParam<cases::Case> {};

TEST_P(Invariant, SequenceBitsDependOnNothingElse) {
  const cases::Case crowd = on_backend(GetParam());
  SCOPED_TRACE(cases::print(crowd));
  const Ran together(crowd);
  for (int64_t n = 0; n < crowd.num_seqs(); ++n) {
    const int64_t length = crowd.lengths[static_cast<size_t>(n)];
    struct Company {
      const char* words;
      std::vector<int64_t> lengths;
      int64_t place;
    };
    const Company companies[] = {
        {"threads=1", {length}, 0}, {"threads=2", {5, length, 200}, 1}, {"threads=3", {length, length}, 1}};
    for (const Company& company : companies) {
      // Under a sanitizer the companies take turns: every sequence in one of them, every one of them for some sequence.
      if (DR_SANITIZED != 0 && &company != &companies[n % 3]) continue;
      cases::Case c = cases::with_words(crowd, company.words);
      c.lengths = company.lengths;
      check::TensorSet x(c);
      copy_tokens(together.tensors, {n, 0}, x, {company.place, 0}, length);
      copy_state(together.tensors.initial(), n, x.initial(), company.place, c.heads_v);
      check::PlannedRun run(c);
      run.execute(x.tensors());
      EXPECT_TRUE(output_of(x, company.place, 0, length) == output_of(together.tensors, n, 0, length))
          << "o of sequence " << n << " changed in the company of " << company.lengths.size() - 1 << " others";
      EXPECT_TRUE(final_of(x, company.place) == final_of(together.tensors, n)) << "final state of sequence " << n;
    }
  }
}

// A prefix that ends at a multiple of the grain, continued from its fp32 final state, gives the bits of the whole
// sequence.
TEST_P(Invariant, PrefixThenRestGivesTheBitsOfTheWhole) {
  const cases::Case c = on_backend(GetParam());
  SCOPED_TRACE(cases::print(c));
  const Ran whole(c);
  const dr_plan_summary summary = whole.run.summary();
  ASSERT_NE(summary.grain, 0) << "the plan is not invariant";
  if (summary.grain < 0) GTEST_SKIP() << "the grain is infinite: no sequence is ever cut";
  const int64_t grain = summary.grain * summary.chunk;
  for (int64_t n = 0; n < c.num_seqs(); ++n) {
    const int64_t length = c.lengths[static_cast<size_t>(n)];
    const int64_t last = (length - 1) / grain * grain;
    // Under a sanitizer the first seam and the last.
    const int64_t step = DR_SANITIZED != 0 ? std::max(grain, last - grain) : grain;
    for (int64_t seam = grain; seam < length; seam += step) {
      cases::Case head = c;
      head.lengths = {seam};
      cases::Case tail = c;
      tail.lengths = {length - seam};
      check::TensorSet first(head);
      copy_tokens(whole.tensors, {n, 0}, first, {0, 0}, seam);
      copy_state(whole.tensors.initial(), n, first.initial(), 0, c.heads_v);
      check::PlannedRun run_first(head);
      run_first.execute(first.tensors());
      check::TensorSet second(tail);
      copy_tokens(whole.tensors, {n, seam}, second, {0, 0}, length - seam);
      copy_state(first.final_state(), 0, second.initial(), 0, c.heads_v);
      check::PlannedRun run_second(tail);
      run_second.execute(second.tensors());
      EXPECT_TRUE(output_of(first, 0, 0, seam) == output_of(whole.tensors, n, 0, seam)) << "before seam " << seam;
      EXPECT_TRUE(output_of(second, 0, 0, length - seam) == output_of(whole.tensors, n, seam, length - seam))
          << "behind seam " << seam;
      EXPECT_TRUE(final_of(second, 0) == final_of(whole.tensors, n)) << "final state, seam " << seam;
    }
  }
}

// With few units and many heads the grain is infinite, so some lines set it: a forced length is the grain.
INSTANTIATE_TEST_SUITE_P(Plans, Invariant, testing::ValuesIn(cases_in(R"(
  own-grain:     kda fp32 hv=1 dk=128 seqs=700,65,1,2100,130 init final invariant
  own-grain-gdn: gdn bf16 hv=2 dk=64 seqs=700,65,1,2100,130 init final invariant
  kda-fp32:      kda fp32 hv=2 dk=64 seqs=700,65,1,2100,130 gate=log:-0.02,0 l2norm init final invariant \
      segments=len:256
  gdn-fp32:      gdn fp32 hv=2 dk=64 seqs=700,65,1,2100,130 gate=log:-0.02,0 l2norm init final invariant \
      segments=len:256
  kda-bf16:      kda bf16 hv=1 dk=128 seqs=700,65,1,2100,130 gate=log:-0.02,0 l2norm init final invariant \
      segments=len:512
  gdn-key:       gdn bf16 hqk=1 hv=3 dk=64 seqs=1300,65,2048 gate=log:-0.02,0 l2norm init=key final=key invariant \
      segments=len:512
  on-the-grain:  kda fp32 hv=1 dk=60 dv=100 seqs=512,128,256,384 gate=log:-0.02,0 l2norm init final invariant \
      segments=len:128
)")),
                         name_of);

INSTANTIATE_TEST_SUITE_P(InvariantMode, ForwardCase, testing::ValuesIn(cases_in(R"(
  invariant-kda:      kda fp32 hv=2 dk=64 seqs=5000,65,0,1,640 init final invariant
  invariant-gdn:      gdn bf16 hv=2 dk=64 seqs=5000,65,0,1,640 init final invariant
  invariant-in-place: kda fp32 hv=1 dk=64 seqs=5000,65,0,1,640 init=slots final=in-place invariant
  invariant-len:      kda fp32 hv=2 dk=64 seqs=1000,65,0,1,512 gate=log:-0.02,0 l2norm init final invariant \
      segments=len:256
  invariant-len-gdn:  gdn bf16 hv=2 dk=64 seqs=1000,65,0,1,512 gate=log:-0.02,0 l2norm init final=in-place invariant \
      segments=len:256
  invariant-late:     kda fp32 hv=1 dk=64 seqs=3000,65,0,1 lengths=execute init final invariant
)")),
                         name_of);

}  // namespace
}  // namespace deltarelay::forward
