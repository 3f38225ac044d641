// Shared memory of a state pass: a ring of stages with w, keys and u, tiles of states on their way out, and the decays
// of each chunk.
#pragma once
#include <cstdint>

#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/sm90/rows/stage.cuh"
#include "kernels/cuda/tile/descriptor.cuh"
#include "kernels/form.h"

namespace deltarelay::cuda::sm90::pass {

constexpr int kChunk = 64;
constexpr int kBlocks = kChunk / 16;
constexpr int kHalfBytes = kChunk * kRowBytes;  // one half of the channels, or values, of a chunk
constexpr int kStateBytes = 2 * kHalfBytes;     // 64 value rows of a state in 16 bits

// Byte offsets inside a stage. V_new of a chunk has tiles of its own in a pair; a single CTA has no room for them, and
// V_new overwrites u. Tiles of its own let a stage be loaded again before V_new has left.
template <Form kForm>
struct Stage {
  static constexpr int kHalves = halves_a_cta(kForm);
  static constexpr int kW = 0, kKeys = 2 * kHalfBytes, kU = 4 * kHalfBytes;
  static constexpr int kBytes = kU + kHalves * kHalfBytes;
  static constexpr int kStages = kForm == Form::kSingle ? 3 : 4;
  static constexpr bool kOwnValues = kForm == Form::kPair;
};

// What the gates of a chunk do, in order of its tokens and channels.
template <bool kScalar>
struct Decays;
template <>
struct Decays<true> {    // GDN
  float update[kChunk];  // e^{G_last-G_i} if keys are k, else 1; 0 past the end
  float chunk[4];        // [0]: e^{G_last}
};
template <>
struct Decays<false> {  // KDA
  float chunk[kWidth];
};

constexpr int kTiles = 2;        // chunks whose states, and V_new, may be on their way out
constexpr int kDecayStages = 8;  // chunks whose decays may be ready

template <Form kForm, bool kScalar>
struct Shared {
  using Place = Stage<kForm>;
  static constexpr int kStages = Place::kStages;
  uint8_t ring[kStages * Place::kBytes];
  uint8_t states[kTiles][Place::kHalves * kStateBytes];
  uint8_t values[kTiles]
                [Place::kOwnValues ? Place::kHalves * kHalfBytes : 1024];  // V_new, where it has tiles of its own
  Decays<kScalar> decays[kDecayStages];
  uint64_t full[kStages];  // w, keys and u have arrived
  uint64_t done[kStages];  // the state groups have read the stage; a single CTA: V_new lies over u
  uint64_t free[kStages];  // all CTAs of the cluster are done with the stage
  uint64_t states_full[kTiles], values_full[kTiles], tiles_free[kTiles];
  uint64_t decays_full[kDecayStages], decays_free[kDecayStages];
  Item item;
  Suffix suffix;
  bool found;
};
static_assert(sizeof(Shared<Form::kSingle, false>) <= kMostShared && sizeof(Shared<Form::kPair, false>) <= kMostShared);

// Clears rows of the keys past the end of a sequence: they belong to another one and may hold NaN. Every state group
// does it for itself: two write the same zeros.
__device__ __forceinline__ void clear_rows(uint8_t* tile, int valid) {
  if (valid >= kChunk) return;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < (kChunk - valid) * 16; i += kWarpgroup) {
    *reinterpret_cast<uint4*>(tile + i % 16 / 8 * kHalfBytes + (valid + i / 16) * kRowBytes + i % 8 * 16) =
        make_uint4(0, 0, 0, 0);
  }
  ptx::fence_proxy_async(ptx::space_shared);
  named_barrier(kStateBarrier + static_cast<int>(threadIdx.x) / kWarpgroup, kWarpgroup);
}

// Places of a row in the contiguous tensors of the stages, in tokens of the call.
__device__ __forceinline__ int64_t token_of_call(const Tables& tables, const Item& item) {
  return (tables.batched ? tables.token_begin()[item.row.sequence] : 0) + item.token;
}

}  // namespace deltarelay::cuda::sm90::pass
