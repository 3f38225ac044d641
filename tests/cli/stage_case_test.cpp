// The words of the stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "case/case.h"

namespace deltarelay::cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of_stage(const std::string& line) {
  try {
    parse(line);
  } catch (const CaseError& error) {
    return error.what();
  }
  return "(parsed)";
}

// What the library says of the case; the reference takes every valid problem whose operation it runs.
dr_status status_of(const Case& c) {
  const Request request(c);
  return dr_backend_check(dr_backend_count() - 1, &request.problem, &request.options);
}

TEST(StageCase, ReadsTheLineOfTheDocuments) {
  const Case c = parse(
      "kda chunk-local bf16 hqk=2 hv=4 dk=128 dv=128 seqs=500,64 chunk=32 given=inverse,gate_sums want=w,u,k_to_end "
      "sums=base2 intermediates=fp32");
  EXPECT_EQ(c.op, DR_CHUNK_LOCAL);
  EXPECT_EQ(c.stage.chunk, 32);
  EXPECT_EQ(c.stage.given, DR_INVERSE | DR_GATE_SUMS);
  EXPECT_EQ(c.stage.wanted, DR_W | DR_U | DR_K_TO_END);
  EXPECT_TRUE(c.stage.sums_base_2);
  EXPECT_EQ(c.intermediate_dtype(), DR_FP32);
  EXPECT_EQ(c.stage.states_layout, 0) << "no states among these";
  const Case pass = parse("gdn state-pass bf16 seqs=70 states=key:fp16 final");
  EXPECT_EQ(pass.stage.states_layout, DR_STATE_KEY_MAJOR);
  EXPECT_EQ(pass.states_dtype(), DR_FP16);
  EXPECT_EQ(pass.intermediate_dtype(), DR_BF16);
}

// Given: the least. Wanted: all that is not given.
TEST(StageCase, DefaultsFollowTheOperation) {
  const auto stage = [](const char* words) { return parse(std::string("kda ") + words + " seqs=9").stage; };
  EXPECT_EQ(stage("chunk-local").given, 0);
  EXPECT_EQ(stage("chunk-local").wanted, 127);
  EXPECT_EQ(stage("chunk-local given=gate_sums").wanted, 127 & ~DR_GATE_SUMS);
  EXPECT_EQ(stage("chunk-local").chunk, 64);
  EXPECT_EQ(stage("state-pass").given, DR_W | DR_U);
  EXPECT_EQ(stage("state-pass").wanted, DR_STATES | DR_V_NEW);
  EXPECT_EQ(stage("state-pass").states_layout, DR_STATE_VALUE_MAJOR);
  EXPECT_EQ(stage("state-pass want=none").wanted, 0);
  EXPECT_EQ(stage("state-pass want=none").states_layout, 0);
  EXPECT_EQ(stage("outputs").given, DR_V_NEW | DR_STATES);
  EXPECT_EQ(stage("outputs").wanted, 0);
  EXPECT_EQ(stage("summary").given, 0);
  EXPECT_EQ(stage("summary").wanted, DR_SUMMARIES);
  EXPECT_EQ(stage("carry").given, DR_SUMMARIES);
  EXPECT_EQ(stage("carry").wanted, DR_STATES | DR_COMPOSED);
  EXPECT_EQ(stage("carry").chunk, 0);
  EXPECT_EQ(parse("kda carry bf16 seqs=9").states_dtype(), DR_FP32);
  EXPECT_EQ(parse("kda outputs bf16 seqs=9").states_dtype(), DR_BF16);
  EXPECT_EQ(parse("kda outputs bf16 intermediates=fp16 seqs=9").states_dtype(), DR_FP16);
  EXPECT_EQ(parse("kda bf16 seqs=9").stage, Stage());
}

TEST(StageCase, CanonicalLinesHaveNoDefaults) {
  EXPECT_EQ(print(parse("kda chunk-local seqs=7 chunk=64 want=u,w,aqk,inverse,k_to_end,q_from_start,gate_sums")),
            "kda chunk-local fp32 hqk=1 hv=1 dk=128 dv=128 seqs=7 gate=log:-5,0");
  EXPECT_EQ(print(parse("gdn state-pass states=value given=u,w sums=natural seqs=7 want=v_new,states")),
            "gdn state-pass fp32 hqk=1 hv=1 dk=128 dv=128 seqs=7 gate=log:-5,0");
  EXPECT_EQ(print(parse("gdn state-pass want=states given=k_to_end,u,w states=key chunk=16 seqs=7")),
            "gdn state-pass fp32 hqk=1 hv=1 dk=128 dv=128 seqs=7 chunk=16 given=w,u,k_to_end want=states states=key "
            "gate=log:-5,0");
}

