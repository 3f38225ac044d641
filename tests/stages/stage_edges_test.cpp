// The stages of the reference backend at the edges of their contract: what is zero, what is not read, gates that
// forget, pools of states, and results that depend on nothing but the values.
#include "problem/status.h"
#include "stage_call.h"

namespace deltarelay::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Tensor kTokenTensors[] = {Tensor::kAqk,    Tensor::kInverse,    Tensor::kW,        Tensor::kU,
                                    Tensor::kKToEnd, Tensor::kQFromStart, Tensor::kGateSums, Tensor::kVNew};

// Runs every stage. Returns the bytes of all that they write.
std::vector<std::vector<std::byte>> run_all(StageCall& x) {
  x.use_initial(), x.use_final();
  x.run(DR_CHUNK_LOCAL, 0, kLocal);
  x.run(DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);
  std::vector<std::vector<std::byte>> all{x.bytes(Tensor::kStates), x.bytes(Tensor::kFinal)};
  for (const Tensor tensor : kTokenTensors) all.push_back(x.bytes(tensor));
  for (const int32_t given : {0, DR_AQK | DR_Q_FROM_START}) {
    x.run(DR_OUTPUTS, DR_V_NEW | DR_STATES | given, 0);
    all.push_back(x.bytes(Tensor::kO));
  }
  for (const int32_t given : {0, kSolved | DR_K_TO_END | DR_GATE_SUMS}) {
    x.run(DR_SUMMARY, given, DR_SUMMARIES);
    all.push_back(x.bytes(Tensor::kSummaries));
  }
  return all;
}

TEST(StageEdges, RowsOfNoSequenceAreZero) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    Shape shape;
    shape.rule = rule;
    StageCall x(shape);
    const int64_t end = shape.offsets.back();
    const int64_t width_o = x.problem.heads_v * x.problem.dv;
    const int64_t stride_o = width_o + 8;
    x.problem.layout_o.token = stride_o;
    run_all(x);
    for (const Tensor tensor : kTokenTensors) {
      const int64_t width = x.count(tensor) / shape.num_tokens;
      for (int64_t i = 0; i < shape.num_tokens * width; ++i) {
        ASSERT_FALSE(std::isnan(x.at(tensor, i))) << entry_of(tensor).name;
        if (i >= end * width) ASSERT_EQ(x.at(tensor, i), 0.0) << entry_of(tensor).name;
      }
    }
    for (int64_t i = 0; i < shape.num_tokens * stride_o; ++i) {
      const double o = x.at(Tensor::kO, i);
      ASSERT_EQ(std::isnan(o), i % stride_o >= width_o) << i;  // gaps between the rows are not written
      if (i >= end * stride_o && !std::isnan(o)) ASSERT_EQ(o, 0.0);
    }
  }
}

TEST(StageEdges, NothingElseIsRead) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const int32_t chunk : {16, 64}) {
      Shape shape;
      shape.rule = rule;
      shape.chunk = chunk;
      StageCall x(shape);
      const int64_t end = shape.offsets.back();
      // NaN in rows of no sequence.
      const auto poison = [&](Tensor tensor) {
        const int64_t width = x.count(tensor) / shape.num_tokens;
        for (int64_t i = end * width; i < shape.num_tokens * width; ++i) x.set(tensor, i, NAN);
      };
      // NaN above the diagonal as well, and in columns that a chunk does not have.
      const auto poison_square = [&](Tensor tensor) {
        poison(tensor);
        const int32_t heads = x.problem.heads_v;
        for (size_t n = 1; n < shape.offsets.size(); ++n) {
          for (int64_t t = shape.offsets[n - 1]; t < shape.offsets[n]; ++t) {
            for (int64_t row = t * heads; row < (t + 1) * heads; ++row) {
              for (int64_t j = (t - shape.offsets[n - 1]) % chunk + 1; j < chunk; ++j)
                x.set(tensor, row * chunk + j, NAN);
            }
          }
        }
      };
      const auto expected = run_all(x);
      for (const Tensor tensor : {Tensor::kQ, Tensor::kK, Tensor::kV, Tensor::kG, Tensor::kBeta}) poison(tensor);
      EXPECT_EQ(run_all(x), expected);
      const std::vector<double> w = values(x, Tensor::kW);
      const std::vector<double> u = values(x, Tensor::kU);
      poison_square(Tensor::kInverse);
      x.run(DR_CHUNK_LOCAL, DR_INVERSE, kSolved);
      EXPECT_LT(distance(values(x, Tensor::kW), w), kChained);
      EXPECT_LT(distance(values(x, Tensor::kU), u), kChained);
      const std::vector<double> o = values(x, Tensor::kO);
      poison_square(Tensor::kAqk);
      poison(Tensor::kVNew), poison(Tensor::kQFromStart);
      x.run(DR_OUTPUTS, DR_V_NEW | DR_STATES | DR_AQK | DR_Q_FROM_START, 0);
      EXPECT_EQ(values(x, Tensor::kO), o);
    }
  }
}

