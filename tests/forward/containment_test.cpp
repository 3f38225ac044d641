// Bad numbers must stay in their sequence and head, and must not affect chunks before their own.
#include <cmath>
#include <limits>

#include "forward_case.h"

namespace deltarelay::forward {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// A case that ran on inputs with one changed number.
struct Spoilt {
  template <class Edit>
  Spoilt(const cases::Case& c, const Edit& edit) : tensors(c), run(c) {
    edit(tensors);
    run.execute(tensors.tensors());
    EXPECT_EQ(tensors.damage(), "");
    EXPECT_TRUE(run.workspace_intact());
  }
  check::TensorSet tensors;
  check::PlannedRun run;
};

void set_at(const check::TokenTensor& tensor, const Place& place, double value) {
  tensor.set(tensor.at(place.sequence, place.token, place.head, tensor.width / 2), value);
}

class Containment : public testing::TestWithParam<cases::Case> {};

TEST_P(Containment, BadInputStaysInItsSequenceAndHead) {
  const cases::Case c = on_backend(GetParam());
  SCOPED_TRACE(cases::print(c));
  const Ran clean(c);
  struct Bad {
    const char* name;
    const check::TokenTensor& (check::TensorSet::*tensor)() const;
    double value;
  };
  const Bad all[] = {{"q NaN", &check::TensorSet::q, kNan},       {"k NaN", &check::TensorSet::k, kNan},
                     {"v NaN", &check::TensorSet::v, kNan},       {"g NaN", &check::TensorSet::g, kNan},
                     {"beta NaN", &check::TensorSet::beta, kNan}, {"k Inf", &check::TensorSet::k, kInf},
                     {"v -Inf", &check::TensorSet::v, -kInf},     {"beta Inf", &check::TensorSet::beta, kInf}};
  const Place place{1, 1, 101};
  for (const Bad& bad : all) {
    const Spoilt dirty(c, [&](check::TensorSet& x) { set_at((x.*bad.tensor)(), place, bad.value); });
    expect_contained(dirty.tensors, clean.tensors, place, bad.name);
    const check::TokenTensor& o = dirty.tensors.o();
    if (std::isnan(bad.value))
      EXPECT_FALSE(std::isfinite(o.get(o.at(place.sequence, place.token, place.head, c.dv / 2))))
          << bad.name << " was not seen at all";
  }
  const Spoilt dirty(c,
                     [](check::TensorSet& x) { x.initial().set(x.initial().at(x.initial().slots[1], 1, 2, 3), kNan); });
  expect_contained(dirty.tensors, clean.tensors, {1, 1, -1}, "initial NaN");
}

TEST_P(Containment, GatesOutsideTheContractStayInTheirSequenceAndHead) {
  const cases::Case c = on_backend(GetParam());
  SCOPED_TRACE(cases::print(c));
  const Ran clean(c);
  const Place place{1, 1, 101};
  for (const double gate : gates_outside_the_contract(c)) {
    const Spoilt dirty(c, [&](check::TensorSet& x) { set_at(x.g(), place, gate); });
    expect_contained(dirty.tensors, clean.tensors, place, "gate " + std::to_string(gate));
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, Containment, testing::ValuesIn(cases_in(R"(
  whole:      kda fp32 hv=3 dk=32 dv=48 seqs=70,150,0,90 tail=3 init final segments=off checkpoints=every:32
  gdn:        gdn fp32 hv=3 dk=32 dv=48 seqs=70,150,0,90 tail=3 init final segments=off checkpoints=chunks
  cut:        kda fp32 hv=3 dk=32 dv=48 seqs=300,350,0,390 init final segments=3
  cut-gdn:    gdn bf16 hv=3 dk=32 dv=48 seqs=300,350,0,390 init final segments=3 checkpoints=every:64
  l2norm:     kda bf16 hv=3 dk=64 batch=3x150 init final l2norm
  bounded:    kda bf16 hv=3 dk=64 seqs=70,150,90 init final gate=bounded:-5 beta=logit l2norm
  softplus:   gdn fp32 hv=3 dk=64 seqs=70,150,90 init final gate=softplus beta=twice l2norm
  floor:      kda fp32 hv=3 dk=64 seqs=70,150,90 init final gate=linear floor=-5
  linear:     gdn fp32 hv=3 dk=64 seqs=70,150,90 init final gate=linear segments=off
  cut-linear: kda bf16 hv=3 dk=32 dv=48 seqs=300,350,0,390 init final gate=linear segments=3
  invariant:  gdn bf16 hv=3 dk=32 dv=48 seqs=70,350,0,390 init final invariant
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Reference, Containment, testing::ValuesIn(cases_in(R"(
  kda:    kda fp32 hv=3 dk=16 dv=24 seqs=70,150,0,90 tail=3 init final checkpoints=every:32 backend=reference
  gdn:    gdn bf16 hv=3 dk=16 dv=24 seqs=70,150,0,90 tail=3 init final checkpoints=chunks backend=reference
  linear: kda fp32 hv=3 dk=16 dv=24 batch=3x150 init final gate=linear backend=reference
  floor:  gdn fp32 hv=3 dk=16 dv=24 seqs=70,150,90 init final gate=linear floor=-5 backend=reference
)")),
                         name_of);

// Both CPU backends read a decay below 0 as 0.
TEST(GatesOutsideTheContract, NegativeDecaysForget) {
  for (const char* line : {"kda fp32 hv=2 dk=16 dv=24 seqs=70,150 final gate=linear",
                           "gdn fp32 hv=2 dk=16 dv=24 seqs=70,150 final gate=linear",
                           "gdn fp32 hv=2 dk=16 dv=24 seqs=70,150 final gate=linear floor=-5"}) {
    for (const std::string& backend : {backend_under_test(), std::string("reference")}) {
      const cases::Case c = cases::with_words(cases::parse(line), "backend=" + backend);
      const auto ran_with = [&](double gate) {
        const Spoilt ran(c, [&](check::TensorSet& x) { set_at(x.g(), {1, 1, 101}, gate); });
        return ran.tensors.output_bits();
      };
      EXPECT_TRUE(ran_with(-0.5) == ran_with(0.0)) << cases::print(c);
    }
  }
}

}  // namespace
}  // namespace deltarelay::forward
