// Tests of the checks of stages: what they draw, and that each finds its kind of error. Where the reference runs
// stages, also whether the stages together are the forward.
#include <cmath>
#include <cstring>
#include <limits>

#include "check/random.h"
#include "check/tolerance.h"
#include "forward_case.h"

namespace deltarelay::forward {
namespace {

constexpr const char* kWaits = "the reference does not run stages yet";

// Tensors without inputs, for which no stage has to run.
struct Empty {
  explicit Empty(const std::string& line)
      : c(cases::parse(line)), x(c, check::kLeastAlignment, [](check::TensorSet&) {}) {}

  const check::StageTensor& of(Tensor tensor) const { return *x.intermediate(tensor); }
  // Writes zero everywhere a run writes.
  void write_zeros() const {
    for (const check::StageTensor& t : x.intermediates())
      if (!t.given) std::memset(t.data, 0, static_cast<size_t>(t.bytes()));
  }

  cases::Case c;
  check::TensorSet x;
};

TEST(StageTolerance, IsTheColumnOfTheDocument) {
  const auto tolerance = [](const char* line, Tensor tensor) {
    return check::tolerance_of_intermediate(cases::parse(line), entry_of(tensor));
  };
  EXPECT_EQ(tolerance("kda chunk-local fp32 seqs=1", Tensor::kW), 2e-5);
  EXPECT_EQ(tolerance("kda chunk-local bf16 seqs=1", Tensor::kW), 5e-3);
  EXPECT_EQ(tolerance("kda chunk-local fp16 seqs=1", Tensor::kAqk), 2e-3);
  EXPECT_EQ(tolerance("kda chunk-local fp32 math=tf32 seqs=1", Tensor::kU), 2e-3);
  EXPECT_EQ(tolerance("kda chunk-local bf16 seqs=1 gate=log:zero keys=correlated", Tensor::kInverse), 5e-3);
  EXPECT_EQ(tolerance("kda chunk-local bf16 seqs=1", Tensor::kGateSums), 2e-5);
  EXPECT_EQ(tolerance("kda chunk-local bf16 intermediates=fp32 seqs=1", Tensor::kW), 5e-3);
  EXPECT_EQ(tolerance("kda chunk-local fp32 intermediates=bf16 seqs=1", Tensor::kW), 2e-5 + 2e-3);
  EXPECT_EQ(tolerance("kda chunk-local fp16 intermediates=bf16 seqs=1", Tensor::kW), 2e-3 + 2e-3);
  EXPECT_EQ(tolerance("kda state-pass fp32 intermediates=bf16 seqs=1", Tensor::kVNew), 5e-3) << "products of bf16";
  EXPECT_EQ(tolerance("kda state-pass fp32 states=value:fp16 seqs=1", Tensor::kStates), 2e-5 + 3e-4);
  EXPECT_EQ(tolerance("kda carry bf16 seqs=1", Tensor::kComposed), 2e-5) << "summaries are fp32";
  EXPECT_EQ(check::tolerance_of_output(cases::parse("kda outputs fp32 states=value:bf16 seqs=1")), 5e-3);
  EXPECT_EQ(check::tolerance_of_state(cases::parse("kda carry bf16 seqs=1"), DR_FP32), 2e-5);
}

// The tokens of a stage are those of the forward with the same words, as far as it reads them.
TEST(StageTensors, DrawWhatTheForwardDraws) {
  const cases::Case c = cases::parse("kda chunk-local bf16 hqk=1 hv=2 dk=8 dv=4 seqs=5,7 want=w seed=9");
  cases::Case forward = cases::parse("kda bf16 hqk=1 hv=2 dk=8 dv=4 seqs=5,7 seed=9");
  const check::TensorSet x(c), y(forward);
  EXPECT_EQ(x.q().data, nullptr);
  EXPECT_EQ(x.v().data, nullptr);
  EXPECT_EQ(x.tensors().q, nullptr);
  EXPECT_EQ(x.o().data, nullptr);
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(x.k().get(x.k().at(1, t, 0, i)), y.k().get(y.k().at(1, t, 0, i)));
      EXPECT_EQ(x.g().get(x.g().at(1, t, 1, i)), y.g().get(y.g().at(1, t, 1, i)));
    }
    EXPECT_EQ(x.beta().get(x.beta().at(1, t, 1, 0)), y.beta().get(y.beta().at(1, t, 1, 0)));
  }
}

