#include <cmath>
#include <limits>
#include <vector>

#include "refusal.h"

namespace deltarelay::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(ProblemRules, DefaultsAreResolved) {
  Request request;
  request.dtype = DR_BF16;
  request.dtype_gate = DR_FP32;
  const Problem p = validate(request);
  EXPECT_EQ(p.rule, Rule::kKda);
  EXPECT_EQ(p.offsets, (std::vector<int64_t>{0, 5, 12, 12}));
  EXPECT_TRUE(p.lengths_known);
  EXPECT_FALSE(p.batched());
  EXPECT_EQ(p.length(0), 5);
  EXPECT_EQ(p.length(2), 0);
  EXPECT_EQ(p.num_tokens, 14);
  EXPECT_EQ(p.group(), 2);
  EXPECT_EQ(p.dtype, DType::kBf16);
  EXPECT_EQ(p.dtype_o, DType::kBf16);
  EXPECT_EQ(p.dtype_gate, DType::kFp32);
  EXPECT_EQ(p.dtype_beta, DType::kBf16);
  EXPECT_FLOAT_EQ(p.scale, 1.0f / std::sqrt(8.0f));
  EXPECT_EQ(p.alignment.q, 16);
  EXPECT_EQ(p.alignment.g, 16);
  EXPECT_EQ(p.alignment.beta, 2) << "nothing is asked of a slice of a projection";
  EXPECT_EQ(p.dtype_a_log, DType::kFp32);
  EXPECT_EQ(p.dtype_dt_bias, DType::kFp32);
  EXPECT_FALSE(p.initial.used() || p.final.used() || p.checkpoint.used());
}

TEST(ProblemRules, Rule) {
  for (const int32_t rule : {0, -1, 3, 17, 40, 50, 64}) {
    Request request;
    request.rule = rule;
    expect_refusal(request, "problem.rule", "DR_KDA (1) or DR_GDN (2)", std::to_string(rule));
  }
}

TEST(ProblemRules, HeadCounts) {
  Request request;
  request.heads_qk = 0;
  expect_refusal(request, "problem.heads_qk", "1 to 65536", "0");
  request.heads_qk = -2;
  expect_refusal(request, "problem.heads_qk", "1 to 65536", "-2");
  request.heads_qk = 4;
  request.heads_v = 0;
  expect_refusal(request, "problem.heads_v", "1 to 65536", "0");
  request.heads_v = kMaxHeads + 4;
  expect_refusal(request, "problem.heads_v", "1 to 65536", "65540");
  request.heads_v = 6;
  expect_refusal(request, "problem.heads_v", "head count that is a multiple of heads_qk = 4", "6");
  request.heads_v = 2;  // fewer value heads than query heads
  expect_refusal(request, "problem.heads_v", "head count that is a multiple of heads_qk = 4", "2");
}

TEST(ProblemRules, Widths) {
  for (const int32_t width : {0, -1, 257, 512}) {
    Request request;
    request.dk = width;
    expect_refusal(request, "problem.dk", "1 to 256", std::to_string(width));
    request.dk = 256;
    request.dv = 512;
    EXPECT_NO_THROW(validate(request));
  }
  for (const int32_t width : {0, -1, 513}) {
    Request request;
    request.dv = width;
    expect_refusal(request, "problem.dv", "1 to 512", std::to_string(width));
  }
}

TEST(ProblemRules, SequenceCount) {
  Request request;
  request.num_seqs = 0;
  expect_refusal(request, "problem.num_seqs", "1 to 65536", "0");
  request.num_seqs = -3;
  expect_refusal(request, "problem.num_seqs", "1 to 65536", "-3");
  request.num_seqs = kMaxSequences + 1;
  expect_refusal(request, "problem.num_seqs", "1 to 65536", "65537");
}

TEST(ProblemRules, PackedOffsets) {
  const auto refuse = [](std::vector<int32_t> offsets, const char* argument, const char* expected, const char* found) {
    Request request;
    request.num_seqs = static_cast<int64_t>(offsets.size()) - 1;
    request.seq_offsets = offsets.data();
    expect_refusal(request, argument, expected, found);
    // The same values as int64.
    const std::vector<int64_t> wide(offsets.begin(), offsets.end());
    request.seq_offsets = wide.data();
    request.seq_offsets_dtype = DR_INT64;
    expect_refusal(request, argument, expected, found);
  };
  refuse({1, 5}, "problem.seq_offsets[0]", "0", "1");
  refuse({-1, 5}, "problem.seq_offsets[0]", "0", "-1");
  refuse({0, -4}, "problem.seq_offsets[1]", "at least 0", "-4");
  refuse({0, 9, 8, 14}, "problem.seq_offsets[2]", "at least 9", "8");
  refuse({0, 9, 15}, "problem.seq_offsets[2]", "at most num_tokens = 14", "15");
}

