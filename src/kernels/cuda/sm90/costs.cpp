// Stage costs of cuda-sm90.
#include "kernels/cuda/costs.h"

#include <cstdint>
#include <cstring>

#include "kernels/cuda/sm90/accepts.h"

namespace deltarelay::cuda::sm90 {
namespace {

// Stage costs of the cuda-sm90 kernels at 128 per 64 tokens and head on an H200, 2026-11-15: set so that the whole
// calls of bench/results/h200.json come out, which were timed at the clock that a busy GPU keeps. bf16, raw bounded
// gate (KDA) or log gate with four value heads a key head (GDN). Calls with weak gates come out within 5 % (KDA) and 20
// (GDN); where summaries turn out short, calls are faster than that. `prepare` and the walk of KDA were not timed since
// pairs walk its summaries: kKda is what it was, but for the local part of a summary and the start of a pair, which are
// estimates. Bytes without `prepare`: q, k, v, g, o as they come; with it, the records that it leaves, v and o, and for
// GDN raw q and k; a summary reads neither q nor P and writes no o.
constexpr int32_t kCostChunk = 64;
constexpr MeasuredCosts kKda = {2150, 3050, 1150, 0, 91392, 54528, 5000, 14000, 12000};
constexpr MeasuredCosts kGdn = {2200, 2550, 440, 0, 58384, 29712, 1250, 12000, 10000};
// A pair of CTAs walks a summary whatever the tiling: with one tile that is twice the time of one unit. What a pair's
// start is of item_ns, variants.cpp knows. 2026-11-16: whole calls, kernels alone, and starts from calls of 3 to 32
// chunks a sequence, in one wave and in several; where a CTA takes several items a later one starts sooner (5 to 8
// us), and item_ns lies between. Calls of KDA that are not cut come out within 7 %, those of 64 sequences within 12.
// GDN 2026-11-17, from whole calls: between gates that forget within a chunk, whose state nobody multiplies, and gates
// that do not (4 % apart). Its summaries 2026-11-19, from pairs alone that walk rows backwards with weak gates. The
// launches of kGdn are of 2026-11-17 too.
constexpr MeasuredCosts kKdaFused = {3950, 4560, 1100, 0, 82048, 49280, 0, 11000, 12000};
constexpr MeasuredCosts kGdnFused = {2400, 2600, 440, 0, 41472, 20992, 0, 7000, 12000};
// The state pass of the stages, 2026-11-19: chunks of 64 tokens of 4 and 8 heads, states and V_new stored. What a pair
// repeats is what half of the values does not halve. The planner counts the bytes (modes.cpp). prepare is that of the
// forward.
constexpr MeasuredCosts kKdaPass = {1390, 1900, 80, 0, 98816, 49664, kKda.prepare_ns, 8000, 6000};
constexpr MeasuredCosts kGdnPass = {1390, 1900, 80, 0, 98816, 49664, kGdn.prepare_ns, 8000, 6000};
constexpr int32_t kCarryNs = 900;        // a fold, over all multiprocessors
constexpr int32_t kCarryUnitNs = 12000;  // one multiprocessor's time for one fold of one head

}  // namespace

void costs(const dr_device&, const DeviceSpeed& speed, int32_t index, Rule rule, dr_costs& c) {
  const bool kda = rule == Rule::kKda;
  const MeasuredCosts* measured = kda ? &kKda : &kGdn;
  if (std::strcmp(kCostNames[index], kWayNames[kFused]) == 0) measured = kda ? &kKdaFused : &kGdnFused;
  if (std::strcmp(kCostNames[index], kStagesName) == 0) measured = kda ? &kKdaPass : &kGdnPass;
  scale_costs(*measured, speed, kCostChunk, speed.tenths, c);
  c.carry_ns = kCarryNs;
  c.carry_unit_ns = kCarryUnitNs;
}

}  // namespace deltarelay::cuda::sm90
