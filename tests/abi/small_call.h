// A small, complete and valid call, for tests that change one thing at a time. Uses the public header only.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "deltarelay/deltarelay.h"

namespace contract {

struct PlanOwner {
  dr_plan* plan = nullptr;

  PlanOwner() = default;
  explicit PlanOwner(const dr_problem& problem, const dr_options* options = nullptr) {
    EXPECT_EQ(dr_plan_create(&problem, options, &plan), DR_SUCCESS) << dr_last_error();
  }
  PlanOwner(const PlanOwner&) = delete;
  ~PlanOwner() { dr_plan_destroy(plan); }
};

struct SmallCall {
  static constexpr int64_t kTokens = 70;
  static constexpr int32_t kHeads = 2;
  static constexpr int32_t kDk = 16;
  static constexpr int32_t kDv = 8;
  static constexpr float kPoison = -12345.0f;

  int32_t offsets[3] = {0, 3, 66};
  std::vector<float> q, k, v, g, beta, o, state;
  std::vector<unsigned char> storage;
  dr_problem problem;
  dr_tensors tensors;

  SmallCall()
      : q(pattern(kTokens * kHeads * kDk, 0.3f)),
        k(pattern(kTokens * kHeads * kDk, 0.2f)),
        v(pattern(kTokens * kHeads * kDv, 1.0f)),
        g(kTokens * kHeads * kDk, -0.1f),
        beta(kTokens * kHeads, 0.5f),
        o(kTokens * kHeads * kDv, kPoison),
        state(2 * kHeads * kDk * kDv, kPoison) {
    dr_problem_init(&problem);
    problem.rule = DR_KDA;
    problem.num_seqs = 2;
    problem.num_tokens = kTokens;
    problem.seq_offsets = offsets;
    problem.heads_qk = problem.heads_v = kHeads;
    problem.dk = kDk;
    problem.dv = kDv;
    problem.final.use = DR_STATE_ROWS;
    problem.final.layout = DR_STATE_KEY_MAJOR;
    dr_tensors_init(&tensors);
    tensors.q = q.data();
    tensors.k = k.data();
    tensors.v = v.data();
    tensors.g = g.data();
    tensors.beta = beta.data();
    tensors.o = o.data();
    tensors.final = state.data();
  }
  SmallCall(const SmallCall&) = delete;

  static std::vector<float> pattern(size_t count, float size) {
    std::vector<float> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = size * std::sin(0.7f * static_cast<float>(i));
    return data;
  }

  // A workspace for the plan, `skew` bytes off a 256-byte boundary.
  void* workspace(size_t bytes, size_t skew = 0) {
    storage.resize(bytes + skew + 256);
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    return storage.data() + (256 - address % 256) % 256 + skew;
  }

  bool untouched() const {
    for (const float x : o) {
      if (x != kPoison) return false;
    }
    for (const float x : state) {
      if (x != kPoison) return false;
    }
    return true;
  }
};

// Expects this status and a message that starts with the argument and contains these words.
inline void expect_failure(dr_status found, dr_status wanted, const std::string& argument,
                           const std::vector<std::string>& words) {
  const std::string message = dr_last_error();
  EXPECT_EQ(found, wanted) << message;
  EXPECT_EQ(message.compare(0, argument.size() + 1, argument + ":"), 0) << message << "\n  is not about " << argument;
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << message << "\n  lacks " << word;
  }
}

}  // namespace contract
