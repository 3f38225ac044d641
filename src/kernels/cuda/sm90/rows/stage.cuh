// The item of one CTA of a walk, and the stages of its ring in shared memory.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/checkpoint.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/matrix.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/cuda/rows/early_start.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/tile/descriptor.cuh"

namespace deltarelay::cuda::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kGroupRows = 64;  // value rows of one state warpgroup

// Byte offsets inside a stage. A summary needs no q and no Aqk, and one half of the values. The first bytes of its
// record are not loaded, so kRecord lies before the stage.
struct GdnSummaryStage {
  using Record = GdnRecord;
  static constexpr int kStages = 6;
  static constexpr bool kRawTiles = true;  // q and k come from the caller's tensors
  static constexpr int kRead = 0, kUpdate = 0;
  static constexpr int kRecord = 16384 - Record::kSummary;
  static constexpr int kV = 16384 + 10 * 1024;  // the next multiple of 1024 after the record
  static constexpr int kBytes = kV + 8192;
};
struct GdnStage {
  using Record = GdnRecord;
  using Summary = GdnSummaryStage;
  static constexpr int kStages = 3;
  static constexpr bool kRawTiles = true;
  static constexpr int kQuery = 0, kRead = 16384, kUpdate = kRead;
  static constexpr int kRecord = 32768;
  static constexpr int kV = kRecord + 18 * 1024;
  static constexpr int kBytes = kV + 16384;
};
struct KdaSummaryStage {
  using Record = KdaRecord;
  static constexpr int kStages = 9;
  static constexpr bool kRawTiles = false;
  static constexpr int kRecord = -Record::kSummary;
  static constexpr int kRead = kRecord + Record::kRead, kUpdate = kRecord + Record::kUpdate;
  static constexpr int kV = 19 * 1024;
  static constexpr int kBytes = kV + 4096;
};
struct KdaStage {
  using Record = KdaRecord;
  using Summary = KdaSummaryStage;
  static constexpr int kStages = 6;
  static constexpr bool kRawTiles = false;
  static constexpr int kRecord = 0;
  static constexpr int kQuery = Record::kQuery, kRead = Record::kRead, kUpdate = Record::kUpdate;
  static constexpr int kV = 29 * 1024;
  static constexpr int kBytes = kV + 8192;
};
template <class Stage>
constexpr bool fits() {
  return Stage::kRecord + Stage::Record::kBytes <= Stage::kV && Stage::kV % 1024 == 0 && Stage::kBytes % 1024 == 0;
}
static_assert(fits<GdnStage>() && fits<GdnSummaryStage>() && fits<KdaStage>() && fits<KdaSummaryStage>());

// Work of one CTA.
struct Item {
  Row row;
  int head, key_head;
  int value_half;   // first half of the strip's values in this CTA: 0 or 1 (CTAs with one state group)
  int sequence_at;  // TMA coordinate: the sequence if batched, else 0
  int strip;        // numbered through all heads (args.h): TMA coordinate of v and o, index in the slots
  int64_t token;    // first token of the row: TMA coordinate, or row in the sequence
  int tokens;       // of the row
  int first_value;  // first value column of the strip in its head
  int64_t chunk;    // first chunk of the row, numbered through the call
  bool ends_sequence;
  int16_t takes_over, hands_on;  // place in RelayView the state is read from / written to; -1: none
  int16_t to_twin;               // head of strip ^ 1 minus `head`
};
static_assert(sizeof(Item) == 80, "a larger Item changes the shared memory that is left to L1 (kRoomForL1)");

// Most shared memory of a CTA, in bytes.
constexpr int kMostShared = 227 * 1024;

// The suffix of a summary's row, which is walked first (suffix.cuh).
struct Suffix {
  int skipped;     // chunks of the row before the suffix; 0: the whole row is walked
  uint32_t lives;  // M is alive after the suffix
};