double none(std::mt19937_64&) { return 0.0; }
double mostly_extreme(std::mt19937_64& random) { return uniform(random) < 0.9 ? -1000.0 : -uniform(random); }
double often_forgets(std::mt19937_64& random) { return uniform(random) < 0.2 ? -kInf : -uniform(random); }
double always_forgets(std::mt19937_64&) { return -kInf; }

TEST(StageEdges, AnyGate) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const int32_t chunk : {16, 64}) {
      for (const auto& gates : {none, mostly_extreme, often_forgets, always_forgets}) {
        Shape shape;
        shape.rule = rule;
        shape.chunk = chunk;
        StageCall x(shape, gates);
        x.use_initial(), x.use_final();
        x.run(DR_FORWARD);
        const std::vector<double> o = values(x, Tensor::kO);
        const std::vector<double> final = values(x, Tensor::kFinal);
        compose_stages(x, false);
        EXPECT_LT(distance(values(x, Tensor::kO), o), kChained);
        EXPECT_LT(distance(values(x, Tensor::kFinal), final), kChained);
        // A sequence as one segment: its summary gives its final state.
        x.run(DR_SUMMARY, 0, DR_SUMMARIES);
        std::vector<int64_t> chains;
        for (int64_t n = 0; n <= x.problem.num_seqs; ++n) chains.push_back(n);
        x.cut(chains, x.problem.num_seqs);
        x.run(DR_CARRY, DR_SUMMARIES, DR_COMPOSED);
        EXPECT_LT(distance(values(x, Tensor::kFinal), final), kChained);
      }
    }
  }
}

TEST(StageEdges, SumsSayWhereAGateForgets) {
  const Shape shape{.offsets = {0, 20}, .num_tokens = 20};
  StageCall x(shape);
  const int64_t width = x.problem.heads_v * x.problem.dk;
  x.set(Tensor::kG, 3 * width + 7, -kInf);
  x.run(DR_CHUNK_LOCAL, 0, kLocal);
  for (int64_t t = 0; t < 20; ++t) {
    EXPECT_EQ(x.at(Tensor::kGateSums, t * width + 7) == -kInf, t >= 3 && t < 16) << t;
    EXPECT_FALSE(std::isinf(x.at(Tensor::kGateSums, t * width + 8))) << t;
    EXPECT_EQ(x.at(Tensor::kQFromStart, t * width + 7) == 0.0, t >= 3 && t < 16) << t;
    EXPECT_EQ(x.at(Tensor::kKToEnd, t * width + 7) == 0.0, t < 3) << t;
  }
}

// Sums near -300 are 3e-5 apart in fp32, which a token with a gate of 0 may see in either direction.
TEST(StageEdges, RoundedSumsDoNotDrift) {
  const Shape shape{.rule = DR_GDN, .chunk = 64, .offsets = {0, 64}, .num_tokens = 64};
  StageCall x(shape, none);
  x.run(DR_CHUNK_LOCAL, 0, DR_AQK | DR_K_TO_END | DR_GATE_SUMS);
  const std::vector<double> aqk = values(x, Tensor::kAqk);
  const std::vector<double> k_to_end = values(x, Tensor::kKToEnd);
  for (int64_t t = 0; t < 64; ++t) {
    for (int64_t head = 0; head < 2; ++head)
      x.set(Tensor::kGateSums, t * 2 + head, -300.0 + (t % 2 == 0 ? 0.0 : 0x1p-15));
  }
  x.run(DR_CHUNK_LOCAL, DR_GATE_SUMS, DR_AQK | DR_K_TO_END);
  EXPECT_LT(distance(values(x, Tensor::kAqk), aqk), 4e-5);
  EXPECT_LT(distance(values(x, Tensor::kKToEnd), k_to_end), 4e-5);
}

TEST(StageEdges, GroupedHeadsEqualRepeatedOnes) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const int32_t group : {1, 3}) {
      Shape shape;
      shape.rule = rule;
      shape.group = group;
      StageCall grouped(shape);
      Shape all = shape;
      all.heads_qk *= group;
      all.group = 1;
      StageCall plain(all);
      for (const Tensor tensor : {Tensor::kV, Tensor::kG, Tensor::kBeta, Tensor::kInitial})
        plain.bytes(tensor) = grouped.bytes(tensor);
      const int32_t dk = shape.dk;
      for (const Tensor tensor : {Tensor::kQ, Tensor::kK}) {
        for (int64_t i = 0; i < plain.count(tensor); ++i) {
          const int64_t token = i / (all.heads_qk * dk);
          const int64_t head = i / dk % all.heads_qk / group;
          plain.set(tensor, i, grouped.at(tensor, (token * shape.heads_qk + head) * dk + i % dk));
        }
      }
      EXPECT_EQ(run_all(grouped), run_all(plain));
    }
  }
}

