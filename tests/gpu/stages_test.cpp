// The stages as operations of their own: the lists of tests/cases on every GPU backend that takes a line, and random
// cases.
#include <cstring>

#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

bool is_taken(const cases::Case& c, const std::string& backend) {
  const cases::Request request(cases::with_words(c, "device=h200 backend=" + backend));
  for (int32_t i = 0; i < dr_backend_count(); ++i)
    if (dr_backend_name(i) == backend) return dr_backend_check(i, &request.problem, &request.options) == DR_SUCCESS;
  return false;
}

// Every line on cuda-sm80, which takes all stages, and on cuda-sm90 where that takes it.
std::vector<cases::Case> on_backends(const std::vector<cases::Case>& all) {
  std::vector<cases::Case> result;
  for (const cases::Case& c : all)
    for (const char* backend : {kPortable, kBackend})
      if (backend == std::string(kPortable) || is_taken(c, backend))
        result.push_back(cases::with_words(c, std::string("device=cuda backend=") + backend));
  return result;
}

std::vector<cases::Case> lines_of(const char* file) {
  return on_backends(cases::read_file(std::string(DR_CASES_DIR "/") + file));
}

// The reference takes seconds for each of these, so they run once, on the backend that a plan takes.
std::vector<cases::Case> long_lines_of(const char* file) {
  std::vector<cases::Case> all = cases::read_file(std::string(DR_CASES_DIR "/") + file);
  for (cases::Case& c : all)
    c = cases::with_words(c, std::string("device=cuda backend=") + (is_taken(c, kBackend) ? kBackend : kPortable));
  return all;
}

std::vector<cases::Case> drawn() {
  constexpr uint64_t kDrawn = 300;
  constexpr int64_t kCost = 20'000'000;
  std::vector<cases::Case> all;
  for (uint64_t seed = 1; seed <= kDrawn; ++seed) all.push_back(cases::random_stage(seed, kCost, kPortable));
  return on_backends(all);
}

using EveryStage = EachCase;

TEST_P(EveryStage, AgreesWithTheReference) {
  const cases::Case& c = GetParam();
  const check::Outcome outcome = check::check_case(c);
  ASSERT_TRUE(outcome.passed()) << check::report(c, outcome);
  EXPECT_EQ(check::PlannedRun(c).summary().backend, c.backend);
}

std::string line_name(const testing::TestParamInfo<cases::Case>& info) {
  return (info.param.backend == kBackend ? "sm90_" : "sm80_") + name_of(info);
}

INSTANTIATE_TEST_SUITE_P(Stages, EveryStage, testing::ValuesIn(lines_of("stages.txt")), line_name);
INSTANTIATE_TEST_SUITE_P(Seed000, EveryStage, testing::ValuesIn(long_lines_of("seed-000.txt")), line_name);
INSTANTIATE_TEST_SUITE_P(Seed000Small, EveryStage, testing::ValuesIn(lines_of("seed-000-small.txt")), line_name);
INSTANTIATE_TEST_SUITE_P(Seed004, EveryStage, testing::ValuesIn(long_lines_of("seed-004.txt")), line_name);
INSTANTIATE_TEST_SUITE_P(Seed004Small, EveryStage, testing::ValuesIn(lines_of("seed-004-small.txt")), line_name);
INSTANTIATE_TEST_SUITE_P(Random, EveryStage, testing::ValuesIn(drawn()), line_name);

// The pieces, cut or not, leave the same bits on every run.
using StageRepeats = OnGpu;

TEST_F(StageRepeats, LeaveTheSameBits) {
  for (const char* line :
       {"kda state-pass bf16 hv=2 dk=128 dv=128 seqs=600,70 init final segments=3 l2norm gate=log:-0.01,0",
        "kda chunk-local bf16 hqk=1 hv=2 dk=128 dv=128 seqs=500,64",
        "gdn summary fp32 hv=2 dk=64 dv=64 seqs=300,0,65"}) {
    for (const cases::Case& c : on_backends({cases::parse(line)})) {
      Ran ran(c);
      std::vector<std::vector<std::byte>> first;
      for (const check::StageTensor& x : ran.host.intermediates()) {
        const auto* data = static_cast<const std::byte*>(x.data);
        first.emplace_back(data, data + x.bytes());
      }
      for (int repeat = 0; repeat < 20; ++repeat) {
        ran.again();
        size_t i = 0;
        for (const check::StageTensor& x : ran.host.intermediates())
          EXPECT_EQ(std::memcmp(first[i++].data(), x.data, static_cast<size_t>(x.bytes())), 0)
              << line << " " << x.entry->name;
      }
      expect_undamaged(ran);
    }
  }
}

}  // namespace
}  // namespace deltarelay::on_gpu
