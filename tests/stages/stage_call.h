// Calls of single stages on small random tensors, as a caller makes them: a dr_problem, and pointers to what it needs
// and to nothing else. Outputs and scratch memory hold NaN before a call.
#pragma once
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "deltarelay/tensor_list.hpp"
#include "kernels/reference/chunk_form.h"
#include "kernels/reference/stages.h"
#include "problem/number.h"
#include "problem/tensor_facts.h"
#include "problem/validate.h"

namespace deltarelay::test {

using reference::HeadTokens;
using reference::Matrix;
using Gates = std::function<double(std::mt19937_64&)>;

inline double uniform(std::mt19937_64& random) { return std::uniform_real_distribution<double>(0.0, 1.0)(random); }
inline double mild(std::mt19937_64& random) { return -0.2 * uniform(random); }

class ThreadExecutor final : public Executor {
 public:
  void run(int32_t workers, Body body, void* context) override {
    std::vector<std::thread> threads;
    for (int32_t worker = 1; worker < workers; ++worker) threads.emplace_back(body, context, worker);
    body(context, 0);
    for (std::thread& thread : threads) thread.join();
  }
};

// Scratch memory of all workers. It holds NaN, as the outputs do.
class Scratch {
 public:
  Scratch(size_t bytes, int32_t threads)
      : memory_(bytes * static_cast<size_t>(threads) + kWorkspaceAlignment, std::byte{0xff}) {}
  std::byte* data() {
    void* aligned = memory_.data();
    size_t space = memory_.size();
    return static_cast<std::byte*>(std::align(kWorkspaceAlignment, 1, aligned, space));
  }

 private:
  std::vector<std::byte> memory_;
};

inline void run_reference_stage(StageArgs args) {
  args.scratch_bytes = reference::stage_scratch_bytes(args.problem);
  Scratch scratch(args.scratch_bytes, args.tiling.threads);
  args.scratch = scratch.data();
  ThreadExecutor executor;
  reference::run_stage(args, executor);
}

struct Shape {
  int32_t rule = DR_KDA;
  int32_t heads_qk = 2, group = 1, dk = 24, dv = 40;
  int32_t chunk = 16;
  std::vector<int64_t> offsets{0, 0, 5, 21, 21, 62, 63, 63};
  int64_t num_tokens = 66;  // three tokens belong to no sequence
};

class StageCall {
 public:
  explicit StageCall(const Shape& shape, const Gates& gates = mild) {
    dr_problem_init(&problem);
    problem.rule = shape.rule;
    problem.heads_qk = shape.heads_qk;
    problem.heads_v = shape.heads_qk * shape.group;
    problem.dk = shape.dk;
    problem.dv = shape.dv;
    problem.seq_offsets_dtype = DR_INT64;
    problem.initial.layout = problem.final.layout = DR_STATE_VALUE_MAJOR;
    dr_chunks_init(&chunks);
    chunks.chunk = shape.chunk;
    chunks.states_layout = DR_STATE_VALUE_MAJOR;
    cut(shape.offsets, shape.num_tokens);
    generate(gates);
  }
  StageCall(const StageCall&) = delete;

  // Changes the sequences of the next calls.
  void cut(const std::vector<int64_t>& offsets, int64_t num_tokens) {
    offsets_ = offsets;
    problem.num_seqs = static_cast<int64_t>(offsets.size()) - 1;
    problem.num_tokens = num_tokens;
  }
  const std::vector<int64_t>& offsets() const { return offsets_; }
  void use_initial() { problem.initial.use = DR_STATE_ROWS; }
  void use_final() { problem.final.use = DR_STATE_ROWS; }

