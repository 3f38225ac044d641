#include <limits>

#include "refusal.h"

namespace deltarelay::test {
namespace {

constexpr int64_t kHuge = int64_t{1} << 61;

struct Field {
  const char* name;
  dr_layout dr_problem::*strides;
  int64_t heads, width;
};

// For a KDA problem with HQK = 2, HV = 4, DK = 8, DV = 6.
const Field kFields[] = {
    {"problem.layout_q", &dr_problem::layout_q, 2, 8}, {"problem.layout_k", &dr_problem::layout_k, 2, 8},
    {"problem.layout_v", &dr_problem::layout_v, 4, 6}, {"problem.layout_o", &dr_problem::layout_o, 4, 6},
    {"problem.layout_g", &dr_problem::layout_g, 4, 8}, {"problem.layout_beta", &dr_problem::layout_beta, 4, 1},
};

TEST(StrideRules, DefaultsAreContiguous) {
  Request request;
  Problem p = validate(request);
  EXPECT_EQ(p.q.head, 8);
  EXPECT_EQ(p.q.token, 16);
  EXPECT_EQ(p.v.head, 6);
  EXPECT_EQ(p.v.token, 24);
  EXPECT_EQ(p.g.token, 32);
  EXPECT_EQ(p.beta.head, 1);
  EXPECT_EQ(p.beta.token, 4);
  request.rule = DR_GDN;
  p = validate(request);
  EXPECT_EQ(p.g.head, 1);
  EXPECT_EQ(p.g.token, 4);
  request.make_batched();
  p = validate(request);
  EXPECT_EQ(p.q.sequence, 7 * 16);
  EXPECT_EQ(p.beta.sequence, 7 * 4);
}

TEST(StrideRules, DefaultsFollowTheStridesInside) {
  Request request;
  request.make_batched();
  request.layout_q.head = 10;
  EXPECT_EQ(validate(request).q.token, 20);
  EXPECT_EQ(validate(request).q.sequence, 140);
  request.layout_q.token = 50;
  EXPECT_EQ(validate(request).q.sequence, 350);
}

TEST(StrideRules, NegativeIsRefused) {
  for (const Field& field : kFields) {
    Request request;
    request.make_batched();
    (request.*field.strides).token = -1;
    expect_refusal(request, std::string(field.name) + ".token", "0 (contiguous) or a positive number", "-1");
    request.*field.strides = {0, -2, 0, 0, 0};
    expect_refusal(request, std::string(field.name) + ".head", "0 (contiguous) or a positive number", "-2");
    request.*field.strides = {0, 0, -3, 0, 0};
    expect_refusal(request, std::string(field.name) + ".sequence", "0 (contiguous) or a positive number", "-3");
  }
}

TEST(StrideRules, OverlapIsRefused) {
  for (const Field& field : kFields) {
    const int64_t row = field.heads * field.width;
    Request request;
    request.make_batched();
    if (field.width > 1) {
      (request.*field.strides).head = field.width - 1;
      expect_refusal(request, std::string(field.name) + ".head", "at least " + std::to_string(field.width),
                     std::to_string(field.width - 1));
    }
    request.*field.strides = {row - 1, 0, 0, 0, 0};
    expect_refusal(request, std::string(field.name) + ".token", "at least " + std::to_string(row),
                   std::to_string(row - 1));
    request.*field.strides = {0, 0, 7 * row - 1, 0, 0};
    expect_refusal(request, std::string(field.name) + ".sequence", "at least " + std::to_string(7 * row),
                   std::to_string(7 * row - 1));
  }
}

TEST(StrideRules, PackedProblemsHaveNoSequenceStride) {
  for (const Field& field : kFields) {
    Request request;
    (request.*field.strides).sequence = 1000;
    expect_refusal(request, std::string(field.name) + ".sequence", "0 in a packed problem", "1000");
  }
}

TEST(StrideRules, ViewsAreAccepted) {
  Request request;
  // q, k and v side by side in one row of 16 + 16 + 24 elements.
  request.layout_q.token = request.layout_k.token = request.layout_v.token = 56;
  EXPECT_EQ(validate(request).v.token, 56);
  // Heads outside tokens.
  request.layout_o.token = 6;
  request.layout_o.head = 14 * 6;
  EXPECT_EQ(validate(request).o.head, 84);
  request.layout_o.head = 14 * 6 - 1;
  expect_refusal(request, "problem.layout_o.head", "at least 84", "83");
}

TEST(StrideRules, AnAxisOfOneIndexIsFree) {
  Request request;
  const int32_t offsets[2] = {0, 1};
  request.num_seqs = 1;
  request.num_tokens = 1;
  request.seq_offsets = offsets;
  request.heads_qk = request.heads_v = 1;
  request.layout_q = {1, 1, 0, 0, 0};
  EXPECT_NO_THROW(validate(request));
  request.layout_q = {std::numeric_limits<int64_t>::max(), 0, 0, 0, 0};
  EXPECT_NO_THROW(validate(request));
}

// The stride of such an axis is replaced by one that cannot overflow when kernels multiply it.
TEST(StrideRules, AnAxisOfOneIndexIsContiguousInside) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  Request request;
  request.make_batched();
  request.num_seqs = 1;
  request.num_tokens = request.seq_len = 1;
  request.heads_qk = request.heads_v = 1;
  for (const Field& field : kFields) request.*field.strides = {most, most, most, 0, 0};
  request.initial.use = request.final.use = DR_STATE_ROWS;
  request.initial.layout = request.final.layout = DR_STATE_KEY_MAJOR;
  request.final.stride_head = request.final.stride_slot = most;
  const Problem p = validate(request);
  const struct {
    const Strides& strides;
    int64_t width;
  } tensors[] = {{p.q, 8}, {p.k, 8}, {p.v, 6}, {p.o, 6}, {p.g, 8}, {p.beta, 1}};
  for (const auto& [strides, width] : tensors) {
    EXPECT_EQ(strides.head, width);
    EXPECT_EQ(strides.token, width);
    EXPECT_EQ(strides.sequence, width);
  }
  EXPECT_EQ(p.final.stride_head, p.initial.stride_head);
  EXPECT_EQ(p.final.stride_slot, p.initial.stride_slot);
}

// Defaults of outer axes still follow the given stride: rows of one token each, 1000 elements apart.
TEST(StrideRules, DefaultsFollowTheGivenStrideOfOneIndex) {
  Request request;
  request.make_batched();
  request.num_tokens = request.num_seqs;
  request.seq_len = 1;
  request.layout_q.token = 1000;
  EXPECT_EQ(validate(request).q.sequence, 1000);
  EXPECT_EQ(validate(request).q.token, 16);
}

TEST(StrideRules, LargeStridesAreAccepted) {
  Request request;
  request.layout_v.token = int64_t{1} << 40;  // few tokens over a sparse mapping
  EXPECT_EQ(validate(request).v.token, int64_t{1} << 40);
}

TEST(StrideRules, OverflowIsRefused) {
  for (const Field& field : kFields) {
    Request request;
    request.make_batched();
    (request.*field.strides).token = kHuge;
    (request.*field.strides).sequence = std::numeric_limits<int64_t>::max();  // given, so that its default cannot fail
    expect_refusal(request, std::string(field.name) + ".token", "at most 2^63 - 1 bytes", "7 steps of");
    request.*field.strides = {0, kHuge, 0, 0, 0};  // the default of token is 2 or 4 times this
    EXPECT_THROW(validate(request), Error);
    request.*field.strides = {kHuge, 0, 0, 0, 0};
    expect_refusal(request, std::string(field.name) + ".sequence", "at most 2^63 - 1 bytes", "an extent of 7 times");
    request.*field.strides = {0, 0, (int64_t{1} << 61) - 4096, 0, 0};  // elements fit, bytes do not
    expect_refusal(request, field.name, "at most 2^63 - 1 bytes", "elements of 4 bytes");
  }
}

}  // namespace
}  // namespace deltarelay::test
