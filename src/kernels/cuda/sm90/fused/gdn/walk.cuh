// The fused walk of GDN, from raw q, k, g, v to o, or to a summary. A CTA or a pair of CTAs (a cluster) walks one row
// (a whole sequence or a segment) of one strip. Twins, also a cluster, walk a row of two strips of one key head, one
// strip per CTA, and compute what follows from q and k alone once. A CTA with a whole strip may walk several rows, one
// after the other (fused/items.cuh). Chunk: 32 tokens. For any gate.
//
// G is the inclusive sum of log-decays of the chunk, G_last its last value, rk and rq are the inverse norms (1 without
// l2norm), weight = beta rk. A tilde marks a quantity that lacks beta: R~ = R / beta, V_new~ = V_new / beta.
//     R~_i = v_i - rk_i e^{G_i} (k S)_i      V_new~ = R~ + (inverse - I) R~,  inverse = (I + Akk~)^-1
//     Akk~_ij = rk_i e^{G_i-G_j} k_i.k_j weight_j for j < i
//     Aqk~_ij = scale rq_i e^{G_i-G_j} q_i.k_j weight_j for j <= i
//     O_i = scale rq_i e^{G_i} (q S)_i + (Aqk~ V_new~)_i       S <- e^{G_last} S + k^T (weight e^{G_last-G} V_new~)
// beta is applied where V_new~ is read (in `weight`), not in R as in docs/math.md, so v needs no scaling. Tiles of q
// and k are operands as they are loaded, and all exponents are <= 0. Any gate is exact, except that e^{G_last} S is
// dropped where it is negligible (kForgotten).
//
// Groups of 128 threads: 0 and 1 hold the state (state.cuh): the halves of the values, in a pair one half per CTA, or B
// and M of a summary. 2 and 3 make what depends on the chunk alone (make.cuh), alternating. In a cluster CTA c % 2
// makes chunk c and copies it to the other CTA; with twins it makes what the other strip needs as well. The code of all
// groups together must stay within the 32 KB of the instruction cache (docs/kernels/sm90-fused.md).
#pragma once
#include "kernels/cuda/sm90/fused/checkpoints.cuh"
#include "kernels/cuda/sm90/fused/gdn/make.cuh"
#include "kernels/cuda/sm90/fused/gdn/state.cuh"
#include "kernels/cuda/sm90/fused/gdn/summary.cuh"
#include "kernels/cuda/sm90/fused/order.cuh"

namespace deltarelay::cuda::sm90 {
namespace fused_gdn {

template <Form kForm>
__device__ __forceinline__ void init_barriers(Shared<kForm>& shared, int rank) {
  shared.end.begin(shared.item.row.chunks);
  const uint32_t readers = shared.item.row.work == Work::kEmit ? Ring<kForm>::kHalves : 2;  // state groups of a CTA
  for (int i = 0; i < Ring<kForm>::kStages; ++i) {
    const bool own = i % ctas(kForm) == rank;
    ptx::mbarrier_init(&shared.loaded[i], 1);              // the lane that loads
    ptx::mbarrier_init(&shared.made[i], 1);                // a thread of the make group, or the lane that loads
    ptx::mbarrier_init(&shared.done[i], kWarpgroup / 32);  // the warps of the state group
    ptx::mbarrier_init(&shared.free[i], own ? ctas(kForm) * readers : readers);
  }
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
}

// log2 of the decay of head `head` over the sampled chunk, by one warp, one token per lane. NaN counts as none.
__device__ __forceinline__ float sampled_decay(const Activation& activation, const RowOrder& order, int head) {
  const TensorView& g = activation.g;
  const int64_t token = order.token + static_cast<int>(threadIdx.x % 32);
  const float raw = load_number(g.data, g.dtype, order.sequence_at * g.sequence + token * g.token + head * g.head);
  float sum = log2_decay(raw, gate_params(activation, head, 0, 1));
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum <= 0.0f ? sum : 0.0f;
}

static_assert(sizeof(CheckpointShared<Shared<Form::kSingle>>) <= kRoomForL1 &&
              sizeof(CheckpointShared<Shared<Form::kPair>>) <= kMostShared &&
              sizeof(CheckpointShared<Shared<Form::kTwins>>) <= kMostShared);

}  // namespace fused_gdn

// `kSummaries`: some rows of pairs are summarized. Without that code a pair emits 1.5 % faster. `kCheckpoints`: states
// inside rows are stored.
template <class Element, Form kForm, bool kSummaries, bool kCheckpoints = false>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_gdn_kernel(const __grid_constant__ FusedMaps maps, const __grid_constant__ WalkArgs args,
                     const __grid_constant__ Activation activation) {
  using namespace fused_gdn;
  auto& shared = *reinterpret_cast<SharedOf<Shared<kForm>, kCheckpoints>*>(dynamic_shared_memory());
  const int rank = kForm == Form::kSingle ? 0 : cluster_rank();
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.v, &maps.o}) prefetch_tensor_map(map);
  }
  uint32_t number = blockIdx.x;
  if constexpr (kSummaries) {
    if (maps.order.count > 0)
      number = ordered_number(maps.order, args, shared.negated[0][0], shared.items,
                              [&](int head) { return sampled_decay(activation, maps.order, head); });
  }
  if (!begin_items<kForm>(args, shared, number, rank)) return;
  if constexpr (kCheckpoints) find_first_checkpoints(args, shared);
  const Item& item = shared.item;
  if constexpr (ctas(kForm) > 1) cluster_begin();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  constexpr bool kWhole = has_whole_strip(kForm);
  const bool emits = !kSummaries || item.row.work == Work::kEmit;
  if (group < 2) {
    raise_registers<Registers::kStates>();
    wait_for_state(args);
    if (emits) {
      if (kWhole || group == 0) {
        DueOf<Shared<kForm>, kCheckpoints> due(args, shared);
        emit_items<kForm, Ring<kForm>::kStages, kWhole>(
            args, shared, group, rank, due, [&](const Item& own, auto& position, float(&state)[64]) {
              emit_chunks<Element, kForm>(maps, args, own, shared, group, rank, position, state, due);
            });
      } else if (threadIdx.x % kWarpgroup < 32)
        send_outputs<Element, Ring<kForm>::kStages>(maps, args, item, shared, Stage::kV, rank);
    } else if constexpr (kSummaries) {
      summarize<Element>(args, item, shared, group, rank);
    }
  } else {
    lower_registers<Registers::kOthers>();
    if (emits) {
      make_all<Element, kForm, true>(maps, args, activation, shared, group - 2, rank);
    } else if constexpr (kSummaries) {
      make_all<Element, kForm, false>(maps, args, activation, shared, group - 2, rank);
    }
  }
  if constexpr (ctas(kForm) > 1)
    cluster_end();  // the other CTA copies into this one's memory and arrives at its barriers
}

}  // namespace deltarelay::cuda::sm90
