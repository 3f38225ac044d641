// Tests of the checks themselves: each must detect its kind of error.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "check/generate.h"
#include "check/portable_math.h"
#include "check/tolerance.h"
#include "forward_case.h"

namespace deltarelay::forward {
namespace {

TEST(Measure, WorstBlockAndWholeTensor) {
  check::Measure measure(2, 1);
  // Block 0: rms 2, error 0.02. Block 1: rms 1, error 0.1.
  for (int i = 0; i < 4; ++i) {
    measure.add(0, 0, 2.02, 2.0);
    measure.add(1, 0, 0.9, 1.0);
  }
  const check::TensorError error = measure.finish("o", 0.11);
  EXPECT_NEAR(error.worst, 0.1, 1e-12);
  EXPECT_EQ(error.worst_sequence, 1);
  EXPECT_NEAR(error.whole, std::sqrt((0.02 * 0.02 + 0.1 * 0.1) / (4.0 + 1.0)), 1e-12);
  EXPECT_TRUE(error.passes());
  EXPECT_FALSE(measure.finish("o", 0.09).passes());
}

TEST(Measure, SilentBlocksAreHeldToOnePercentOfTheTensor) {
  check::Measure measure(2, 1);
  for (int i = 0; i < 64; ++i) {
    measure.add(0, 0, 1.0, 1.0);
    measure.add(1, 0, 1e-4, 0.0);
  }
  // The whole tensor has rms sqrt(1/2).
  EXPECT_NEAR(measure.finish("o", 1.0).worst, 1e-4 / (0.01 * std::sqrt(0.5)), 1e-12);
}

TEST(Measure, BlocksOfAFewNumbersAreHeldToATenthOfTheTensor) {
  check::Measure measure(2, 1);
  for (int i = 0; i < 4; ++i) {
    measure.add(0, 0, 1.0, 1.0);
    measure.add(1, 0, 1e-4, 0.0);
  }
  EXPECT_NEAR(measure.finish("o", 1.0).worst, 1e-4 / (0.1 * std::sqrt(0.5)), 1e-12);
}

TEST(Measure, ANumberAloneIsHeldToTheTensor) {
  check::Measure measure(2, 1);
  measure.add(0, 0, 1.0, 1.0);
  measure.add(1, 0, 1e-4, 0.0);
  EXPECT_NEAR(measure.finish("o", 1.0).worst, 1e-4 / std::sqrt(0.5), 1e-12);
  check::Measure alone(1, 1);
  alone.add(0, 0, 0.99, 1.0);
  EXPECT_NEAR(alone.finish("o", 1.0).worst, 0.01, 1e-12);
}

// The exact result, once stored, passes for any number of elements. The next number of the type does not.
TEST(Measure, StoringIsAllowedWhatItCosts) {
  const double halfway = 1.0 + 1.0 / 256;  // between two numbers of bf16
  const double stored = check::rounded_to(DR_BF16, halfway);
  EXPECT_EQ(stored, 1.0);
  const auto passes = [&](double out) {
    check::Measure measure(1, 1);
    measure.add(0, 0, out, halfway, stored);
    return measure.finish("o", 2e-5 + 2e-3, 2e-3).passes();
  };
  EXPECT_TRUE(passes(stored));
  EXPECT_FALSE(passes(1.0 - 1.0 / 256));
  EXPECT_FALSE(passes(1.0 + 4.0 / 256));
}

TEST(Measure, NumbersThatAreNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  check::Measure measure(1, 1);
  measure.add(0, 0, 5.0, nan);  // any value passes if the reference is not finite
  measure.add(0, 0, 1.0, 1.0);
  EXPECT_TRUE(measure.finish("o", 0.0).passes());
  measure.add(0, 0, nan, 1.0);
  EXPECT_FALSE(measure.finish("o", 1e9).passes());
  check::Measure unmeasured(1, 1);
  unmeasured.add_unmeasured(std::numeric_limits<double>::infinity());
  EXPECT_FALSE(unmeasured.finish("o", 1e9).passes());
}

TEST(Measure, AZeroReferenceAllowsOnlyZero) {
  check::Measure zero(1, 1);
  zero.add(0, 0, 0.0, 0.0);
  EXPECT_TRUE(zero.finish("o", 0.0).passes());
  zero.add(0, 0, 1e-30, 0.0);
  EXPECT_FALSE(zero.finish("o", 1e9).passes());
}

TEST(Tolerance, IsTheTableOfTheDocument) {
  const auto output = [](const char* line) { return check::tolerance_of_output(cases::parse(line)); };
  EXPECT_EQ(output("kda fp32 seqs=1"), 2e-5);
  EXPECT_EQ(output("kda bf16 seqs=1"), 5e-3);
  EXPECT_EQ(output("kda fp16 seqs=1"), 2e-3);
  EXPECT_EQ(output("kda fp32 seqs=1 gate=log:zero keys=correlated"), 5e-5);
  EXPECT_EQ(output("kda bf16 seqs=1 gate=log:zero keys=correlated"), 5e-2);
  EXPECT_EQ(output("kda fp16 seqs=1 gate=log:zero keys=correlated"), 5e-3);
  EXPECT_EQ(output("kda fp32 o=bf16 seqs=1"), 2e-5 + 2e-3);
  EXPECT_EQ(output("kda bf16 o=fp32 seqs=1"), 5e-3);
  const cases::Case c = cases::parse("gdn fp32 seqs=1 final=bf16");
  EXPECT_EQ(check::tolerance_of_state(c, DR_FP32), 2e-5);
  EXPECT_EQ(check::tolerance_of_state(c, DR_BF16), 2e-5 + 2e-3);
  EXPECT_EQ(check::tolerance_of_state(c, DR_FP16), 2e-5 + 3e-4);
}

// The generator follows the formulas in generate.h, which are repeated here. So it gives the same numbers on every
// machine.
TEST(Generator, IsTheDocumentedFunction) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  EXPECT_EQ(check::random_bits(7, check::Stream::kV, 1000),
            mix(mix(7 + (uint64_t{3} << 56)) + 1000 * 0x9e3779b97f4a7c15u));
  EXPECT_EQ(check::uniform(~uint64_t{0}), 1.0 - 0x1p-24);
  EXPECT_EQ(check::uniform(0), 0.0);
  EXPECT_NEAR(check::normal(~uint64_t{0}), 131070.0 * std::sqrt(3.0) / 65536.0, 1e-12);
  double sum = 0.0;
  double squares = 0.0;
  constexpr int kCount = 100000;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double value = check::normal(check::random_bits(1, check::Stream::kQ, i));
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
}

TEST(Generator, ProfilesAreWhatTheyAreCalled) {
  const auto gates = [](const char* line) {
    const cases::Case c = cases::parse(std::string("kda fp32 hv=2 dk=64 seqs=100 ") + line);
    const check::Values values(c);
    std::vector<double> all;
    for (int64_t i = 0; i < 12800; ++i) all.push_back(values.gate(i));
    return all;
  };
  const auto count = [](const std::vector<double>& all, double value) {
    return std::count(all.begin(), all.end(), value);
  };
  EXPECT_EQ(count(gates("gate=log:zero"), 0.0), 12800);
  EXPECT_NEAR(static_cast<double>(count(gates("gate=log:extreme"), -1000.0)), 0.9 * 12800, 200);
  EXPECT_NEAR(static_cast<double>(count(gates("gate=log:inf"), -std::numeric_limits<double>::infinity())), 0.1 * 12800,
              200);
  EXPECT_NEAR(static_cast<double>(count(gates("gate=linear:inf"), 0.0)), 0.1 * 12800, 200);
  double sum = 0.0;
  for (const double g : gates("gate=log:mean:-7")) sum += g;
  EXPECT_NEAR(sum / 12800, -7.0, 0.3);
  for (const double g : gates("gate=log:-5,-2")) ASSERT_TRUE(g >= -5.0 && g <= -2.0);

  const cases::Case correlated = cases::parse("kda fp32 hv=1 dk=64 seqs=3 keys=correlated");
  const check::TensorSet x(correlated);
  double length = 0.0;
  for (int64_t i = 0; i < 64; ++i) length += std::pow(x.k().get(x.k().at(0, 2, 0, i)), 2);
  EXPECT_NEAR(length, 1.0, 1e-5);
}

// exp, log and softplus of the generator against those of the C++ library.
TEST(Generator, PortableFunctionsAreThoseOfTheLibrary) {
  for (double x = -40.0; x <= 40.0; x += 0.0371) {
    EXPECT_NEAR(check::portable_softplus(x) / std::log1p(std::exp(x)), 1.0, 1e-13) << x;
    if (x <= 0) EXPECT_NEAR(check::portable_exp(x) / std::exp(x), 1.0, 1e-13) << x;
  }
  for (double x = 1e-6; x <= 16.0; x *= 1.31) EXPECT_NEAR(check::portable_log(x), std::log(x), 1e-14) << x;
  for (double y = 1e-3; y <= 0.1; y *= 1.07)
    EXPECT_NEAR(std::log1p(std::exp(check::inverse_softplus(std::log(y)))) / y, 1.0, 1e-12) << y;
}

// How a case's gates act on channels: the tokens after which a channel has decayed by e, and the mean log-decay.
struct Memory {
  std::vector<double> tokens;  // of every channel, increasing
  double mean = 0.0;

