// The stages of the cpu backend as operations, on every instruction set of this machine, against the reference on the
// same inputs. Chunk-local also against the chunk form.
#include <string>

#include "cpu_stage_run.h"
#include "stage_error.h"

namespace deltarelay::test {
namespace {

using Bytes = std::vector<std::byte>;

// The tensors that a stage writes.
std::vector<Tensor> written(const StageCall& x) {
  std::vector<Tensor> list;
  for (const TensorEntry& entry : kTensors) {
    const TensorFacts facts = facts_of(x.resolved, entry);
    if (facts.written && facts.need == Need::kAlways) list.push_back(entry.tensor);
  }
  return list;
}

std::vector<Bytes> copies(StageCall& x) {
  const std::vector<Tensor> tensors = written(x);
  std::vector<Bytes> all;
  all.reserve(tensors.size());
  for (const Tensor tensor : tensors) all.push_back(x.bytes(tensor));
  return all;
}

constexpr double kFp32 = 2e-5, kFp16 = 2e-3, kBf16 = 5e-3;  // stage outputs
double tolerance_of(DType type) { return type == DType::kFp32 ? kFp32 : type == DType::kFp16 ? kFp16 : kBf16; }

// Runs a stage by the reference and by the cpu backend in some ways, on the same inputs. The reference's results stay.
void compare(StageCall& x, const std::vector<How>& ways, int32_t op, int32_t given, int32_t wanted) {
  x.runner = run_reference_stage;
  x.run(op, given, wanted);
  const std::vector<Tensor> tensors = written(x);
  const std::vector<Bytes> stored = copies(x);
  std::vector<std::vector<double>> expected;
  expected.reserve(tensors.size());
  for (const Tensor tensor : tensors) expected.push_back(values(x, tensor));
  for (const How& how : ways) {
    SCOPED_TRACE(std::string(name_of(x.resolved.op)) + " given " + std::to_string(given) + " wanted " +
                 std::to_string(wanted) + " isa " + cpu_isa_name(how.isa) + " threads " + std::to_string(how.threads) +
                 " segments " + std::to_string(how.segments));
    x.runner = [&](const StageArgs& args) { run_cpu_stage(args, how); };
    x.run(op, given, wanted);
    for (size_t i = 0; i < tensors.size(); ++i) {
      double tolerance = kFp32;
      for (const DType type : {x.resolved.chunks.dtype, x.resolved.chunks.dtype_states, x.resolved.dtype_o})
        tolerance = std::max(tolerance, tolerance_of(type));
      EXPECT_LE(worst_error(x, tensors[i], expected[i]), tolerance) << kTensors[static_cast<size_t>(tensors[i])].name;
    }
  }
  x.runner = run_reference_stage;
  for (size_t i = 0; i < tensors.size(); ++i) x.bytes(tensors[i]) = stored[i];
}

// Every operation with as little given as possible, and with as much. `sums`: may gate sums be given?
void compare_all(StageCall& x, const std::vector<How>& ways, bool sums = true) {
  x.use_initial(), x.use_final();
  const int32_t gate_sums = sums ? DR_GATE_SUMS : 0;
  compare(x, ways, DR_CHUNK_LOCAL, 0, kLocal);
  compare(x, ways, DR_CHUNK_LOCAL, DR_INVERSE | gate_sums, DR_AQK | kSolved | DR_K_TO_END | DR_Q_FROM_START);
  compare(x, ways, DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);
  compare(x, ways, DR_STATE_PASS, kSolved | DR_K_TO_END | gate_sums, DR_STATES | DR_V_NEW);
  compare(x, ways, DR_OUTPUTS, DR_V_NEW | DR_STATES, 0);
  compare(x, ways, DR_OUTPUTS, DR_V_NEW | DR_STATES | DR_AQK | DR_Q_FROM_START, 0);
  compare(x, ways, DR_OUTPUTS, DR_V_NEW | DR_STATES | gate_sums, 0);
  compare(x, ways, DR_SUMMARY, kSolved | DR_K_TO_END | gate_sums, DR_SUMMARIES);
  compare(x, ways, DR_SUMMARY, kSolved, DR_SUMMARIES);
  compare(x, ways, DR_SUMMARY, 0, DR_SUMMARIES);
  // The summaries become two chains and an empty one; the last summary belongs to none.
  const std::vector<int64_t> offsets = x.offsets();
  const int64_t sequences = x.problem.num_seqs, tokens = x.problem.num_tokens, seq_len = x.problem.seq_len;
  x.problem.seq_len = 0;
  x.cut({0, 1, 1, sequences - 1}, sequences);
  compare(x, ways, DR_CARRY, DR_SUMMARIES, DR_STATES | DR_COMPOSED);
  compare(x, ways, DR_CARRY, DR_SUMMARIES, 0);
  x.problem.final.use = DR_STATE_NONE;
  compare(x, ways, DR_CARRY, DR_SUMMARIES, DR_COMPOSED);
  x.cut(offsets, tokens);
  x.problem.seq_len = seq_len;
}

std::vector<How> every_isa() {
  std::vector<How> ways;
  for (const int32_t isa : isas()) ways.push_back({.isa = isa});
  return ways;
}

std::string name(const Shape& shape) {
  return std::string(shape.rule == DR_KDA ? "kda" : "gdn") + " chunk=" + std::to_string(shape.chunk) +
         " dk=" + std::to_string(shape.dk) + " dv=" + std::to_string(shape.dv) +
         " group=" + std::to_string(shape.group);
}

// Empty sequences in every place, short and whole chunks; four tokens belong to no sequence.
Shape ragged(int32_t rule, int32_t chunk, int32_t dk, int32_t dv, int32_t group = 1) {
  const int64_t c = chunk;
  return {.rule = rule,
          .heads_qk = group == 1 ? 2 : 1,
          .group = group,
          .dk = dk,
          .dv = dv,
          .chunk = chunk,
          .offsets = {0, 0, 5, 5 + c, 5 + c, 12 + 3 * c, 13 + 3 * c, 13 + 3 * c},
          .num_tokens = 17 + 3 * c};
}

double none(std::mt19937_64&) { return 0.0; }
double mostly_extreme(std::mt19937_64& random) { return uniform(random) < 0.9 ? -1000.0 : -uniform(random); }
double often_forgets(std::mt19937_64& random) {
  return uniform(random) < 0.1 ? -std::numeric_limits<double>::infinity() : -0.1 * uniform(random);
}
double strong(std::mt19937_64& random) { return -5.0 * uniform(random); }

TEST(CpuStageOps, EveryOperationAndWidth) {
  int32_t drawn = 0;
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const int32_t chunk : {16, 32, 64}) {
      for (const auto& [dk, dv] : {std::pair{16, 128}, std::pair{60, 60}, std::pair{128, 16}}) {
        // Under sanitizers each width once a rule, each with another chunk.
        if (DR_SANITIZED != 0 && drawn++ % 4 != 0) continue;
        const Shape shape = ragged(rule, chunk, dk, dv);
        SCOPED_TRACE(name(shape));
        StageCall x(shape);
        compare_all(x, every_isa());
      }
    }
  }
}

