// The stages of the reference backend: each one against the chunk form, and all together against the token recurrence.
#include "kernels/reference/stages.h"
#include "problem/status.h"
#include "stage_call.h"

namespace deltarelay::test {
namespace {

using reference::Prepared;
using reference::Transition;

struct ChunkRow {
  int64_t sequence, first, count;
};

std::vector<ChunkRow> chunk_rows(const Problem& p) {
  std::vector<ChunkRow> rows;
  for (int64_t n = 0; n < p.num_seqs; ++n) {
    const int64_t start = p.batched() ? n * p.seq_len : p.offsets[static_cast<size_t>(n)];
    for (int64_t t = 0; t < p.length(n); t += p.chunks.chunk)
      rows.push_back({n, start + t, std::min<int64_t>(p.chunks.chunk, p.length(n) - t)});
  }
  return rows;
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const int32_t chunk : {16, 32, 64}) {
      for (const int32_t group : {1, 3}) {
        const int64_t c = chunk;
        all.push_back({.rule = rule,
                       .group = group,
                       .chunk = chunk,
                       .offsets = {0, 0, 5, 5 + c, 5 + c, 12 + 3 * c, 13 + 3 * c, 13 + 3 * c},
                       .num_tokens = 16 + 3 * c});
      }
    }
  }
  return all;
}

std::string name(const Shape& shape) {
  return std::string(shape.rule == DR_KDA ? "kda" : "gdn") + " chunk=" + std::to_string(shape.chunk) +
         " group=" + std::to_string(shape.group);
}

// What the tensors of a call say about one chunk of one head.
Prepared stored(const StageCall& x, const ChunkRow& chunk, int32_t head) {
  const int32_t heads = x.problem.heads_v;
  const int64_t first = chunk.first;
  const int64_t last = first + chunk.count;
  const auto rows = [&](Tensor tensor, int32_t width) { return x.rows(tensor, first, last, heads, head, width); };
  Prepared p;
  p.aqk = rows(Tensor::kAqk, x.chunks.chunk);
  p.inverse = rows(Tensor::kInverse, x.chunks.chunk);
  p.w = rows(Tensor::kW, x.problem.dk);
  p.u = rows(Tensor::kU, x.problem.dv);
  p.k_to_end = rows(Tensor::kKToEnd, x.problem.dk);
  p.q_from_start = rows(Tensor::kQFromStart, x.problem.dk);
  const Matrix sums = rows(Tensor::kGateSums, x.gates());
  p.gate_sum = Matrix(chunk.count, x.problem.dk);
  for (int64_t i = 0; i < chunk.count; ++i) {
    for (int32_t c = 0; c < x.problem.dk; ++c) p.gate_sum(i, c) = sums(i, x.gates() == 1 ? 0 : c);
  }
  for (int32_t c = 0; c < x.problem.dk; ++c) p.decay_chunk.push_back(std::exp(p.gate_sum(chunk.count - 1, c)));
  return p;
}

Transition summary(const StageCall& x, Tensor tensor, int64_t row, int32_t head) {
  const int32_t dk = x.problem.dk;
  const int32_t dv = x.problem.dv;
  Transition result{Matrix(dk, dk), Matrix(dk, dv)};
  const int64_t base = (row * x.problem.heads_v + head) * (dv + dk) * dk;
  for (int32_t i = 0; i < dk; ++i) {
    for (int32_t c = 0; c < dv; ++c) result.b(i, c) = x.at(tensor, base + c * dk + i);
    for (int32_t j = 0; j < dk; ++j) result.m(i, j) = x.at(tensor, base + (dv + j) * dk + i);
  }
  return result;
}

// The first `count` columns of a matrix.
Matrix columns(const Matrix& m, int64_t count) {
  Matrix result(m.rows(), count);
  for (int64_t i = 0; i < m.rows(); ++i) {
    for (int64_t j = 0; j < count; ++j) result(i, j) = m(i, j);
  }
  return result;
}

// Rows of a lower triangle [count, C] against a square, with zeros everywhere else.
double distance_of_lower(const Matrix& rows, const Matrix& square) {
  Matrix padded(rows.rows(), rows.columns());
  for (int64_t i = 0; i < square.rows(); ++i) {
    for (int64_t j = 0; j < square.columns(); ++j) padded(i, j) = square(i, j);
  }
  for (int64_t i = 0; i < rows.rows(); ++i) {
    for (int64_t j = i + 1; j < rows.columns(); ++j) EXPECT_EQ(rows(i, j), 0.0) << i << "," << j;
  }
  return distance(rows, padded);
}