TEST(StageCase, EveryWordComesBack) {
  const std::vector<std::string> lines = {
      "chunk-local",
      "chunk-local chunk=16",
      "chunk-local given=inverse",
      "chunk-local given=inverse want=w,u",
      "chunk-local want=none",
      "chunk-local sums=base2",
      "chunk-local intermediates=bf16",
      "chunk-local given=states states=key:fp16",
      "state-pass",
      "state-pass states=value:bf16",
      "state-pass states=key",
      "state-pass given=none want=none final",
      "state-pass segments=3 init final",
      "outputs given=aqk,q_from_start,v_new,states",
      "outputs want=summaries,composed",
      "summary given=w,u",
      "carry",
      "carry chunk=16",
      "carry want=composed",
      "carry carry=truncated",
  };
  std::set<std::string> printed;
  for (const std::string& line : lines) {
    const Case c = parse("x: kda " + line + " seqs=5,6");
    EXPECT_EQ(parse(print(c)), c) << print(c);
    EXPECT_EQ(print(parse(print(c))), print(c));
    EXPECT_EQ(with_words(c, ""), c) << print(c);
    printed.insert(print(c));
  }
  EXPECT_EQ(printed.size(), lines.size()) << "two different cases print alike";
}

TEST(StageCase, WordsReplaceWordsAndKeepTheOperation) {
  const Case c = parse("n: kda carry bf16 seqs=4 want=states");
  EXPECT_EQ(print_without_name(with_words(c, "carry=truncated want=composed seed=3")),
            "kda carry bf16 hqk=1 hv=1 dk=128 dv=128 seqs=4 want=composed gate=log:-5,0 carry=truncated seed=3");
  const Case pass = parse("kda state-pass seqs=4");
  EXPECT_EQ(with_words(pass, "given=w,u,gate_sums").stage.wanted, pass.stage.wanted);
}

TEST(StageCase, ErrorsNameWordExpectedAndFound) {
  EXPECT_EQ(error_of_stage("kda seqs=1 chunk=16"),
            "chunk: expected a stage behind the rule, chunk-local to carry, found 'forward'");
  for (const char* word : {"given=w", "want=w", "sums=base2", "intermediates=fp32", "states=key"})
    EXPECT_THAT(error_of_stage(std::string("kda step seqs=1 ") + word), HasSubstr("expected a stage")) << word;
  EXPECT_THAT(error_of_stage("kda chunk-local seqs=1 want=w,q"),
              HasSubstr("want: expected none, or of aqk, inverse, w, u,"));
  EXPECT_THAT(error_of_stage("kda chunk-local seqs=1 want=w,q"), HasSubstr("found 'q'"));
  EXPECT_EQ(error_of_stage("kda chunk-local seqs=1 given=w,w"), "given: expected each intermediate once, found 'w,w'");
  EXPECT_THAT(error_of_stage("kda chunk-local seqs=1 given="), HasSubstr("found ''"));
  EXPECT_EQ(error_of_stage("kda chunk-local seqs=1 chunk=0"),
            "chunk: expected a whole number from 1 to 4096, found '0'");
  EXPECT_EQ(error_of_stage("kda chunk-local seqs=1 sums=e"), "sums: expected natural or base2, found 'e'");
  EXPECT_EQ(error_of_stage("kda chunk-local seqs=1 states=key"),
            "states: expected states in given= or want=, found 'neither'");
  EXPECT_EQ(error_of_stage("kda state-pass seqs=1 states=rows"), "states: expected value or key, found 'rows'");
  EXPECT_THAT(error_of_stage("kda state-pass seqs=1 states=key:int32"),
              HasSubstr("states: expected fp32, bf16 or fp16"));
  EXPECT_THAT(error_of_stage("kda state-pass seqs=1 intermediates=int32"), HasSubstr("expected fp32, bf16 or fp16"));
}