  double at(double share) const { return tokens[static_cast<size_t>(share * static_cast<double>(tokens.size() - 1))]; }
  double share_over(double limit) const {
    const auto over = std::count_if(tokens.begin(), tokens.end(), [&](double t) { return t > limit; });
    return static_cast<double>(over) / static_cast<double>(tokens.size());
  }
};

Memory memory_of(const std::string& line) {
  constexpr int64_t kTokens = 256;
  const cases::Case c = cases::parse(line + " seqs=256");
  const check::Values values(c);
  const int64_t width = c.rule == DR_KDA ? c.dk : 1;
  const int64_t channels = c.heads_v * width;
  Memory memory;
  for (int64_t channel = 0; channel < channels; ++channel) {
    double sum = 0.0;
    const double a = c.raw_gate() ? std::exp(values.a_log(channel / width)) : 0.0;
    const double bias = c.raw_gate() ? values.dt_bias(channel) : 0.0;
    for (int64_t t = 0; t < kTokens; ++t) {
      double g = values.gate(t * channels + channel) + bias;
      if (c.gate_form == DR_GATE_RAW_SOFTPLUS) g = -a * std::log1p(std::exp(g));
      if (c.gate_form == DR_GATE_RAW_BOUNDED) g = c.lower_bound / (1.0 + std::exp(-a * g));
      sum += g;
    }
    memory.tokens.push_back(-kTokens / sum);
    memory.mean += sum / static_cast<double>(kTokens * channels);
  }
  std::sort(memory.tokens.begin(), memory.tokens.end());
  return memory;
}

// Expected figures of FLA's layers with exactly normal raw values. Values here are limited to 3.5 standard deviations.
TEST(Generator, InitialGatesAreThoseOfAFreshLayer) {
  const Memory softplus = memory_of("kda bf16 hv=64 dk=128 gate=init");
  EXPECT_NEAR(softplus.mean, -0.281, 0.03);
  EXPECT_NEAR(softplus.at(0.5), 8.9, 1.0);
  EXPECT_NEAR(softplus.share_over(64), 0.09, 0.02);
  EXPECT_EQ(softplus.share_over(1000), 0.0);
  const Memory bounded = memory_of("kda bf16 hv=64 dk=128 gate=bounded:-5:init");
  EXPECT_NEAR(bounded.mean, -0.155, 0.01);
  EXPECT_NEAR(bounded.at(0.5), 12.5, 1.0);
  EXPECT_NEAR(bounded.share_over(64), 0.14, 0.02);
  EXPECT_EQ(bounded.share_over(1000), 0.0);
  const Memory gdn = memory_of("gdn bf16 hv=8192 gate=init");
  EXPECT_NEAR(gdn.mean, -0.27, 0.02);
  EXPECT_NEAR(gdn.at(0.5), 10.1, 1.0);
  EXPECT_NEAR(gdn.share_over(64), 0.13, 0.02);
  EXPECT_NEAR(gdn.share_over(1000), 0.008, 0.004);
  EXPECT_LT(memory_of("kda bf16 hv=64 dk=128 gate=init:2").mean, 2 * softplus.mean) << "wider raw values forget faster";
}

TEST(Generator, MixedGatesHoldThreeHeadsOfTen) {
  for (const char* rule : {"kda", "gdn"}) {
    const Memory mixed = memory_of(std::string(rule) + " bf16 hv=20 dk=32 gate=mixed");
    EXPECT_NEAR(mixed.share_over(1000), 0.3, 1e-12) << rule;
    EXPECT_NEAR(mixed.tokens.front(), 1.0, 1e-12) << rule;
    EXPECT_NEAR(mixed.tokens.back(), 1e4, 1e-6) << rule;
  }
}

TEST(GuardedBuffer, NoticesWritesOnBothSidesAndIsAlignedNoMoreThanAsked) {
  for (const int64_t alignment : {2, 4, 16, 64, 256}) {
    check::GuardedBuffer buffer(100, alignment);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % static_cast<uintptr_t>(2 * alignment),
              static_cast<uintptr_t>(alignment));
    EXPECT_TRUE(check::is_poison(buffer.data(), 100));
    EXPECT_TRUE(buffer.intact());
    std::byte* const places[] = {buffer.data() - 1, buffer.data() + 100, buffer.data() - 512, buffer.data() + 611};
    for (std::byte* place : places) {
      const std::byte before = *place;
      *place = std::byte{0};
      EXPECT_FALSE(buffer.intact());
      *place = before;
      EXPECT_TRUE(buffer.intact());
    }
  }
}