Matrix times(double factor, Matrix m) {
  for (int64_t i = 0; i < m.rows(); ++i) {
    for (int64_t j = 0; j < m.columns(); ++j) m(i, j) *= factor;
  }
  return m;
}

TEST(ReferenceStages, ChunkLocalIsPrepare) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(name(shape));
    StageCall x(shape);
    x.run(DR_CHUNK_LOCAL, 0, kLocal);
    for (const ChunkRow& chunk : chunk_rows(x.resolved)) {
      for (int32_t head = 0; head < x.problem.heads_v; ++head) {
        const HeadTokens tokens = x.tokens(chunk.first, chunk.first + chunk.count, head);
        const Prepared expected = reference::prepare(tokens, 0, chunk.count);
        const Prepared found = stored(x, chunk, head);
        EXPECT_LT(distance(found.gate_sum, expected.gate_sum), kRounded);
        EXPECT_LT(distance_of_lower(found.aqk, expected.aqk), kRounded);
        EXPECT_LT(distance_of_lower(found.inverse, expected.inverse), kRounded);
        EXPECT_LT(distance(found.w, expected.w), kRounded);
        EXPECT_LT(distance(found.u, expected.u), kRounded);
        EXPECT_LT(distance(found.k_to_end, expected.k_to_end), kRounded);
        EXPECT_LT(distance(times(tokens.scale, found.q_from_start), expected.q_from_start), kRounded);
      }
    }
  }
}

TEST(ReferenceStages, StatePassAndOutputsAreEmit) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(name(shape));
    StageCall x(shape);
    x.use_initial(), x.use_final();
    x.run(DR_CHUNK_LOCAL, 0, kLocal);
    x.run(DR_STATE_PASS, kSolved | DR_K_TO_END | DR_GATE_SUMS, DR_STATES | DR_V_NEW);
    x.run(DR_OUTPUTS, DR_V_NEW | DR_STATES | DR_AQK | DR_Q_FROM_START, 0);
    const std::vector<ChunkRow> rows = chunk_rows(x.resolved);
    for (int32_t head = 0; head < x.problem.heads_v; ++head) {
      std::vector<Matrix> states;
      for (int64_t n = 0; n < x.problem.num_seqs; ++n)
        states.push_back(x.state(Tensor::kInitial, n, head, DR_STATE_VALUE_MAJOR));
      for (size_t row = 0; row < rows.size(); ++row) {
        const ChunkRow& chunk = rows[row];
        const int64_t last = chunk.first + chunk.count;
        const Matrix v_new = x.rows(Tensor::kVNew, chunk.first, last, x.problem.heads_v, head, x.problem.dv);
        const Matrix state = x.state(Tensor::kStates, static_cast<int64_t>(row), head, DR_STATE_VALUE_MAJOR);
        EXPECT_LT(distance(state, states[static_cast<size_t>(chunk.sequence)]), kRounded);
        // As outputs of scores that are the unit matrix, emit returns V_new.
        Prepared pass = stored(x, chunk, head);
        Prepared outputs = pass;
        pass.aqk = Matrix::identity(chunk.count);
        pass.q_from_start = Matrix(chunk.count, x.problem.dk);
        Matrix expected(chunk.count, x.problem.dv);
        reference::emit({&pass, 1}, states[static_cast<size_t>(chunk.sequence)], expected, 0);
        EXPECT_LT(distance(v_new, expected), kRounded);
        // And from the stored state, with W = 0 and the stored V_new in the place of U, it returns o.
        outputs.w = Matrix(chunk.count, x.problem.dk);
        outputs.u = v_new;
        outputs.aqk = columns(outputs.aqk, chunk.count);
        outputs.q_from_start = times(static_cast<double>(x.resolved.scale), outputs.q_from_start);
        Matrix entering = state;
        reference::emit({&outputs, 1}, entering, expected, 0);
        EXPECT_LT(distance(x.rows(Tensor::kO, chunk.first, last, x.problem.heads_v, head, x.problem.dv), expected),
                  kRounded);
      }
      for (int64_t n = 0; n < x.problem.num_seqs; ++n)
        EXPECT_LT(distance(x.state(Tensor::kFinal, n, head, DR_STATE_VALUE_MAJOR), states[static_cast<size_t>(n)]),
                  kRounded);
    }
  }
}