TEST(CpuStageOps, AnyGate) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const auto& gates : {none, mostly_extreme, often_forgets, strong}) {
      const Shape shape = ragged(rule, 64, 60, 24);
      StageCall x(shape, gates);
      SCOPED_TRACE(name(shape) + " gates like " + std::to_string(x.at(Tensor::kG, 0)));
      compare_all(x, every_isa(), gates != often_forgets);  // given sums are finite
    }
  }
}

using Bits = std::initializer_list<int32_t>;

TEST(CpuStageOps, EveryChoiceOfIntermediates) {
  for (const int32_t rule : Bits{DR_KDA, DR_GDN}) {
    StageCall x(ragged(rule, 32, 24, 40, 3));
    x.use_initial(), x.use_final();
    compare(x, {}, DR_CHUNK_LOCAL, 0, kLocal);
    compare(x, {}, DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);
    const std::vector<How> ways{{}};
    for (const int32_t given : Bits{0, DR_INVERSE, DR_GATE_SUMS, DR_INVERSE | DR_GATE_SUMS}) {
      for (const int32_t wanted :
           Bits{DR_AQK, DR_INVERSE, DR_W, DR_U, DR_K_TO_END, DR_Q_FROM_START, DR_GATE_SUMS, kSolved, DR_AQK | DR_U})
        if ((given & wanted) == 0) compare(x, ways, DR_CHUNK_LOCAL, given, wanted);
    }
    for (const int32_t more : Bits{0, DR_K_TO_END, DR_GATE_SUMS}) {
      compare(x, ways, DR_STATE_PASS, kSolved | more, DR_V_NEW);
      compare(x, ways, DR_STATE_PASS, kSolved | more, DR_STATES);
      compare(x, ways, DR_STATE_PASS, kSolved | more, 0);
      compare(x, ways, DR_SUMMARY, kSolved | more, DR_SUMMARIES);
    }
    for (const int32_t more : Bits{DR_AQK, DR_Q_FROM_START, DR_AQK | DR_GATE_SUMS, DR_Q_FROM_START | DR_GATE_SUMS})
      compare(x, ways, DR_OUTPUTS, DR_V_NEW | DR_STATES | more, 0);
  }
}

