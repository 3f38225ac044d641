// Which summary a pair walks where pairs come in waves. Summaries take longer the more a head keeps, which only the gates
// tell; a long one that starts last is a tail. So heads that keep most come first, judged by one chunk of each. The
// order changes the time, never the result.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/fused/gdn/memory.cuh"
#include "kernels/cuda/tile/activation.cuh"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90::fused_gdn {

// Most strips of a call that are ordered: their decays lie in the place of `negated`, which is free before the walk.
constexpr int kMostOrdered = 256;

// The first run of summaries in the table of phase 1, by one warp. Rows come longest first.
struct RowRun {
  int first, count;
};
__device__ __forceinline__ RowRun summaries_of(const Tables& table) {
  const Row* rows = table.rows1();
  const int lane = static_cast<int>(threadIdx.x % 32), all = table.counts()[0];
  RowRun run{0, 0};
#pragma unroll 1
  for (int base = 0; base < all; base += 32) {
    const bool summary = base + lane < all && rows[base + lane].work == Work::kSummarize;
    const uint32_t mask = __ballot_sync(~0u, summary);
    if (run.count == 0) {
      if (mask == 0) continue;
      run.first = base + __ffs(static_cast<int>(mask)) - 1;
    }
    const int from = max(run.first - base, 0);
    const uint32_t gaps = ~mask >> from;
    const int more = gaps == 0 ? 32 - from : min(__ffs(static_cast<int>(gaps)) - 1, 32 - from);
    run.count += more;
    if (from + more < 32) break;
  }
  return run;
}

// log2 of the decay of head `head` over the last chunk of `item`, by one warp, one token per lane. NaN counts as none.
__device__ __forceinline__ float last_decay(const Activation& activation, const Item& item, int head) {
  const TensorView& g = activation.g;
  const int64_t token = item.token + max(item.tokens - kFusedChunk + static_cast<int>(threadIdx.x % 32), 0);
  const float raw = load_number(g.data, g.dtype, item.sequence_at * g.sequence + token * g.token + head * g.head);
  float sum = log2_decay(raw, gate_params(activation, head, 0, 1));
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum <= 0.0f ? sum : 0.0f;
}

// Exchanges the pair's item, a summary, for the one of its place in that order. Called by all threads behind
// begin_items. Within a run of summaries of about one length all rows of the first head come first.
__device__ __forceinline__ void choose_by_decay(const WalkArgs& args, const Activation& activation,
                                                Shared<Form::kPair>& shared) {
  const int strips = args.strips.all, thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  if (strips > kMostOrdered) return;
  float* decays = reinterpret_cast<float*>(shared.negated[0][0].blocks);
  static_assert(sizeof(NegatedAkk) >= kMostOrdered * sizeof(float));
  Item& sample = shared.later[0];
  int* chosen = &shared.end.walked;  // set again below
  const RowRun run = summaries_of(args.tables);
  if (warp == 0) find_item<1>(args, kFusedChunk, sample, static_cast<uint32_t>(run.first * strips * 2));
  const int place = static_cast<int>(blockIdx.x) / 2 - run.first * strips;
  if (place < 0 || place >= run.count * strips) return;  // the same in all threads
  __syncthreads();
#pragma unroll 1
  for (int strip = warp; strip < strips; strip += kFusedThreads / 32)
    decays[strip] = last_decay(activation, sample, args.strips.head_of(strip));
  __syncthreads();
  if (thread < strips) {
    const float own = decays[thread];
    int before = 0;
#pragma unroll 1
    for (int strip = 0; strip < strips; ++strip)
      before += decays[strip] > own || (decays[strip] == own && strip < thread);
    if (before == place / run.count) *chosen = thread;
  }
  __syncthreads();
  if (warp == 0) {
    const int row = run.first + place % run.count;
    find_item<1>(args, kFusedChunk, shared.item, static_cast<uint32_t>((row * strips + *chosen) * 2) + blockIdx.x % 2);
    __syncwarp();
    if (thread == 0) shared.end.begin(shared.item.row.chunks);
  }
  __syncthreads();
}

}  // namespace deltarelay::cuda::sm90::fused_gdn
