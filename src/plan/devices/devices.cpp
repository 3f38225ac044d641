// Facts about devices. The CPU is this machine's; GPUs are a table, so that plans for them can be made and read
// anywhere. A GPU that is here has its own facts, and the costs of the row of its model.
#include "plan/devices/devices.h"

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>

#include "plan/backends.h"
#include "plan/devices/cuda_devices.h"
#include "plan/devices/device_costs.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

struct Gpu {
  const char* name;
  int32_t units, compute_capability;
  int32_t shared_kib, l2_mib;
  int32_t bytes_per_ns;    // what a copy reaches
  int32_t tenths_of_h200;  // time of a chunk against the H200's, from tensor throughput and clock of one multiprocessor
  // The same for the portable kernels. Their chunks are chains of small products, so clocks count more.
  int32_t portable_tenths;
  bool measured;
};

// All but the H200's are estimates; docs/planner.md says how to measure.
constexpr Gpu kGpus[] = {
    {"a100", 108, 80, 164, 40, 1700, 20, 13, false},
    {"h100", 132, 90, 228, 50, 2900, 10, 10, false},
    {"h200", 132, 90, 228, 50, 4300, 10, 10, true},
    {"b200", 148, 100, 228, 126, 6800, 10, 10, false},
    {"gb200", 152, 100, 228, 126, 6800, 10, 10, false},
    {"rtx3090", 82, 86, 100, 6, 850, 30, 25, false},
    {"rtx4090", 128, 89, 100, 72, 920, 20, 17, false},
    {"rtx5090", 170, 120, 100, 96, 1600, 18, 17, false},
    {"rtx-pro-6000", 188, 120, 100, 128, 1600, 18, 17, false},
};
constexpr int32_t kNumGpus = static_cast<int32_t>(sizeof kGpus / sizeof kGpus[0]);

constexpr const char* kMeasuredGpu = "h200";

dr_device describe_gpu(const Gpu& gpu) {
  dr_device device{};
  device.size = sizeof device;
  device.kind = DR_DEVICE_CUDA;
  std::strncpy(device.name, gpu.name, sizeof device.name - 1);
  device.units = gpu.units;
  device.compute_capability = gpu.compute_capability;
  device.l1_bytes = int64_t{gpu.shared_kib} << 10;
  device.l2_bytes = int64_t{gpu.l2_mib} << 20;
  device.bytes_per_ns = gpu.bytes_per_ns;
  return device;
}

dr_device this_cpu() {
  dr_device device{};
  cpu_describe(&device);
  return device;
}

// The name of a model as it is compared: lower case, letters and digits only; `starts` says where a word begins in it.
struct Plain {
  std::string text;
  std::string starts;

  explicit Plain(const std::string& name) {
    bool inside = false;
    for (const char c : name) {
      const bool kept = std::isalnum(static_cast<unsigned char>(c)) != 0;
      if (kept) {
        text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        starts += inside ? '-' : 'x';
      }
      inside = kept;
    }
  }
  // "NVIDIA GeForce RTX 4090" holds rtx4090, "NVIDIA GH200" does not hold h200.
  bool holds(const std::string& model) const {
    for (size_t at = text.find(model); at != std::string::npos; at = text.find(model, at + 1)) {
      if (starts[at] == 'x') return true;
    }
    return false;
  }
};

const Gpu* row_of_model(const std::string& model) {
  const Plain name(model);
  for (const Gpu& gpu : kGpus) {
    if (name.holds(Plain(gpu.name).text)) return &gpu;
  }
  return nullptr;
}

// The row with the same compute capability, else the highest below it, else the lowest; of several the one nearest in
// units.
const Gpu& nearest_row(int32_t compute_capability, int32_t units) {
  auto rank = [&](const Gpu& gpu) {  // for any facts of a caller's
    const int64_t above = int64_t{gpu.compute_capability} - compute_capability;
    const int64_t capability = above > 0 ? 1000 + above : -above;
    return capability * 10000 + std::abs(int64_t{gpu.units} - units);
  };
  const Gpu* best = &kGpus[0];
  for (const Gpu& gpu : kGpus) {
    if (rank(gpu) < rank(*best)) best = &gpu;
  }
  return *best;
}

// The row whose costs a GPU has: of its name in the table, else of its model, else of the nearest.
const Gpu& row_of(const dr_device& device) {
  for (const Gpu& gpu : kGpus) {
    if (std::strcmp(device.name, gpu.name) == 0) return gpu;
  }
  const Gpu* model = row_of_model(device.model);
  return model != nullptr ? *model : nearest_row(device.compute_capability, device.units);
}

constexpr const char* kCpuName = "cpu";
constexpr const char* kCudaName = "cuda";
constexpr const char* kCudaPrefix = "cuda:";

