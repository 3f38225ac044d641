// What the GPU backends take and decline, tested on plans: needs neither a GPU nor CUDA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "case/case.h"
#include "deltarelay/deltarelay.hpp"

namespace deltarelay::on_gpu {
namespace {

int32_t index_of(const char* backend) {
  for (int32_t i = 0; i < dr_backend_count(); ++i)
    if (std::strcmp(dr_backend_name(i), backend) == 0) return i;
  return -1;
}

// The case on an H200, which need not be present.
std::string reason_to_decline(const cases::Case& c) {
  const cases::Request request(cases::with_words(c, "device=h200 backend=cuda-sm90"));
  return dr_backend_check(index_of("cuda-sm90"), &request.problem, &request.options) == DR_SUCCESS ? ""
                                                                                                   : dr_last_error();
}

TEST(Sm90, TakesEveryLineOfItsFiles) {
  ASSERT_GE(index_of("cuda-sm90"), 0);
  for (const char* file : {"gpu.txt", "gpu-sanitize.txt", "targets.txt"}) {
    for (const cases::Case& c : cases::read_file(std::string(DR_CASES_DIR "/") + file)) {
      const std::string reason = reason_to_decline(c);
      EXPECT_TRUE(reason.empty()) << cases::print(c) << "\n" << reason;
    }
  }
}

// What gpu_cases expects of plans on a GPU that is present.
TEST(Sm90, CutsWhatItIsToldTo) {
  for (const char* file : {"gpu.txt", "gpu-sanitize.txt"})
    for (const cases::Case& c : cases::read_file(std::string(DR_CASES_DIR "/") + file)) {
      if (c.segments != DR_SEGMENTS_COUNT) continue;
      const cases::Request request(cases::with_words(c, "device=h200"));
      const Plan plan(request.problem, request.options);
      EXPECT_STREQ(plan.summary().backend, "cuda-sm90") << cases::print(c);
      EXPECT_EQ(plan.summary().max_segments, c.segment_value) << cases::print(c);
    }
}

// Lines for rows that are handed on really hand rows on; lines for whole waves do not.
TEST(Sm90, HandsOnTheRowsOfLinesThatSaySo) {
  struct Named {
    const char *file, *prefix;
    bool relay;
  };
  for (const Named& named :
       {Named{"gpu.txt", "relay-", true}, Named{"gpu-sanitize.txt", "relay-", true},
        Named{"targets.txt", "batch-", true}, Named{"gpu.txt", "twins-", false}, Named{"gpu.txt", "items-", false},
        Named{"gpu-sanitize.txt", "twins-", false}, Named{"gpu-sanitize.txt", "items-", false}}) {
    int64_t lines = 0;
    for (const cases::Case& c : cases::read_file(std::string(DR_CASES_DIR "/") + named.file)) {
      if (c.name.rfind(named.prefix, 0) != 0) continue;
      const cases::Request request(cases::with_words(c, "device=h200"));
      const std::string text = Plan(request.problem, request.options).describe(DR_DESCRIBE_TEXT);
      EXPECT_EQ(text.find("rows are handed on") != std::string::npos, named.relay) << cases::print(c);
      ++lines;
    }
    EXPECT_GE(lines, 2) << named.prefix << " of " << named.file;
  }
}

TEST(Sm90, LinesOfItsOwnFilesNameIt) {
  for (const char* file : {"gpu.txt", "gpu-sanitize.txt"})
    for (const cases::Case& c : cases::read_file(std::string(DR_CASES_DIR "/") + file)) {
      EXPECT_EQ(c.backend, "cuda-sm90") << cases::print(c);
      EXPECT_TRUE(c.on_gpu()) << cases::print(c);
    }
}

TEST(Sm90, DeclinesWithTheArgumentTheExpectedAndTheFound) {
  const std::pair<const char*, const char*> all[] = {
      {"kda bf16 hv=2 dk=64 seqs=100", "64"},      {"gdn bf16 hv=2 dv=192 seqs=100", "192"},
      {"kda fp32 hv=2 seqs=100", "fp32"},          {"kda bf16 o=fp32 hv=2 seqs=100", "fp32"},
      {"gdn bf16 hv=2 seqs=100 align=2", "align"}, {"kda bf16 hv=2 seqs=100 math=tf32", "tf32"},
  };
  for (const auto& [line, found] : all) {
    const std::string reason = reason_to_decline(cases::parse(line));
    EXPECT_THAT(reason, testing::HasSubstr("expected")) << line;
    EXPECT_THAT(reason, testing::HasSubstr(found)) << line;
  }
}

// Every GPU of the table, with and without the features of Hopper.
TEST(Sm80, TakesEveryLineOfItsFilesOnEveryGpu) {
  for (const char* file : {"gpu_portable.txt", "gpu_portable-sanitize.txt", "targets_portable.txt"})
    for (const cases::Case& c : cases::read_file(std::string(DR_CASES_DIR "/") + file)) {
      EXPECT_EQ(c.backend, "cuda-sm80") << cases::print(c);
      EXPECT_TRUE(c.on_gpu()) << cases::print(c);
      for (const char* device : {"a100", "h200", "b200", "rtx4090", "rtx5090"}) {
        const cases::Request request(cases::with_words(c, std::string("device=") + device));
        const Plan plan(request.problem, request.options);
        EXPECT_STREQ(plan.summary().backend, "cuda-sm80") << cases::print(c);
        if (c.segments == DR_SEGMENTS_COUNT) EXPECT_EQ(plan.summary().max_segments, c.segment_value) << cases::print(c);
      }
    }
}

// The random-case runner draws only cases that the backend takes: a declined case proves nothing.
TEST(Random, CasesAreDrawnForTheirBackend) {
  std::set<std::string> ways;
  for (const char* backend : {"cuda-sm80", "cuda-sm90"})
    for (uint64_t seed = 1; seed <= 2000; ++seed) {
      const cases::Case c = cases::random_case(seed, 20'000'000, backend);
      ASSERT_TRUE(c.on_gpu()) << cases::print(c);
      ASSERT_EQ(cases::parse(cases::print(c)), c) << cases::print(c);
      const cases::Request request(cases::with_words(c, "device=h200"));
      ASSERT_EQ(dr_backend_check(index_of(backend), &request.problem, &request.options), DR_SUCCESS)
          << cases::print(c) << "\n"
          << dr_last_error();
      const Plan plan(request.problem, request.options);
      const bool tf32 = request.options.math == DR_MATH_TF32;
      ways.insert(std::string(plan.summary().backend) + "/" + plan.summary().variant + (tf32 ? "tf32" : ""));
    }
  EXPECT_THAT(ways, testing::ElementsAre("cuda-sm80/", "cuda-sm80/tf32", "cuda-sm90/fused", "cuda-sm90/prepared"));
}

}  // namespace
}  // namespace deltarelay::on_gpu
