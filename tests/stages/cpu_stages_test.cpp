// Single stages of the cpu backend against the double chunk form: the transition of a segment, the fold of several, and
// emit from a given state, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "kernels/backend.h"
#include "kernels/cpu/config.h"
#include "kernels/reference/chunk_form.h"

namespace deltarelay {
namespace {

using reference::HeadTokens;
using reference::Matrix;
using reference::Prepared;
using reference::Transition;

constexpr double kTolerance = 2e-5;  // stage outputs, fp32
constexpr int32_t kHeads = 2;

class SerialExecutor final : public Executor {
 public:
  void run(int32_t workers, Body body, void* context) override {
    for (int32_t worker = 0; worker < workers; ++worker) body(context, worker);
  }
};

using Gates = std::function<double(std::mt19937_64&)>;

struct Shape {
  Rule rule;
  int32_t dk, dv;
  int64_t tokens;
  Gates gates;
};

double uniform(std::mt19937_64& random) { return std::uniform_real_distribution<double>(0.0, 1.0)(random); }
double weak(std::mt19937_64& random) { return -0.05 * uniform(random); }
double mild(std::mt19937_64& random) { return -5.0 * uniform(random); }
double mostly_extreme(std::mt19937_64& random) { return uniform(random) < 0.9 ? -1000.0 : -uniform(random); }
double often_forgets(std::mt19937_64& random) {
  return uniform(random) < 0.1 ? -std::numeric_limits<double>::infinity() : -0.1 * uniform(random);
}

// One sequence of fp32 tensors, the same values as double matrices for each head, and the workspace of a few slots.
class Bench {
 public:
  Bench(const Shape& shape, int32_t isa, int32_t slots) : isa_(isa) {
    const int64_t t = shape.tokens;
    const int32_t gates = shape.rule == Rule::kKda ? shape.dk : 1;
    problem.rule = shape.rule;
    problem.num_seqs = 1;
    problem.num_tokens = t;
    problem.offsets = {0, t};
    problem.heads_qk = problem.heads_v = kHeads;
    problem.dk = shape.dk;
    problem.dv = shape.dv;
    problem.scale = 0.5f;
    problem.q = problem.k = {int64_t{kHeads} * shape.dk, shape.dk, 0};
    problem.v = problem.o = {int64_t{kHeads} * shape.dv, shape.dv, 0};
    problem.g = {int64_t{kHeads} * gates, gates, 0};
    problem.beta = {kHeads, 1, 0};
    problem.initial.use = StateUse::kRows;
    problem.initial.layout = StateLayout::kKeyMajor;
    problem.initial.num_slots = 1;
    problem.initial.stride_head = int64_t{shape.dk} * shape.dv;
    problem.initial.stride_slot = problem.initial.stride_head * kHeads;
    generate(shape, gates);
    tensors.size = sizeof tensors;
    tensors.q = q_.data();
    tensors.k = k_.data();
    tensors.v = v_.data();
    tensors.g = g_.data();
    tensors.beta = beta_.data();
    tensors.o = o.data();
    tensors.initial = initial_.data();
    Request request;
    request.isa = cpu_isa_name(isa);
    variant_ = kCpuBackend.variants(problem, request)[0];
    scratch_bytes_ = kCpuBackend.scratch_bytes(problem, variant_, tiling_.value_tiles);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    slot_state_.assign(static_cast<size_t>(slots * kHeads * variant_.state_floats), nan);
    slot_transition_.assign(static_cast<size_t>(slots * kHeads * variant_.transition_floats), nan);
    scratch_.resize(scratch_bytes_ + kWorkspaceAlignment);
  }

  void run(const std::vector<Row>& rows) {
    const TableView table{rows.data(), static_cast<int64_t>(rows.size()), nullptr, 0, nullptr, 0};
    kCpuBackend.run(args(), table, {.stage = Stage::kWalk, .phase = 1}, executor_);
  }
  void run(const std::vector<Fold>& folds) {
    const TableView table{nullptr, 0, folds.data(), static_cast<int64_t>(folds.size()), nullptr, 0};
    kCpuBackend.run(args(), table, {.stage = Stage::kCarry}, executor_);
  }

  // A state of the workspace as a matrix.
  Matrix state(int32_t slot, int32_t head) const {
    return unpack(slot_state_, variant_.state_floats, slot, head, problem.dv);
  }
  Matrix transition(int32_t slot, int32_t head) const {
    return unpack(slot_transition_, variant_.transition_floats, slot, head, problem.dk);
  }