  void run(int32_t op, int32_t given = 0, int32_t wanted = 0) {
    dr_problem request = problem;
    dr_chunks asked = chunks;
    request.op = op;
    if (request.seq_len == 0) request.seq_offsets = offsets_.data();
    if (op == DR_FORWARD) {
      resolved = validate(request);
      bind();
      run_forward(request);
      return;
    }
    asked.given = given;
    asked.wanted = wanted;
    if (((given | wanted) & DR_STATES) == 0) asked.states_layout = 0;
    if (op == DR_CARRY) asked.chunk = 0;
    if (op != DR_STATE_PASS && op != DR_CARRY) {
      request.initial.use = request.final.use = DR_STATE_NONE;
      request.initial_mask = 0;
    }
    request.chunks = &asked;
    resolved = validate(request);
    bind();
    run_stage();
  }

  // Hands an operation that is no stage to the stages.
  void run_as_stage(int32_t op) {
    dr_problem request = problem;
    request.op = op;
    request.seq_offsets = offsets_.data();
    resolved = validate(request);
    bind();
    run_stage();
  }

  // An element of a tensor of the last call that had it.
  double at(Tensor tensor, int64_t index) const {
    const Memory& memory = memory_[static_cast<size_t>(tensor)];
    return load_as_double(memory.bytes.data(), memory.type, index);
  }
  int64_t count(Tensor tensor) const {
    const Memory& memory = memory_[static_cast<size_t>(tensor)];
    return static_cast<int64_t>(memory.bytes.size() / size_of(memory.type));
  }
  std::vector<std::byte>& bytes(Tensor tensor) { return memory_[static_cast<size_t>(tensor)].bytes; }
  void set(Tensor tensor, int64_t index, double value) {
    Memory& memory = memory_[static_cast<size_t>(tensor)];
    store_double(memory.bytes.data(), memory.type, index, value);
  }
  void fill(Tensor tensor, DType type, int64_t count, const Gates& value) {
    memory_[static_cast<size_t>(tensor)] = {type, std::vector<std::byte>(static_cast<size_t>(count) * size_of(type))};
    for (int64_t i = 0; i < count; ++i) set(tensor, i, value(random_));
  }
  void fill_indices(Tensor tensor, const std::vector<int32_t>& indices) {
    Memory& memory = memory_[static_cast<size_t>(tensor)];
    memory = {DType::kInt32, std::vector<std::byte>(indices.size() * sizeof(int32_t))};
    std::memcpy(memory.bytes.data(), indices.data(), memory.bytes.size());
  }
  void fill_mask(const std::vector<uint8_t>& mask) {
    std::vector<std::byte>& memory = bytes(Tensor::kHasInitial);
    memory.resize(mask.size());
    std::memcpy(memory.data(), mask.data(), mask.size());
  }

  int32_t gates() const { return problem.rule == DR_KDA ? problem.dk : 1; }
  // Rows of one head in a tensor [T, heads, width].
  Matrix rows(Tensor tensor, int64_t first, int64_t last, int32_t heads, int32_t head, int32_t width) const {
    Matrix result(last - first, width);
    for (int64_t t = first; t < last; ++t) {
      for (int32_t c = 0; c < width; ++c) result(t - first, c) = at(tensor, (t * heads + head) * width + c);
    }
    return result;
  }
  // S of row `row` of a tensor of states.
  Matrix state(Tensor tensor, int64_t row, int32_t head, int32_t layout) const {
    Matrix result(problem.dk, problem.dv);
    const int64_t base = (row * problem.heads_v + head) * problem.dk * problem.dv;
    for (int32_t i = 0; i < problem.dk; ++i) {
      for (int32_t c = 0; c < problem.dv; ++c) {
        result(i, c) = at(tensor, base + (layout == DR_STATE_KEY_MAJOR ? i * problem.dv + c : c * problem.dk + i));
      }
    }
    return result;
  }
  // Activated tokens of one value head of the rows [first, last), where gates are logarithms and betas values.
  HeadTokens tokens(int64_t first, int64_t last, int32_t head) const {
    const int32_t head_qk = head / (problem.heads_v / problem.heads_qk);
    HeadTokens x;
    x.q = rows(Tensor::kQ, first, last, problem.heads_qk, head_qk, problem.dk);
    x.k = rows(Tensor::kK, first, last, problem.heads_qk, head_qk, problem.dk);
    x.v = rows(Tensor::kV, first, last, problem.heads_v, head, problem.dv);
    x.g = rows(Tensor::kG, first, last, problem.heads_v, head, gates());
    for (int64_t t = first; t < last; ++t) x.beta.push_back(at(Tensor::kBeta, t * problem.heads_v + head));
    x.scale = static_cast<double>(resolved.scale);
    return x;
  }