// Items are numbered (row, strip, value half), the last innermost. Rows come longest first, and so do CTAs.
template <int kGroups>
__device__ __forceinline__ bool find_item(const WalkArgs& args, const uint8_t* table, int chunk_tokens, Item& item,
                                          uint32_t number) {
  const Tables& at = args.tables;
  const bool third = args.phase == 3;
  const int count = reinterpret_cast<const int32_t*>(table + at.at_counts)[third ? 2 : 0];
  constexpr int kHalves = 2 / kGroups;  // CTAs that share the value rows of one strip
  const int line = static_cast<int>(number) / kHalves;
  const int index = line / args.strips.all;
  const Row row =
      reinterpret_cast<const Row*>(table + (third ? at.at_rows3 : at.at_rows1))[index];  // in bounds, but maybe unused
  if (index >= count) return false;
  item.row = row;
  item.strip = line % args.strips.all;
  item.head = args.strips.head_of(item.strip);
  item.to_twin = static_cast<int16_t>(args.strips.head_of(item.strip ^ 1) - item.head);
  item.first_value = (item.strip - item.head * args.strips.a_head) * kWidth;
  item.key_head = item.head / (args.heads_v / args.heads_qk);
  item.value_half = static_cast<int>(number) % kHalves;
  const int n = item.row.sequence;
  const auto* token_begin = reinterpret_cast<const int64_t*>(table + at.at_token_begin);
  const auto* chunk_begin = reinterpret_cast<const int32_t*>(table + at.at_chunk_begin);
  const int64_t begin = token_begin[n], length = token_begin[n + 1] - begin;
  const int64_t offset = static_cast<int64_t>(item.row.begin) * chunk_tokens;
  const int first_chunk = chunk_begin[n];
  item.sequence_at = at.batched ? n : 0;
  item.token = (at.batched ? 0 : begin) + offset;
  const int64_t left = length - offset, whole = static_cast<int64_t>(item.row.chunks) * chunk_tokens;
  item.tokens = static_cast<int>(left < whole ? left : whole);
  item.chunk = first_chunk + item.row.begin;
  item.ends_sequence = item.row.begin + item.row.chunks == chunk_begin[n + 1] - first_chunk;
  item.takes_over = item.hands_on = -1;
  return true;
}

template <int kGroups>
__device__ __forceinline__ bool find_item(const WalkArgs& args, int chunk_tokens, Item& item,
                                          uint32_t number = blockIdx.x) {
  // Two calls, so that the compiler reads the image as constants.
  if (table_came(args)) return find_item<kGroups>(args, args.tables.image, chunk_tokens, item, number);
  return find_item<kGroups>(args, args.tables.memory, chunk_tokens, item, number);
}

// When a CTA waits for the previous grid. A table in the kernel parameters is read before the wait. In phase 3 only the
// groups that load a state wait: inputs and records are complete before phase 3 can start. Phase 3 starts when all CTAs
// of phase 1 (or of carry, which itself starts after phase 1) have allowed it, and CTAs of phase 1 allow it after their
// own wait. A call with rows in phase 3 has rows in phase 1. CTAs without an item wait too: a grid that waits for the
// end of this one relies on the end of all grids before it.
__device__ __forceinline__ void wait_to_find(const WalkArgs& args) {
  if (table_came(args)) return;
  wait_for_previous_grid();
  allow_next_grid();
}
__device__ __forceinline__ void wait_when_found(const WalkArgs& args, bool found) {
  if (!table_came(args)) return;
  if (args.phase == 1 || !found) wait_for_previous_grid();
  allow_next_grid();
}
// Shared memory of a CTA of the walk through records: a ring of stages and the barriers of each stage.
template <class Stage>
struct WalkShared {
  using Summary = typename Stage::Summary;
  static constexpr int kStages = std::max(Stage::kStages, Summary::kStages);
  uint8_t ring[std::max(Stage::kStages * Stage::kBytes, Summary::kStages* Summary::kBytes)];
  uint64_t full[kStages];  // all data of a chunk has arrived
  uint64_t done[kStages];  // the state groups of this CTA have read the stage, and its output lies over V
  uint64_t free[kStages];  // all CTAs of the cluster are done with the stage: it may be loaded again
  Item item;               // in shared memory: it would cost the state groups a dozen registers
  Suffix suffix;
  float weakest[4];  // KDA: per warp, log2 of the weakest decay of its channels over the last chunk
  bool found;
  SequenceCheckpoints checkpoints;  // of the item's sequence, if there are checkpoints
  unsigned long long checkpoint_rows;
};
static_assert(sizeof(WalkShared<GdnStage>) <= kMostShared && sizeof(WalkShared<KdaStage>) <= kMostShared);

// B operands of one chunk in its stage at `address`, and this lane's factors.
template <class Stage>
struct ChunkView {
  using Record = typename Stage::Record;
  static constexpr bool kScalarGate = Stage::kRawTiles;  // GDN: factors per token; KDA: factors are in the tiles
  static constexpr int kChunk = Record::kChunk;
  static constexpr int kBlocks = kChunk / 16;
  static constexpr int kHalfBytes = kChunk * kRowBytes;

  uint32_t address;

  // The 16 channels of step `step` of K S and Q S.
  __device__ __forceinline__ uint64_t read() const { return swizzled_operand(address + Stage::kRead); }
  __device__ __forceinline__ uint64_t query() const { return swizzled_operand(address + Stage::kQuery); }
  static __device__ __forceinline__ constexpr uint64_t channels(int step) { return channel_step(step, kHalfBytes); }
  // The 16 tokens of step `step` of the update, k_to_end^T V_new.
  __device__ __forceinline__ uint64_t update() const { return swizzled_operand(address + Stage::kUpdate, kHalfBytes); }
  static __device__ __forceinline__ constexpr uint64_t tokens(int step) { return operand_step(step * 16 * kRowBytes); }
  // The 16 columns of step `step` of (inverse - I) R and Aqk V_new.
  __device__ __forceinline__ uint64_t inverse() const { return square(Record::kInverse); }
  __device__ __forceinline__ uint64_t aqk() const { return square(Record::kAqk); }
  static __device__ __forceinline__ constexpr uint64_t columns(int step) {
    return operand_step(kScalarGate ? step * 32 : step * 1024);
  }

