// What the library does with the CUDA runtime, on GPUs that are not there (fake_runtime.h): every case of tests/cases,
// and random ones, on every fake GPU, with every backend and variant that takes it.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <set>
#include <thread>

#include "launches/call.h"

namespace deltarelay::launches {
namespace {

// ---- the recorder itself

TEST(Recorder, ReadsEveryMemberOfTheParameters) { EXPECT_THAT(types_with_gaps(), testing::IsEmpty()); }

TEST(Recorder, ParametersHaveTheSizesThatKernelsWereCompiledWith) {
  size_t known = 0;
  for (const Kernel* kernel : all_kernels()) {
    ASSERT_FALSE(kernel->parameters.empty()) << kernel->name;
    if (!kernel->facts) continue;
    ++known;
    std::vector<size_t> bytes;
    for (const std::string& type : kernel->parameters) bytes.push_back(size_of_type(type) % (1 << 14));
    EXPECT_EQ(kernel->facts->parameter_bytes, bytes) << kernel->name;
  }
  if (known == 0) GTEST_SKIP() << "all kernels of this build are compressed";
  EXPECT_GT(known, all_kernels().size() / 3);  // portable kernels are compressed
}

class OnTheFirstGpu : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cudaSetDevice(0), cudaSuccess); }
};

// A launch as the library makes it. `change` spoils it.
template <class Change>
cudaError_t launched_with(const Change& change) {
  const PlannedCall call(cases::parse("gdn bf16 hqk=2 hv=4 seqs=600 init final"),
                         {.backend = "cuda-sm90", .variant = "fused"});
  EXPECT_EQ(call.status(), DR_SUCCESS) << call.message();
  const Recording recording;
  EXPECT_EQ(call.execute(), DR_SUCCESS);
  for (const Call& made : recording.calls()) {
    if (!made.launch || made.launch->cluster < 2) continue;
    Launch launch = *made.launch;
    std::vector<void*> arguments;
    for (Parameter& parameter : launch.parameters) arguments.push_back(parameter.bytes.data());
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {launch.cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = launch.grid;
    config.blockDim = launch.block;
    config.dynamicSmemBytes = launch.shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    change(config, attribute);
    return cudaLaunchKernelExC(&config, function_of(*launch.kernel), arguments.data());
  }
  ADD_FAILURE() << "no launch with clusters";
  return cudaSuccess;
}

TEST_F(OnTheFirstGpu, RefusesLaunchesThatAGpuRefuses) {
  using Config = cudaLaunchConfig_t;
  using Attribute = cudaLaunchAttribute;
  EXPECT_EQ(launched_with([](Config&, Attribute&) {}), cudaSuccess);
  EXPECT_NE(launched_with([](Config& config, Attribute&) { config.gridDim.x += 1; }), cudaSuccess);
  EXPECT_NE(launched_with([](Config& config, Attribute&) { config.gridDim.y = 0; }), cudaSuccess);
  EXPECT_NE(launched_with([](Config& config, Attribute&) { config.gridDim.y = 65536; }), cudaSuccess);
  EXPECT_NE(launched_with([](Config& config, Attribute&) { config.blockDim.x = 1025; }), cudaSuccess);
  EXPECT_NE(launched_with([](Config& config, Attribute&) { config.dynamicSmemBytes += 1; }), cudaSuccess);
  EXPECT_NE(launched_with([](Config&, Attribute& attribute) { attribute.val.clusterDim.x = 16; }), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);  // no clusters
  EXPECT_NE(launched_with([](Config&, Attribute&) {}), cudaSuccess);
}

// ---- every call

std::vector<cases::Case> all_cases() {
  constexpr uint64_t kRandom = 300;
  std::vector<cases::Case> all = random_cases(kRandom);
  std::set<std::string> seen;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(DR_CASES_DIR)) files.insert(entry.path());
  for (const std::filesystem::path& file : files)
    for (const cases::Case& c : cases::read_file(file))
      if (seen.insert(cases::print(without_setting(c))).second) all.push_back(without_setting(c));
  return all;
}

// Functions that an execution may call. They allocate nothing, wait for nothing and load nothing, and a stream that is
// being captured takes them.
const std::set<std::string> kAllowed = {
    "cudaGetDevice",          "cudaSetDevice",    "cudaDeviceGetAttribute", "cudaGetDriverEntryPointByVersion",
    "cuTensorMapEncodeTiled", "cudaLaunchKernel", "cudaLaunchKernelExC"};

