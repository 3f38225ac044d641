// Measures the cost of a first call in a cold process: from loading the library to the first result on the GPU. A CUDA
// context is created and timed first, so it is not part of the cost.
//
//   deltarelay-first-call <libdeltarelay.so> kda|gdn      one line of JSON, milliseconds
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "deltarelay/deltarelay.h"

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void expect(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

constexpr int64_t kTokens = 1024;
constexpr int64_t kHeads = 8;
constexpr int64_t kWidth = 128;

// Allocates device memory with bf16 numbers in [-1, 1) that depend on the position.
void* make_bf16(int64_t count) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  uint32_t state = 12345;
  for (uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    const float number = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
    uint32_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    value = static_cast<uint16_t>(bits >> 16);
  }
  void* data = nullptr;
  expect(cudaMalloc(&data, values.size() * 2), "cudaMalloc");
  expect(cudaMemcpy(data, values.data(), values.size() * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
  return data;
}

// The functions of the API, looked up in the loaded library.
class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(std::string("dlopen: ") + dlerror());
  }
  template <class Function>
  Function find(const char* name) const {
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr) throw std::runtime_error(std::string("dlsym: ") + dlerror());
    return reinterpret_cast<Function>(symbol);
  }
  void expect(dr_status status) const {
    if (status != DR_SUCCESS) throw std::runtime_error(find<decltype(&dr_last_error)>("dr_last_error")());
  }

 private:
  void* handle_;
};

#define DR_FIND(library, function) (library).find<decltype(&(function))>(#function)

// Checks that the output has at least one nonzero number and only finite ones: the GPU has computed something.
void require_result(const void* o, int64_t count) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  expect(cudaMemcpy(values.data(), o, values.size() * 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
  bool some = false;
  for (const uint16_t value : values) {
    if ((value & 0x7f80) == 0x7f80) throw std::runtime_error("o: expected finite numbers, found others");
    some = some || (value & 0x7fff) != 0;
  }
  if (!some) throw std::runtime_error("o: expected numbers, found zeros only");
}

void run(const char* path, bool kda) {
  const auto start = Clock::now();
  expect(cudaFree(nullptr), "cudaFree");  // creates the context
  const double context = milliseconds_since(start);

  const int64_t rows = kTokens * kHeads;
  dr_tensors tensors{};
  tensors.size = sizeof tensors;
  tensors.q = make_bf16(rows * kWidth);
  tensors.k = make_bf16(rows * kWidth);
  tensors.v = make_bf16(rows * kWidth);
  tensors.g = make_bf16(kda ? rows * kWidth : rows);
  tensors.beta = make_bf16(rows);
  tensors.o = make_bf16(rows * kWidth);
  expect(cudaMemset(tensors.o, 0xff, static_cast<size_t>(rows * kWidth * 2)), "cudaMemset");
  cudaStream_t stream = nullptr;
  expect(cudaStreamCreate(&stream), "cudaStreamCreate");
  expect(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

  const auto load = Clock::now();
  const Library library(path);
  const double loaded = milliseconds_since(load);
  dr_problem problem;
  dr_problem_init(&problem);
  problem.rule = kda ? DR_KDA : DR_GDN;
  problem.num_seqs = 1;
  problem.seq_len = kTokens;
  problem.heads_qk = problem.heads_v = static_cast<int32_t>(kHeads);
  problem.dk = problem.dv = static_cast<int32_t>(kWidth);
  problem.dtype = DR_BF16;
  problem.gate_form = DR_GATE_RAW_BOUNDED;
  problem.lower_bound = -5.0f;
  problem.beta_form = DR_BETA_LOGIT;
  problem.l2norm = 1;
  dr_device device;
  dr_device_init(&device);
  library.expect(DR_FIND(library, dr_device_find)("cuda:0", &device));
  dr_options options;
  dr_options_init(&options);
  options.device = &device;
  dr_plan* plan = nullptr;
  library.expect(DR_FIND(library, dr_plan_create)(&problem, &options, &plan));
  const double planned = milliseconds_since(load);
  size_t bytes = 0;
  library.expect(DR_FIND(library, dr_plan_workspace_bytes)(plan, &bytes));
  void* workspace = nullptr;
  expect(cudaMalloc(&workspace, bytes + 1), "cudaMalloc");
  const auto execute = DR_FIND(library, dr_execute);
  library.expect(execute(plan, &tensors, workspace, bytes, stream));
  expect(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const double first = milliseconds_since(load);
  require_result(tensors.o, rows * kWidth);

  const auto repeat = Clock::now();
  library.expect(execute(plan, &tensors, workspace, bytes, stream));
  expect(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const double second = milliseconds_since(repeat);
  DR_FIND(library, dr_plan_destroy)(plan);
  std::printf(
      "{\"rule\": \"%s\", \"first_call_ms\": %.3f, \"load_ms\": %.3f, \"plan_ms\": %.3f, \"second_call_ms\": %.3f, "
      "\"context_ms\": %.3f}\n",
      kda ? "kda" : "gdn", first, loaded, planned, second, context);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || (std::strcmp(argv[2], "kda") != 0 && std::strcmp(argv[2], "gdn") != 0)) {
    std::fprintf(stderr, "usage: deltarelay-first-call <libdeltarelay.so> kda|gdn\n");
    return 2;
  }
  try {
    run(argv[1], std::strcmp(argv[2], "kda") == 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "deltarelay-first-call: %s\n", error.what());
    return 1;
  }
  return 0;
}