TEST(ReferenceStages, SummaryIsSummarize) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(name(shape));
    StageCall x(shape);
    x.run(DR_CHUNK_LOCAL, 0, kLocal);
    std::vector<Transition> expected;
    for (int64_t n = 0; n < x.problem.num_seqs; ++n) {
      for (int32_t head = 0; head < x.problem.heads_v; ++head) {
        std::vector<Prepared> chunks;
        for (const ChunkRow& chunk : chunk_rows(x.resolved)) {
          const HeadTokens tokens = x.tokens(chunk.first, chunk.first + chunk.count, head);
          if (chunk.sequence == n) chunks.push_back(reference::prepare(tokens, 0, chunk.count));
        }
        expected.push_back(reference::summarize(chunks));
        if (chunks.empty()) expected.back() = {Matrix::identity(x.problem.dk), Matrix(x.problem.dk, x.problem.dv)};
      }
    }
    for (const int32_t given : {0, kSolved, kSolved | DR_K_TO_END, kSolved | DR_K_TO_END | DR_GATE_SUMS}) {
      x.run(DR_SUMMARY, given, DR_SUMMARIES);
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto n = static_cast<int64_t>(i) / x.problem.heads_v;
        const Transition found = summary(x, Tensor::kSummaries, n, static_cast<int32_t>(i) % x.problem.heads_v);
        EXPECT_LT(distance(found.m, expected[i].m), given == 0 ? kRounded : kChained);
        EXPECT_LT(distance(found.b, expected[i].b), given == 0 ? kRounded : kChained);
      }
    }
  }
}

TEST(ReferenceStages, TogetherTheyAreTheForward) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(name(shape));
    StageCall x(shape);
    expect_forward(x);
  }
}

TEST(ReferenceStages, ActivationsAreThoseOfTheForward) {
  for (const Shape& shape : shapes()) {
    if (shape.group == 1) continue;
    SCOPED_TRACE(name(shape));
    StageCall x(shape, [](auto& random) { return 2.0 * uniform(random) - 3.0; });
    x.problem.l2norm = 1;
    x.problem.scale_given = 1;
    x.problem.scale = 0.7f;
    x.problem.gate_form = DR_GATE_RAW_SOFTPLUS;
    x.problem.beta_form = DR_BETA_TWICE_LOGIT;
    expect_forward(x);
    x.problem.beta_form = DR_BETA_LOGIT;
    if (shape.rule == DR_KDA) {
      x.problem.gate_form = DR_GATE_RAW_BOUNDED;
      x.problem.lower_bound = -1.0f;
      expect_forward(x);
    }
    StageCall linear(shape, uniform);
    linear.problem.gate_form = DR_GATE_LINEAR;
    linear.problem.gate_floor = -0.5f;
    expect_forward(linear);
  }
}

TEST(ReferenceStages, EveryTypeOfInput) {
  const Shape shape;
  StageCall x(shape);
  x.problem.dtype = DR_BF16;
  x.problem.dtype_gate = DR_FP16;
  x.problem.dtype_beta = DR_BF16;
  x.problem.dtype_o = DR_FP32;
  x.problem.initial.dtype = DR_FP16;
  x.chunks.dtype = DR_FP32;
  const auto normal = [](auto& random) { return std::normal_distribution<double>(0.0, 0.2)(random); };
  for (const Tensor tensor : {Tensor::kQ, Tensor::kK, Tensor::kV})
    x.fill(tensor, DType::kBf16, x.count(tensor), normal);
  x.fill(Tensor::kG, DType::kFp16, x.count(Tensor::kG), mild);
  x.fill(Tensor::kBeta, DType::kBf16, x.count(Tensor::kBeta), uniform);
  x.fill(Tensor::kInitial, DType::kFp16, x.count(Tensor::kInitial), normal);
  expect_forward(x);
}

TEST(ReferenceStages, IntermediatesAreRoundedWhereStored) {
  const Shape shape;
  const Tensor local[] = {Tensor::kAqk, Tensor::kInverse, Tensor::kW, Tensor::kU, Tensor::kKToEnd, Tensor::kQFromStart};
  StageCall x(shape);
  x.use_initial();
  x.run(DR_CHUNK_LOCAL, 0, kLocal);
  std::vector<std::vector<double>> exact;
  for (const Tensor tensor : local) exact.push_back(values(x, tensor));
  for (const auto& [type, ulp] : {std::pair{DR_BF16, 0x1p-8}, std::pair{DR_FP16, 0x1p-11}}) {
    x.chunks.dtype = type;
    x.run(DR_CHUNK_LOCAL, 0, kLocal);
    for (size_t i = 0; i < exact.size(); ++i) {
      const std::vector<double> found = values(x, local[i]);
      ASSERT_EQ(found.size(), exact[i].size());
      for (size_t j = 0; j < found.size(); ++j)
        ASSERT_LE(std::fabs(found[j] - exact[i][j]), 1.001 * ulp * std::fabs(exact[i][j]) + 0x1p-25) << i << "," << j;
    }
  }
}

