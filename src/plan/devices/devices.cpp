// Facts about devices. The CPU is this machine's; GPUs are a table, so that plans for them can be made and read
// anywhere. A GPU that is here has its own facts, and the costs of the row of its model.
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <string>

#include "plan/devices/cuda_devices.h"
#include "plan/devices/device_costs.h"
#include "plan/plan.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

// Stage costs of the cuda-sm90 kernels at 128 per 64 tokens and head on an H200, 2026-11-15: set so that the whole
// calls of bench/results/h200.json come out, which were timed at the clock that a busy GPU keeps. bf16, raw bounded
// gate (KDA) or log gate with four value heads a key head (GDN). Calls with weak gates come out within 5 % (KDA) and 20
// (GDN); where summaries turn out short, calls are faster than that. `prepare` and the walk of KDA were not timed since
// pairs walk its summaries: kKda is what it was, but for the local part of a summary and the start of a pair, which are
// estimates. Bytes without `prepare`: q, k, v, g, o as they come; with it, the records that it leaves, v and o, and for
// GDN raw q and k; a summary reads neither q nor P and writes no o.
struct Measured {
  int32_t emit_ns, summarize_ns;
  int32_t local_ns;  // part of emit_ns that each of two CTAs repeats when they share a head's value columns
  int32_t summarize_local_ns;
  int32_t emit_bytes, summarize_bytes;
  int32_t prepare_ns;  // a multiprocessor's time with four CTAs on it: throughput, not latency
  int32_t item_ns;     // a CTA's start and end: state in and out, first operands
  int32_t split_ns;    // two more launches
};
constexpr int32_t kChunk = 64;
constexpr Measured kKda = {2150, 3050, 1150, 0, 91392, 54528, 5000, 14000, 12000};
constexpr Measured kGdn = {2200, 2550, 440, 0, 58384, 29712, 1250, 12000, 10000};
// A pair of CTAs walks a summary whatever the tiling: with one tile that is twice the time of one unit. What a pair's
// start is of item_ns, modes.cpp knows. 2026-11-16: whole calls, kernels alone, and starts from calls of 3 to 32 chunks
// a sequence, in one wave and in several; where a CTA takes several items a later one starts sooner (5 to 8 us), and
// item_ns lies between. Calls of KDA that are not cut come out within 7 %, those of 64 sequences within 12. GDN
// 2026-11-17, from whole calls: between gates that forget within a chunk, whose state nobody multiplies, and gates that
// do not (4 % apart); summaries from the latter, with all multiprocessors at work. The launches of kGdn are of that day
// too.
constexpr Measured kKdaFused = {3950, 4560, 1100, 0, 82048, 49280, 0, 11000, 12000};
constexpr Measured kGdnFused = {2400, 3200, 440, 0, 41472, 20992, 0, 7000, 12000};
constexpr int32_t kCarryNs = 900;        // a fold, over all multiprocessors
constexpr int32_t kCarryUnitNs = 12000;  // one multiprocessor's time for one fold of one head

// The portable kernels (cuda-sm80) at 128 per 32 tokens and head, 16-bit data, on an H200, 2026-11-15: times of single
// kernels and whole calls of the named cases. A unit's time: of two CTAs on a multiprocessor each takes twice that. A
// summary has two CTAs, for B and for M, and reads neither q nor P and writes nothing; that of GDN lies between gates
// that forget M at once and gates that never do.
constexpr int32_t kPortableChunk = 32;
constexpr Measured kKdaPortable = {2050, 2600, 200, 200, 45824, 27000, 2500, 19000, 12000};
constexpr Measured kGdnPortable = {1980, 2200, 200, 200, 25232, 12900, 520, 19000, 12000};
// Alone, from cold caches, a step takes 2650. With that, kda-8k-h8 would be cut into 32 segments (0.247 ms); 20 to 25
// are its best (0.23).
constexpr int32_t kPortableCarryNs = 4000;
constexpr int32_t kPortableCarryUnitNs = 12000;

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

// Costs of an H200 on a GPU whose chunks take `tenths` of its time.
void set_gpu_costs(const Measured& h200, int32_t tenths, dr_costs& c) {
  c.chunk = kChunk;
  c.emit_ns = h200.emit_ns * tenths / 10;
  c.summarize_ns = h200.summarize_ns * tenths / 10;
  c.local_ns = h200.local_ns * tenths / 10;
  c.summarize_local_ns = h200.summarize_local_ns * tenths / 10;
  c.carry_ns = kCarryNs;
  c.carry_unit_ns = kCarryUnitNs;
  c.split_ns = h200.split_ns;
  c.item_ns = h200.item_ns;
  c.emit_bytes = h200.emit_bytes;
  c.summarize_bytes = h200.summarize_bytes;
  c.prepare_ns = h200.prepare_ns * tenths / 10;
}

void set_portable_costs(const Measured& h200, int32_t tenths, dr_costs& c) {
  set_gpu_costs(h200, tenths, c);
  c.chunk = kPortableChunk;
  c.carry_ns = kPortableCarryNs * tenths / 10;
  c.carry_unit_ns = kPortableCarryUnitNs * tenths / 10;
}

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
  auto rank = [&](const Gpu& gpu) {
    const int32_t above = gpu.compute_capability - compute_capability;
    const int32_t capability = above > 0 ? 1000 + above : -above;
    return capability * 10000 + std::abs(gpu.units - units);
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
  DeviceCosts costs;
  for (int32_t i = 0; i < kNumCostFamilies; ++i) {
    const CostFamilyNames& names = kCostFamilies[i];
    if (names.device_kind != device.kind) continue;
    for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
      dr_costs& c = costs.at(static_cast<CostFamily>(i), rule);
      c.size = sizeof c;
      c.rule = static_cast<int32_t>(rule);
      c.op = DR_FORWARD;
      std::strncpy(c.backend, names.backend, sizeof c.backend - 1);
      std::strncpy(c.variant, names.variant, sizeof c.variant - 1);
    }
  }
  if (device.kind == DR_DEVICE_CPU) {
    for (const Rule rule : {Rule::kKda, Rule::kGdn}) cpu_costs(device, rule, &costs.at(CostFamily::kCpu, rule));
    return costs;
  }
  const Gpu& row = row_of(device);
  // A part of a GPU, or another model with its costs: nobody has timed it.
  const bool measured = row.measured && device.units == row.units;
  for (const Rule rule : {Rule::kKda, Rule::kGdn}) {
    const bool kda = rule == Rule::kKda;
    set_gpu_costs(kda ? kKda : kGdn, row.tenths_of_h200, costs.at(CostFamily::kSm90Prepared, rule));
    set_gpu_costs(kda ? kKdaFused : kGdnFused, row.tenths_of_h200, costs.at(CostFamily::kSm90Fused, rule));
    set_portable_costs(kda ? kKdaPortable : kGdnPortable, row.portable_tenths, costs.at(CostFamily::kSm80, rule));
    for (const CostFamily family : {CostFamily::kSm90Prepared, CostFamily::kSm90Fused, CostFamily::kSm80}) {
      dr_costs& c = costs.at(family, rule);
      c.measured = measured ? 1 : 0;
      std::strncpy(c.measured_on, kMeasuredGpu, sizeof c.measured_on - 1);
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
