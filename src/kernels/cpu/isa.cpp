#include "kernels/cpu/isa.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hwy/targets.h"
#include "kernels/cpu/amx_permission.h"
#include "kernels/cpu/cpu_model.h"
#include "kernels/cpu/usable_cpus.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <unistd.h>
#endif

namespace deltarelay {
namespace cpu {

namespace {

// Name of the bf16 instruction set that extends a vector target, if this machine has it; else nullptr.
const char* bf16_isa_name(int64_t highway_target) {
#if defined(__aarch64__) && defined(__linux__)
  if (highway_target == HWY_NEON && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0) return "neon-bf16";
#elif defined(__x86_64__)
  if (highway_target == HWY_AVX3 && __builtin_cpu_supports("avx512bf16")) return "avx512-bf16";
#endif
  (void)highway_target;
  return nullptr;
}

// Kernels for AMX, if this machine has it and the system grants it to those who ask; else nullptr.
const Kernels* offered_amx_kernels(int64_t highway_target) {
#if defined(__x86_64__) && defined(__linux__)
  if (highway_target != HWY_AVX3 || !__builtin_cpu_supports("avx512bf16")) return nullptr;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr uint32_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return nullptr;
  return amx_is_offered() ? amx_kernels() : nullptr;
#else
  (void)highway_target;
  return nullptr;
#endif
}

// No destructor: threads may still execute while the process exits.
struct IsaList {
  static constexpr size_t kMost = 8;  // more than any build has
  Isa isas[kMost]{};
  size_t count = 0;

  void push_back(const Isa& isa) {
    if (count < kMost) isas[count++] = isa;
  }
};

}  // namespace

std::span<const Isa> available_isas() {
  static const IsaList kIsas = [] {
    IsaList isas;
    const int64_t supported = hwy::SupportedTargets();
    for (const SimdTarget& target : simd_targets()) {
      // The portable target runs everywhere, whatever the detection reports.
      if ((supported & target.highway_target) == 0 && &target != &simd_targets().back()) continue;
      if (const Kernels* amx = offered_amx_kernels(target.highway_target))
        isas.push_back({"avx512-amx", target.kernels, amx, true});
      const char* bf16_name = bf16_isa_name(target.highway_target);
      const Kernels* bf16 = bf16_name != nullptr ? bf16_kernels() : nullptr;
      const Isa plain{target.name, target.kernels, nullptr};
      if (bf16 == nullptr) {
        isas.push_back(plain);
        continue;
      }
      // BFMMLA has four times the rate of fp32 FMA. With VDPBF16PS, bf16 data took 1.6 to 1.8 times as long as with
      // fp32 arithmetic on the Xeon that was measured, so a caller can ask for it but it is not the default.
      const Isa native{bf16_name, target.kernels, bf16};
      const bool native_first = target.highway_target == HWY_NEON;
      isas.push_back(native_first ? native : plain);
      isas.push_back(native_first ? plain : native);
    }
    return isas;
  }();
  return {kIsas.isas, kIsas.count};
}

IsaChoice choose_isa(std::span<const Isa> isas, const Problem& problem, const Request& request, const char* (*ask)()) {
  const bool named = request.isa != nullptr && *request.isa != '\0';
  IsaChoice choice;
  for (size_t i = 0; named && i < isas.size(); ++i)
    if (std::strcmp(isas[i].name, request.isa) == 0) choice.index = static_cast<int32_t>(i);
  const auto asks = [&] { return isas[static_cast<size_t>(choice.index)].asks_for(problem); };
  if (!asks()) return choice;
  choice.refused = ask();
  if (*choice.refused == '\0' || named) return choice;
  while (asks()) ++choice.index;  // the last instruction set needs no permission
  return choice;
}

namespace {

int64_t cache_bytes(int name, int64_t otherwise) {
#if defined(__linux__)
  const long bytes = sysconf(name);
  if (bytes > 0) return bytes;
#else
  (void)name;
#endif
  return otherwise;
}

}  // namespace
void costs(const dr_device& device, const DeviceSpeed&, int32_t, Rule rule, dr_costs& costs) {
  // Measured for a chunk of 16 tokens on one core of a Neoverse-V1 at 2.6 GHz, fp32.
  constexpr const char* kModel = "Arm Neoverse-V1";
  constexpr int64_t kFlopsPerNs = 83;
  const bool kda = rule == Rule::kKda;
  costs.measured = std::strcmp(device.model, kModel) == 0 ? 1 : 0;
  std::snprintf(costs.measured_on, sizeof costs.measured_on, "%s", kModel);
  // Another processor is faster or slower by a common factor, if flops_per_ns is known. Only ratios decide a plan.
  const bool scaled = costs.measured == 0 && device.flops_per_ns > 0;
  const auto arithmetic = [&](int64_t ns) {
    return static_cast<int32_t>(scaled ? std::max<int64_t>(1, ns * kFlopsPerNs / device.flops_per_ns) : ns);
  };
  costs.chunk = kChunk;
  costs.emit_ns = arithmetic(kda ? 32500 : 27700);
  costs.summarize_ns = arithmetic(kda ? 41000 : 36500);
  costs.local_ns = costs.summarize_local_ns = arithmetic(kda ? 8500 : 3600);
  costs.carry_ns = costs.carry_unit_ns = arithmetic(98000);
  costs.split_ns = 40000;
  costs.item_ns = 2000;
}

}  // namespace cpu

int32_t cpu_isa_count() { return static_cast<int32_t>(cpu::available_isas().size()); }

const char* cpu_isa_name(int32_t index) {
  if (index < 0 || index >= cpu_isa_count()) return nullptr;
  return cpu::available_isas()[static_cast<size_t>(index)].name;
}

int32_t cpu_isa_find(const char* name) {
  if (name == nullptr || *name == '\0') return 0;
  for (int32_t i = 0; i < cpu_isa_count(); ++i)
    if (std::strcmp(cpu_isa_name(i), name) == 0) return i;
  return -1;
}

void cpu_describe(dr_device* device) {
  *device = dr_device{};
  device->size = sizeof(dr_device);
  device->kind = DR_DEVICE_CPU;
  std::snprintf(device->name, sizeof(device->name), "cpu");
  std::snprintf(device->model, sizeof(device->model), "%s", cpu::cpu_model());
#if defined(__linux__)
  static const int64_t kL1 = cpu::cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
  static const int64_t kL2 = cpu::cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20);
#else
  static const int64_t kL1 = 32 << 10;
  static const int64_t kL2 = 1 << 20;
#endif
  device->units = cpu::usable_cpus();
  device->l1_bytes = kL1;
  device->l2_bytes = kL2;
}

}  // namespace deltarelay
