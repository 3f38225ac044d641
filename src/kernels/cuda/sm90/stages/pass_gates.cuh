// What the gates of each chunk do to the state and to V_new: made ahead of the state groups, by helping warps.
#pragma once
#include <cstdint>

#include "kernels/cuda/sm90/stages/gate_sums.cuh"
#include "kernels/cuda/sm90/stages/pass.h"
#include "kernels/cuda/sm90/stages/pass_stage.cuh"

namespace deltarelay::cuda::sm90::pass {

__device__ __forceinline__ void store_decays(Decays<true>& decays, const StatePassArgs& args, const float2& sums,
                                             int valid, int lane) {
  const float last = __shfl_sync(~0u, sums.y, 31), scale = args.gates.sums_scale;
  float2 update = {1.0f, 1.0f};
  if (args.scales_v_new) update = {exp2_approx((last - sums.x) * scale), exp2_approx((last - sums.y) * scale)};
  reinterpret_cast<float2*>(decays.update)[lane] = {2 * lane < valid ? update.x : 0.0f,
                                                    2 * lane + 1 < valid ? update.y : 0.0f};
  if (lane == 0) decays.chunk[0] = exp2_approx(last * scale);
}
__device__ __forceinline__ void store_decays(Decays<false>& decays, const StatePassArgs& args, const float4& sums, int,
                                             int lane) {
  const float scale = args.gates.sums_scale;
  decays.chunk[lane] = exp2_approx(sums.x * scale);
  decays.chunk[lane + 32] = exp2_approx(sums.y * scale);
  decays.chunk[lane + 64] = exp2_approx(sums.z * scale);
  decays.chunk[lane + 96] = exp2_approx(sums.w * scale);
}

// Number `helper` of the kHelpers warps that make the decays of a row: chunks helper, helper + kHelpers, ... The sums
// of its next chunk are read while it waits for a place.
constexpr int kHelpers = 2;
static_assert(kDecayStages % kHelpers == 0, "a stage always belongs to one helper: parities alternate");
template <Form kForm, bool kScalar>
__device__ __forceinline__ void make_decays(const StatePassArgs& args, Shared<kForm, kScalar>& shared, int helper) {
  const Item& item = shared.item;
  const int lane = threadIdx.x % 32, chunks = item.row.chunks;
  const GateRow row = {item.sequence_at, item.token, token_of_call(args.walk.tables, item), item.head, item.tokens};
  if (helper >= chunks) return;
  auto sums = read_sums<kScalar>(args.gates, row, helper * kChunk, lane);
  int stage = helper;
  uint32_t parity = 1;  // of the previous use; a wait for it passes at once in the first round
#pragma unroll 1
  for (int chunk = helper; chunk < chunks; chunk += kHelpers) {
    const auto own = sums;
    if (chunk + kHelpers < chunks) sums = read_sums<kScalar>(args.gates, row, (chunk + kHelpers) * kChunk, lane);
    wait_parity(&shared.decays_free[stage], parity);
    store_decays(shared.decays[stage], args, own, min(item.tokens - chunk * kChunk, kChunk), lane);
    warp_arrive(&shared.decays_full[stage]);
    stage += kHelpers;
    if (stage >= kDecayStages) {
      stage -= kDecayStages;
      parity ^= 1;
    }
  }
}

}  // namespace deltarelay::cuda::sm90::pass