TEST(StageTensors, FindWhatARunMustNotDo) {
  const Empty e("kda chunk-local fp32 hv=2 dk=4 dv=3 seqs=5,18 tail=2 chunk=16 want=aqk,w");
  EXPECT_NE(e.x.damage().find("aqk: expected 0 in row 23, head 0, column 0 behind the last offset"), std::string::npos)
      << e.x.damage();
  e.write_zeros();
  EXPECT_EQ(e.x.damage(), "");
  const check::StageTensor &aqk = e.of(Tensor::kAqk), &w = e.of(Tensor::kW);
  aqk.set(aqk.at(4, 1, 4), 1.0);   // on the diagonal
  aqk.set(aqk.at(21, 1, 0), 1.0);  // the first token of the second chunk of sequence 1
  EXPECT_EQ(e.x.damage(), "");
  aqk.set(aqk.at(4, 1, 5), 1.0);
  EXPECT_NE(e.x.damage().find("aqk: expected 0 in row 4, head 1, column 5 above the diagonal"), std::string::npos);
  aqk.set(aqk.at(4, 1, 5), 0.0);
  aqk.set(aqk.at(21, 1, 1), std::numeric_limits<double>::quiet_NaN());
  EXPECT_NE(e.x.damage().find("row 21, head 1, column 1 above"), std::string::npos) << e.x.damage();
  aqk.set(aqk.at(21, 1, 1), 0.0);
  w.set(w.at(24, 1, 3), 1.0);
  EXPECT_NE(e.x.damage().find("w: expected 0 in row 24, head 1, column 3"), std::string::npos);
  w.set(w.at(24, 1, 3), 0.0);
  const std::byte before = w.data[w.bytes()];
  w.data[w.bytes()] = std::byte{1};
  EXPECT_EQ(e.x.damage(), "w: written outside its memory");
  w.data[w.bytes()] = before;
  EXPECT_EQ(e.x.damage(), "");
}

TEST(StageTensors, AreCopiedHashedAndPoisonedByDirection) {
  Empty e("gdn state-pass bf16 hv=2 dk=4 dv=3 seqs=5,18 given=w,u,gate_sums want=states final");
  std::string inputs, outputs;
  for (const check::TensorSet::Memory& memory : e.x.memory())
    (memory.output != nullptr ? outputs : inputs) += std::string(" ") + memory.name;
  EXPECT_EQ(inputs, " k w u gate_sums");
  EXPECT_EQ(outputs, " final states");
  e.of(Tensor::kW).set(0, 1.0);
  e.of(Tensor::kStates).set(0, 1.0);
  const uint64_t hash = e.x.output_hash();
  const std::vector<std::byte> bits = e.x.output_bits();
  e.of(Tensor::kW).set(0, 2.0);
  EXPECT_EQ(e.x.output_hash(), hash);
  EXPECT_TRUE(e.x.output_bits() == bits);
  e.of(Tensor::kStates).set(3, 2.0);
  EXPECT_NE(e.x.output_hash(), hash);
  EXPECT_FALSE(e.x.output_bits() == bits);
  e.x.poison();
  EXPECT_EQ(e.of(Tensor::kW).get(0), 2.0) << "an input";
  EXPECT_TRUE(std::isnan(e.of(Tensor::kStates).get(0)));
}