TEST(ProblemRules, PackedOffsetsAreAligned) {
  alignas(8) unsigned char bytes[40] = {};
  Request request;
  request.num_tokens = 0;
  request.seq_offsets = bytes + 2;
  expect_refusal(request, "problem.seq_offsets", "multiple of 4 bytes", "multiple of 2");
  request.seq_offsets = bytes + 4;
  EXPECT_NO_THROW(validate(request));
  request.seq_offsets_dtype = DR_INT64;
  expect_refusal(request, "problem.seq_offsets", "multiple of 8 bytes", "multiple of 4");
}

TEST(ProblemRules, PackedTokens) {
  Request request;
  request.num_tokens = -1;
  expect_refusal(request, "problem.num_tokens", "0 or more rows", "-1");
  const int32_t empty[4] = {0, 0, 0, 0};
  request.seq_offsets = empty;
  request.num_tokens = 0;
  EXPECT_NO_THROW(validate(request));
}

TEST(ProblemRules, OffsetTypes) {
  for (const int32_t dtype : {int32_t{DR_FP32}, int32_t{DR_BF16}, 6, -1}) {
    Request request;
    request.seq_offsets_dtype = dtype;
    expect_refusal(request, "problem.seq_offsets_dtype", "DR_INT32 (4) or DR_INT64 (5)", std::to_string(dtype));
  }
}

TEST(ProblemRules, LengthsLater) {
  Request request;
  request.seq_offsets = nullptr;
  const Problem p = validate(request);
  EXPECT_FALSE(p.lengths_known);
  EXPECT_TRUE(p.offsets.empty());
}

TEST(ProblemRules, Batched) {
  Request request;
  request.make_batched();
  const Problem p = validate(request);
  EXPECT_TRUE(p.batched());
  EXPECT_TRUE(p.lengths_known);
  EXPECT_EQ(p.num_tokens, 21);
  EXPECT_EQ(p.length(1), 7);
  request.num_tokens = 21;
  EXPECT_NO_THROW(validate(request));
  request.num_tokens = 20;
  expect_refusal(request, "problem.num_tokens", "0 or num_seqs * seq_len = 21", "20");
  request.num_tokens = 0;
  request.seq_offsets = request.offsets;
  expect_refusal(request, "problem.seq_offsets", "NULL in a batched problem", "a pointer");
  request.seq_offsets = nullptr;
  request.seq_len = -7;
  expect_refusal(request, "problem.seq_len", "positive length", "-7");
}

TEST(ProblemRules, LongestSequence) {
  Request request;
  request.make_batched();
  request.num_seqs = 1;
  request.heads_qk = request.heads_v = 1;
  request.seq_len = kMaxSequenceTokens;
  EXPECT_NO_THROW(validate(request));
  request.seq_len += 1;
  expect_refusal(request, "problem.seq_len", "to 34359738352", "34359738353");

  const int64_t offsets[2] = {0, kMaxSequenceTokens + 1};
  request.seq_len = 0;
  request.num_tokens = offsets[1];
  request.seq_offsets = offsets;
  request.seq_offsets_dtype = DR_INT64;
  expect_refusal(request, "problem.seq_offsets[1]", "at most 34359738352 tokens", "34359738353");
}

TEST(ProblemRules, ProductsThatOverflow) {
  Request request;
  request.make_batched();
  request.seq_len = kMaxSequenceTokens;
  for (const int64_t num_seqs : {int64_t{4096}, kMaxSequences}) {
    request.num_seqs = num_seqs;
    expect_refusal(request, "problem.num_tokens", "at most 2^44", "and 4 heads");
  }
}

TEST(ProblemRules, DataTypes) {
  int32_t dr_problem::*const fields[] = {&dr_problem::dtype, &dr_problem::dtype_o, &dr_problem::dtype_gate,
                                         &dr_problem::dtype_beta};
  const char* const names[] = {"problem.dtype", "problem.dtype_o", "problem.dtype_gate", "problem.dtype_beta"};
  for (size_t i = 0; i < 4; ++i) {
    for (const int32_t dtype : {int32_t{DR_INT32}, int32_t{DR_INT64}, 6, -1}) {
      Request request;
      request.*fields[i] = dtype;
      expect_refusal(request, names[i], "DR_FP32 (1), DR_BF16 (2) or DR_FP16 (3)", std::to_string(dtype));
    }
  }
}

TEST(ProblemRules, AlignmentOfEachTensor) {
  Request request;
  request.initial.use = DR_STATE_ROWS;
  request.initial.layout = DR_STATE_VALUE_MAJOR;
  const std::pair<int32_t*, std::string> promises[] = {{&request.layout_q.alignment_bytes, "problem.layout_q"},
                                                       {&request.layout_k.alignment_bytes, "problem.layout_k"},
                                                       {&request.layout_v.alignment_bytes, "problem.layout_v"},
                                                       {&request.layout_o.alignment_bytes, "problem.layout_o"},
                                                       {&request.layout_g.alignment_bytes, "problem.layout_g"},
                                                       {&request.layout_beta.alignment_bytes, "problem.layout_beta"},
                                                       {&request.initial.alignment_bytes, "problem.initial"}};
  for (const auto& [bytes, name] : promises) {
    for (const int32_t wrong : {-16, 3, 24, 100, std::numeric_limits<int32_t>::min()}) {
      *bytes = wrong;
      expect_refusal(request, name + ".alignment_bytes", "power of two", std::to_string(wrong));
    }
    *bytes = 0;
  }
  request.layout_k.alignment_bytes = 64;
  request.layout_g.alignment_bytes = 1;
  request.initial.alignment_bytes = 4;
  const Problem p = validate(request);
  EXPECT_EQ(p.alignment.q, 16);
  EXPECT_EQ(p.alignment.k, 64);
  EXPECT_EQ(p.alignment.g, 1);
  EXPECT_EQ(p.initial.alignment, 4);
  request.rule = DR_GDN;
  request.layout_g.alignment_bytes = 0;
  request.dtype_gate = DR_FP32;
  EXPECT_EQ(validate(request).alignment.g, 4);
}

