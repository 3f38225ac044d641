// Stage costs of cuda-sm80.
#include "kernels/cuda/costs.h"

#include <cstdint>

#include "kernels/cuda/sm80/accepts.h"

namespace deltarelay::cuda::sm80 {
namespace {

// The portable kernels (cuda-sm80) at 128 per 32 tokens and head, 16-bit data, on an H200, 2026-11-15: times of single
// kernels and whole calls of the named cases. A unit's time: of two CTAs on a multiprocessor each takes twice that. A
// summary has two CTAs, for B and for M, and reads neither q nor P and writes nothing; that of GDN lies between gates
// that forget M at once and gates that never do.
constexpr int32_t kCostChunk = 32;
constexpr MeasuredCosts kKda = {2050, 2600, 200, 200, 45824, 27000, 2500, 19000, 12000};
constexpr MeasuredCosts kGdn = {1980, 2200, 200, 200, 25232, 12900, 520, 19000, 12000};
// Alone, from cold caches, a step takes 2650. With that, kda-8k-h8 would be cut into 32 segments (0.247 ms); 20 to 25
// are its best (0.23).
constexpr int32_t kCarryNs = 4000;
constexpr int32_t kCarryUnitNs = 12000;

}  // namespace

void costs(const dr_device&, const DeviceSpeed& speed, int32_t, Rule rule, dr_costs& c) {
  const int32_t tenths = speed.portable_tenths;
  scale_costs(rule == Rule::kKda ? kKda : kGdn, speed, kCostChunk, tenths, c);
  c.carry_ns = kCarryNs * tenths / 10;
  c.carry_unit_ns = kCarryUnitNs * tenths / 10;
}

}  // namespace deltarelay::cuda::sm80