  // Two factors for each 8-column block of an accumulator, from a vector over the tokens.
  __device__ __forceinline__ void load_factors(float2 (&factor)[kChunk / 8], int offset, int column) const {
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) factor[n] = load_pair(offset + (8 * n + column) * 4);
  }
  __device__ __forceinline__ float2 load_pair(int offset) const {
    return load_pair_unordered(address + (Stage::kRecord + offset));
  }

  // S <- decay_chunk S
  __device__ __forceinline__ void decay(float (&state)[64], int column) const {
    if constexpr (kScalarGate) {
      const float factor = load_pair(Record::kDecay).x;
#pragma unroll
      for (int i = 0; i < 64; ++i) state[i] *= factor;
    } else {
#pragma unroll
      for (int b = 0; b < 16; ++b) {
        const float2 factor = load_pair(Record::kDecay + (8 * b + column) * 4);
        state[4 * b] *= factor.x, state[4 * b + 1] *= factor.y, state[4 * b + 2] *= factor.x,
            state[4 * b + 3] *= factor.y;
      }
    }
  }

  // Overwrites R by V_new = R + (inverse - I) R. Does not wait for the product. Meanwhile loads the factors of the
  // update, if tokens have some, and decays the state.
  static constexpr int kFactors = kScalarGate ? kChunk / 8 : 1;
  template <class Element>
  __device__ __forceinline__ void solve(float (&product)[kChunk / 2], float (&state)[64], float2 (&factor)[kFactors],
                                        int column) const {
    Fragment residual[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) residual[b] = pack_block<Element>(product, b);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) Wgmma<Element>::times(product, residual[k], inverse() + columns(k), true);
    wgmma_commit();
    if constexpr (kScalarGate) load_factors(factor, Record::kUpdate, column);
    decay(state, column);
  }

 private:
  __device__ __forceinline__ uint64_t square(int offset) const {
    const uint32_t at = address + (Stage::kRecord + offset);
    return kScalarGate ? swizzled_operand(at) : plain_operand(at, 512, 128);
  }
};

// Columns of an accumulator are tokens. Those past the end become 0, by a select: values there may be NaN.
template <int kCount>
__device__ __forceinline__ void select_tokens(float (&product)[kCount], int column, int valid) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) product[i] = 8 * (i / 4) + column + i % 2 < valid ? product[i] : 0.0f;
}

// weighed = factor.xy V, computed while K S is in flight; 0 without values and past the end, where k is 0 too. The
// branch for the end also keeps the compiler from moving these products behind the wait for K S. `Factor` is float2 or
// float4: factors of tokens 8 n + column and the next.
template <class Element, int kBlocks, class Factor>
__device__ __forceinline__ void weigh_values(float (&weighed)[8 * kBlocks], const Fragment (&value)[kBlocks],
                                             const Factor (&factor)[2 * kBlocks], bool values, int column, int valid) {
  const uint32_t mask = values ? ~0u : 0u;
#pragma unroll
  for (int n = 0; n < 2 * kBlocks; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t pair = value[n / 2].reg[2 * (n % 2) + r] & mask;
      weighed[4 * n + 2 * r] = factor[n].x * Pair<Element>::low(pair);
      weighed[4 * n + 2 * r + 1] = factor[n].y * Pair<Element>::high(pair);
    }
  }
  if (valid < 16 * kBlocks) select_tokens(weighed, column, valid);
}

// Named barriers of the two state groups: this one and the next. Barrier 0 is __syncthreads.
constexpr int kStateBarrier = 1;

// Clears rows of k past the end of a sequence. They belong to another sequence and may hold NaN, and NaN times a zero
// of V_new is NaN. Every state group does it for itself: two write the same zeros. Records of KDA already hold zeros
// there.
template <class Stage>
__device__ __forceinline__ void clear_keys(uint8_t* stage, int valid) {
  using View = ChunkView<Stage>;
  if (!View::kScalarGate || valid >= View::kChunk) return;
  uint8_t* tile = stage + Stage::kRead;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < (View::kChunk - valid) * 16; i += kWarpgroup) {
    *reinterpret_cast<uint4*>(tile + (i % 16 / 8) * View::kHalfBytes + (valid + i / 16) * kRowBytes + i % 8 * 16) =
        make_uint4(0, 0, 0, 0);
  }
  ptx::fence_proxy_async(ptx::space_shared);
  named_barrier(kStateBarrier + static_cast<int>(threadIdx.x) / kWarpgroup, kWarpgroup);
}

}  // namespace deltarelay::cuda::sm90