  std::vector<Prepared> prepared(int32_t head, int32_t begin, int32_t chunks) const {
    std::vector<Prepared> all;
    for (int64_t t = int64_t{begin} * cpu::kChunk;
         t < std::min<int64_t>(heads[head].tokens(), int64_t{begin + chunks} * cpu::kChunk); t += cpu::kChunk) {
      all.push_back(reference::prepare(heads[head], t, std::min<int64_t>(cpu::kChunk, heads[head].tokens() - t)));
    }
    return all;
  }

  Problem problem;
  dr_tensors tensors{};
  HeadTokens heads[kHeads];
  Matrix initial[kHeads];
  std::vector<float> o;

 private:
  void generate(const Shape& shape, int32_t gates) {
    std::mt19937_64 random(41);
    std::normal_distribution<double> normal;
    const auto fill = [&](std::vector<float>& flat, int64_t width, Matrix HeadTokens::*member, const Gates& value) {
      for (HeadTokens& head : heads) head.*member = Matrix(shape.tokens, width);
      for (int64_t t = 0; t < shape.tokens; ++t) {
        for (HeadTokens& head : heads) {
          for (int64_t i = 0; i < width; ++i) {
            flat.push_back(static_cast<float>(value(random)));
            (head.*member)(t, i) = static_cast<double>(flat.back());
          }
        }
      }
    };
    const double length = std::sqrt(static_cast<double>(shape.dk));
    fill(q_, shape.dk, &HeadTokens::q, [&](auto& r) { return normal(r) / length; });
    fill(k_, shape.dk, &HeadTokens::k, [&](auto& r) { return normal(r) / length; });
    fill(v_, shape.dv, &HeadTokens::v, [&](auto& r) { return normal(r); });
    fill(g_, gates, &HeadTokens::g, shape.gates);
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (HeadTokens& head : heads) {
        beta_.push_back(static_cast<float>(uniform(random)));
        head.beta.push_back(static_cast<double>(beta_.back()));
      }
    }
    for (int32_t h = 0; h < kHeads; ++h) {
      heads[h].scale = 0.5;
      initial[h] = Matrix(shape.dk, shape.dv);
      for (int64_t i = 0; i < shape.dk; ++i) {
        for (int64_t c = 0; c < shape.dv; ++c) {
          initial_.push_back(static_cast<float>(normal(random)));
          initial[h](i, c) = static_cast<double>(initial_.back());
        }
      }
    }
    o.assign(v_.size(), std::numeric_limits<float>::quiet_NaN());
  }

  // Slots hold panels: [panel][padded DK][panel columns].
  Matrix unpack(const std::vector<float>& slots, int64_t floats, int32_t slot, int32_t head, int32_t columns) const {
    const int32_t width = variant_.panel_columns;
    const int32_t channels = cpu::padded_channels(problem.dk);
    const float* base = slots.data() + (int64_t{slot} * kHeads + head) * floats;
    Matrix result(problem.dk, columns);
    for (int64_t i = 0; i < problem.dk; ++i) {
      for (int64_t c = 0; c < columns; ++c) {
        result(i, c) = static_cast<double>(base[(c / width * channels + i) * width + c % width]);
      }
    }
    return result;
  }

  StageArgs args() {
    auto* scratch = scratch_.data();
    scratch += (kWorkspaceAlignment - reinterpret_cast<uintptr_t>(scratch) % kWorkspaceAlignment) % kWorkspaceAlignment;
    return {problem,
            tensors,
            {problem.offsets.data(), 0, 1},
            cpu::kChunk,
            tiling_,
            isa_,
            nullptr,
            0,
            slot_state_.data(),
            slot_transition_.data(),
            scratch,
            scratch_bytes_};
  }

  int32_t isa_;
  Tiling tiling_;
  Variant variant_;
  size_t scratch_bytes_ = 0;
  SerialExecutor executor_;
  std::vector<float> q_, k_, v_, g_, beta_, initial_, slot_state_, slot_transition_;
  std::vector<std::byte> scratch_;
};

// rms(a - b) / rms(b). If fp32 can hardly tell b from zero, a floor replaces rms(b).
double distance(const Matrix& a, const Matrix& b) {
  constexpr double kFloor = 1e-30;
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < b.data().size(); ++i) {
    error += (a.data()[i] - b.data()[i]) * (a.data()[i] - b.data()[i]);
    size += b.data()[i] * b.data()[i];
  }
  return std::sqrt(error) / std::max(std::sqrt(size), kFloor);
}