TEST(CpuStageOps, FormsOfGatesAndBetas) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    const Shape shape = ragged(rule, 32, 60, 24, 2);
    SCOPED_TRACE(name(shape));
    StageCall raw(shape, [](auto& random) { return 2.0 * uniform(random) - 3.0; });
    raw.problem.l2norm = 1;
    raw.problem.scale_given = 1;
    raw.problem.scale = 0.7f;
    raw.problem.gate_form = DR_GATE_RAW_SOFTPLUS;
    raw.problem.beta_form = DR_BETA_TWICE_LOGIT;
    raw.chunks.sums_base_2 = 1;
    compare_all(raw, every_isa());
    if (rule == DR_KDA) {
      raw.problem.gate_form = DR_GATE_RAW_BOUNDED;
      raw.problem.lower_bound = -1.0f;
      raw.problem.beta_form = DR_BETA_LOGIT;
      compare_all(raw, every_isa());
    }
    StageCall linear(shape, uniform);
    linear.problem.gate_form = DR_GATE_LINEAR;
    compare_all(linear, every_isa());
    linear.problem.gate_floor = -0.5f;
    compare_all(linear, every_isa());
    StageCall floored(shape, often_forgets);
    floored.problem.gate_floor = -3.0f;
    compare_all(floored, every_isa());
    StageCall no_scale(shape);
    no_scale.problem.scale_given = 1;
    compare_all(no_scale, {{}});
  }
}

TEST(CpuStageOps, TypesLayoutsAndStrides) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const int32_t type : {DR_BF16, DR_FP16}) {
      const Shape shape = ragged(rule, 64, 60, 100, 2);
      SCOPED_TRACE(name(shape) + " type " + std::to_string(type));
      StageCall x(shape);
      const auto dtype = static_cast<DType>(type);
      const auto other = type == DR_BF16 ? DType::kFp16 : DType::kBf16;
      const auto small = [](auto& random) { return std::normal_distribution<double>(0.0, 0.13)(random); };
      // Rows of q stand apart, heads of v come before its tokens.
      dr_problem& p = x.problem;
      p.dtype = type;
      p.dtype_gate = static_cast<int32_t>(other);
      p.dtype_beta = type;
      p.layout_q.token = p.heads_qk * p.dk + 8;
      p.layout_q.head = p.dk;
      p.layout_v.token = p.dv;
      p.layout_v.head = p.dv * p.num_tokens;
      p.layout_o.token = p.heads_v * p.dv + 24;
      p.layout_o.head = p.dv + 8;
      x.fill(Tensor::kQ, dtype, p.num_tokens * p.layout_q.token, small);
      x.fill(Tensor::kK, dtype, x.count(Tensor::kK), small);
      x.fill(Tensor::kV, dtype, x.count(Tensor::kV), small);
      x.fill(Tensor::kG, other, x.count(Tensor::kG), mild);
      x.fill(Tensor::kBeta, dtype, x.count(Tensor::kBeta), uniform);
      compare_all(x, every_isa());
      x.chunks.dtype = DR_FP32;
      x.chunks.dtype_states = type;
      x.chunks.states_layout = DR_STATE_KEY_MAJOR;
      p.initial.layout = p.final.layout = DR_STATE_KEY_MAJOR;
      compare_all(x, every_isa());
    }
  }
}