TEST(StageCompare, FindsOneWrongBlockOfMany) {
  const char* const line = "kda chunk-local fp32 hv=3 dk=8 dv=8 seqs=20,0,30 chunk=16 want=aqk,u,gate_sums";
  const Empty a(line), b(line);
  for (const Empty* e : {&a, &b}) {
    for (const check::StageTensor& t : e->x.intermediates())
      for (int64_t i = 0; i < t.count(); ++i) t.set(i, 1.0 + static_cast<double>(i % 7));
  }
  const auto errors = [&] { return check::compare(a.x, b.x); };
  ASSERT_EQ(errors().size(), 3u);
  for (const check::TensorError& error : errors()) EXPECT_TRUE(error.passes() && error.worst == 0.0) << error.tensor;
  EXPECT_EQ(errors()[0].tensor, "aqk");
  EXPECT_EQ(errors()[1].tensor, "u");
  EXPECT_EQ(errors()[2].tensor, "gate_sums");
  const check::StageTensor &aqk = a.of(Tensor::kAqk), &u = a.of(Tensor::kU), &sums = a.of(Tensor::kGateSums);
  aqk.set(aqk.at(3, 2, 4), 1e9);  // above the diagonal: damage() looks there
  EXPECT_TRUE(errors()[0].passes());
  u.set(u.at(20 + 17, 2, 5), 50.0);
  EXPECT_FALSE(errors()[1].passes());
  EXPECT_EQ(errors()[1].worst_sequence, 2);
  EXPECT_EQ(errors()[1].worst_head, 2);
  u.set(u.at(20 + 17, 2, 5), std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(errors()[1].not_finite, 1);
  // Sums may be -inf, and then they must be.
  const check::StageTensor& expected = b.of(Tensor::kGateSums);
  expected.set(7, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(errors()[2].not_finite, 1);
  sums.set(7, -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(errors()[2].passes());
  expected.set(7, 3.0);
  EXPECT_EQ(errors()[2].not_finite, 1);
}

TEST(StageCheck, RepeatsHeadsOfLargeStagesOnAGpu) {
  const auto heads = [](const std::string& line) {
    const cases::Case few = check::fewer_heads(cases::parse(line));
    return std::pair(few.heads_qk, few.heads_v);
  };
  using Heads = std::pair<int32_t, int32_t>;
  const std::string pass = "kda state-pass bf16 hqk=8 hv=8 given=w,u,k_to_end,gate_sums final gate=log:-5,0 ";
  const std::string local = "kda chunk-local bf16 hqk=16 hv=32 given=gate_sums want=w,u gate=log:-5,0 ";
  EXPECT_EQ(heads(pass + "seqs=16384 device=cuda"), Heads(2, 2));
  EXPECT_EQ(heads(local + "batch=2x2048 device=cuda"), Heads(2, 4));
  EXPECT_EQ(heads(local + "batch=2x1024 device=cuda"), Heads(16, 32)) << "a small one is measured as a whole";
  EXPECT_EQ(heads(pass + "seqs=16384"), Heads(8, 8)) << "not on a GPU";
  EXPECT_EQ(heads(pass + "init seqs=16384 device=cuda"), Heads(8, 8)) << "initial states are not repeated";
  EXPECT_EQ(heads(pass + "tail=3 seqs=16384 device=cuda"), Heads(8, 8));
  EXPECT_EQ(heads("kda state-pass bf16 hqk=8 hv=8 given=w,u,k_to_end,gate_sums gate=init seqs=16384 device=cuda"),
            Heads(8, 8))
      << "each head has gates of its own";
  EXPECT_EQ(heads("kda bf16 hqk=8 hv=8 seqs=16384 device=cuda"), Heads(8, 8)) << "no stage";
  const cases::Case c = cases::parse(pass + "seqs=16384 device=cuda");
  cases::Case few = check::fewer_heads(c);
  few.heads_qk = few.heads_v = 8;
  EXPECT_EQ(few, c) << "nothing else changes";
}

TEST(StageCheck, TellsTheKindsOfNoApart) {
  const auto verdict = [](const char* line) { return check::check_case(cases::parse(line)).verdict; };
  EXPECT_EQ(verdict("kda chunk-local hv=1 dk=8 seqs=20 chunk=48 backend=reference"), check::Verdict::kInvalid);
  EXPECT_EQ(verdict("kda chunk-local hv=1 dk=8 seqs=20 want=none backend=reference"), check::Verdict::kInvalid);
  EXPECT_EQ(verdict("kda state-pass hqk=2 hv=3 dk=8 seqs=20 backend=reference"), check::Verdict::kInvalid);
  EXPECT_EQ(verdict("kda state-pass hv=1 dk=8 seqs=20 backend=reference"),
            check::draws_stages() ? check::Verdict::kPassed : check::Verdict::kDeclined);
}

// ---- where the reference runs stages ----

// If it did not, the tests below and the lists of stages would be skipped, and nobody would notice.
TEST(Stages, RunOnTheReference) {
  for (const char* rule : {"kda", "gdn"})
    for (const char* stage : {"chunk-local", "state-pass", "outputs", "summary", "carry"}) {
      const cases::Request request(cases::parse(std::string(rule) + " " + stage + " bf16 hv=2 dk=16 seqs=20,3"));
      EXPECT_EQ(dr_backend_check(dr_backend_count() - 1, &request.problem, &request.options), DR_SUCCESS)
          << rule << " " << stage << ": " << dr_last_error();
    }
  EXPECT_TRUE(check::draws_stages());
}

void expect_passed(const std::string& line) {
  const cases::Case c = cases::parse(line);
  const check::Outcome outcome = check::check_case(c);
  EXPECT_TRUE(outcome.passed()) << check::report(c, outcome);
}

TEST(Given, IsTheResultOfTheStagesBeforeAndNaNWhereNothingReads) {
  if (!check::draws_stages()) GTEST_SKIP() << kWaits;
  const cases::Case local = cases::parse(
      "kda chunk-local bf16 hqk=1 hv=2 dk=8 dv=8 seqs=5,18 tail=2 chunk=16 intermediates=fp32 backend=reference");
  const Ran made(local);
  const check::TensorSet x(cases::parse(
      "kda chunk-local bf16 hqk=1 hv=2 dk=8 dv=8 seqs=5,18 tail=2 chunk=16 given=inverse,gate_sums want=w"));
  const check::StageTensor &inverse = *x.intermediate(Tensor::kInverse), &sums = *x.intermediate(Tensor::kGateSums);
  const check::StageTensor& wide = *made.tensors.intermediate(Tensor::kInverse);
  for (int64_t row = 0; row < 25; ++row) {
    const int64_t t = row < 5 ? row : row - 5;
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t i = 0; i < 16; ++i) {
        const double found = inverse.get(inverse.at(row, head, i));
        if (row >= 23 || i > t % 16) {
          EXPECT_TRUE(std::isnan(found)) << row << " " << i;
        } else {
          EXPECT_EQ(found, check::rounded_to(DR_BF16, wide.get(wide.at(row, head, i)))) << row << " " << i;
        }
      }
      for (int64_t i = 0; i < 8; ++i)
        EXPECT_EQ(std::isnan(sums.get(sums.at(row, head, i))), row >= 23) << "row " << row;
    }
  }
  EXPECT_EQ(inverse.get(inverse.at(7, 1, 2)), 1.0) << "the diagonal";
  EXPECT_EQ(
      check::check_case(cases::parse("kda state-pass hv=1 dk=8 seqs=90 gate=log:inf given=w,u,gate_sums")).message,
      "given: expected finite gate_sums, found '-inf' from the gates of kda state-pass fp32 hqk=1 hv=1 dk=8 dv=8 "
      "seqs=90 given=w,u,gate_sums gate=log:inf");
}

double distance(const check::StateTensor& a, const check::StateTensor& b, int64_t sequences, int64_t heads) {
  double most = 0.0;
  for (int64_t n = 0; n < sequences; ++n)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < a.dk; ++i)
        for (int64_t c = 0; c < a.dv; ++c)
          most = std::max(most, std::abs(a.get(a.at(n, h, i, c)) - b.get(b.at(n, h, i, c))));
  return most;
}

