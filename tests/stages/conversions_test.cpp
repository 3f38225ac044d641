// fp32, bf16 and fp16 on every instruction set, bit by bit: states of empty sequences are converted and nothing else.
// And a NaN that the caller gave stays one, whatever its bits, in everything that depends on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "deltarelay/deltarelay.hpp"
#include "problem/number.h"

namespace deltarelay {
namespace {

constexpr int32_t kTypes[] = {DR_FP32, DR_BF16, DR_FP16};
const char* name_of_type(int32_t type) { return type == DR_FP32 ? "fp32" : type == DR_BF16 ? "bf16" : "fp16"; }

std::vector<std::string> isas() {
  std::vector<std::string> all;
  for (int32_t i = 0; i < dr_isa_count(); ++i) all.emplace_back(dr_isa_name(i));
  return all;
}

// Numbers of one type, in memory that is aligned as tensors have to be.
class Numbers {
 public:
  Numbers(int32_t type, size_t count) : type_(type), words_((count * bytes_of(type) + 255) / 256 * 32), count_(count) {}
  void* data() { return words_.data(); }
  size_t count() const { return count_; }
  uint32_t bits(size_t i) const {
    uint32_t bits = 0;
    std::memcpy(&bits, memory() + i * bytes_of(type_), bytes_of(type_));
    return bits;
  }
  void set_bits(size_t i, uint32_t bits) { std::memcpy(memory() + i * bytes_of(type_), &bits, bytes_of(type_)); }
  float get(size_t i) const {
    if (type_ == DR_FP32) return std::bit_cast<float>(bits(i));
    const auto half = static_cast<uint16_t>(bits(i));
    return type_ == DR_BF16 ? bf16_to_float(half) : fp16_to_float(half);
  }
  void set(size_t i, float value) { set_bits(i, bits_of(type_, value)); }
  static uint32_t bits_of(int32_t type, float value) {
    if (type == DR_FP32) return std::bit_cast<uint32_t>(value);
    return type == DR_BF16 ? float_to_bf16(value) : float_to_fp16(value);
  }