TEST(TensorSet, FindsWhatARunMustNotDo) {
  const cases::Case c = cases::parse(
      "kda fp32 hv=2 dk=8 seqs=5,6,7,8 tail=2 strides=padded init=slots:null=1 final=slots:pad=4:negative "
      "checkpoints=every:16");
  check::TensorSet x(c);
  EXPECT_NE(x.damage().find("row 26"), std::string::npos)
      << "poison left in the rows behind the last offset: " << x.damage();
  const auto zero_tail = [&] {
    for (int64_t t = 26; t < 28; ++t) {
      for (int64_t i = 0; i < 16; ++i) x.o().set(t * x.o().strides.token + i, 0.0);
    }
  };
  zero_tail();
  EXPECT_EQ(x.damage(), "");
  x.o().set(3 * x.o().strides.token + 16, 1.0);
  EXPECT_NE(x.damage().find("gap behind row 3"), std::string::npos) << x.damage();
  x.poison();
  zero_tail();
  const check::StateTensor& pool = x.final_state();
  std::vector<bool> named(static_cast<size_t>(pool.num_slots), false);
  for (const int64_t slot : pool.slots) {
    if (slot >= 0) named[static_cast<size_t>(slot)] = true;
  }
  for (int64_t slot = 0; slot < pool.num_slots; ++slot) {
    pool.set(pool.at(slot, 0, 0, 0), 1.0);
    EXPECT_EQ(x.damage().empty(), named[static_cast<size_t>(slot)]) << "slot " << slot << ": " << x.damage();
    x.poison();
    zero_tail();
    pool.set(slot * pool.stride_slot + 2 * 64 + 1, 1.0);  // in the gap of four
    EXPECT_FALSE(x.damage().empty()) << "gap behind slot " << slot;
    x.poison();
    zero_tail();
  }
}

