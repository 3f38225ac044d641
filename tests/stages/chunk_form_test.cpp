// The chunk form against the token recurrence, in double: the same function with another order of sums. Also segments
// through their transitions against the whole sequence.
#include "kernels/reference/chunk_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

namespace deltarelay::reference {
namespace {

constexpr double kTolerance = 1e-12;
constexpr double kInf = std::numeric_limits<double>::infinity();

using Gates = std::function<double(std::mt19937_64&)>;

double uniform(std::mt19937_64& random) { return std::uniform_real_distribution<double>(0.0, 1.0)(random); }

double mild(std::mt19937_64& random) { return -5.0 * uniform(random); }
double weak(std::mt19937_64& random) { return -0.01 * uniform(random); }
double none(std::mt19937_64&) { return 0.0; }
double mostly_extreme(std::mt19937_64& random) { return uniform(random) < 0.9 ? -1000.0 : -uniform(random); }
double often_forgets(std::mt19937_64& random) { return uniform(random) < 0.2 ? -kInf : -uniform(random); }
double always_forgets(std::mt19937_64&) { return -kInf; }

struct Shape {
  int64_t tokens, dk, dv, gates;
};

HeadTokens make_tokens(const Shape& shape, const Gates& gates, uint64_t seed, bool correlated = false) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  HeadTokens x;
  x.q = x.k = Matrix(shape.tokens, shape.dk);
  x.v = Matrix(shape.tokens, shape.dv);
  x.g = Matrix(shape.tokens, shape.gates);
  x.scale = 1.0 / std::sqrt(static_cast<double>(shape.dk));
  for (int64_t t = 0; t < shape.tokens; ++t) {
    double length = 0.0;
    for (int64_t i = 0; i < shape.dk; ++i) {
      x.q(t, i) = normal(random);
      x.k(t, i) = correlated ? uniform(random) : normal(random);
      length += x.k(t, i) * x.k(t, i);
    }
    for (int64_t i = 0; i < shape.dk; ++i) x.k(t, i) /= std::sqrt(length);
    for (int64_t i = 0; i < shape.dv; ++i) x.v(t, i) = normal(random);
    for (int64_t i = 0; i < shape.gates; ++i) x.g(t, i) = gates(random);
    x.beta.push_back(uniform(random));
  }
  return x;
}

Matrix random_state(const Shape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Matrix state(shape.dk, shape.dv);
  for (int64_t i = 0; i < shape.dk; ++i) {
    for (int64_t j = 0; j < shape.dv; ++j) state(i, j) = normal(random);
  }
  return state;
}

std::vector<Prepared> prepare_all(const HeadTokens& x, int64_t chunk, int64_t begin, int64_t end) {
  std::vector<Prepared> chunks;
  for (int64_t t = begin; t < end; t += chunk) chunks.push_back(prepare(x, t, std::min(chunk, end - t)));
  return chunks;
}

// rms(a - b) / rms(b); NaN anywhere gives NaN, which no comparison passes.
double distance(const Matrix& a, const Matrix& b) {
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < b.data().size(); ++i) {
    error += (a.data()[i] - b.data()[i]) * (a.data()[i] - b.data()[i]);
    size += b.data()[i] * b.data()[i];
  }
  return error == 0.0 ? 0.0 : std::sqrt(error / size);
}

struct Named {
  const char* name;
  Gates gates;
};

const Named kGates[] = {{"mild", mild},
                        {"weak", weak},
                        {"none", none},
                        {"mostly_extreme", mostly_extreme},
                        {"often_forgets", often_forgets},
                        {"always_forgets", always_forgets}};

TEST(ChunkForm, EqualsTheTokenRecurrence) {
  uint64_t seed = 1;
  for (const Named& gates : kGates) {
    for (const int64_t chunk : {1, 16, 64}) {
      for (const Shape& shape :
           {Shape{130, 24, 12, 24}, Shape{130, 12, 24, 1}, Shape{1, 8, 8, 8}, Shape{64, 16, 16, 1}}) {
        SCOPED_TRACE(testing::Message() << gates.name << ", chunk " << chunk << ", " << shape.tokens << " tokens, DK "
                                        << shape.dk << ", gates " << shape.gates);
        const HeadTokens x = make_tokens(shape, gates.gates, ++seed);
        Matrix expected_state = random_state(shape, seed);
        Matrix state = expected_state;
        Matrix expected(shape.tokens, shape.dv);
        Matrix o(shape.tokens, shape.dv);
        recur(x, expected_state, expected);
        emit(prepare_all(x, chunk, 0, shape.tokens), state, o, 0);
        EXPECT_LE(distance(o, expected), kTolerance);
        EXPECT_LE(distance(state, expected_state), kTolerance);
      }
    }
  }
}