// The double chunk form, which shares no code with the stages of the reference.
TEST(CpuStageOps, ChunkLocalIsTheChunkForm) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const int32_t chunk : {16, 32, 64}) {
      Shape shape{.rule = rule, .group = 2, .dk = 60, .chunk = chunk, .offsets = {0, 75}, .num_tokens = 75};
      SCOPED_TRACE(name(shape));
      for (const int32_t isa : isas()) {
        StageCall x(shape);
        x.runner = [&](const StageArgs& args) { run_cpu_stage(args, {.isa = isa}); };
        x.run(DR_CHUNK_LOCAL, 0, kLocal);
        for (int64_t first = 0; first < 75; first += chunk) {
          const int64_t last = std::min<int64_t>(75, first + chunk), count = last - first;
          for (int32_t head = 0; head < x.problem.heads_v; ++head) {
            const HeadTokens tokens = x.tokens(first, last, head);
            const reference::Prepared expected = reference::prepare(tokens, 0, count);
            const auto rows = [&](Tensor tensor, int32_t width) {
              return x.rows(tensor, first, last, x.problem.heads_v, head, width);
            };
            const auto square = [&](Tensor tensor) {
              const Matrix all = rows(tensor, chunk);
              Matrix result(count, count);
              for (int64_t i = 0; i < count; ++i) {
                for (int64_t j = 0; j < chunk; ++j) {
                  if (j < count) result(i, j) = all(i, j);
                  if (j > i) EXPECT_EQ(all(i, j), 0.0) << i << "," << j;
                }
              }
              return result;
            };
            EXPECT_LE(distance(square(Tensor::kAqk), expected.aqk), kFp32);
            EXPECT_LE(distance(square(Tensor::kInverse), expected.inverse), kFp32);
            EXPECT_LE(distance(rows(Tensor::kW, 60), expected.w), kFp32);
            EXPECT_LE(distance(rows(Tensor::kU, 40), expected.u), kFp32);
            EXPECT_LE(distance(rows(Tensor::kKToEnd, 60), expected.k_to_end), kFp32);
            Matrix q = rows(Tensor::kQFromStart, 60);
            for (int64_t i = 0; i < count; ++i)
              for (int64_t c = 0; c < 60; ++c) q(i, c) *= tokens.scale;
            EXPECT_LE(distance(q, expected.q_from_start), kFp32);
          }
        }
      }
    }
  }
}

TEST(CpuStageOps, CutStatePassesAgreeWithWholeOnes) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    Shape shape = ragged(rule, 16, 60, 40);
    shape.offsets = {0, 7, 7, 103, 150};
    shape.num_tokens = 150;
    SCOPED_TRACE(name(shape));
    StageCall x(shape);
    x.use_initial(), x.use_final();
    compare(x, {}, DR_CHUNK_LOCAL, 0, kSolved);
    std::vector<How> ways;
    for (const int32_t isa : isas()) {
      for (const bool folds_all : {false, true}) {
        for (int32_t segments = 2; segments <= 5; ++segments)
          ways.push_back({.isa = isa, .segments = segments, .folds_all = folds_all});
      }
    }
    compare(x, ways, DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);
  }
}