 private:
  static size_t bytes_of(int32_t type) { return type == DR_FP32 ? 4 : 2; }
  unsigned char* memory() { return reinterpret_cast<unsigned char*>(words_.data()); }
  const unsigned char* memory() const { return reinterpret_cast<const unsigned char*>(words_.data()); }
  int32_t type_;
  std::vector<uint64_t> words_;
  size_t count_;
};

// Every pattern of a 16-bit type. Of fp32, random patterns and every number around which a 16-bit type rounds.
std::vector<uint32_t> patterns(int32_t type) {
  std::vector<uint32_t> all;
  if (type != DR_FP32) {
    for (uint32_t bits = 0; bits < 65536; ++bits) all.push_back(bits);
    return all;
  }
  for (uint32_t half = 0; half < 0x7f80; half += 3) {  // the middle of two numbers of bf16
    const uint32_t middle = half << 16 | 0x8000;
    for (const uint32_t bits : {middle - 1, middle, middle + 1}) all.insert(all.end(), {bits, bits | 0x80000000});
  }
  for (uint32_t half = 0; half < 0x7c00; half += 3) {  // of fp16, the largest and infinity included
    const float low = fp16_to_float(static_cast<uint16_t>(half));
    const float high = half + 1 < 0x7c00 ? fp16_to_float(static_cast<uint16_t>(half + 1)) : 65536.0f;
    const auto middle = std::bit_cast<uint32_t>(low + (high - low) / 2);
    for (const uint32_t bits : {middle - 1, middle, middle + 1}) all.insert(all.end(), {bits, bits | 0x80000000});
  }
  for (const uint32_t bits : {0x7f800000u, 0x7f800001u, 0x7fa00000u, 0x7fc00000u, 0x7fffffffu, 0x7f802000u})
    all.insert(all.end(), {bits, bits | 0x80000000});
  std::mt19937 random(1);
  while (all.size() < 65536 * 2) all.push_back(static_cast<uint32_t>(random()));
  return all;
}

// Converts `from` by way of empty sequences, whose final states are their initial ones.
void convert(const std::string& isa, int32_t dk, int32_t dv, int32_t layout, int32_t type_from, Numbers& from,
             int32_t type_to, Numbers& to) {
  const auto sequences = static_cast<size_t>(from.count()) / static_cast<size_t>(dk * dv);
  const std::vector<int32_t> offsets(sequences + 1, 0);
  Problem problem(DR_GDN);
  problem.packed(offsets).heads(1, 1).widths(dk, dv).types(DR_FP32);
  problem.with_initial(layout, type_from).with_final(layout, type_to);
  problem.initial.alignment_bytes = problem.final.alignment_bytes = 4;
  Options options;
  options.on_backend("cpu").with_threads(1);
  options.isa = isa.c_str();
  const Plan plan(problem, options);
  Tensors tensors;
  tensors.initial = from.data();
  tensors.final = to.data();
  plan.execute(tensors, Workspace(plan.workspace_bytes()));
}

TEST(Conversions, EveryNumberRoundsToNearestEvenAndNanStaysNan) {
  // Rows of 256 numbers are whole vectors; of 7, the last numbers of a row.
  const int32_t shapes[][3] = {
      {256, 4, DR_STATE_VALUE_MAJOR}, {4, 256, DR_STATE_KEY_MAJOR}, {7, 4, DR_STATE_VALUE_MAJOR}};
  for (const std::string& isa : isas()) {
    for (const int32_t type_from : kTypes) {
      const std::vector<uint32_t> all = patterns(type_from);
      for (const int32_t type_to : kTypes) {
        for (const auto& [dk, dv, layout] : shapes) {
          SCOPED_TRACE(isa + ": " + name_of_type(type_from) + " to " + name_of_type(type_to) + ", rows of " +
                       std::to_string(layout == DR_STATE_KEY_MAJOR ? dv : dk));
          const size_t count =
              (dk == 7 ? size_t{9} << 10 : all.size()) / static_cast<size_t>(dk * dv) * static_cast<size_t>(dk * dv);
          const size_t stride = all.size() / count;
          Numbers from(type_from, count), to(type_to, count);
          for (size_t i = 0; i < count; ++i) from.set_bits(i, all[i * stride]);
          convert(isa, dk, dv, layout, type_from, from, type_to, to);
          size_t wrong = 0, first = 0;
          for (size_t i = 0; i < count; ++i) {
            const float value = from.get(i);
            const bool right =
                std::isnan(value) ? std::isnan(to.get(i)) : to.bits(i) == Numbers::bits_of(type_to, value);
            if (!right && wrong++ == 0) first = i;
          }
          EXPECT_EQ(wrong, 0u) << "of " << count << ", first " << from.get(first) << ", which became " << to.get(first)
                               << std::hex << " (bits " << from.bits(first) << ", " << to.bits(first) << ")";
        }
      }
    }
  }
}

struct NanCase {
  int32_t type;
  uint32_t bits;
};
constexpr NanCase kNans[] = {{DR_FP32, 0x7fc00000}, {DR_FP32, 0xffffffff}, {DR_FP32, 0x7fffffff}, {DR_FP32, 0x7f800001},
                             {DR_BF16, 0x7fff},     {DR_BF16, 0xffff},     {DR_BF16, 0x7f81},     {DR_FP16, 0x7fff},
                             {DR_FP16, 0xffff},     {DR_FP16, 0x7c01}};

// A NaN in column 0 of v: outputs from its token on, checkpoints and the final state show it in column 0, and only
// there.
void expect_visible_in_forward(const std::string& isa, int32_t rule, const NanCase& nan, int32_t type_out) {
  constexpr int32_t kWidth = 32, kTokens = 48, kAt = 19;  // a whole chunk before, and one after
  Problem problem(rule);
  problem.batched(1, kTokens).heads(1, 1).widths(kWidth, kWidth).types(nan.type, DR_FP32, DR_FP32, type_out);
  problem.with_final(DR_STATE_KEY_MAJOR, type_out);
  problem.checkpoints = DR_CHECKPOINTS_EVERY, problem.checkpoint_every = 16;
  problem.checkpoint = problem.final;
  Options options;
  options.on_backend("cpu").with_threads(1);
  options.isa = isa.c_str();
  const Plan plan(problem, options);
  const size_t rows = kTokens * kWidth, state = kWidth * kWidth;
  Numbers q(nan.type, rows), k(nan.type, rows), v(nan.type, rows), g(DR_FP32, rows), beta(DR_FP32, kTokens);
  Numbers o(type_out, rows), final(type_out, state), checkpoint(type_out, 3 * state);
  for (size_t i = 0; i < rows; ++i) q.set(i, 0.125f), k.set(i, 0.125f), v.set(i, 1.0f), g.set(i, -0.125f);
  for (size_t i = 0; i < kTokens; ++i) beta.set(i, 0.5f);
  v.set_bits(kAt * kWidth, nan.bits);
  Tensors t;
  t.q = q.data(), t.k = k.data(), t.v = v.data(), t.g = g.data(), t.beta = beta.data();
  t.o = o.data(), t.final = final.data(), t.checkpoint = checkpoint.data();
  plan.execute(t, Workspace(plan.workspace_bytes()));
  for (size_t i = 0; i < rows; ++i) {
    if (i % kWidth == 0 && i / kWidth >= 16 && i / kWidth < kAt) continue;  // of its chunk: not specified
    ASSERT_EQ(std::isnan(o.get(i)), i % kWidth == 0 && i / kWidth >= kAt) << "o, number " << i;
  }
  for (size_t i = 0; i < state; ++i) ASSERT_EQ(std::isnan(final.get(i)), i % kWidth == 0) << "final, number " << i;
  for (size_t i = 0; i < 3 * state; ++i)
    ASSERT_EQ(std::isnan(checkpoint.get(i)), i % kWidth == 0 && i / state >= 1) << "checkpoint, number " << i;
}

TEST(Conversions, NanStaysVisibleInTheForward) {
  for (const std::string& isa : isas()) {
    for (const int32_t rule : {DR_KDA, DR_GDN}) {
      for (const NanCase& nan : kNans) {
        for (const int32_t type_out : kTypes) {
          SCOPED_TRACE(isa + (rule == DR_KDA ? ", kda, " : ", gdn, ") + name_of_type(nan.type) + " NaN " +
                       std::to_string(nan.bits) + ", results in " + name_of_type(type_out));
          expect_visible_in_forward(isa, rule, nan, type_out);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// A fold of summaries: B of the first has a NaN, so every later state shows it.
TEST(Conversions, NanStaysVisibleInACarry) {
  constexpr int32_t kWidth = 32;
  constexpr size_t kSteps = 3, kSummary = 2 * kWidth * kWidth, kState = kWidth * kWidth;
  for (const std::string& isa : isas()) {
    for (const NanCase& nan : kNans) {
      if (nan.type != DR_FP32) continue;  // the type of summaries
      for (const int32_t type : kTypes) {
        SCOPED_TRACE(isa + ", NaN " + std::to_string(nan.bits) + ", states in " + name_of_type(type));
        Problem problem(DR_GDN);
        problem.batched(1, kSteps).heads(1, 1).widths(kWidth, kWidth);
        problem.op = DR_CARRY;
        dr_chunks chunks;
        dr_chunks_init(&chunks);
        chunks.given = DR_SUMMARIES, chunks.wanted = DR_STATES;
        chunks.states_layout = DR_STATE_KEY_MAJOR, chunks.dtype_states = type;
        problem.chunks = &chunks;
        Options options;
        options.on_backend("cpu").with_threads(1);
        options.isa = isa.c_str();
        const Plan plan(problem, options);
        Numbers summaries(DR_FP32, kSteps * kSummary), states(type, kSteps * kState);
        summaries.set_bits(0, nan.bits);
        dr_intermediates intermediates;
        dr_intermediates_init(&intermediates);
        intermediates.summaries = static_cast<float*>(summaries.data()), intermediates.states = states.data();
        Tensors t;
        t.intermediates = &intermediates;
        plan.execute(t, Workspace(plan.workspace_bytes()));
        EXPECT_FALSE(std::isnan(states.get(0))) << "the state before the first summary";
        EXPECT_TRUE(std::isnan(states.get(kState))) << "became " << states.get(kState);
        EXPECT_TRUE(std::isnan(states.get(2 * kState))) << "became " << states.get(2 * kState);
      }
    }
  }
}

// The other stages: u with a NaN, to states, V_new, a final state and outputs.
TEST(Conversions, NanStaysVisibleInAStatePassAndOutputs) {
  constexpr int32_t kWidth = 32, kTokens = 48;
  constexpr size_t kState = kWidth * kWidth, kRows = kTokens * kWidth;
  for (const std::string& isa : isas()) {
    for (const NanCase& nan : kNans) {
      for (const int32_t type : kTypes) {
        SCOPED_TRACE(isa + ", " + name_of_type(nan.type) + " NaN " + std::to_string(nan.bits) + ", results in " +
                     name_of_type(type));
        Problem problem(DR_GDN);
        problem.batched(1, kTokens).heads(1, 1).widths(kWidth, kWidth).types(nan.type, DR_FP32, DR_FP32, type);
        problem.op = DR_CHUNK_LOCAL;
        dr_chunks chunks;
        dr_chunks_init(&chunks);
        chunks.chunk = 16, chunks.wanted = DR_W | DR_U, chunks.dtype = type;
        problem.chunks = &chunks;
        Options options;
        options.on_backend("cpu").with_threads(1);
        options.isa = isa.c_str();
        Numbers q(nan.type, kRows), k(nan.type, kRows), v(nan.type, kRows), g(DR_FP32, kTokens), beta(DR_FP32, kTokens);
        Numbers w(type, kRows), u(type, kRows), v_new(type, kRows), o(type, kRows);
        Numbers states(type, 3 * kState), final(type, kState);
        for (size_t i = 0; i < kRows; ++i) q.set(i, 0.125f), k.set(i, 0.125f), v.set(i, 1.0f);
        for (size_t i = 0; i < kTokens; ++i) g.set(i, -0.125f), beta.set(i, 0.5f);
        v.set_bits(0, nan.bits);
        dr_intermediates intermediates;
        dr_intermediates_init(&intermediates);
        intermediates.w = w.data(), intermediates.u = u.data();
        Tensors t;
        t.k = k.data(), t.v = v.data(), t.g = g.data(), t.beta = beta.data();
        t.intermediates = &intermediates;
        const auto run = [&] {
          const Plan plan(problem, options);
          plan.execute(t, Workspace(plan.workspace_bytes()));
        };
        run();
        problem.op = DR_STATE_PASS;
        chunks.given = DR_W | DR_U, chunks.wanted = DR_STATES | DR_V_NEW;
        chunks.states_layout = DR_STATE_KEY_MAJOR, chunks.dtype_states = type;
        problem.with_final(DR_STATE_KEY_MAJOR, type);
        intermediates.states = states.data(), intermediates.v_new = v_new.data();
        t.final = final.data();
        t.v = t.beta = nullptr;
        run();
        problem.op = DR_OUTPUTS;
        problem.final = {};
        chunks.given = DR_STATES | DR_V_NEW, chunks.wanted = 0;
        intermediates.w = intermediates.u = nullptr;
        t.final = nullptr, t.q = q.data(), t.o = o.data();
        run();
        for (size_t t0 = 0; t0 < kTokens; ++t0) {
          ASSERT_EQ(std::isnan(u.get(t0 * kWidth)), t0 < 16) << t0;
          ASSERT_TRUE(std::isnan(v_new.get(t0 * kWidth))) << t0;
          ASSERT_TRUE(std::isnan(o.get(t0 * kWidth))) << t0;
        }
        ASSERT_TRUE(std::isnan(states.get(kState))) << "became " << states.get(kState);
        ASSERT_TRUE(std::isnan(final.get(0))) << "became " << final.get(0);
      }
    }
  }
}

}  // namespace
}  // namespace deltarelay
