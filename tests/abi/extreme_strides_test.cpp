// Strides beyond any memory, on axes that never step that far, give the results of contiguous tensors. Overflow is
// undefined behaviour, so these tests matter most in builds with the sanitizer that detects it.
#include <algorithm>
#include <bit>

#include "small_call.h"

namespace contract {
namespace {

constexpr int64_t kEnormous = int64_t{1} << 62;

std::vector<float> outputs_of(SmallCall& call, const char* backend) {
  dr_options options;
  dr_options_init(&options);
  options.backend = backend;
  const PlanOwner owner(call.problem, &options);
  if (owner.plan == nullptr) return {};
  size_t bytes = 0;
  EXPECT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  EXPECT_EQ(dr_execute(owner.plan, &call.tensors, call.workspace(bytes), bytes, nullptr), DR_SUCCESS)
      << dr_last_error();
  std::vector<float> all = call.o;
  all.insert(all.end(), call.state.begin(), call.state.end());
  return all;
}

void set_strides(dr_problem& problem, const dr_layout& strides) {
  problem.layout_q = problem.layout_k = problem.layout_v = problem.layout_o = strides;
  problem.layout_g = problem.layout_beta = strides;
}

TEST(ExtremeStrides, OfAxesWithOneIndex) {
  for (const char* backend : {"reference", "cpu"}) {
    std::vector<float> found[2];
    for (const bool enormous : {false, true}) {
      SmallCall call;
      call.problem.num_seqs = call.problem.num_tokens = call.problem.seq_len = 1;
      call.problem.seq_offsets = nullptr;
      call.problem.heads_qk = call.problem.heads_v = 1;
      if (enormous) {
        set_strides(call.problem, {kEnormous, kEnormous, kEnormous, 0, 0});
        call.problem.final.stride_head = call.problem.final.stride_slot = kEnormous;
      }
      found[enormous ? 1 : 0] = outputs_of(call, backend);
    }
    EXPECT_EQ(found[0], found[1]) << backend;
    EXPECT_NE(found[0].at(0), SmallCall::kPoison) << backend;
  }
}

// A tensor of 2^62 bytes has room for two tokens, and one exists. The address of the row after it must not be computed.
TEST(ExtremeStrides, OfTokensThatAreNotThere) {
  const int32_t offsets[2] = {0, 1};
  for (const char* backend : {"reference", "cpu"}) {
    for (const int32_t dtype : {DR_FP32, DR_BF16}) {
      std::vector<float> found[2];
      for (const bool enormous : {false, true}) {
        SmallCall call;
        for (std::vector<float>* tensor : {&call.q, &call.k, &call.v})
          std::fill(tensor->begin(), tensor->end(), std::bit_cast<float>(0x3e803e80u));  // 0.25 in both types
        call.problem.num_seqs = 1;
        call.problem.num_tokens = 2;
        call.problem.seq_offsets = offsets;
        call.problem.heads_qk = call.problem.heads_v = 1;
        call.problem.rule = DR_GDN;
        call.problem.dk = 32;  // wide enough for matrix instructions
        call.problem.dv = 4;
        call.problem.dtype = dtype;
        call.problem.dtype_o = call.problem.dtype_gate = call.problem.dtype_beta = DR_FP32;
        if (enormous) {
          call.problem.layout_q.token = call.problem.layout_k.token = call.problem.layout_v.token = kEnormous / 4;
          call.problem.layout_g.token = call.problem.layout_beta.token = kEnormous / 4;
        }
        found[enormous ? 1 : 0] = outputs_of(call, backend);
      }
      EXPECT_EQ(found[0], found[1]) << backend;
      EXPECT_GT(found[0].at(0), 0.0f) << backend;
    }
  }
}

}  // namespace
}  // namespace contract
