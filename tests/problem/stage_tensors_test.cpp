// The tensors that the checks make for a stage against the rules of the library: for every choice of given and wanted
// intermediates exactly the pointers that the contract asks for, in memory of exactly its size.
#include <gtest/gtest.h>

#include <string>

#include "case/case.h"
#include "check/tensors.h"
#include "problem/aliasing.h"
#include "problem/status.h"
#include "problem/tensor_facts.h"
#include "problem/validate.h"

namespace deltarelay::test {
namespace {

// Sizes that tell all axes apart.
cases::Case small(int32_t op, const std::string& words) {
  return cases::parse("kda " +
                      std::string(op == DR_CHUNK_LOCAL  ? "chunk-local"
                                  : op == DR_STATE_PASS ? "state-pass"
                                  : op == DR_OUTPUTS    ? "outputs"
                                  : op == DR_SUMMARY    ? "summary"
                                                        : "carry") +
                      " hqk=1 hv=2 dk=3 dv=5 " + words);
}

// Returns whether the problem is valid. Its tensors must then be.
bool check(const cases::Case& c) {
  const cases::Request request(c);
  Problem problem;
  try {
    problem = validate(request.problem);
  } catch (const Error&) {
    return false;
  }
  check::TensorSet set(c, check::kLeastAlignment, [](check::TensorSet&) {});
  try {
    const dr_tensors& tensors = set.tensors();
    validate_tensors(problem, tensors, true);
    check_aliasing(problem, tensors, counts_of(problem, tensors), nullptr, 0, true);
  } catch (const Error& error) {
    ADD_FAILURE() << cases::print(c) << "\n" << error.what();
  }
  const CallCounts counts = counts_of(problem, set.tensors());
  const TensorSizes sizes = sizes_of(problem, counts.num_tokens, counts.num_seqs, 0);
  for (const TensorEntry& entry : kTensors) {
    const TensorFacts facts = facts_of(problem, entry);
    if (facts.need == Need::kNever) EXPECT_EQ(pointer_of(set.tensors(), entry), nullptr) << entry.name;
    const check::StageTensor* x = set.intermediate(entry.tensor);
    if (x == nullptr) continue;
    EXPECT_EQ(x->given, !facts.written) << entry.name << " of " << cases::print(c);
    if (problem.lengths_known) EXPECT_EQ(x->bytes(), count_of(sizes, entry) * facts.element_bytes) << entry.name;
  }
  return true;
}

class EveryStage : public testing::TestWithParam<int32_t> {};

TEST_P(EveryStage, HasTheTensorsOfTheContract) {
  const int32_t op = GetParam();
  const cases::StageBits bits = cases::stage_bits(op);
  const int32_t known = 2 * DR_COMPOSED - 1;
  int64_t valid = 0;
  cases::Case c = small(op, "seqs=5,0,70 tail=2");
  if (op == DR_STATE_PASS || op == DR_CARRY) c.final.use = DR_STATE_ROWS;
  for (int32_t given = 0; given <= known; ++given) {
    if ((given & ~(bits.must | bits.may_give)) != 0) continue;
    for (int32_t wanted = 0; wanted <= known; ++wanted) {
      if ((wanted & ~bits.may_want) != 0) continue;
      c.stage.given = given;
      c.stage.wanted = wanted;
      c.stage.states_layout = ((given | wanted) & DR_STATES) != 0 ? DR_STATE_KEY_MAJOR : 0;
      valid += check(c) ? 1 : 0;
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(valid, op == DR_CHUNK_LOCAL ? 3 * 63 : 4);
}

INSTANTIATE_TEST_SUITE_P(Stages, EveryStage,
                         testing::Values(DR_CHUNK_LOCAL, DR_STATE_PASS, DR_OUTPUTS, DR_SUMMARY, DR_CARRY));

TEST(StageTensors, FollowSizesStridesAndTypes) {
  for (const int32_t op : {DR_CHUNK_LOCAL, DR_STATE_PASS, DR_OUTPUTS, DR_SUMMARY, DR_CARRY})
    for (const char* words :
         {"batch=3x70", "seqs=70,16,15 tail=1 offsets=int64", "seqs=0", "seqs=0,0 tail=3",
          "bf16 batch=2x9 strides=packed", "fp16 seqs=9,1 strides=head-first", "seqs=33 strides=padded align=4",
          "seqs=9,20 gate=softplus g=bf16 b=bf16", "seqs=9,20 gate=bounded:-5 no-a-log", "seqs=33,20 lengths=execute",
          "seqs=33,20 tail=2 lengths=execute", "seqs=33,20 lengths=execute bound=100x7",
          "bf16 seqs=33 intermediates=fp32"})
      EXPECT_TRUE(check(small(op, words))) << words;
  for (const char* words : {"chunk=16", "chunk=32", "sums=base2"})
    EXPECT_TRUE(check(small(DR_CHUNK_LOCAL, std::string("seqs=70,33 ") + words))) << words;
  for (const char* words : {"init final", "init=slots:negative mask final=in-place", "final=slots:pad=3",
                            "init=key:bf16 final=key", "states=key:bf16", "states=value:fp16"}) {
    EXPECT_TRUE(check(small(DR_STATE_PASS, std::string("seqs=70,33 ") + words))) << words;
    EXPECT_TRUE(check(small(DR_CARRY, std::string("seqs=3,2 ") + words))) << words;
  }
}

}  // namespace
}  // namespace deltarelay::test
