// The case files of the stages. Full sizes of the lists of other projects are for a GPU, once a GPU backend takes the
// stages: deltarelay verify <file> --with device=cuda.
#include <cstring>

#include "check/random.h"
#include "forward_case.h"

namespace deltarelay::forward {
namespace {

constexpr const char* kWaits = "the reference does not run stages yet";

std::vector<cases::Case> cases_of(const char* file) { return cases::read_file(std::string(DR_CASES_DIR "/") + file); }

// Why the backend under test does not run the case; empty if it does.
std::string why_declined(const cases::Case& c) {
  const cases::Request request(on_backend(c));
  for (int32_t i = 0; i < dr_backend_count(); ++i)
    if (backend_under_test() == dr_backend_name(i) &&
        dr_backend_check(i, &request.problem, &request.options) == DR_UNSUPPORTED)
      return dr_last_error();
  return {};
}

class StageCase : public testing::TestWithParam<cases::Case> {
 protected:
  void SetUp() override {
    if (nothing_to_test()) GTEST_SKIP() << "only the reference is built in";
    if (!check::draws_stages()) GTEST_SKIP() << kWaits;
    const std::string why = why_declined(GetParam());
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

// A case that asks for cuts is cut, and then also held against the uncut run.
TEST_P(StageCase, AgreesWithTheReference) {
  const cases::Case c = on_backend(GetParam());
  if (c.segments == DR_SEGMENTS_COUNT) {
    expect_correct_when_cut(c);
  } else {
    expect_correct(c);
  }
}
INSTANTIATE_TEST_SUITE_P(Stages, StageCase, testing::ValuesIn(cases_of("stages.txt")), name_of);
INSTANTIATE_TEST_SUITE_P(Seed000_StatePass, StageCase, testing::ValuesIn(cases_of("seed-000-small.txt")), name_of);
INSTANTIATE_TEST_SUITE_P(Seed004_GroupedValues, StageCase, testing::ValuesIn(cases_of("seed-004-small.txt")), name_of);

using StageRepeats = StageCase;
TEST_P(StageRepeats, AreTheSameBits) {
  const cases::Case c = on_backend(GetParam());
  Ran ran(c);
  const std::vector<std::byte> expected = ran.tensors.output_bits();
  for (int repeat = 0; repeat < 10; ++repeat) {
    ran.tensors.poison();
    ran.run.poison_workspace();
    ran.run.execute(ran.tensors.tensors());
    ASSERT_TRUE(ran.tensors.output_bits() == expected) << "repeat " << repeat;
  }
}
std::vector<cases::Case> named(const char* file, const std::string& prefix) {
  std::vector<cases::Case> all = cases_of(file);
  std::erase_if(all, [&](const cases::Case& c) { return !c.name.starts_with(prefix); });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Seed000_StressRepeat, StageRepeats, testing::ValuesIn(named("seed-000-small.txt", "stress-")),
                         name_of);

// Without initial states a pass begins as with zeros, bit for bit.
using StageWithoutInitial = StageCase;
TEST_P(StageWithoutInitial, EqualsZeros) {
  const cases::Case none = on_backend(GetParam());
  const cases::Case with = cases::with_words(none, "init");
  check::TensorSet zeros(with);
  const check::StateTensor& pool = zeros.initial();
  std::memset(pool.data, 0, static_cast<size_t>(pool.num_slots * pool.stride_slot * check::bytes_of(DR_FP32)));
  check::PlannedRun run(with);
  run.execute(zeros.tensors());
  const Ran absent(none);
  EXPECT_TRUE(zeros.output_bits() == absent.tensors.output_bits());
}
INSTANTIATE_TEST_SUITE_P(Seed000_InitialNoneEqualsZeros, StageWithoutInitial,
                         testing::ValuesIn(named("seed-000-small.txt", "h0-none-")), name_of);

// Value heads that share a key head give the bits of as many key heads with the same keys: group 1 is the plain path.
using StagePlain = StageCase;
TEST_P(StagePlain, GroupsEqualRepeatedKeys) {
  const cases::Case plain = on_backend(GetParam());
  cases::Case grouped = plain;
  grouped.heads_qk = 1;
  check::TensorSet x(grouped), y(plain);
  const auto copy = [&](const check::TokenTensor& from, const check::TokenTensor& to, bool shared) {
    for (int64_t n = 0; to.data != nullptr && n < plain.num_seqs(); ++n)
      for (int64_t t = 0; t < plain.lengths[static_cast<size_t>(n)]; ++t)
        for (int64_t head = 0; head < to.heads; ++head)
          for (int64_t i = 0; i < to.width; ++i)
            to.set(to.at(n, t, head, i), from.get(from.at(n, t, shared ? 0 : head, i)));
  };
  copy(x.q(), y.q(), true);
  copy(x.k(), y.k(), true);
  for (size_t i = 0; i < x.intermediates().size(); ++i) {
    const check::StageTensor &from = x.intermediates()[i], &to = y.intermediates()[i];
    if (from.given) std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
  }
  check::PlannedRun run_x(grouped), run_y(plain);
  run_x.execute(x.tensors());
  run_y.execute(y.tensors());
  EXPECT_TRUE(x.output_bits() == y.output_bits());
}
INSTANTIATE_TEST_SUITE_P(Seed004_DegenerateEqualsPlain, StagePlain,
                         testing::ValuesIn(named("seed-004-small.txt", "degenerate-")), name_of);

TEST(Seed004, RejectsAGroupThatDoesNotDivide) {
  for (const char* words : {"", " given=inverse,gate_sums want=w,u,k_to_end,q_from_start"}) {
    const check::Outcome outcome =
        check::check_case(cases::parse(std::string("kda chunk-local bf16 hqk=2 hv=3 batch=1x128") + words));
    EXPECT_EQ(outcome.verdict, check::Verdict::kInvalid);
    EXPECT_NE(outcome.message.find("head count"), std::string::npos) << outcome.message;
  }
}

}  // namespace
}  // namespace deltarelay::forward