// All results of all operations by the cpu backend alone, each fed by the ones before.
std::vector<Bytes> run_all(StageCall& x, const How& how) {
  x.use_initial(), x.use_final();
  x.runner = [how](const StageArgs& args) { run_cpu_stage(args, how); };
  std::vector<Bytes> all;
  const auto run = [&](int32_t op, int32_t given, int32_t wanted) {
    x.run(op, given, wanted);
    for (Bytes& bytes : copies(x)) all.push_back(std::move(bytes));
  };
  run(DR_CHUNK_LOCAL, 0, kLocal);
  run(DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);
  run(DR_OUTPUTS, DR_V_NEW | DR_STATES, 0);
  run(DR_SUMMARY, 0, DR_SUMMARIES);
  const std::vector<int64_t> offsets = x.offsets();
  const int64_t sequences = x.problem.num_seqs, tokens = x.problem.num_tokens, seq_len = x.problem.seq_len;
  x.problem.seq_len = 0;
  x.cut({0, 1, sequences}, sequences);
  run(DR_CARRY, DR_SUMMARIES, DR_STATES | DR_COMPOSED);
  x.cut(offsets, tokens);
  x.problem.seq_len = seq_len;
  return all;
}

TEST(CpuStageOps, ThreadsAndTilesDoNotMatter) {
  for (const int32_t isa : isas()) {
    StageCall x(ragged(DR_KDA, 32, 60, 100, 2));
    const std::vector<Bytes> expected = run_all(x, {.isa = isa});
    EXPECT_EQ(run_all(x, {.isa = isa, .threads = 3}), expected);
    EXPECT_EQ(run_all(x, {.isa = isa, .threads = 3, .value_tiles = 2}), expected);
    EXPECT_EQ(run_all(x, {.isa = isa, .threads = 100, .value_tiles = 40}), expected);  // more than there are panels
  }
}

TEST(CpuStageOps, GroupedHeadsEqualRepeatedOnes) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    const Shape shape = ragged(rule, 32, 24, 40, 3);
    StageCall grouped(shape);
    Shape all = shape;
    all.heads_qk *= shape.group;
    all.group = 1;
    StageCall plain(all);
    for (const Tensor tensor : {Tensor::kV, Tensor::kG, Tensor::kBeta, Tensor::kInitial})
      plain.bytes(tensor) = grouped.bytes(tensor);
    for (const Tensor tensor : {Tensor::kQ, Tensor::kK}) {
      for (int64_t i = 0; i < plain.count(tensor); ++i) {
        const int64_t token = i / (all.heads_qk * shape.dk), head = i / shape.dk % all.heads_qk / shape.group;
        plain.set(tensor, i, grouped.at(tensor, (token * shape.heads_qk + head) * shape.dk + i % shape.dk));
      }
    }
    EXPECT_EQ(run_all(grouped, {}), run_all(plain, {}));
  }
}

TEST(CpuStageOps, BatchedEqualsPacked) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    StageCall x({.rule = rule, .chunk = 32, .offsets = {0, 39, 78, 117}, .num_tokens = 117});
    const std::vector<Bytes> packed = run_all(x, {});
    x.problem.seq_len = 39;
    x.problem.num_tokens = 0;
    EXPECT_EQ(run_all(x, {}), packed);
  }
}