// The first byte after the last that a map describes.
uint64_t end_of(const MapContents& map) {
  const uint64_t element = map.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  uint64_t last = map.address + (map.sizes[0] - 1) * element;
  for (size_t i = 1; i < 5; ++i) last += (map.sizes[i] - 1) * map.strides[i - 1];
  return last + element;
}

// The memory that an address belongs to; nullptr: none that the call was given.
const Region* region_of(const std::vector<Region>& regions, uint64_t address) {
  for (const Region& region : regions) {
    const bool inside = address >= region.begin && address < region.begin + region.bytes;
    if (inside || (region.bytes == 0 && address == region.begin)) return &region;
  }
  return nullptr;
}

std::string where(const PlannedCall& call, const Call& made) { return call.plan_text() + "\n" + made.what; }

void expect_own_memory(const PlannedCall& call, const Call& made) {
  const Contents contents = contents_of(*made.launch, call.regions());
  for (const Contents::Address& address : contents.addresses)
    EXPECT_NE(region_of(call.regions(), address.value), nullptr)
        << where(call, made) << "\n"
        << address.name << " is " << address_text(call.regions(), address.value);
  for (const Contents::Map& map : contents.maps) {
    const Region* const region = region_of(call.regions(), map.value.address);
    ASSERT_NE(region, nullptr) << map.name;
    EXPECT_LE(end_of(map.value), region->begin + region->bytes) << where(call, made) << "\n"
                                                                << map.name << " of " << region->name;
  }
}

struct Executed {
  dr_status status;
  std::string message;  // if it failed
  std::vector<Call> calls;
};
Executed execute(const PlannedCall& call) {
  const Recording recording;
  const dr_status status = call.execute();
  return {status, status == DR_SUCCESS ? "" : dr_last_error(), recording.calls()};
}

// Executes the call and holds it against the promises of docs/data-flow.md ("On a GPU").
void expect_promises(const PlannedCall& call, const Setting& setting) {
  constexpr int kElsewhere = 3;  // the device of the caller's thread
  ASSERT_EQ(cudaSetDevice(kElsewhere), cudaSuccess);
  const Executed executed = execute(call);
  ASSERT_EQ(executed.status, DR_SUCCESS) << call.plan_text() << "\n" << executed.message;
  int device = -1;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, kElsewhere);
  for (const Call& made : executed.calls) {
    EXPECT_EQ(kAllowed.count(made.function), 1u) << where(call, made) << "\ncalls " << made.function;
    EXPECT_EQ(made.status, cudaSuccess) << where(call, made) << "\n" << made.function;
    if (!made.launch) continue;
    EXPECT_EQ(made.device, setting.device) << where(call, made);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(made.stream), PlannedCall::kStream) << where(call, made);
    EXPECT_TRUE(state_of(*made.launch->kernel, setting.device).loaded) << where(call, made) << " was not loaded";
    expect_own_memory(call, made);
  }
}