TEST(TensorSet, StatesInPlaceKeepBothPromises) {
  for (const char* align : {"initial:32", "final:2", "initial:2,final:32"}) {
    const cases::Case c = cases::parse(std::string("kda fp32 hv=1 dk=8 seqs=20 init final=in-place align=") + align);
    const check::Outcome outcome = check::check_case(c);
    EXPECT_TRUE(outcome.passed()) << check::report(c, outcome);
  }
}

TEST(TensorSet, HoldsNanWhereTheLibraryMustNotLook) {
  const cases::Case c = cases::parse("kda bf16 hv=2 dk=8 seqs=5,6,7,8 tail=2 init=slots:null=1:negative mask");
  const check::TensorSet x(c);
  EXPECT_TRUE(std::isnan(x.q().get(26 * x.q().strides.token)));
  EXPECT_TRUE(std::isfinite(x.q().get(25 * x.q().strides.token)));
  int64_t finite = 0;
  for (int64_t slot = 0; slot < x.initial().num_slots; ++slot) {
    finite += std::isfinite(x.initial().get(x.initial().at(slot, 1, 7, 7))) ? 1 : 0;
  }
  EXPECT_EQ(finite, 2) << "of four sequences one is null and masked, one is negative";
}

TEST(Compare, FindsOneWrongBlockOfMany) {
  const cases::Case c =
      cases::parse("kda fp32 hv=3 dk=16 seqs=40,30,20 final=key checkpoints=every:16 backend=reference");
  Ran ran(c);
  const check::Reference reference = check::run_reference(ran.tensors);
  for (const check::TensorError& error : check::compare(ran.tensors, reference))
    EXPECT_TRUE(error.passes()) << error.tensor;
  const check::TokenTensor& o = ran.tensors.o();
  const int64_t at = o.at(1, 7, 2, 3);
  const double before = o.get(at);
  o.set(at, before + 0.1);
  std::vector<check::TensorError> errors = check::compare(ran.tensors, reference);
  EXPECT_FALSE(errors[0].passes());
  EXPECT_EQ(errors[0].worst_sequence, 1);
  EXPECT_EQ(errors[0].worst_head, 2);
  o.set(at, std::numeric_limits<double>::quiet_NaN());
  errors = check::compare(ran.tensors, reference);
  EXPECT_EQ(errors[0].not_finite, 1);
  o.set(at, before);
  const check::StateTensor& state = ran.tensors.final_state();
  state.set(state.at(2, 1, 4, 5), 3.0);
  errors = check::compare(ran.tensors, reference);
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_TRUE(errors[0].passes());
  EXPECT_FALSE(errors[1].passes());
  EXPECT_EQ(errors[1].worst_sequence, 2);
  EXPECT_TRUE(errors[2].passes());
}

