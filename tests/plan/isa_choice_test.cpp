// Which instruction set a plan takes, and when the system is asked for AMX: only for a plan that runs on it.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "deltarelay/deltarelay.h"
#include "kernels/cpu/amx_permission.h"
#include "kernels/cpu/isa.h"
#include "plan/backends.h"
#include "plan_cases.h"

namespace deltarelay::cpu {
namespace {

constexpr int kSupported = 0x1021, kRequest = 0x1023;  // of Linux: asm/prctl.h
constexpr unsigned long kTileData = 18;

int requests = 0, answer = 0;

// A Linux that offers AMX and answers requests with `answer`.
int linux_with_amx(int request, unsigned long argument) {
  if (request == kSupported) {
    const uint64_t features = uint64_t{1} << kTileData | 7;
    std::memcpy(reinterpret_cast<void*>(argument), &features, sizeof features);
    return 0;
  }
  EXPECT_EQ(request, kRequest);
  EXPECT_EQ(argument, kTileData);
  ++requests;
  return answer;
}
int linux_without_amx(int request, unsigned long argument) {
  if (request != kSupported) return EOPNOTSUPP;
  const uint64_t features = 7;
  std::memcpy(reinterpret_cast<void*>(argument), &features, sizeof features);
  return 0;
}
int older_linux(int, unsigned long) { return EINVAL; }

const char* ask() { return ask_for_amx(linux_with_amx); }

class IsaChoiceTest : public testing::Test {
 protected:
  IsaChoiceTest() { requests = 0, answer = 0; }
  const Kernels fp32_{}, bf16_{}, amx_{};
  const Isa isas_[4] = {{"avx512-amx", &fp32_, &amx_, true},
                        {"avx512", &fp32_, nullptr},
                        {"avx512-bf16", &fp32_, &bf16_},
                        {"portable", &fp32_, nullptr}};

  static Problem problem(DType dtype, int32_t dk, Op op = Op::kForward) {
    Problem p;
    p.dtype = dtype, p.dk = dk, p.op = op;
    return p;
  }
  IsaChoice choose(const Problem& p, const char* named = nullptr) const {
    return choose_isa(isas_, p, {.isa = named}, ask);
  }
};

TEST_F(IsaChoiceTest, TheSystemIsAskedOnlyForProductsWithAmx) {
  EXPECT_EQ(choose(problem(DType::kFp32, 128)).index, 0);
  EXPECT_EQ(choose(problem(DType::kBf16, kLeastBf16Width - 1)).index, 0);
  EXPECT_EQ(choose(problem(DType::kBf16, 128, Op::kStatePass)).index, 0);
  EXPECT_EQ(choose(problem(DType::kBf16, 128), "avx512-bf16").index, 2);
  EXPECT_EQ(choose(problem(DType::kFp32, 128), "avx512-amx").index, 0);
  EXPECT_EQ(requests, 0);
  const IsaChoice choice = choose(problem(DType::kBf16, 128));
  EXPECT_EQ(choice.index, 0);
  EXPECT_STREQ(choice.refused, "");
  EXPECT_EQ(requests, 1);
}

TEST_F(IsaChoiceTest, ARefusalNamesTheNextSetAndTheReason) {
  answer = ENOSPC;
  const IsaChoice choice = choose(problem(DType::kBf16, 128));
  EXPECT_EQ(choice.index, 1);
  EXPECT_NE(std::string(choice.refused).find("sigaltstack"), std::string::npos) << choice.refused;
  answer = EPERM;
  const IsaChoice named = choose(problem(DType::kBf16, 128), "avx512-amx");
  EXPECT_EQ(named.index, 0);
  EXPECT_NE(std::string(named.refused).find("not permitted"), std::string::npos) << named.refused;
  answer = EINVAL;
  EXPECT_STRNE(choose(problem(DType::kBf16, 128)).refused, "");
  EXPECT_EQ(choose(problem(DType::kFp32, 128)).index, 0) << "the bits and the name of fp32 arithmetic stay";
}

TEST(AmxPermission, IsOfferedWhereLinuxKnowsTheRegisters) {
  requests = 0;
  EXPECT_TRUE(amx_is_offered(linux_with_amx));
  EXPECT_FALSE(amx_is_offered(linux_without_amx));
  EXPECT_FALSE(amx_is_offered(older_linux));
  EXPECT_EQ(requests, 0);
}

// The text of a plan says why it does not run on the best set.
TEST(AmxPermission, APlanGivesTheReason) {
  const auto plan = make_plan(test::problem_of(Rule::kGdn, {100}, 1), test::options_on(test::device_of("cpu")));
  EXPECT_EQ(describe_text(*plan).find("does not grant"), std::string::npos);
  Plan without = *plan;
  answer = ENOSPC;
  without.variant.isa_reason = ask();
  EXPECT_NE(describe_text(without).find(without.variant.isa_reason), std::string::npos);
  EXPECT_EQ(describe_signature(without), describe_signature(*plan)) << "a reason changes no bit";
}

}  // namespace
}  // namespace deltarelay::cpu
