// The C++ wrapper in a program without exceptions: what fails says so in a status, and nothing ends the program. Prints
// each expectation that does not hold; the exit code is their number.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deltarelay/deltarelay.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions)
#error "expected to be compiled with -fno-exceptions"
#endif

namespace {

int failures = 0;

void expect(bool held, const char* what) {
  if (held) return;
  std::printf("expected %s; last error: '%s'\n", what, dr_last_error());
  ++failures;
}

constexpr int64_t kTokens = 40;
constexpr int32_t kHeads = 2, kWidth = 16;

struct Call {
  std::vector<float> q = std::vector<float>(kTokens * kHeads * kWidth, 0.1f), g = std::vector<float>(q.size(), -0.1f);
  std::vector<float> beta = std::vector<float>(kTokens * kHeads, 0.5f), o = std::vector<float>(q.size());
  deltarelay::Tensors tensors;

  Call() {
    tensors.q = tensors.k = tensors.v = q.data();
    tensors.g = g.data();
    tensors.beta = beta.data();
    tensors.o = o.data();
  }
};

deltarelay::Problem problem_of(int32_t width) {
  deltarelay::Problem problem(DR_KDA);
  problem.batched(1, kTokens).heads(kHeads, kHeads).widths(width, width);
  return problem;
}

void a_call_that_works() {
  Call call;
  deltarelay::Plan made(problem_of(kWidth), deltarelay::Options().on_backend("reference"));
  expect(made.status() == DR_SUCCESS && made.get() != nullptr, "a plan");
  const deltarelay::Plan plan = std::move(made);
  deltarelay::Workspace booked(plan.workspace_bytes());
  expect(booked.status() == DR_SUCCESS && booked.size() == plan.workspace_bytes(), "a workspace");
  const deltarelay::Workspace workspace = std::move(booked);
  expect(plan.execute(call.tensors, workspace) == DR_SUCCESS, "success");
  expect(call.o[0] != 0.0f, "outputs");
  const char* const backend = plan.summary().backend;
  expect(backend != nullptr && std::strcmp(backend, "reference") == 0, "a summary of the reference backend");
  expect(plan.describe().find("reference") != std::string::npos, "a description of the reference backend");
  dr_device device;
  expect(deltarelay::find_device("h200", &device) == DR_SUCCESS && device.units == 132, "facts of an H200");
}

void what_fails_says_so() {
  Call call;
  const deltarelay::Plan none(problem_of(1000));
  expect(none.status() == DR_INVALID && none.get() == nullptr, "no plan for a width of 1000");
  expect(std::strcmp(dr_last_error(), "problem.dk: expected 1 to 256, found 1000") == 0, "a message about problem.dk");
  expect(none.workspace_bytes() == 0, "no workspace without a plan");
  expect(none.summary().backend == nullptr && none.describe().empty(), "nothing to say without a plan");
  expect(none.execute(call.tensors, deltarelay::Workspace(none.workspace_bytes())) == DR_INVALID,
         "a refusal to execute without a plan");

  deltarelay::Problem empty(DR_KDA);
  empty.packed(std::span<const int64_t>{}).heads(1, 1).widths(8, 8);
  expect(deltarelay::Plan(empty).status() == DR_INVALID, "no plan without offsets");

  const deltarelay::Workspace too_large(SIZE_MAX / 4);
  expect(too_large.status() == DR_OUT_OF_MEMORY && too_large.size() == 0 && too_large.data() == nullptr,
         "no workspace of that size");
  const deltarelay::Plan plan(problem_of(kWidth));
  expect(plan.execute(call.tensors, too_large) == DR_INVALID, "a refusal of a workspace without memory");
  expect(plan.describe(99).empty(), "no description of an unknown kind");

  dr_device device;
  expect(deltarelay::find_device("nonesuch", &device) == DR_INVALID, "no such device");
}

}  // namespace

int main() {
  a_call_that_works();
  what_fails_says_so();
  return failures;
}
