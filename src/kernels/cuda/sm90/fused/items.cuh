// The items of a CTA of the fused walks. A CTA with a whole strip (single or twins) may have several. Every role walks
// them on its own, along one ring: chunks of the next item are loaded and made while the last chunks of the current one
// are walked and its state is stored.
//
// Shared memory holds the first item (the only one of a pair) in `item`, the others in `later`, and their number in
// `items`.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/order.cuh"
#include "kernels/cuda/sm90/fused/row.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/relay.h"

namespace deltarelay::cuda::sm90 {

template <class Shared>
__device__ __forceinline__ Item& item_at(Shared& shared, int index) {
  return index == 0 ? shared.item : shared.later[index - 1];
}

// Restricts an item to chunks [part.from, part.to). `before` and `behind` are the relay places its state comes from and
// goes to.
__device__ __forceinline__ void take_part(Item& item, const RelayPart& part, int before, int behind) {
  const bool hands_on = part.to < item.row.chunks;
  item.takes_over = static_cast<int16_t>(part.from > 0 ? before : -1);
  item.hands_on = static_cast<int16_t>(hands_on ? behind : -1);
  if (hands_on) item.ends_sequence = false, item.row.slot_out = -1;
  item.tokens = min(item.tokens, part.to * kFusedChunk) - part.from * kFusedChunk;
  item.token += part.from * kFusedChunk;
  item.chunk += part.from;
  item.row.begin += part.from;
  item.row.chunks = part.to - part.from;
}

// Finds the items of this CTA, by one warp. `number` is that of the first item, and the same for both CTAs of a pair.
// Items come longest first. The order of CTAs is reversed from one wave of items to the next, so that all CTAs have
// similar work. Or every CTA has one share (relay.h).
template <Form kForm, class Shared>
__device__ __forceinline__ void find_items(const WalkArgs& args, Shared& shared, uint32_t number) {
  constexpr bool kWhole = has_whole_strip(kForm);
  const uint32_t round = threadIdx.x % 32;
  const uint32_t items =
      static_cast<uint32_t>(args.row_bound) * static_cast<uint32_t>(args.strips.all) * ctas_a_strip(kForm);
  const RelayLine& line = args.relay.line;
  const bool shares = kWhole && line.shares > 0;
  int beside = 0, share = 0;
  RelayPart part{};
  if (shares) {
    beside = static_cast<int>(number) % line.side;
    share = line.shares - 1 - static_cast<int>(number) / line.side;
    auto chunks_of = [rows = args.tables.rows1()](int row) { return rows[row].chunks; };
    part = relay_share(line, args.row_bound, chunks_of, share).part(line, chunks_of, static_cast<int32_t>(round));
    number = part.row < 0 ? items : static_cast<uint32_t>(part.row * args.strips.all + part.head * line.side + beside);
  } else if (kWhole && round > 0) {
    // Strips of twins are neighbours; the first CTA has the first of them.
    number = round * gridDim.x + (round % 2 == 0 ? number : (gridDim.x - 1 - number) ^ (ctas(kForm) - 1));
  }
  Item& item = item_at(shared, static_cast<int>(round));
  const bool found = round < (kWhole ? Shared::kItems : 1) && number < items &&
                     find_item<halves_a_cta(kForm)>(args, kFusedChunk, item, number);
  if (found && shares) take_part(item, part, (share + 1) * line.side + beside, share * line.side + beside);
  const uint32_t all = __ballot_sync(~0u, found);
  // With twins every item begins with a chunk of the first CTA. So an item that is followed by another one gets an even
  // number of chunks; the added chunk has no tokens.
  if (kForm == Form::kTwins && found && (all >> round) > 1) item.row.chunks += item.row.chunks % 2;
  if (round == 0) shared.items = __popc(all);
}

// Start of a CTA: finds its items (`number` as above) and initialises the barriers of its ring. Returns false if it has
// no item.
template <Form kForm, class Shared>
__device__ __forceinline__ bool begin_items(const WalkArgs& args, Shared& shared, uint32_t number, int rank) {
  wait_to_find(args);
  if (threadIdx.x < 32) {
    find_items<kForm>(args, shared, number);
    __syncwarp();
    if (threadIdx.x == 0 && shared.items > 0) init_barriers(shared, rank);
  }
  __syncthreads();
  wait_when_found(args, shared.items > 0);
  return shared.items > 0;
}

// Calls make(item, begin) for all items of this CTA, by a role that makes chunks. `begin` counts the chunks of the
// items before.
template <Form kForm, class Shared, class Make>
__device__ __forceinline__ void make_items(Shared& shared, Make&& make) {
  if constexpr (!has_whole_strip(kForm)) {
    make(shared.item, 0);
  } else {
    const int items = uniform(shared.items);
    int begin = 0;
#pragma unroll 1
    for (int index = 0; index < items; ++index) {
      Item& item = item_at(shared, index);
      make(item, begin);
      begin += uniform(item.row.chunks);
    }
  }
}

// Hands the state of a row to another CTA, or takes it over, by the state group with half `half` of the values. A
// barrier of the group plus the release or acquire of one thread orders the stores and loads of the whole group.
__device__ __forceinline__ RelayMark& mark_of(const WalkArgs& args, int place, int half) {
  return args.relay.marks[2 * place + half];
}
__device__ __forceinline__ void hand_on(const float (&state)[64], const WalkArgs& args, const Item& item, int half) {
  const StatePlace at(half);
  store_slot(state, relay_state(args, item.hands_on), at.value_row, at.lane_row, at.lane_column);
  named_barrier(kStateBarrier + half, kWarpgroup);
  if (threadIdx.x % kWarpgroup == 0) {
    RelayMark& mark = mark_of(args, item.hands_on, half);
    store_release(&mark.handed, RelayMark::answer(load_relaxed(&mark.taken)));
  }
}
__device__ __forceinline__ void take_over(float (&state)[64], const WalkArgs& args, const Item& item, int half) {
  const StatePlace at(half);
  if (threadIdx.x % kWarpgroup == 0) {
    RelayMark& mark = mark_of(args, item.takes_over, half);
    const uint64_t answer = RelayMark::answer(load_relaxed(&mark.taken));
    while (load_acquire(&mark.handed) != answer) __nanosleep(100);
    store_relaxed(&mark.taken, answer);
  }
  named_barrier(kStateBarrier + half, kWarpgroup);
  load_slot(state, relay_state(args, item.takes_over), at.value_row, at.lane_row, at.lane_column);
}

// Walks all items of this CTA by one of its state groups. emit(item, position, state) walks the chunks: the first lies
// at `position` of the ring. It leaves `position` after the last chunk and does not release the last stage. kLoadFours:
// loads initial states by fours (load_state). Due: NoCheckpoints, or DueCheckpoints (fused/checkpoints.cuh); emit
// stores all but those at the end of the item.
template <Form kForm, int kStages, bool kLoadFours, class Shared, class Due, class Emit>
__device__ __forceinline__ void emit_items(const WalkArgs& args, Shared& shared, int group, int rank, Due& due,
                                           Emit&& emit) {
  const auto first_thread = [] { return threadIdx.x % kWarpgroup == 0; };
  constexpr bool kWhole = has_whole_strip(kForm);
  const int items = kWhole ? uniform(shared.items) : 1, half = kWhole ? group : rank;
  RingPosition<kStages> position;
#pragma unroll 1
  for (int index = 0; index < items; ++index) {
    const Item& item = item_at(shared, index);
    float state[64];
    if (kWhole && item.takes_over >= 0)
      take_over(state, args, item, half);
    else
      load_entry<kLoadFours>(state, args, item, half);
    if constexpr (Due::kStores) due.begin(item, index);
    emit(item, position, state);
    if (kWhole && item.hands_on >= 0) hand_on(state, args, item, half);
    store_exit<kWhole>(state, args, item, half, due);
    // The item's last output has been read from shared memory: by its bulk copy, or by this group's threads if the
    // chunk was not whole.
    if (first_thread()) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
    if (kWhole && index + 1 < items && item.row.chunks > 0) {
      named_barrier(kStateBarrier + group, kWarpgroup);
      if (first_thread()) {
        ptx::fence_proxy_async(ptx::space_shared);
        release_stage<kForm>(shared, (position.stage + kStages - 1) % kStages, rank);
      }
    }
  }
}

}  // namespace deltarelay::cuda::sm90