TEST(CheckCase, TellsTheKindsOfNoApart) {
  EXPECT_EQ(check::check_case(cases::parse("kda fp32 hv=1 dk=16 seqs=20 backend=reference")).verdict,
            check::Verdict::kPassed);
  EXPECT_EQ(check::check_case(cases::parse("kda fp32 hv=1 dk=16 seqs=20 backend=reference math=tf32")).verdict,
            check::Verdict::kDeclined);
  const check::Outcome invalid = check::check_case(cases::parse("kda fp32 hqk=2 hv=3 dk=16 seqs=20"));
  EXPECT_EQ(invalid.verdict, check::Verdict::kInvalid);
  EXPECT_NE(invalid.message.find("head count"), std::string::npos) << invalid.message;
}

TEST(CheckCase, LongCasesAreMeasuredOnSeededColumns) {
  const cases::Case small = cases::parse("kda fp32 hv=1 dk=16 seqs=64k");
  EXPECT_TRUE(check::sampled_columns(small).empty());
  cases::Case large = cases::parse("kda fp32 hv=2 dk=16 dv=100 seqs=64k seed=3");
  const std::vector<int32_t> columns = check::sampled_columns(large);
  ASSERT_EQ(columns.size(), 8u);
  for (size_t i = 1; i < columns.size(); ++i) EXPECT_LT(columns[i - 1], columns[i]);
  EXPECT_GE(columns.front(), 0);
  EXPECT_LT(columns.back(), 100);
  large.seed = 4;
  EXPECT_NE(check::sampled_columns(large), columns);
}

TEST(CheckCase, ShortSequencesAreMeasuredOnMoreColumns) {
  const auto columns = [](const char* words) {
    const cases::Case c = cases::parse(std::string("kda fp32 dk=128 ") + words);
    const std::vector<int32_t> chosen = check::sampled_columns(c);
    const int32_t count = check::measured_columns(c);
    EXPECT_EQ(chosen.empty() ? c.dv : static_cast<int32_t>(chosen.size()), count) << words;
    EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end(), std::greater_equal<>()), chosen.end()) << words;
    return count;
  };
  EXPECT_EQ(columns("hv=1 seqs=64k"), 128) << "small enough for all";
  EXPECT_EQ(columns("hv=2 seqs=64k"), 8);
  EXPECT_EQ(columns("hv=2 seqs=64k,128"), 8) << "128 x 8 numbers";
  EXPECT_EQ(columns("hv=2 seqs=64k,127"), 9);
  EXPECT_EQ(columns("hv=2 seqs=64k,0,64,0"), 16) << "an empty sequence has no block";
  EXPECT_EQ(columns("hv=2 batch=2kx32"), 32);
  EXPECT_EQ(columns("hv=32 seqs=3x2050"), 128) << "342 columns are wanted";
  EXPECT_EQ(columns("hv=32 seqs=3x2050 dv=16"), 16);
  EXPECT_EQ(columns("hv=32 seqs=3x2050 dv=4"), 4);
  EXPECT_EQ(columns("hv=64 seqs=64k,1"), 127) << "what the reference can do in time";
  EXPECT_EQ(columns("hv=64 seqs=128k,1"), 63);
  EXPECT_EQ(columns("hv=64 seqs=4096k,1"), 8) << "never less";
  EXPECT_EQ(columns("hv=64 seqs=128k,32"), 32) << "no more than is wanted";
}

}  // namespace
}  // namespace deltarelay::forward