// The number after "cuda:" in the name of a GPU that is here, -1: it is no such name.
int32_t ordinal_in(const std::string& name) {
  const size_t prefix = std::strlen(kCudaPrefix);
  if (name.compare(0, prefix, kCudaPrefix) != 0 || name.size() == prefix || name.size() > prefix + 4) return -1;
  int32_t ordinal = 0;
  for (const char c : name.substr(prefix)) {
    if (c < '0' || c > '9') return -1;
    ordinal = ordinal * 10 + (c - '0');
  }
  if (kCudaPrefix + std::to_string(ordinal) != name) return -1;  // one name for one GPU
  return ordinal;
}

[[noreturn]] void fail_no_gpu(const std::string& name) {
  const int32_t count = cuda_device_count();
  std::string here = "a GPU of this machine, which has none that CUDA can use";
  if (count > 0) here = "a GPU of this machine, cuda:0" + (count > 1 ? " to cuda:" + std::to_string(count - 1) : "");
  fail_invalid("name", here, "'" + name + "'");
}

}  // namespace

int32_t device_count() { return 1 + kNumGpus + cuda_device_count(); }

dr_device device_at(int32_t index) {
  if (index == 0) return this_cpu();
  return index <= kNumGpus ? describe_gpu(kGpus[index - 1]) : cuda_device(index - 1 - kNumGpus);
}

dr_device device_named(const std::string& name) {
  if (name == kCpuName) return this_cpu();
  std::string known = kCpuName;
  for (const Gpu& gpu : kGpus) {
    if (name == gpu.name) return describe_gpu(gpu);
    known += std::string(", ") + gpu.name;
  }
  const int32_t ordinal = name == kCudaName ? cuda_current_device() : ordinal_in(name);
  if (ordinal >= 0 && ordinal < cuda_device_count()) return cuda_device(ordinal);
  if (name.compare(0, std::strlen(kCudaName), kCudaName) == 0) fail_no_gpu(name);
  fail_invalid("name", "one of " + known + ", or cuda:0, cuda:1, ... for a GPU of this machine", "'" + name + "'");
}

dr_device cuda_device(int32_t ordinal) {
  const CudaFacts facts = cuda_facts(ordinal);
  const Gpu* model = row_of_model(facts.model);
  const bool same = model != nullptr && model->units == facts.units;
  const Gpu& row = model != nullptr ? *model : nearest_row(facts.compute_capability, facts.units);
  dr_device device = describe_gpu(row);
  std::strncpy(device.model, facts.model.c_str(), sizeof device.model - 1);
  std::memset(device.name, 0, sizeof device.name);
  std::strncpy(device.name, (kCudaPrefix + std::to_string(ordinal)).c_str(), sizeof device.name - 1);
  device.units = facts.units;
  device.compute_capability = facts.compute_capability;
  device.l1_bytes = facts.shared_bytes;
  device.l2_bytes = facts.l2_bytes;
  if (!same) {  // another model, or a part of one: bandwidth goes with the multiprocessors, and nobody has timed it
    device.bytes_per_ns = static_cast<int32_t>(int64_t{row.bytes_per_ns} * facts.units / row.units);
  }
  return device;
}

DeviceCosts costs_of_device(const dr_device& device) {
  DeviceSpeed speed;
  if (device.kind == DR_DEVICE_CUDA) {
    const Gpu& row = row_of(device);
    // A part of a GPU, or another model with its costs: nobody has timed it.
    speed = {row.tenths_of_h200, row.portable_tenths, row.measured && device.units == row.units, kMeasuredGpu};
  }
  DeviceCosts costs;
  for (int32_t row = 0; row < num_cost_rows(); ++row) {
    const CostRow from = cost_row_at(row);
    if (from.backend->device_kind != device.kind) continue;
    for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
      dr_costs& c = costs.at(row, rule);
      c.size = sizeof c;
      c.rule = static_cast<int32_t>(rule);
      c.op = DR_FORWARD;
      std::strncpy(c.backend, from.backend->name, sizeof c.backend - 1);
      std::strncpy(c.variant, from.variant, sizeof c.variant - 1);
      from.backend->costs(device, speed, from.index, rule, c);
    }
  }
  return costs;
}

int32_t cuda_ordinal(const dr_device& device) {
  if (device.kind != DR_DEVICE_CUDA) return -1;
  const int32_t ordinal = ordinal_in(device.name);
  if (ordinal < 0 || ordinal >= cuda_device_count()) return -1;
  const CudaFacts facts = cuda_facts(ordinal);
  return device.units == facts.units && device.compute_capability == facts.compute_capability ? ordinal : -1;
}

}  // namespace deltarelay