TEST(ProblemRules, OperationsToComeAreNamed) {
  Request request;
  for (const int32_t op : {-1, 9, 100}) {
    request.op = op;
    expect_refusal(request, "problem.op", "DR_FORWARD (0) to DR_COMMIT (8)", std::to_string(op));
  }
  for (const int32_t op : {DR_BACKWARD, DR_STEP, DR_COMMIT}) {
    request.op = op;
    try {
      validate(request);
      FAIL() << op << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.status(), DR_UNSUPPORTED);
      EXPECT_NE(std::string(error.what()).find(name_of_op(op)), std::string::npos) << error.what();
    }
  }
  request.op = DR_FORWARD;
  request.backward = reinterpret_cast<const dr_backward*>(&request);
  expect_refusal(request, "problem.backward", "NULL with the operation forward", "a pointer");
  request.backward = nullptr;
  request.reserved = 3;
  expect_refusal(request, "problem.reserved", "0", "3");
  request.reserved = 0;
  request.layout_v.reserved = 4;
  expect_refusal(request, "problem.layout_v.reserved", "0", "4");
}

TEST(ProblemRules, Forms) {
  Request request;
  request.gate_form = 4;
  expect_refusal(request, "problem.gate_form", "DR_GATE_RAW_BOUNDED (3)", "4");
  request.gate_form = -1;
  expect_refusal(request, "problem.gate_form", "DR_GATE_LOG (0)", "-1");
  request.gate_form = DR_GATE_LOG;
  request.beta_form = 3;
  expect_refusal(request, "problem.beta_form", "DR_BETA_TWICE_LOGIT (2)", "3");
}

TEST(ProblemRules, Scale) {
  Request request;
  request.scale_given = 1;
  for (const float scale : {kNan, kInf, -kInf}) {
    request.scale = scale;
    expect_refusal(request, "problem.scale", "a finite number", std::isnan(scale) ? "nan" : "inf");
  }
  request.scale = -2.0f;
  EXPECT_EQ(validate(request).scale, -2.0f);
  request.scale = 0.0f;
  EXPECT_EQ(validate(request).scale, 0.0f);
  request.scale_given = 0;
  for (const float scale : {0.5f, kNan}) {
    request.scale = scale;
    expect_refusal(request, "problem.scale", "0 while scale_given is 0", std::isnan(scale) ? "nan" : "0.5");
  }
}

TEST(ProblemRules, LowerBound) {
  Request request;
  request.gate_form = DR_GATE_RAW_BOUNDED;
  for (const float bound : {0.0f, 5.0f, -kInf, kNan}) {
    request.lower_bound = bound;
    expect_refusal(request, "problem.lower_bound", "a finite number below 0", std::to_string(bound));
  }
  request.lower_bound = -5.0f;
  EXPECT_EQ(validate(request).least_gate(), -5.0f);
  for (const int32_t form : {DR_GATE_LOG, DR_GATE_LINEAR, DR_GATE_RAW_SOFTPLUS}) {
    request.gate_form = form;
    expect_refusal(request, "problem.lower_bound", "0 with the ", "-5");
  }
}

TEST(ProblemRules, GateFloor) {
  for (const int32_t form : {DR_GATE_LOG, DR_GATE_LINEAR}) {
    Request request;
    request.gate_form = form;
    EXPECT_EQ(validate(request).least_gate(), -kInf);
    for (const float floor : {1.0f, -kInf, kNan}) {
      request.gate_floor = floor;
      expect_refusal(request, "problem.gate_floor", "a finite number below 0", std::to_string(floor));
    }
    request.gate_floor = -5.0f;
    EXPECT_EQ(validate(request).least_gate(), -5.0f);
  }
  Request request;
  request.gate_floor = -5.0f;
  request.gate_form = DR_GATE_RAW_SOFTPLUS;
  expect_refusal(request, "problem.gate_floor", "0 with the raw softplus gate", "-5");
  request.gate_form = DR_GATE_RAW_BOUNDED;
  request.lower_bound = -4.0f;
  expect_refusal(request, "problem.gate_floor", "0 with the raw bounded gate", "-5");
  request.gate_floor = 0.0f;
  request.gate_form = DR_GATE_RAW_SOFTPLUS;
  request.lower_bound = 0.0f;
  EXPECT_EQ(validate(request).least_gate(), -kInf);
}

}  // namespace
}  // namespace deltarelay::test