TEST(ChunkForm, ThreeSegmentsThroughTheirTransitionsEqualTheWhole) {
  uint64_t seed = 100;
  for (const Named& gates : kGates) {
    for (const bool correlated : {false, true}) {
      SCOPED_TRACE(testing::Message() << gates.name << (correlated ? ", correlated keys" : ""));
      const Shape shape{200, 16, 20, 16};
      const int64_t cuts[] = {0, 64, 128, 200};
      const HeadTokens x = make_tokens(shape, gates.gates, ++seed, correlated);
      const Matrix initial = random_state(shape, seed);
      Matrix expected_state = initial;
      Matrix expected(shape.tokens, shape.dv);
      recur(x, expected_state, expected);

      Matrix o(shape.tokens, shape.dv);
      Matrix entering = initial;
      for (int segment = 0; segment < 3; ++segment) {
        const std::vector<Prepared> chunks = prepare_all(x, 32, cuts[segment], cuts[segment + 1]);
        Matrix state = entering;
        emit(chunks, state, o, cuts[segment]);
        entering = carry(summarize(chunks), entering);
        EXPECT_LE(distance(entering, state), kTolerance) << "segment " << segment;
      }
      EXPECT_LE(distance(o, expected), kTolerance);
      EXPECT_LE(distance(entering, expected_state), kTolerance);
    }
  }
}

// (M2, B2) after (M1, B1) is (M2 M1, M2 B1 + B2).
TEST(ChunkForm, TransitionsCompose) {
  const Shape shape{96, 16, 8, 16};
  const HeadTokens x = make_tokens(shape, weak, 7);
  const Transition first = summarize(prepare_all(x, 32, 0, 64));
  const Transition second = summarize(prepare_all(x, 32, 64, 96));
  const Transition whole = summarize(prepare_all(x, 32, 0, 96));
  EXPECT_LE(distance(carry(second, first.b), whole.b), kTolerance);
  const Transition linear{second.m, Matrix(shape.dk, shape.dk)};
  EXPECT_LE(distance(carry(linear, first.m), whole.m), kTolerance);
}

// Checks each part of Prepared, not only their product.
TEST(ChunkForm, PreparedPartsHaveTheirShapeAndMeaning) {
  const Shape shape{16, 8, 6, 8};
  const HeadTokens x = make_tokens(shape, mild, 9);
  const Prepared p = prepare(x, 0, shape.tokens);
  for (int64_t i = 0; i < shape.tokens; ++i) {
    for (int64_t j = 0; j < shape.tokens; ++j) {
      if (j >= i) {
        EXPECT_EQ(p.akk(i, j), 0.0);
      }
      if (j > i) {
        EXPECT_EQ(p.aqk(i, j), 0.0);
        EXPECT_EQ(p.inverse(i, j), 0.0);
      }
      double product = p.inverse(i, j);  // (I + Akk) inverse = I
      for (int64_t l = 0; l < i; ++l) product += p.akk(i, l) * p.inverse(l, j);
      EXPECT_NEAR(product, i == j ? 1.0 : 0.0, kTolerance);
    }
  }
  for (int64_t c = 0; c < shape.dk; ++c) {
    EXPECT_NEAR(p.decay_chunk[static_cast<size_t>(c)], std::exp(p.gate_sum(15, c)), kTolerance);
    EXPECT_EQ(p.k_to_end(15, c), x.k(15, c));
    EXPECT_NEAR(p.q_from_start(0, c), x.scale * x.q(0, c) * std::exp(x.g(0, c)), kTolerance);
  }
}

TEST(ChunkForm, ForgettingIsExact) {
  const Shape shape{64, 8, 8, 8};
  HeadTokens x = make_tokens(shape, mild, 11);
  for (int64_t c = 0; c < shape.dk; ++c) x.g(40, c) = -kInf;
  Matrix from_zero(shape.dk, shape.dv);
  Matrix from_huge = random_state(shape, 12);
  for (int64_t i = 0; i < shape.dk; ++i) from_huge(i, 0) *= 1e30;
  Matrix o_zero(shape.tokens, shape.dv);
  Matrix o_huge(shape.tokens, shape.dv);
  const std::vector<Prepared> before = prepare_all(x, 16, 0, 32);
  const std::vector<Prepared> after = prepare_all(x, 16, 32, 64);
  const Transition t = summarize(after);
  for (const double m : t.m.data()) EXPECT_EQ(m, 0.0);
  emit(before, from_zero, o_zero, 0);
  emit(after, from_zero, o_zero, 32);
  recur(x, from_huge, o_huge);
  EXPECT_LE(distance(from_huge, from_zero), kTolerance) << "a state of 1e30 left a trace behind a full forget";
}

TEST(ChunkForm, ScalarGateEqualsTheSameGateOnEveryChannel) {
  const Shape shape{70, 12, 10, 1};
  const HeadTokens scalar = make_tokens(shape, mild, 21);
  HeadTokens broadcast = scalar;
  broadcast.g = Matrix(shape.tokens, shape.dk);
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t c = 0; c < shape.dk; ++c) broadcast.g(t, c) = scalar.g(t, 0);
  }
  Matrix a = random_state(shape, 3);
  Matrix b = a;
  Matrix o_a(shape.tokens, shape.dv);
  Matrix o_b(shape.tokens, shape.dv);
  emit(prepare_all(scalar, 16, 0, shape.tokens), a, o_a, 0);
  emit(prepare_all(broadcast, 16, 0, shape.tokens), b, o_b, 0);
  EXPECT_EQ(distance(o_a, o_b), 0.0);
  EXPECT_EQ(distance(a, b), 0.0);
}

}  // namespace
}  // namespace deltarelay::reference
