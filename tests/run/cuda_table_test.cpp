// The segment table on a GPU: sent with kernel parameters, or written by the GPU from its own offsets. Needs a GPU.
#include "run/cuda_table.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/launch/status.h"
#include "plan/backends.h"
#include "plan/device_table.h"
#include "plan/devices/cuda_devices.h"
#include "plan/devices/devices.h"
#include "plan/plan.h"
#include "plan/search/team_table.h"

namespace deltarelay {
namespace {

using cuda::check;

// Numbers that are the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  int64_t in(int64_t least, int64_t most) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return least + static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(most - least + 1));
  }

 private:
  uint64_t state_;
};

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<size_t>(bytes, 16)), "cudaMalloc");
    check(cudaMemset(data_, 0xa5, std::max<size_t>(bytes, 16)), "cudaMemset");
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::vector<std::byte> read() const {
    std::vector<std::byte> host(bytes_);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemcpy(host.data(), data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return host;
  }
  void write(const void* host, size_t bytes) {
    check(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

class CudaTable : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU is here";
    if (cuda_facts(0).compute_capability != 90) GTEST_SKIP() << "kernels are built for compute capability 9.0";
    cuda::load_table_kernels();
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t stream_ = nullptr;
};

std::vector<std::byte> random_image(Random& random, size_t pieces) {
  std::vector<std::byte> image(pieces * 16);
  for (std::byte& b : image) b = static_cast<std::byte>(random.in(0, 255));
  return image;
}

TEST_F(CudaTable, ImageArrivesWhole) {
  Random random(1);
  for (const size_t pieces : {1, 63, 64, 65, 247, 248, 249, 2039, 2040, 2041, 4080, 4100, 12345}) {
    const auto image = random_image(random, pieces);
    const DeviceBytes memory(image.size() + 64), report(4);
    cuda::send_table(image, memory.data(), reinterpret_cast<uint32_t*>(report.data()), stream_);
    const auto found = memory.read();
    EXPECT_TRUE(std::equal(image.begin(), image.end(), found.begin())) << pieces;
    for (size_t i = image.size(); i < found.size(); ++i) ASSERT_EQ(found[i], std::byte{0xa5}) << "past the end";
    EXPECT_EQ(report.read(), std::vector<std::byte>(4));
  }
}

TEST_F(CudaTable, GraphHoldsTheImageItself) {
  Random random(2);
  auto image = std::make_unique<std::vector<std::byte>>(random_image(random, 3000));
  const std::vector<std::byte> expected = *image;
  const DeviceBytes memory(expected.size());
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cuda::send_table(*image, memory.data(), nullptr, stream_);
  check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  std::fill(image->begin(), image->end(), std::byte{0});
  image.reset();
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
  EXPECT_EQ(memory.read(), expected);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

std::unique_ptr<const Plan> late_plan(Random& random, Rule rule, int64_t tokens, int64_t num_seqs, int32_t way) {
  Problem p;
  p.rule = rule;
  p.num_seqs = num_seqs;
  p.num_tokens = tokens;
  p.lengths_known = false;
  p.heads_qk = p.heads_v = static_cast<int32_t>(int64_t{1} << random.in(0, 6));
  p.dk = p.dv = 128;
  p.dtype = p.dtype_o = p.dtype_gate = p.dtype_beta = DType::kBf16;
  Options options;
  options.policy = kOwnPolicy;
  options.device = device_named("h200");
  options.costs = costs_of_device(options.device);
  for (const int32_t row : {cost_row("cuda-sm90", "prepared"), cost_row("cuda-sm90", "fused")})
    options.costs.at(row, rule).measured = way % 2;
  options.device_is_here = false;
  options.invariant = way == 1;
  if (way == 2)
    options.segments = DR_SEGMENTS_COUNT,
    options.segment_value = std::max<int64_t>(1, std::min<int64_t>(7, tokens / 64));
  if (options.segments == DR_SEGMENTS_COUNT && options.segment_value < 2) options.segments = DR_SEGMENTS_AUTO;
  if (way == 3) options.segments = DR_SEGMENTS_LENGTH, options.segment_value = 64 * random.in(1, 40);
  if (way == 4) options.segments = DR_SEGMENTS_OFF;
  return make_plan(std::move(p), std::move(options));
}

// The used parts of a table.
struct Used {
  std::vector<int32_t> counts, chunk_begin;
  std::vector<int64_t> token_begin;
  std::vector<Row> rows1, rows3;
  std::vector<Fold> folds;
  bool operator==(const Used&) const = default;
};

template <class T>
std::vector<T> array_at(const std::byte* memory, size_t offset, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) std::memcpy(values.data(), memory + offset, values.size() * sizeof(T));
  return values;
}

Used used(const Plan& plan, const std::byte* memory) {
  const DeviceTableLayout& at = plan.device_table;
  Used u;
  u.counts = array_at<int32_t>(memory, at.counts, 4);
  u.token_begin = array_at<int64_t>(memory, at.token_begin, plan.problem.num_seqs + 1);
  u.chunk_begin = array_at<int32_t>(memory, at.chunk_begin, plan.problem.num_seqs + 1);
  EXPECT_LE(u.counts[0], plan.capacity.rows1);
  EXPECT_LE(u.counts[1], plan.capacity.folds);
  EXPECT_LE(u.counts[2], plan.capacity.rows3);
  if (::testing::Test::HasFailure()) return u;
  u.rows1 = array_at<Row>(memory, at.rows1, u.counts[0]);
  u.folds = array_at<Fold>(memory, at.folds, u.counts[1]);
  u.rows3 = array_at<Row>(memory, at.rows3, u.counts[2]);
  return u;
}

cuda::PlanTableArgs args_of(const Plan& plan, std::byte* memory, const void* offsets, DType dtype, uint32_t* report) {
  cuda::PlanTableArgs args{};
  args.request = table_request(plan);
  args.table = device_tables_in(memory, plan.device_table);
  args.scratch = reinterpret_cast<unsigned char*>(memory + plan.device_table.scratch);
  args.offsets = offsets;
  args.offsets_dtype = dtype;
  args.fold_bound = static_cast<int32_t>(plan.capacity.folds);
  args.report = report;
  return args;
}

TEST_F(CudaTable, PlannerWritesTheTableOfTheHost) {
  Random random(3);
  int64_t cut = 0;
  for (int32_t round = 0; round < 600; ++round) {
    const int64_t most = round % 20 == 0 ? 3000 : round % 3 == 0 ? 1 : 150;
    const int64_t num_seqs = random.in(round % 50 == 1 ? 0 : 1, most), longest = int64_t{1} << random.in(4, 17);
    std::vector<int64_t> offsets{0};
    for (int64_t n = 0; n < num_seqs; ++n) {
      const int64_t length = random.in(0, 5) == 0 ? random.in(0, longest) : random.in(0, 2000);
      offsets.push_back(offsets.back() + length);
    }
    const int64_t tokens = std::max<int64_t>(128, offsets.back() + random.in(0, 100));
    const auto plan = late_plan(random, round % 2 ? Rule::kKda : Rule::kGdn, tokens, num_seqs, round % 7);
    const bool bad = round % 11 == 0 && num_seqs > 1;
    if (bad) offsets[static_cast<size_t>(random.in(1, num_seqs))] = tokens + random.in(1, 1000);

    std::vector<std::byte> host(plan->device_table.bytes);
    plan::SerialTeam team;
    plan::fill_by(
        team, table_request(*plan), [&](int32_t n) { return offsets[static_cast<size_t>(n)]; },
        plan::team_space(host.data() + plan->device_table.scratch, num_seqs),
        device_tables_in(host.data(), plan->device_table));

    const bool narrow = round % 4 == 1;
    const std::vector<int32_t> narrowed(offsets.begin(), offsets.end());
    DeviceBytes device_offsets(offsets.size() * sizeof(int64_t));
    const DeviceBytes memory(plan->device_table.bytes), report(4);
    device_offsets.write(narrow ? static_cast<const void*>(narrowed.data()) : offsets.data(),
                         offsets.size() * (narrow ? sizeof(int32_t) : sizeof(int64_t)));
    cuda::plan_table(args_of(*plan, memory.data(), device_offsets.data(), narrow ? DType::kInt32 : DType::kInt64,
                             reinterpret_cast<uint32_t*>(report.data())),
                     stream_);
    const auto found = memory.read();
    ASSERT_TRUE(used(*plan, found.data()) == used(*plan, host.data()))
        << "round " << round << ", " << num_seqs << " sequences";
    for (const Fold& fold : array_at<Fold>(found.data(), plan->device_table.folds, plan->capacity.folds))
      ASSERT_TRUE(fold.sequence >= 0 && fold.sequence <= num_seqs && fold.count >= 0)
          << "not what lay there: " << round;
    uint32_t flags = 0;
    std::memcpy(&flags, report.read().data(), sizeof flags);
    ASSERT_EQ(flags, bad ? uint32_t{DR_REPORT_OFFSETS} : 0u) << round;
    int32_t counts[4];
    std::memcpy(counts, host.data() + plan->device_table.counts, sizeof counts);
    cut += counts[3] > 0;
  }
  EXPECT_GT(cut, 50);
}

TEST_F(CudaTable, TimesAreShown) {
  Random random(4);
  for (const int64_t num_seqs : {1, 4, 16, 64, 256, 1024}) {
    for (const int64_t length : {256, 16384}) {
      std::vector<int64_t> offsets{0};
      for (int64_t n = 0; n < num_seqs; ++n) offsets.push_back(offsets.back() + length + random.in(0, length / 2));
      Random heads(5);
      const auto plan = late_plan(heads, Rule::kGdn, offsets.back(), num_seqs, 5);
      DeviceBytes device_offsets(offsets.size() * sizeof(int64_t));
      device_offsets.write(offsets.data(), offsets.size() * sizeof(int64_t));
      const DeviceBytes memory(plan->device_table.bytes);
      const auto args = args_of(*plan, memory.data(), device_offsets.data(), DType::kInt64, nullptr);
      cudaEvent_t begin = nullptr, end = nullptr;
      check(cudaEventCreate(&begin), "cudaEventCreate");
      check(cudaEventCreate(&end), "cudaEventCreate");
      constexpr int32_t kRepeats = 200;
      for (int32_t i = 0; i < 2 * kRepeats; ++i) {
        if (i == kRepeats) check(cudaEventRecord(begin, stream_), "cudaEventRecord");
        cuda::plan_table(args, stream_);
      }
      check(cudaEventRecord(end, stream_), "cudaEventRecord");
      check(cudaEventSynchronize(end), "cudaEventSynchronize");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
      std::printf("planner on the GPU: %4lld sequences of about %lld tokens: %.2f us\n",
                  static_cast<long long>(num_seqs), static_cast<long long>(length),
                  static_cast<double>(milliseconds) * 1e3 / kRepeats);
      cudaEventDestroy(begin);
      cudaEventDestroy(end);
    }
  }
}

}  // namespace
}  // namespace deltarelay