void for_every_shape(const std::function<void(const Shape&, int32_t isa)>& body) {
  struct Named {
    const char* name;
    Gates gates;
  };
  for (int32_t isa = 0; isa < cpu_isa_count(); ++isa) {
    for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
      for (const Named& gates : {Named{"weak", weak}, Named{"mild", mild}, Named{"mostly extreme", mostly_extreme},
                                 Named{"often forgets", often_forgets}}) {
        for (const auto& [dk, dv] : {std::pair{64, 64}, std::pair{33, 70}}) {
          SCOPED_TRACE(std::string(cpu_isa_name(isa)) + ", " + name_of(rule) + ", gates " + gates.name + ", DK " +
                       std::to_string(dk) + ", DV " + std::to_string(dv));
          body(Shape{rule, dk, dv, 75, gates.gates}, isa);
        }
      }
    }
  }
}

Row summarize_row(int32_t begin, int32_t chunks, int32_t slot) {
  return {0, begin, chunks, Work::kSummarize, -1, slot, -1};
}

TEST(CpuStages, SummarizeGivesTheTransition) {
  for_every_shape([](const Shape& shape, int32_t isa) {
    Bench bench(shape, isa, 2);
    bench.run(std::vector<Row>{summarize_row(1, 3, 1)});
    for (int32_t head = 0; head < kHeads; ++head) {
      const Transition expected = reference::summarize(bench.prepared(head, 1, 3));
      EXPECT_LE(distance(bench.transition(1, head), expected.m), kTolerance) << "M of head " << head;
      EXPECT_LE(distance(bench.state(1, head), expected.b), kTolerance) << "B of head " << head;
    }
  });
}

TEST(CpuStages, FoldsCarryTheInitialStateThroughTheSegments) {
  for_every_shape([](const Shape& shape, int32_t isa) {
    Bench bench(shape, isa, 3);
    bench.run(std::vector<Row>{summarize_row(0, 2, 1), summarize_row(2, 2, 2)});
    bench.run(std::vector<Fold>{{0, 0, 2, true}});
    for (int32_t head = 0; head < kHeads; ++head) {
      EXPECT_LE(distance(bench.state(0, head), bench.initial[head]), 0.0) << "slot 0 is the initial state";
      const Matrix first = reference::carry(reference::summarize(bench.prepared(head, 0, 2)), bench.initial[head]);
      const Matrix second = reference::carry(reference::summarize(bench.prepared(head, 2, 2)), first);
      EXPECT_LE(distance(bench.state(1, head), first), kTolerance) << "head " << head;
      EXPECT_LE(distance(bench.state(2, head), second), kTolerance) << "head " << head;
    }
  });
}

TEST(CpuStages, EmitReplaysASegmentFromItsSlot) {
  for_every_shape([](const Shape& shape, int32_t isa) {
    Bench bench(shape, isa, 3);
    // The first segment emits from the initial state and leaves its state in slot 0; the rest starts from there.
    bench.run(std::vector<Row>{{0, 0, 2, Work::kEmit, -1, 0, -1}});
    bench.run(std::vector<Row>{{0, 2, 3, Work::kEmit, 0, 1, -1}});
    for (int32_t head = 0; head < kHeads; ++head) {
      Matrix state = bench.initial[head];
      Matrix expected(shape.tokens, shape.dv);
      Matrix o(shape.tokens, shape.dv);
      reference::emit(bench.prepared(head, 0, 2), state, expected, 0);
      EXPECT_LE(distance(bench.state(0, head), state), kTolerance) << "state between, head " << head;
      reference::emit(bench.prepared(head, 2, 3), state, expected, 2 * cpu::kChunk);
      EXPECT_LE(distance(bench.state(1, head), state), kTolerance) << "state behind, head " << head;
      for (int64_t t = 0; t < shape.tokens; ++t) {
        for (int64_t c = 0; c < shape.dv; ++c) {
          o(t, c) = static_cast<double>(bench.o[static_cast<size_t>((t * kHeads + head) * shape.dv + c)]);
        }
      }
      EXPECT_LE(distance(o, expected), kTolerance) << "o, head " << head;
    }
  });
}

}  // namespace
}  // namespace deltarelay