// One stage after the other in fp32, each with what the ones before it gave, is the forward of the same words.
TEST(Stages, TogetherAreTheForward) {
  if (!check::draws_stages()) GTEST_SKIP() << kWaits;
  for (const char* rule : {"kda", "gdn"}) {
    for (const char* words : {"seqs=70,0,33 chunk=16", "seqs=70,130 l2norm beta=twice gate=softplus scale=0.5 chunk=32",
                              "batch=2x65 gate=log:-0.1,0"}) {
      const std::string sizes = " hqk=1 hv=2 dk=16 dv=8 backend=reference " + std::string(words);
      cases::Case plain = cases::parse(std::string(rule) + " state-pass init final" + sizes);
      plain.op = DR_FORWARD;
      plain.stage = {};
      const Ran forward(plain);
      const Ran pass(cases::parse(std::string(rule) + " state-pass init final" + sizes));
      const Ran outputs(cases::parse(std::string(rule) + " outputs" + sizes));
      EXPECT_LT(distance(forward.tensors.final_state(), pass.tensors.final_state(), plain.num_seqs(), 2), 2e-5)
          << sizes;
      double most = 0.0;
      const check::TokenTensor &a = forward.tensors.o(), &b = outputs.tensors.o();
      for (int64_t i = 0; i < plain.tokens() * 16; ++i) most = std::max(most, std::abs(a.get(i) - b.get(i)));
      EXPECT_LT(most, 2e-5) << sizes;
    }
  }
}

// Summaries of 16 tokens each, folded from the initial state, give the final state of the forward over all of them.
TEST(Stages, SummariesFoldToTheForward) {
  if (!check::draws_stages()) GTEST_SKIP() << kWaits;
  for (const char* rule : {"kda", "gdn"}) {
    const std::string words = " hqk=1 hv=2 dk=16 dv=8 gate=log:-0.1,0 l2norm backend=reference init final";
    const Ran carry(cases::parse(std::string(rule) + " carry seqs=3,0,5" + words));
    const Ran forward(cases::parse(std::string(rule) + " seqs=48,0,80" + words));
    EXPECT_LT(distance(forward.tensors.final_state(), carry.tensors.final_state(), 3, 2), 2e-5) << rule;
  }
}

TEST(Stages, OfTheReferencePass) {
  if (!check::draws_stages()) GTEST_SKIP() << kWaits;
  for (const char* stage : {"chunk-local", "state-pass", "outputs", "summary", "carry"})
    for (const char* type : {"fp32", "bf16", "fp16"})
      expect_passed(std::string("kda ") + stage + " " + type + " hqk=1 hv=2 dk=16 dv=8 seqs=20,0,3 gate=log:-0.1,0 " +
                    "backend=reference");
}

}  // namespace
}  // namespace deltarelay::forward