// NaN in rows of no sequence, above diagonals and in columns that a chunk does not have.
TEST(CpuStageOps, NothingElseIsRead) {
  for (const int32_t rule : {DR_KDA, DR_GDN}) {
    for (const int32_t chunk : {16, 64}) {
      const Shape shape = ragged(rule, chunk, 60, 40);
      StageCall x(shape);
      const int64_t end = shape.offsets.back();
      const auto poison = [&](Tensor tensor) {
        const int64_t width = x.count(tensor) / shape.num_tokens;
        for (int64_t i = end * width; i < shape.num_tokens * width; ++i) x.set(tensor, i, NAN);
      };
      const auto poison_square = [&](Tensor tensor) {
        poison(tensor);
        for (size_t n = 1; n < shape.offsets.size(); ++n) {
          for (int64_t t = shape.offsets[n - 1]; t < shape.offsets[n]; ++t) {
            for (int64_t row = t * x.problem.heads_v; row < (t + 1) * x.problem.heads_v; ++row)
              for (int64_t j = (t - shape.offsets[n - 1]) % chunk + 1; j < chunk; ++j)
                x.set(tensor, row * chunk + j, NAN);
          }
        }
      };
      const std::vector<Bytes> expected = run_all(x, {});
      for (const Tensor tensor : {Tensor::kQ, Tensor::kK, Tensor::kV, Tensor::kG, Tensor::kBeta}) poison(tensor);
      EXPECT_EQ(run_all(x, {}), expected);
      // A stage gives its own results back when it is given what it has stored in fp32.
      const Bytes w = x.bytes(Tensor::kW), u = x.bytes(Tensor::kU), o = x.bytes(Tensor::kO);
      poison_square(Tensor::kInverse), poison_square(Tensor::kAqk);
      poison(Tensor::kVNew), poison(Tensor::kQFromStart), poison(Tensor::kGateSums), poison(Tensor::kKToEnd);
      x.run(DR_CHUNK_LOCAL, DR_INVERSE, kSolved);
      EXPECT_EQ(x.bytes(Tensor::kW), w);
      EXPECT_EQ(x.bytes(Tensor::kU), u);
      x.run(DR_STATE_PASS, kSolved, DR_STATES | DR_V_NEW);  // the states of the carry took the place of these
      const Bytes states = x.bytes(Tensor::kStates);
      x.run(DR_OUTPUTS, DR_V_NEW | DR_STATES | DR_AQK | DR_Q_FROM_START, 0);
      EXPECT_EQ(x.bytes(Tensor::kO), o);
      x.run(DR_STATE_PASS, kSolved | DR_K_TO_END | DR_GATE_SUMS, DR_STATES | DR_V_NEW);
      for (int64_t i = 0; i < x.count(Tensor::kStates); ++i) ASSERT_FALSE(std::isnan(x.at(Tensor::kStates, i))) << i;
    }
  }
}

TEST(CpuStageOps, SlotsMasksAndPlace) {
  Shape shape = ragged(DR_KDA, 16, 24, 40);
  shape.offsets = {0, 20, 20, 41, 50, 55};
  shape.num_tokens = 55;
  StageCall x(shape);
  x.use_initial(), x.use_final();
  compare(x, {}, DR_CHUNK_LOCAL, 0, kSolved);
  x.problem.initial.use = x.problem.final.use = DR_STATE_SLOTS;
  x.problem.initial.num_slots = 5;
  x.problem.final.num_slots = 6;
  x.problem.initial_mask = 1;
  x.fill_mask({1, 1, 0, 1, 1});
  x.fill_indices(Tensor::kInitialIndex, {3, 0, 1, -1, 2});
  x.fill_indices(Tensor::kFinalIndex, {5, 2, 4, 0, -1});
  const auto check = [&](int32_t op, int32_t given) {
    x.runner = run_reference_stage;
    x.run(op, given, 0);
    const std::vector<double> expected = values(x, Tensor::kFinal);
    x.runner = [](const StageArgs& args) { run_cpu_stage(args, {}); };
    x.run(op, given, 0);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double found = x.at(Tensor::kFinal, static_cast<int64_t>(i));
      ASSERT_EQ(std::isnan(found), std::isnan(expected[i])) << i;  // a slot that is not written
      if (!std::isnan(found)) ASSERT_NEAR(found, expected[i], 1e-4) << i;
    }
  };
  check(DR_STATE_PASS, kSolved);
  x.runner = run_reference_stage;
  x.run(DR_SUMMARY, 0, DR_SUMMARIES);
  x.cut({0, 1, 1, 3, 4, 5}, 5);
  check(DR_CARRY, DR_SUMMARIES);
}

}  // namespace
}  // namespace deltarelay::test
