// The floating-point environment is the thread's, and the caller's business: no bit of a result depends on it, and it
// is the same after a call as before.
#include <cfenv>
#include <vector>

#include "small_call.h"

namespace contract {
namespace {

// Leaves the test's own thread as it was.
class Environment : public testing::Test {
 protected:
  void SetUp() override { std::fegetenv(&before_); }
  void TearDown() override { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

struct Results {
  std::vector<float> o, state;
  bool operator==(const Results&) const = default;
};

// Plans and executes with this rounding mode; `mode_after` receives the one after the call.
Results results_of(const char* backend, int32_t threads, int plan_mode, int mode, int* mode_after) {
  SmallCall call;
  call.problem.dk = 15;  // its scale, 15^-1/2, is inexact
  dr_options options;
  dr_options_init(&options);
  options.backend = backend;
  options.threads = threads;
  std::fesetround(plan_mode);
  const PlanOwner owner(call.problem, &options);
  std::fesetround(FE_TONEAREST);
  size_t bytes = 0;
  EXPECT_EQ(dr_plan_workspace_bytes(owner.plan, &bytes), DR_SUCCESS);
  void* workspace = call.workspace(bytes);
  std::fesetround(mode);
  const dr_status status = dr_execute(owner.plan, &call.tensors, workspace, bytes, nullptr);
  *mode_after = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(status, DR_SUCCESS) << dr_last_error();
  return {call.o, call.state};
}

TEST_F(Environment, RoundingOfTheCallerChangesNoBit) {
  for (const char* backend : {"cpu", "reference"}) {
    int after = 0;
    const Results nearest = results_of(backend, 1, FE_TONEAREST, FE_TONEAREST, &after);
    for (const int mode : {FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD}) {
      for (const int32_t threads : {1, 4}) {
        EXPECT_EQ(results_of(backend, threads, FE_TONEAREST, mode, &after), nearest)
            << backend << ", mode " << mode << ", threads " << threads;
        EXPECT_EQ(after, mode) << "the caller's mode, after the call";
        EXPECT_EQ(results_of(backend, threads, mode, FE_TONEAREST, &after), nearest)
            << backend << ", planned in mode " << mode << ", threads " << threads;
      }
    }
  }
}

TEST_F(Environment, TrapsOfTheCallerDoNotFire) {
#if defined(__x86_64__)
  constexpr int kTraps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT;
  for (const char* backend : {"cpu", "reference"}) {
    SmallCall call;
    dr_options options;
    dr_options_init(&options);
    options.backend = backend;
    dr_plan* plan = nullptr;
    size_t bytes = 0;
    std::feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(kTraps);  // SIGFPE ends the test where one fires
    const dr_status created = dr_plan_create(&call.problem, &options, &plan);
    const dr_status sized = created == DR_SUCCESS ? dr_plan_workspace_bytes(plan, &bytes) : created;
    void* workspace = call.workspace(bytes);
    const dr_status executed = sized == DR_SUCCESS ? dr_execute(plan, &call.tensors, workspace, bytes, nullptr) : sized;
    const int traps_after = fegetexcept(), raised = std::fetestexcept(FE_ALL_EXCEPT);
    fedisableexcept(kTraps);
    EXPECT_EQ(executed, DR_SUCCESS) << dr_last_error();
    EXPECT_EQ(traps_after, kTraps) << "the caller's traps, after the calls";
    EXPECT_EQ(raised, 0) << "exception flags of the library's arithmetic";
    dr_plan_destroy(plan);
  }
#else
  GTEST_SKIP() << "this processor may have no traps";
#endif
}

}  // namespace
}  // namespace contract