TEST(StageEdges, BatchedEqualsPacked) {
  const Shape shape{.offsets = {0, 22, 44, 66}, .num_tokens = 66};
  StageCall x(shape);
  const auto packed = run_all(x);
  x.cut({0, 1, 2, 3}, 3);
  x.run(DR_CARRY, DR_SUMMARIES, DR_STATES | DR_COMPOSED);
  const std::vector<Tensor> carried{Tensor::kStates, Tensor::kComposed, Tensor::kFinal};
  std::vector<std::vector<std::byte>> expected;
  for (const Tensor tensor : carried) expected.push_back(x.bytes(tensor));
  x.problem.seq_len = 22;
  x.problem.num_tokens = 0;
  EXPECT_EQ(run_all(x), packed);
  x.problem.seq_len = 1;
  x.run(DR_CARRY, DR_SUMMARIES, DR_STATES | DR_COMPOSED);
  for (size_t i = 0; i < carried.size(); ++i) EXPECT_EQ(x.bytes(carried[i]), expected[i]);
}

TEST(StageEdges, ThreadsAndTilesDoNotMatter) {
  Shape shape;
  shape.dv = 70;
  StageCall x(shape);
  const auto expected = run_all(x);
  x.tiling = {.threads = 3, .value_tiles = 2};
  EXPECT_EQ(run_all(x), expected);
  x.tiling = {.threads = 2, .value_tiles = 9};  // more tiles than panels
  EXPECT_EQ(run_all(x), expected);
}

TEST(StageEdges, PoolsSlotsAndMasks) {
  const Shape shape{.offsets = {0, 20, 20, 41, 50, 55}, .num_tokens = 55};
  StageCall x(shape);
  const int64_t state = int64_t{x.problem.heads_v} * x.problem.dk * x.problem.dv;
  const auto row = [&](Tensor tensor, int64_t index) {
    const std::vector<std::byte>& bytes = x.bytes(tensor);
    const int64_t size = state * 4;
    return std::vector<std::byte>(bytes.begin() + index * size, bytes.begin() + (index + 1) * size);
  };
  // Sequence 0 starts from state 3 and sequence 1 from state 0. The next two start from zero, by mask and by null slot.
  // The last one has no place for its final state.
  const auto expect = [&](const std::function<void()>& run) {
    std::vector<std::vector<std::byte>> expected;
    const std::vector<std::byte> initial = x.bytes(Tensor::kInitial);
    std::vector<std::byte> chosen(initial.size());
    const auto size = static_cast<size_t>(state) * 4;
    std::memcpy(chosen.data(), initial.data() + 3 * size, size);
    std::memcpy(chosen.data() + size, initial.data(), size);
    x.bytes(Tensor::kInitial) = chosen;
    x.problem.initial_mask = 0;
    x.use_initial(), x.use_final();
    run();
    for (int64_t n = 0; n < 5; ++n) expected.push_back(row(Tensor::kFinal, n));
    x.bytes(Tensor::kInitial) = initial;
    x.problem.initial.use = x.problem.final.use = DR_STATE_SLOTS;
    x.problem.initial.num_slots = 5;
    x.problem.final.num_slots = 6;
    x.problem.initial_mask = 1;
    x.fill_mask({1, 1, 0, 1, 1});
    x.fill_indices(Tensor::kInitialIndex, {3, 0, 1, -1, 2});
    x.fill_indices(Tensor::kFinalIndex, {5, 2, 4, 0, -1});
    run();
    EXPECT_EQ(row(Tensor::kFinal, 5), expected[0]);
    EXPECT_EQ(row(Tensor::kFinal, 2), expected[1]);
    EXPECT_EQ(row(Tensor::kFinal, 4), expected[2]);
    EXPECT_EQ(row(Tensor::kFinal, 0), expected[3]);
    for (const int64_t untouched : {1, 3})
      EXPECT_EQ(row(Tensor::kFinal, untouched), std::vector<std::byte>(size, std::byte{0xff}));
    x.problem.initial.num_slots = x.problem.final.num_slots = 0;
  };
  x.run(DR_CHUNK_LOCAL, 0, kSolved);
  expect([&] { x.run(DR_STATE_PASS, kSolved, 0); });
  x.run(DR_SUMMARY, 0, DR_SUMMARIES);
  x.cut({0, 1, 1, 3, 4, 5}, 5);
  expect([&] { x.run(DR_CARRY, DR_SUMMARIES, 0); });
}

TEST(StageEdges, StatesInPlace) {
  const Shape shape;
  StageCall x(shape);
  run_all(x);
  const std::vector<std::byte> expected = x.bytes(Tensor::kFinal);
  x.in_place = true;
  x.run(DR_STATE_PASS, kSolved, DR_V_NEW);
  EXPECT_EQ(x.bytes(Tensor::kInitial), expected);
}

TEST(StageEdges, NotAStage) {
  StageCall x(Shape{});
  try {
    x.run_as_stage(DR_FORWARD);
    FAIL() << "the forward was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), DR_INTERNAL);
    EXPECT_STREQ(error.what(), "reference backend: expected a stage, found forward");
  }
}

}  // namespace
}  // namespace deltarelay::test