  dr_problem problem{};
  dr_chunks chunks{};
  Problem resolved;  // of the last call
  Tiling tiling{};
  std::function<void(StageArgs)> runner = run_reference_stage;  // takes a call without scratch and slots
  bool in_place = false;                                        // final states replace the initial ones

 private:
  struct Memory {
    DType type = DType::kFp32;
    std::vector<std::byte> bytes;
  };

  void generate(const Gates& gates) {
    std::normal_distribution<double> normal;
    const int64_t t = problem.num_tokens;
    const double length = std::sqrt(static_cast<double>(problem.dk));
    const auto unit = [&](auto& random) { return normal(random) / length; };
    fill(Tensor::kQ, DType::kFp32, t * problem.heads_qk * problem.dk, unit);
    fill(Tensor::kK, DType::kFp32, t * problem.heads_qk * problem.dk, unit);
    fill(Tensor::kV, DType::kFp32, t * problem.heads_v * problem.dv, [&](auto& random) { return normal(random); });
    fill(Tensor::kG, DType::kFp32, t * problem.heads_v * this->gates(), gates);
    fill(Tensor::kBeta, DType::kFp32, t * problem.heads_v, uniform);
    const int64_t states = problem.num_seqs * problem.heads_v * problem.dk * problem.dv;
    fill(Tensor::kInitial, DType::kFp32, states, [&](auto& random) { return normal(random); });
    fill(Tensor::kALog, DType::kFp32, problem.heads_v, uniform);
    fill(Tensor::kDtBias, DType::kFp32, problem.heads_v * this->gates(), uniform);
  }

  // Points the call to the tensors that it needs. What it writes is new and NaN.
  void bind() {
    tensors_ = dr_tensors{};
    tensors_.size = sizeof tensors_;
    dr_intermediates_init(&intermediates_);
    if (resolved.op != Op::kForward) tensors_.intermediates = &intermediates_;
    const TensorSizes sizes = sizes_of(resolved, resolved.num_tokens, resolved.num_seqs, 0);
    for (const TensorEntry& entry : kTensors) {
      const TensorFacts facts = facts_of(resolved, entry);
      const bool bias = entry.tensor == Tensor::kDtBias && facts.need == Need::kMay;
      if (facts.need != Need::kAlways && !bias) continue;
      int64_t elements = count_of(sizes, entry);
      if (entry.kind == TensorKind::kRows)
        elements = resolved.batched() ? resolved.num_seqs * facts.strides->sequence
                                      : resolved.num_tokens * facts.strides->token;
      if (entry.kind == TensorKind::kPool) elements = facts.pool->num_slots * facts.pool->stride_slot;
      Memory& memory = memory_[static_cast<size_t>(entry.tensor)];
      if (facts.written) {
        memory.type = dtype_of(resolved, entry.type, facts.pool);
        memory.bytes.assign(static_cast<size_t>(elements * facts.element_bytes), std::byte{0xff});
      }
      ASSERT_GE(static_cast<int64_t>(memory.bytes.size()), elements * facts.element_bytes) << entry.name;
      if (is_intermediate(entry.tensor)) {
        set_pointer(intermediates_, entry, memory.bytes.data());
      } else {
        set_pointer(tensors_, entry, memory.bytes.data());
      }
    }
    if (in_place) tensors_.final = bytes(Tensor::kInitial).data();
    validate_tensors(resolved, tensors_, true);
  }

