// Facts about devices. The CPU is this machine's; the GPUs are a table, so that plans for them can be made and read anywhere.
#include <cstring>

#include "plan/plan.h"

namespace deltarelay {
namespace {

// Chunk of the GPU kernels, and their traffic per chunk and head at 128: KDA in bf16 moves q, k, v, g, o (256 B each) and beta
// for every token, GDN with four value heads a key head 648 B; a summary reads neither q nor o.
constexpr int32_t kChunk = 64;
constexpr int32_t kKdaBytes[2] = {1282 * kChunk, 770 * kChunk};
constexpr int32_t kGdnBytes[2] = {648 * kChunk, 328 * kChunk};

struct Gpu {
  const char* name;
  int32_t units, compute_capability;
  int32_t shared_kib, l2_mib;
  int32_t bytes_per_ns;  // what a copy reaches
  int32_t
      tenths_of_h200;  // time of a chunk against the H200 estimate, from tensor throughput and clock of one multiprocessor
};

// No entry has been measured; docs/planner.md says how to. 10 stands for KDA emit 1.9 us, summarize 2.2 us, GDN 1.65 us.
constexpr Gpu kGpus[] = {
    {"a100", 108, 80, 164, 40, 1700, 20},           {"h100", 132, 90, 228, 50, 2900, 10},
    {"h200", 132, 90, 228, 50, 4300, 10},           {"b200", 148, 100, 228, 126, 6800, 10},
    {"gb200", 152, 100, 228, 126, 6800, 10},        {"rtx3090", 82, 86, 100, 6, 850, 30},
    {"rtx4090", 128, 89, 100, 72, 920, 20},         {"rtx5090", 170, 120, 100, 96, 1600, 18},
    {"rtx-pro-6000", 188, 120, 100, 128, 1600, 18},
};
constexpr int32_t kNumGpus = static_cast<int32_t>(sizeof kGpus / sizeof kGpus[0]);

dr_stage_costs gpu_costs(const Gpu& gpu, int32_t emit_ns, int32_t summarize_ns, const int32_t (&bytes)[2]) {
  dr_stage_costs c{};
  c.chunk = kChunk;
  c.emit_ns = emit_ns * gpu.tenths_of_h200 / 10;
  c.summarize_ns = summarize_ns * gpu.tenths_of_h200 / 10;
  c.carry_ns = 500;
  c.carry_unit_ns = 2000;
  c.split_ns = 6000;
  c.item_ns = 500;
  c.emit_bytes = bytes[0];
  c.summarize_bytes = bytes[1];
  return c;
}

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
  device.kda = gpu_costs(gpu, 1900, 2200, kKdaBytes);
  device.gdn = gpu_costs(gpu, 1650, 1650, kGdnBytes);
  return device;
}

const dr_device& this_cpu() {
  static const dr_device device = [] {
    dr_device facts{};
    facts.size = sizeof facts;
    cpu_describe(&facts);
    return facts;
  }();
  return device;
}

}  // namespace

int32_t device_count() { return 1 + kNumGpus; }

dr_device device_at(int32_t index) { return index == 0 ? this_cpu() : describe_gpu(kGpus[index - 1]); }

}  // namespace deltarelay