TEST(ReferenceStages, LayoutAndTypeOfStates) {
  const Shape shape;
  StageCall x(shape);
  x.use_initial();
  x.run(DR_CHUNK_LOCAL, 0, kSolved);
  x.run(DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);
  const auto rows = static_cast<int64_t>(chunk_rows(x.resolved).size());
  x.run(DR_OUTPUTS, DR_V_NEW | DR_STATES, 0);
  const std::vector<double> o = values(x, Tensor::kO);
  const auto states = [&](int32_t layout) {
    std::vector<Matrix> all;
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t head = 0; head < x.problem.heads_v; ++head)
        all.push_back(x.state(Tensor::kStates, row, head, layout));
    }
    return all;
  };
  const std::vector<Matrix> expected = states(DR_STATE_VALUE_MAJOR);
  x.chunks.states_layout = DR_STATE_KEY_MAJOR;
  x.run(DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);
  const std::vector<Matrix> found = states(DR_STATE_KEY_MAJOR);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(distance(found[i], expected[i]), 0.0);
  x.run(DR_OUTPUTS, DR_V_NEW | DR_STATES, 0);
  EXPECT_EQ(values(x, Tensor::kO), o);
  x.chunks.dtype_states = DR_BF16;
  x.run(DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);
  const std::vector<Matrix> rounded = states(DR_STATE_KEY_MAJOR);
  for (size_t i = 0; i < found.size(); ++i) {
    for (size_t j = 0; j < found[i].data().size(); ++j)
      ASSERT_LE(std::fabs(rounded[i].data()[j] - expected[i].data()[j]), 0x1.01p-8 * std::fabs(expected[i].data()[j]));
  }
}

// A sequence of 61 tokens in pieces of 32, 16 and 13, an empty one, and one of 5 tokens in one piece.
struct Pieces {
  Shape whole{.offsets = {0, 61, 61, 66}, .num_tokens = 66};
  std::vector<int64_t> cuts{0, 32, 48, 61, 66, 66};
  std::vector<int64_t> chains{0, 3, 3, 4};
  // Row of the whole's states at the start of each piece, and its sequence.
  std::vector<int64_t> rows{0, 2, 3, 4};
};

TEST(ReferenceStages, CarryOfSummariesIsTheWhole) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    Pieces pieces;
    pieces.whole.rule = rule;
    pieces.whole.group = 3;
    StageCall x(pieces.whole);
    x.use_initial(), x.use_final();
    x.run(DR_CHUNK_LOCAL, 0, kSolved);
    x.run(DR_STATE_PASS, kSolved, DR_STATES);
    const auto state = [&](Tensor tensor, int64_t row, int32_t head) {
      return x.state(tensor, row, head, DR_STATE_VALUE_MAJOR);
    };
    const int32_t heads = x.problem.heads_v;
    std::vector<Matrix> states, finals;
    for (int32_t head = 0; head < heads; ++head) {
      for (const int64_t row : pieces.rows) states.push_back(state(Tensor::kStates, row, head));
      for (int64_t n = 0; n < 3; ++n) finals.push_back(state(Tensor::kFinal, n, head));
    }
    x.cut(pieces.cuts, 66);
    x.run(DR_SUMMARY, 0, DR_SUMMARIES);
    x.cut(pieces.chains, 5);
    x.run(DR_CARRY, DR_SUMMARIES, DR_STATES | DR_COMPOSED);
    for (int32_t head = 0; head < heads; ++head) {
      for (int64_t j = 0; j < 4; ++j)
        EXPECT_LT(distance(state(Tensor::kStates, j, head), states[static_cast<size_t>(head * 4 + j)]), kChained);
      EXPECT_EQ(distance(state(Tensor::kStates, 4, head), Matrix(x.problem.dk, x.problem.dv)), 0.0);
      for (int64_t n = 0; n < 3; ++n) {
        const Matrix& expected = finals[static_cast<size_t>(head * 3 + n)];
        EXPECT_LT(distance(state(Tensor::kFinal, n, head), expected), kChained);
        const Transition chain = summary(x, Tensor::kComposed, n, head);
        EXPECT_LT(distance(reference::carry(chain, state(Tensor::kInitial, n, head)), expected), kChained);
      }
      EXPECT_EQ(distance(state(Tensor::kFinal, 1, head), state(Tensor::kInitial, 1, head)), 0.0);
      const Transition empty = summary(x, Tensor::kComposed, 1, head);
      EXPECT_EQ(distance(empty.m, Matrix::identity(x.problem.dk)), 0.0);
      EXPECT_EQ(distance(empty.b, Matrix(x.problem.dk, x.problem.dv)), 0.0);
    }
  }
}