  void run_stage() {
    const Sequences sequences{resolved.batched() ? nullptr : resolved.offsets.data(), resolved.seq_len,
                              resolved.num_seqs};
    runner(StageArgs{.problem = resolved,
                     .tensors = tensors_,
                     .sequences = sequences,
                     .chunk = resolved.chunks.chunk,
                     .tiling = tiling,
                     .isa = 0,
                     .columns = nullptr,
                     .num_columns = 0,
                     .slot_state = nullptr,
                     .slot_transition = nullptr,
                     .scratch = nullptr,
                     .scratch_bytes = 0});
  }

  // The token recurrence of the reference backend.
  void run_forward(const dr_problem& request) {
    dr_options options;
    dr_options_init(&options);
    options.backend = "reference";
    dr_plan* plan = nullptr;
    ASSERT_EQ(dr_plan_create(&request, &options, &plan), DR_SUCCESS) << dr_last_error();
    size_t bytes = 0;
    dr_plan_workspace_bytes(plan, &bytes);
    std::vector<std::byte> workspace(bytes + kWorkspaceAlignment);
    void* aligned = workspace.data();
    size_t space = workspace.size();
    std::align(kWorkspaceAlignment, bytes, aligned, space);
    EXPECT_EQ(dr_execute(plan, &tensors_, aligned, bytes, nullptr), DR_SUCCESS) << dr_last_error();
    dr_plan_destroy(plan);
  }

  std::mt19937_64 random_{29};
  std::vector<int64_t> offsets_;
  std::array<Memory, kNumTensors> memory_;
  dr_tensors tensors_{};
  dr_intermediates intermediates_{};
};

// rms(a - b) / rms(b), or rms(a) where b is 0. NaN anywhere gives NaN, which no comparison passes.
inline double distance(std::span<const double> a, std::span<const double> b) {
  double error = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  return std::sqrt(size > 0.0 ? error / size : error);
}
inline double distance(const Matrix& a, const Matrix& b) { return distance(a.data(), b.data()); }

// One rounding to fp32, and a chain of stages with fp32 tensors between them.
constexpr double kRounded = 1e-7;
constexpr double kChained = 2e-6;
constexpr int32_t kLocal = DR_AQK | DR_INVERSE | DR_W | DR_U | DR_K_TO_END | DR_Q_FROM_START | DR_GATE_SUMS;
constexpr int32_t kSolved = DR_W | DR_U;

// Runs the three stages with as little given as possible, or with everything.
inline void compose_stages(StageCall& x, bool everything) {
  x.run(DR_CHUNK_LOCAL, 0, everything ? kLocal : kSolved);
  x.run(DR_STATE_PASS, everything ? kSolved | DR_K_TO_END | DR_GATE_SUMS : kSolved, DR_STATES | DR_V_NEW);
  x.run(DR_OUTPUTS, DR_V_NEW | DR_STATES | (everything ? DR_AQK | DR_Q_FROM_START : 0), 0);
}

inline std::vector<double> values(const StageCall& x, Tensor tensor) {
  std::vector<double> result;
  for (int64_t i = 0; i < x.count(tensor); ++i) result.push_back(x.at(tensor, i));
  return result;
}

// Expects that the stages one after the other give the o and the final states of the forward.
inline void expect_forward(StageCall& x, double tolerance = kChained) {
  x.use_initial(), x.use_final();
  x.run(DR_FORWARD);
  const std::vector<double> o = values(x, Tensor::kO);
  const std::vector<double> final = values(x, Tensor::kFinal);
  for (const bool everything : {false, true}) {
    compose_stages(x, everything);
    EXPECT_LT(distance(values(x, Tensor::kO), o), tolerance) << everything;
    EXPECT_LT(distance(values(x, Tensor::kFinal), final), tolerance) << everything;
  }
}

}  // namespace deltarelay::test