TEST(StageCase, RequestSaysWhatTheCaseSays) {
  const Request request(
      parse("gdn state-pass bf16 seqs=3,4 chunk=32 given=w,u,gate_sums want=states sums=base2 "
            "intermediates=fp16 states=key:fp32 init final segments=2"));
  const dr_chunks& chunks = *request.problem.chunks;
  EXPECT_EQ(request.problem.op, DR_STATE_PASS);
  EXPECT_EQ(chunks.size, sizeof(dr_chunks));
  EXPECT_EQ(chunks.chunk, 32);
  EXPECT_EQ(chunks.given, DR_W | DR_U | DR_GATE_SUMS);
  EXPECT_EQ(chunks.wanted, DR_STATES);
  EXPECT_EQ(chunks.dtype, DR_FP16);
  EXPECT_EQ(chunks.dtype_states, DR_FP32);
  EXPECT_EQ(chunks.states_layout, DR_STATE_KEY_MAJOR);
  EXPECT_EQ(chunks.sums_base_2, 1);
  EXPECT_EQ(Request(parse("gdn seqs=3")).problem.chunks, nullptr);
  EXPECT_EQ(Request(parse("gdn backward seqs=3")).problem.chunks, nullptr);
}

// The library finds what a line may say and a problem may not.
TEST(StageCase, TheLibraryRefusesWhatContradictsTheContract) {
  for (const char* words : {"chunk-local chunk=48", "chunk-local given=w", "chunk-local want=none", "chunk-local init",
                            "state-pass given=w", "state-pass want=none", "outputs want=aqk", "summary given=w",
                            "carry chunk=16", "carry given=none", "state-pass checkpoints=chunks"})
    EXPECT_EQ(status_of(parse(std::string("kda ") + words + " seqs=70")), DR_INVALID) << words;
}

TEST(StageCase, RowsOfIntermediates) {
  const auto rows = [](const char* line, Tensor tensor) { return intermediate_rows(parse(line), entry_of(tensor)); };
  const char* const pass = "kda state-pass seqs=65,0,64,1 tail=3";
  EXPECT_THAT(rows(pass, Tensor::kW), ElementsAre(0, 65, 65, 129, 130));
  EXPECT_THAT(rows(pass, Tensor::kStates), ElementsAre(0, 2, 2, 3, 4));
  EXPECT_THAT(rows("kda summary batch=3x5", Tensor::kSummaries), ElementsAre(0, 1, 2, 3));
  const char* const carry = "kda carry seqs=3,0,2 tail=1";
  EXPECT_THAT(rows(carry, Tensor::kSummaries), ElementsAre(0, 3, 3, 5));
  EXPECT_THAT(rows(carry, Tensor::kStates), ElementsAre(0, 3, 3, 5));
  EXPECT_THAT(rows(carry, Tensor::kComposed), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(sizes_of(parse(pass)).state_rows, 4);
  EXPECT_EQ(sizes_of(parse(carry)).state_rows, 6);
  EXPECT_EQ(sizes_of(parse(carry)).summary_rows, 6);
}

TEST(StageCase, RandomStagesComeBackAndAreValid) {
  std::set<std::string> printed;
  std::set<int32_t> operations, chunks;
  for (const char* backend : {"", "cpu", "cuda-sm80", "cuda-sm90"}) {
    for (uint64_t seed = 0; seed < 1000; ++seed) {
      const Case c = random_stage(seed, 20'000'000, backend);
      ASSERT_TRUE(c.is_stage());
      ASSERT_EQ(parse(print(c)), c) << print(c);
      ASSERT_LE(c.token_heads() * c.dk * c.dv, 20'000'000) << print(c);
      EXPECT_FALSE(c.hostile() || c.strained()) << print(c);
      Case here = c;
      here.backend.clear();
      ASSERT_NE(status_of(here), DR_INVALID) << print(c) << "\n" << dr_last_error();
      printed.insert(print(c));
      operations.insert(c.op);
      chunks.insert(c.stage.chunk);
    }
  }
  EXPECT_GT(printed.size(), 3900u);
  EXPECT_THAT(operations, ElementsAre(DR_CHUNK_LOCAL, DR_STATE_PASS, DR_OUTPUTS, DR_SUMMARY, DR_CARRY));
  EXPECT_THAT(chunks, ElementsAre(0, 16, 32, 64));
  for (const char* words : {"given=inverse", "want=", "sums=base2", "intermediates=fp32", "states=key", "init", "bf16"})
    EXPECT_TRUE(std::any_of(printed.begin(), printed.end(), [&](const std::string& line) {
      return line.find(words) != std::string::npos;
    })) << words;
  EXPECT_EQ(random_stage(17, 1'000'000), random_stage(17, 1'000'000));
}

}  // namespace
}  // namespace deltarelay::cases