TEST(ReferenceStages, TwoSummariesComposeToThatOfBoth) {
  Pieces pieces;
  StageCall x(pieces.whole);
  x.cut(pieces.cuts, 66);
  x.run(DR_SUMMARY, 0, DR_SUMMARIES);
  x.cut({0, 2, 4}, 5);
  x.run(DR_CARRY, DR_SUMMARIES, DR_COMPOSED);
  x.cut({0, 48}, 66);
  x.run(DR_SUMMARY, 0, DR_SUMMARIES);
  for (int32_t head = 0; head < x.problem.heads_v; ++head) {
    const Transition found = summary(x, Tensor::kComposed, 0, head);
    const Transition expected = summary(x, Tensor::kSummaries, 0, head);
    EXPECT_LT(distance(found.m, expected.m), kChained);
    EXPECT_LT(distance(found.b, expected.b), kChained);
  }
}

TEST(ReferenceStages, CarryWithoutInitialStartsFromZero) {
  Pieces pieces;
  StageCall x(pieces.whole);
  x.use_final();
  x.cut(pieces.cuts, 66);
  x.run(DR_SUMMARY, 0, DR_SUMMARIES);
  x.cut(pieces.chains, 5);
  x.run(DR_CARRY, DR_SUMMARIES, 0);
  const Transition last = summary(x, Tensor::kSummaries, 3, 1);
  EXPECT_EQ(distance(x.state(Tensor::kFinal, 2, 1, DR_STATE_VALUE_MAJOR), last.b), 0.0);
  EXPECT_EQ(distance(x.state(Tensor::kFinal, 1, 1, DR_STATE_VALUE_MAJOR), Matrix(x.problem.dk, x.problem.dv)), 0.0);
}

TEST(ReferenceStages, RecomputedFromInverseAndSums) {
  for (const Shape& shape : shapes()) {
    for (const int32_t base_2 : {0, 1}) {
      SCOPED_TRACE(name(shape) + " base 2: " + std::to_string(base_2));
      StageCall x(shape);
      x.use_initial(), x.use_final();
      x.chunks.sums_base_2 = base_2;
      x.run(DR_CHUNK_LOCAL, 0, kLocal);
      compose_stages(x, false);
      x.run(DR_SUMMARY, 0, DR_SUMMARIES);
      const Tensor all[] = {Tensor::kAqk,  Tensor::kW,      Tensor::kU,     Tensor::kKToEnd, Tensor::kQFromStart,
                            Tensor::kVNew, Tensor::kStates, Tensor::kFinal, Tensor::kO,      Tensor::kSummaries};
      std::vector<std::vector<double>> expected;
      for (const Tensor tensor : all) expected.push_back(values(x, tensor));
      // The inverse of the same call reads the sums too.
      const std::vector<double> inverse = values(x, Tensor::kInverse);
      x.run(DR_CHUNK_LOCAL, DR_GATE_SUMS, DR_INVERSE);
      EXPECT_LT(distance(values(x, Tensor::kInverse), inverse), kChained);
      x.run(DR_CHUNK_LOCAL, DR_INVERSE | DR_GATE_SUMS, kLocal & ~(DR_INVERSE | DR_GATE_SUMS));
      x.run(DR_STATE_PASS, kSolved | DR_GATE_SUMS, DR_STATES | DR_V_NEW);
      x.run(DR_OUTPUTS, DR_V_NEW | DR_STATES | DR_GATE_SUMS, 0);
      x.run(DR_SUMMARY, kSolved | DR_GATE_SUMS, DR_SUMMARIES);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_LT(distance(values(x, all[i]), expected[i]), kChained) << entry_of(all[i]).name;
    }
  }
}

TEST(ReferenceStages, SumsInBase2) {
  const Shape shape;
  StageCall x(shape);
  x.run(DR_CHUNK_LOCAL, 0, DR_GATE_SUMS);
  std::vector<double> expected = values(x, Tensor::kGateSums);
  for (double& sum : expected) sum /= std::log(2.0);
  x.chunks.sums_base_2 = 1;
  x.run(DR_CHUNK_LOCAL, 0, DR_GATE_SUMS);
  EXPECT_LT(distance(values(x, Tensor::kGateSums), expected), kRounded);
}

}  // namespace
}  // namespace deltarelay::test