TEST(Calls, KeepThePromisesOfEveryPlan) {
  std::set<std::string> launched;
  int64_t calls = 0;
  for (const cases::Case& c : all_cases()) {
    for (const Setting& setting : settings_of(c)) {
      const PlannedCall call(c, setting);
      ASSERT_THAT(call.status(), testing::AnyOf(DR_SUCCESS, DR_UNSUPPORTED, DR_INVALID)) << call.message();
      if (call.status() != DR_SUCCESS) continue;
      expect_promises(call, setting);
      ++calls;
      if (HasFailure()) GTEST_FAIL() << "in: " << cases::print(c) << "\non " << setting.text();
    }
  }
  EXPECT_GT(calls, 40'000);
}

// ---- errors

// A case with each step that a backend has.
struct Sample {
  const char* line;
  Setting setting;
};
void PrintTo(const Sample& sample, std::ostream* out) { *out << sample.line << " on " << sample.setting.text(); }
const Sample kSamples[] = {
    {"kda bf16 hqk=2 hv=4 seqs=9000,100 tail=5 init final gate=bounded:-5 l2norm", {.backend = "cuda-sm90"}},
    {"gdn bf16 hqk=2 hv=4 seqs=9000,100 init=slots final=slots checkpoints=every:48",
     {.backend = "cuda-sm90", .variant = "prepared", .late = true, .report = true}},
    {"gdn fp16 hqk=2 hv=4 dv=256 batch=3x700 final", {.backend = "cuda-sm90", .variant = "fused"}},
    {"kda fp32 hqk=2 hv=4 dk=64 seqs=9000,100 init final checkpoints=every:48", {.device = 1, .backend = "cuda-sm80"}},
    {"gdn bf16 hqk=2 hv=4 dk=96 seqs=9000,100 tail=3 init=slots final=slots",
     {.device = 2, .backend = "cuda-sm80", .late = true, .report = true}},
    {"kda state-pass bf16 hv=2 seqs=9000,100,0 tail=3 init final segments=4", {.backend = "cuda-sm80", .report = true}},
    {"gdn summary fp16 hv=2 dk=60 seqs=900,0 tail=3", {.device = 1, .backend = "cuda-sm80", .late = true}},
    {"kda carry fp32 hv=2 seqs=3,0,2 want=states,composed init final", {.device = 2, .backend = "cuda-sm80"}},
};

std::string name_of(const testing::TestParamInfo<Sample>& info) { return "sample_" + std::to_string(info.index); }

class Errors : public testing::TestWithParam<Sample> {
 protected:
  void TearDown() override {
    fail_calls(0, 0);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  }
};

// A GPU that has failed fails every later call. Then the execution fails too, unless everything was launched before.
TEST_P(Errors, ThatLastAreReported) {
  const PlannedCall call(cases::parse(GetParam().line), GetParam().setting);
  ASSERT_EQ(call.status(), DR_SUCCESS) << call.message();
  fail_calls(0, 0);
  const std::string log = log_of_execution(call);
  const int calls = calls_made();
  ASSERT_GT(calls, 3);
  for (int n = 0; n < calls; ++n) {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    fail_calls(n, 1 << 30);
    const Executed executed = execute(call);
    fail_calls(0, 0);
    const auto launches = std::count_if(executed.calls.begin(), executed.calls.end(),
                                        [](const Call& made) { return made.launch.has_value(); });
    if (launches == std::count(log.begin(), log.end(), '\n')) {
      EXPECT_EQ(executed.status, DR_SUCCESS) << executed.message;
      continue;
    }
    EXPECT_EQ(executed.status, DR_DEVICE_ERROR) << "call " << n;
    EXPECT_THAT(executed.message,
                testing::AnyOf(testing::HasSubstr(kInjectedError), testing::HasSubstr("refused a tensor")));
  }
}

// A single error, whatever call has it: the caller's device is current afterwards, unless it was just that call that
// failed, and the plan still does what it did.
TEST_P(Errors, LeaveThePlanAndTheThreadAsTheyWere) {
  const PlannedCall call(cases::parse(GetParam().line), GetParam().setting);
  ASSERT_EQ(call.status(), DR_SUCCESS) << call.message();
  constexpr int kElsewhere = 3;
  ASSERT_EQ(cudaSetDevice(kElsewhere), cudaSuccess);
  fail_calls(0, 0);
  const std::string log = log_of_execution(call);
  const int calls = calls_made();
  for (int n = 0; n < calls; ++n) {
    fail_calls(n, 1);
    const Executed executed = execute(call);
    fail_calls(0, 0);
    int device = -1;
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    const Call& last = executed.calls.back();
    if (last.function != "cudaSetDevice" || last.status == cudaSuccess) EXPECT_EQ(device, kElsewhere) << "call " << n;
    for (const Call& made : executed.calls)
      if (made.status != cudaSuccess && made.function.starts_with("cudaLaunch"))
        EXPECT_EQ(executed.status, DR_DEVICE_ERROR) << "call " << n;
    ASSERT_EQ(cudaSetDevice(kElsewhere), cudaSuccess);
    EXPECT_EQ(log_of_execution(call), log) << "after an error of call " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, Errors, testing::ValuesIn(kSamples), name_of);

// ---- threads

TEST(Threads, ThatShareAPlanLaunchTheSame) {
  for (const Sample& sample : kSamples) {
    const PlannedCall call(cases::parse(sample.line), sample.setting);
    ASSERT_EQ(call.status(), DR_SUCCESS) << call.message();
    const std::string log = log_of_execution(call);
    int same[2] = {};
    auto repeat = [&](int& count) {
      for (int i = 0; i < 200; ++i) count += log_of_execution(call) == log ? 1 : 0;
    };
    std::thread other(repeat, std::ref(same[0]));
    repeat(same[1]);
    other.join();
    EXPECT_THAT(same, testing::ElementsAre(200, 200)) << sample.line;
  }
}

}  // namespace
}  // namespace deltarelay::launches
