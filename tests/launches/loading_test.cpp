// Loading kernels, which a process does once: each test runs in a process of its own, where nothing has been loaded.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <ostream>

#include "launches/call.h"

namespace deltarelay::launches {
namespace {

// Runs the body in a child of this process. Returns what it returns, or how it ended otherwise.
std::string in_child(const std::function<std::string()>& body) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child < 0) return "no child";
  if (child == 0) {
    std::string text = "it threw";
    try {
      text = body();
    } catch (const std::exception& error) {
      text = std::string("it threw ") + error.what();
    }
    const ssize_t written = write(pipe_ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(pipe_ends[1]);
  std::string text;
  char part[256];
  for (ssize_t got; (got = read(pipe_ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? text : "exit status " + std::to_string(WEXITSTATUS(status));
}

bool loads(const Call& made) { return made.function.starts_with("cudaFunc"); }

struct Sample {
  const char* line;
  Setting setting;
};
void PrintTo(const Sample& sample, std::ostream* out) { *out << sample.line << " on " << sample.setting.text(); }
const Sample kSamples[] = {
    {"kda bf16 hqk=2 hv=4 seqs=9000,100 tail=5 init final", {.backend = "cuda-sm90"}},
    {"kda fp16 hqk=2 hv=4 dk=64 seqs=9000,100 init final", {.device = 2, .backend = "cuda-sm80"}},
    {"gdn fp32 hqk=2 hv=4 dk=100 dv=40 seqs=9000,100", {.device = 1, .backend = "cuda-sm80"}},
    {"kda chunk-local bf16 hv=2 seqs=900", {.backend = "cuda-sm80"}},
    {"gdn state-pass fp32 hv=2 dk=200 seqs=9000 init final segments=4", {.backend = "cuda-sm80"}},
    {"kda summary fp16 hv=2 dk=60 seqs=900", {.device = 1, .backend = "cuda-sm80"}},
    {"kda outputs bf16 hv=2 seqs=900", {.device = 2, .backend = "cuda-sm80"}},
    {"gdn carry fp32 hv=2 seqs=3,2", {.backend = "cuda-sm80"}},
};
class Loading : public testing::TestWithParam<Sample> {
 protected:
  PlannedCall planned() const { return {cases::parse(GetParam().line), GetParam().setting}; }
};
std::string name_of(const testing::TestParamInfo<Sample>& info) { return "sample_" + std::to_string(info.index); }

// Making a plan loads; executing it does not, and neither does a second plan.
TEST_P(Loading, IsDoneByTheFirstPlan) {
  EXPECT_EQ(in_child([&]() -> std::string {
              const Recording recording;
              const PlannedCall first = planned();
              if (first.status() != DR_SUCCESS) return first.message();
              const auto count = [&] {
                return std::count_if(recording.calls().begin(), recording.calls().end(), loads);
              };
              const auto by_first = count();
              if (by_first == 0) return "the first plan loaded nothing";
              if (planned().status() != DR_SUCCESS || count() != by_first) return "the second plan loaded again";
              if (first.execute() != DR_SUCCESS) return dr_last_error();
              if (count() != by_first) return "the execution loaded";
              for (const Call& made : recording.calls())
                if (made.launch && !state_of(*made.launch->kernel, GetParam().setting.device).loaded)
                  return made.what + " was not loaded";
              int device = -1;
              cudaGetDevice(&device);
              return device == 0 ? "" : "the device of the thread has changed";
            }),
            "");
}

// Makes a plan whose `n`th call of the runtime fails, then another one. Returns "reported" if the first was refused as
// it has to be and the second works, "past the last call", "" if the call loads nothing, or what is wrong.
std::string after_error(int n, const Sample& sample) {
  const cases::Case c = cases::parse(sample.line);
  std::vector<Call> calls;
  std::string message;
  dr_status status = DR_SUCCESS;
  {
    fail_calls(n, 1);
    const Recording recording;
    const PlannedCall first(c, sample.setting);
    fail_calls(0, 0);
    calls = recording.calls();
    message = first.message();
    status = first.status();
  }
  const auto failed = [](const Call& made) { return made.status != cudaSuccess; };
  const auto at = std::find_if(calls.begin(), calls.end(), failed);
  if (at == calls.end()) return "past the last call";
  int device = -1;
  cudaGetDevice(&device);
  if (device != 0 && calls.back().status == cudaSuccess) return "the device of the thread has changed";
  cudaSetDevice(0);
  if (!loads(*at)) return "";
  if (status != DR_DEVICE_ERROR) return at->what + ": the plan was made without it";
  if (message.find(kInjectedError) == std::string::npos) return "message: " + message;
  const Recording recording;
  const PlannedCall second(c, sample.setting);
  if (second.status() != DR_SUCCESS) return "the second plan: " + second.message();
  if (second.execute() != DR_SUCCESS) return dr_last_error();
  for (const Call& made : recording.calls())
    if (made.launch && !state_of(*made.launch->kernel, sample.setting.device).loaded)
      return made.what + " was not loaded";
  return "reported";
}

// A call that fails while a plan is made is reported, and the next plan loads what is missing.
TEST_P(Loading, ReportsEveryErrorAndCanBeRepeated) {
  int reported = 0;
  for (int n = 0;; ++n) {
    const std::string found = in_child([&] { return after_error(n, GetParam()); });
    if (found == "past the last call") break;
    reported += found == "reported" ? 1 : 0;
    // What a GPU does not say of itself is 0, and a machine may turn out to have no such GPU.
    EXPECT_THAT(found, testing::AnyOf("", "reported", testing::StartsWith("it threw device: "))) << "call " << n;
    ASSERT_LT(n, 1000);
  }
  EXPECT_GT(reported, 10);
}

INSTANTIATE_TEST_SUITE_P(Samples, Loading, testing::ValuesIn(kSamples), name_of);

}  // namespace
}  // namespace deltarelay::launches
