// Tests on a GPU, written as case lines like those of tests/forward. Without a GPU every fixture is skipped:
// scripts/gpu_check.sh runs the tests on a host that has one; elsewhere they only have to compile.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "case/case.h"
#include "check/check.h"
#include "check/device_memory.h"
#include "check/device_tensors.h"
#include "check/run.h"
#include "forward/forward_case.h"

namespace deltarelay::on_gpu {

using forward::block_of;
using forward::cases_in;
using forward::combine;
using forward::name_of;
namespace gpu = check::gpu;

constexpr const char* kBackend = "cuda-sm90";
constexpr const char* kPortable = "cuda-sm80";

template <class Base>
class NeedsGpu : public Base {
 protected:
  void SetUp() override {
    const std::string why = gpu::why_absent();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};
using OnGpu = NeedsGpu<testing::Test>;
using EachCase = NeedsGpu<testing::TestWithParam<cases::Case>>;

// The case on the backend under test: the one it names, else kBackend.
cases::Case forced(const cases::Case& c);
cases::Case forced(const std::string& line);

using Edit = std::function<void(check::TensorSet&)>;

// A case that ran on the GPU: `host` holds the results, `device` the tensors of the run. `edit` may change inputs
// first.
struct Ran {
  explicit Ran(const cases::Case& c, const Edit& edit = {});
  // Runs again, with poisoned outputs.
  void again();

  check::TensorSet host;
  gpu::DeviceTensors device;
  check::PlannedRun run;
  gpu::Stream stream;
};

// Nothing outside the outputs was written, and the inputs are unchanged.
void expect_undamaged(Ran& ran);
// All errors are within the table of tolerances.
void expect_close(const std::vector<check::TensorError>& errors, const char* what);
// Scales the errors of two runs that may both be as far from the truth as the table says. Their round-off is
// independent, so their distance is up to sqrt(2) of it (docs/numerics.md).
std::vector<check::TensorError> of_two_runs(std::vector<check::TensorError> errors);

}  // namespace deltarelay::on_gpu
