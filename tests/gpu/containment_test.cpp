// Bad numbers stay in their sequence and head. Bad lists are clamped and reported.
#include <array>
#include <cmath>
#include <limits>

#include "gpu_case.h"

namespace deltarelay::on_gpu {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

void set_at(const check::TokenTensor& tensor, const forward::Place& place, double value) {
  tensor.set(tensor.at(place.sequence, place.token, place.head, tensor.width / 2), value);
}

// One bad number in one tensor of sequence 1, head 1 must not change a bit of any other (sequence, head), nor of any
// token before its chunk.
using Containment = EachCase;

TEST_P(Containment, BadInputStaysInItsSequenceAndHead) {
  const cases::Case c = forced(GetParam());
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
  const forward::Place place{1, 1, 101};
  for (const Bad& bad : all) {
    Ran dirty(c, [&](check::TensorSet& x) { set_at((x.*bad.tensor)(), place, bad.value); });
    expect_undamaged(dirty);
    forward::expect_contained(dirty.host, clean.host, place, bad.name);
    const double o = dirty.host.o().get(dirty.host.o().at(place.sequence, place.token, place.head, c.dv / 2));
    if (std::isnan(bad.value)) EXPECT_FALSE(std::isfinite(o)) << bad.name << " was not seen at all";
  }
  Ran dirty(c, [](check::TensorSet& x) { x.initial().set(x.initial().at(x.initial().slots[1], 1, 2, 3), kNan); });
  expect_undamaged(dirty);
  forward::expect_contained(dirty.host, clean.host, {1, 1, -1}, "initial NaN");
}

TEST_P(Containment, GatesOutsideTheContractStayInTheirSequenceAndHead) {
  const cases::Case c = forced(GetParam());
  const Ran clean(c);
  const forward::Place place{1, 1, 101};
  for (const double gate : forward::gates_outside_the_contract(c)) {
    Ran dirty(c, [&](check::TensorSet& x) { set_at(x.g(), place, gate); });
    expect_undamaged(dirty);
    forward::expect_contained(dirty.host, clean.host, place, "gate " + std::to_string(gate));
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, Containment, testing::ValuesIn(cases_in(R"(
  kda:      kda bf16 hv=3 seqs=70,150,0,90 tail=3 init final segments=off checkpoints=every:32
  gdn:      gdn bf16 hv=3 seqs=70,150,0,90 tail=3 init final segments=off checkpoints=chunks
  cut:      kda bf16 hv=3 seqs=300,350,0,390 init final segments=3
  cut-gdn:  gdn bf16 hv=3 seqs=300,350,0,390 init final segments=3
  l2norm:   kda fp16 hv=3 batch=3x150 init final l2norm
  bounded:  kda bf16 hv=3 seqs=70,150,90 init final gate=bounded:-5 beta=logit l2norm
  softplus: gdn bf16 hv=3 seqs=70,150,90 init final gate=softplus beta=twice l2norm
  linear:   kda bf16 hv=3 seqs=70,150,90 init final gate=linear floor=-5
  linear-gdn: gdn bf16 hv=3 seqs=70,150,90 init final gate=linear
)")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Portable, Containment, testing::ValuesIn(cases_in(R"(
  kda:      kda bf16 hv=3 dk=60 dv=100 seqs=70,150,0,90 tail=3 init final segments=off backend=cuda-sm80
  gdn:      gdn fp16 hv=3 dk=60 dv=100 seqs=70,150,0,90 tail=3 init final segments=off backend=cuda-sm80
  fp32:     kda fp32 hv=3 dk=64 seqs=70,150,0,90 tail=3 init final l2norm backend=cuda-sm80
  fp32-gdn: gdn fp32 hv=3 dk=64 batch=3x150 init final l2norm backend=cuda-sm80
  cut:      kda bf16 hv=3 dk=96 seqs=300,350,0,390 init final segments=3 backend=cuda-sm80
  cut-gdn:  gdn bf16 hv=3 dk=96 seqs=300,350,0,390 init final segments=3 backend=cuda-sm80
  bounded:  kda bf16 hv=3 dk=64 seqs=70,150,90 init final gate=bounded:-5 beta=logit l2norm backend=cuda-sm80
  linear:   gdn fp32 hv=3 dk=64 seqs=70,150,90 init final gate=linear backend=cuda-sm80
)")),
                         name_of);

// TensorSet fills these with NaN: rows behind the last offset, gaps between rows, slots without an index, and masked
// states. Here a whole neighbouring sequence is NaN too, including the tokens next to the boundary.
using Neighbours = OnGpu;

TEST_F(Neighbours, NanDoesNotCrossASeam) {
  for (const char* line :
       {"kda bf16 hv=2 seqs=33,97,65 tail=40 strides=padded init=slots:null=0:negative mask final "
        "gate=bounded:-5 beta=logit l2norm",
        "gdn bf16 hqk=1 hv=2 seqs=33,97,65 tail=40 strides=padded init=slots:null=0:negative mask final "
        "l2norm",
        "kda fp32 hv=2 dk=60 dv=36 seqs=33,97,65 tail=40 strides=padded init=slots:null=0:negative mask final "
        "backend=cuda-sm80",
        "gdn bf16 hqk=1 hv=2 dk=60 dv=36 seqs=33,97,65 tail=40 strides=padded init=slots:null=0:negative mask final "
        "l2norm backend=cuda-sm80"}) {
    const cases::Case c = forced(line);
    SCOPED_TRACE(cases::print(c));
    const Ran clean(c);
    Ran dirty(c, [](check::TensorSet& x) {
      for (const check::TokenTensor* tensor : {&x.q(), &x.k(), &x.v(), &x.g(), &x.beta()})
        for (int64_t t = 0; t < 97; ++t)
          for (int64_t head = 0; head < tensor->heads; ++head)
            for (int64_t i = 0; i < tensor->width; ++i) tensor->set(tensor->at(1, t, head, i), kNan);
    });
    expect_undamaged(dirty);
    for (const int64_t n : {0, 2})
      for (int64_t head = 0; head < 2; ++head)
        EXPECT_TRUE(block_of(dirty.host, n, head) == block_of(clean.host, n, head)) << n << ", " << head;
  }
}

// Lists that only the device can read. An entry outside its bounds is clamped and reported, and nothing is written
// outside.
class Reports : public OnGpu {
 protected:
  // Runs with `bytes` at device address `list` and returns the report word.
  static uint32_t report_of(Ran& ran, const void* list, const void* bytes, int64_t count) {
    const gpu::Memory word(sizeof(uint32_t));
    gpu::fill(word.data(), 0xff, word.bytes());
    if (list != nullptr) gpu::upload(const_cast<void*>(list), bytes, count);
    dr_tensors tensors = ran.device.tensors();
    tensors.report = reinterpret_cast<uint32_t*>(word.data());
    ran.device.poison();
    ran.run.execute(tensors, ran.stream);
    ran.stream.synchronize();
    uint32_t report = 0;
    gpu::download(&report, word.data(), sizeof report);
    return report;
  }
  // Checks the canaries of everything that is written. The list itself was changed on purpose.
  static void expect_inside(Ran& ran) {
    EXPECT_EQ(ran.device.damaged_canaries(), "");
    EXPECT_TRUE(ran.run.workspace_intact());
  }
};

TEST_F(Reports, NothingWhenAllIsWell) {
  for (const char* rule : {"kda", "gdn"}) {
    Ran ran(forced(std::string(rule) + " bf16 hv=2 seqs=100,50,30 lengths=execute init=slots final=slots l2norm"));
    EXPECT_EQ(report_of(ran, nullptr, nullptr, 0), 0u) << rule;
  }
}

TEST_F(Reports, OffsetsOutsideTheirBounds) {
  const std::vector<std::vector<int32_t>> lists = {
      {0, 100, 90, 180}, {0, 100, 1 << 30, 180}, {-5, 100, 150, 180}, {0, 100, 150, 4000}, {7, 100, 150, 180}};
  for (const char* rule : {"kda", "gdn"}) {
    for (const std::vector<int32_t>& offsets : lists) {
      Ran ran(forced(std::string(rule) + " bf16 hv=2 seqs=100,50,30 lengths=execute init final l2norm"));
      const uint32_t report = report_of(ran, ran.device.tensors().seq_offsets, offsets.data(), 16);
      EXPECT_NE(report & DR_REPORT_OFFSETS, 0u) << rule << ", offsets " << testing::PrintToString(offsets);
      expect_inside(ran);
    }
  }
}

// Truncated carry: was a transition dropped that was not 0?
TEST_F(Reports, DroppedHistory) {
  for (const char* rule : {"kda bf16 variant=prepared", "gdn bf16 variant=prepared", "gdn bf16 variant=fused",
                           "kda fp32 dk=60 dv=100 backend=cuda-sm80", "gdn bf16 dk=128 backend=cuda-sm80"}) {
    const std::string line = std::string(rule) + " hv=2 seqs=2000 init final beta=logit l2norm segments=4";
    auto dropped = [&](const char* words) {
      Ran ran(forced(line + words));
      return (report_of(ran, nullptr, nullptr, 0) & DR_REPORT_DROPPED) != 0;
    };
    EXPECT_TRUE(dropped(" gate=log:-0.2,0 carry=truncated")) << rule;
    EXPECT_FALSE(dropped(" gate=log:-0.2,0")) << rule << ": an exact carry";
    EXPECT_FALSE(dropped(" gate=log:-0.01,0 carry=truncated")) << rule << ": nothing is small";
    EXPECT_FALSE(dropped(" gate=log:-1000,-500 carry=truncated")) << rule << ": all of it is 0 after a token";
  }
}

TEST_F(Reports, SlotsOutsideThePool) {
  for (const char* rule : {"kda bf16", "gdn bf16", "kda fp32 backend=cuda-sm80", "gdn fp32 backend=cuda-sm80"}) {
    const cases::Case c = forced(std::string(rule) + " hv=2 seqs=100,50,30 init=slots final=slots l2norm");
    Ran reads(c);
    const int32_t far[] = {0, 1 << 29, 2};
    EXPECT_NE(report_of(reads, reads.device.tensors().initial_index, far, sizeof far) & DR_REPORT_SLOTS, 0u) << rule;
    expect_inside(reads);
    Ran writes(c);
    const int32_t near[] = {99, 1, 2};
    EXPECT_NE(report_of(writes, writes.device.tensors().final_index, near, sizeof near) & DR_REPORT_SLOTS, 0u) << rule;
    expect_inside(writes);
  }
}

// Slots that only the device can read: one is written twice, or read by a sequence other than its writer.
TEST_F(Reports, AliasedSlots) {
  for (const char* rule : {"kda bf16", "gdn bf16", "kda fp32 backend=cuda-sm80", "gdn fp32 backend=cuda-sm80"}) {
    const std::string line = std::string(rule) + " hv=2 seqs=100,50,30 l2norm";
    const int32_t apart[] = {2, 0, 1}, twice[] = {2, 0, 2}, null[] = {2, -1, -1};
    {
      Ran ran(forced(line + " init=slots final=slots"));
      const void* const list = ran.device.tensors().final_index;
      EXPECT_EQ(report_of(ran, list, apart, sizeof apart), 0u) << line;
      EXPECT_EQ(report_of(ran, list, twice, sizeof twice), uint32_t{DR_REPORT_ALIASES}) << line;
      EXPECT_EQ(report_of(ran, list, null, sizeof null), 0u) << line;
      expect_inside(ran);
    }
    {
      Ran ran(forced(line + " init=slots final=in-place"));
      EXPECT_EQ(report_of(ran, nullptr, nullptr, 0), 0u) << line;
      gpu::upload(const_cast<void*>(ran.device.tensors().initial_index), apart, sizeof apart);
      const int32_t turned[] = {0, 1, 2};
      EXPECT_EQ(report_of(ran, ran.device.tensors().final_index, apart, sizeof apart), 0u) << line;
      EXPECT_EQ(report_of(ran, ran.device.tensors().final_index, turned, sizeof turned), uint32_t{DR_REPORT_ALIASES})
          << line;
      expect_inside(ran);
    }
    {
      Ran ran(forced(line + " checkpoints=every:16 checkpoint-state=slots"));
      const int32_t once_more[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 3};
      EXPECT_EQ(report_of(ran, ran.device.tensors().checkpoint_index, once_more, sizeof once_more),
                uint32_t{DR_REPORT_ALIASES})
          << line;
      expect_inside(ran);
    }
  }
}

// Checkpoints that the walk stores in the pool, and those it stores in the workspace, by slot or by number.
TEST_F(Reports, CheckpointsOutsideThePoolOrTheirSequence) {
  for (const char* rule : {"kda bf16", "gdn bf16", "kda fp32 backend=cuda-sm80", "gdn fp32 backend=cuda-sm80"}) {
    for (const char* state : {"slots", "slots:bf16", "slots:bf16:pool=10"}) {
      const std::string line = std::string(rule) + " hv=2 seqs=100,50,30 l2norm checkpoint-state=" + state;
      Ran ran(forced(line + " checkpoints=every:16"));
      EXPECT_EQ(report_of(ran, nullptr, nullptr, 0), 0u) << line;
      const int32_t far[] = {0, 1, 2, 1 << 29, 4, 5, -1, 7, 8, 9};
      EXPECT_EQ(report_of(ran, ran.device.tensors().checkpoint_index, far, sizeof far), uint32_t{DR_REPORT_SLOTS})
          << line;
      expect_inside(ran);
      // 40 is no multiple of 16. 48 comes after 32 but before states already stored: the kernel must not go back for
      // it.
      for (const std::array<int32_t, 6>& bad :
           {std::array{16, 40, 64, 16, 80, 16}, std::array{96, 32, 48, 48, 16, 16}}) {
        Ran listed(forced(line + " checkpoints=list:16,48,64"));
        EXPECT_EQ(report_of(listed, listed.device.tensors().checkpoint_positions, bad.data(), sizeof bad),
                  uint32_t{DR_REPORT_CHECKPOINTS})
            << line;
        expect_inside(listed);
      }
    }
  }
}

}  // namespace
}  // namespace deltarelay::on_gpu
