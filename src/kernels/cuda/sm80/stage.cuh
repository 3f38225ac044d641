// What one CTA of the walk works on: its item, and the stages of its ring in shared memory.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/launch.h"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace deltarelay::cuda::sm80 {

// Shared memory that a CTA may have on every device from 8.0 on, and that leaves room for two of them on one of 8.0.
constexpr int kMostShared = 99 * 1024;
constexpr int kHalfShared = 81 * 1024;
constexpr int kPlanBytes = 384;  // for what an item is read from and written to, behind the ring

// Places in a stage. Tiles are padded by 16 bytes a row; P, T and the vectors lie as in the record.
template <Op kOp, class Number, int kWidth, int kTileColumns>
struct Stage {
  static constexpr bool kScalarGate = kOp == Op::kGdn;  // factors per token, raw tiles; else factors are in the tiles
  static constexpr int kColumns = kTileColumns, kAllThreads = 2 * kColumns;  // a warp has 16 columns
  static constexpr int kElement = sizeof(Number), kTokens = chunk_of(kOp, kElement, kWidth);
  static constexpr RecordPlaces kRecord = record_places(kOp, kElement, kWidth);
  static constexpr int kRowPieces = kWidth * kElement / 16, kRowBytes = kWidth * kElement + 16;
  static constexpr int kValuePieces = kColumns * kElement / 16, kValueRowBytes = kColumns * kElement + 16;
  static constexpr int kTile = kTokens * kRowBytes;
  static constexpr int kRest = kRecord.bytes - kRecord.p;  // of a record, behind its tiles

  // Two long chunks do not fit, but two tiles of keys do: the rest comes in over the chunk before as soon as that has been read.
  static constexpr bool kTwoKeys = kTokens == kLongChunk;
  // Three tiles that do not fit: k^ comes in over k+ once that has been read.
  static constexpr bool kOverlaid =
      !kScalarGate && 3 * kTile + kRest + kTokens * kValueRowBytes > kMostShared - kPlanBytes;
  static constexpr int kQuery = 0, kRead = kTile, kUpdate = kScalarGate || kOverlaid ? kRead : 2 * kTile;
  static constexpr int kBehind = kUpdate + (kTwoKeys ? 2 : 1) * kTile;
  static constexpr int kV = kBehind + kRest;
  static constexpr int kBytes = kV + kTokens * kValueRowBytes;
  // Place of what the record has at `offset`, not a tile.
  static constexpr int at(int offset) { return kBehind + offset - kRecord.p; }

  // CTAs a multiprocessor.
  static constexpr int kTogether = kElement == 2 && kWidth <= 128 && kColumns == kTileValues ? 2 : 1;
  static constexpr int kRoom = ((kTogether == 2 ? kHalfShared : kMostShared) - kPlanBytes) / kBytes;
  static constexpr int kStages = kTwoKeys || kRoom < 1 ? 1 : kRoom > 4 ? 4 : kRoom;
  static constexpr int kSharedBytes = kStages * kBytes + kPlanBytes;
  static_assert(kSharedBytes <= kMostShared && kBytes % 16 == 0);
};

// Items are numbered (row, head, tile), the last innermost: rows come longest first, and so do the CTAs. The tiles of a row to emit are
// those of the value columns; of one to summarize those of B, then those of M^T.
struct Item {
  Row row;
  int head, tile;
  bool transition;  // a tile of M^T
  int sequence_at;  // batched: the sequence, else 0
  int64_t token;    // first token of the row: of a packed tensor, or of the sequence
  int tokens;
  int64_t chunk;  // first chunk of the row, numbered through the call
  bool ends_sequence;
};

template <class Stage>
__device__ __forceinline__ bool find_item(const WalkArgs& args, const Extent& extent, int tiles, Item& item) {
  const bool third = args.phase == 3;
  const int count = args.tables.counts()[third ? 2 : 0];
  const uint32_t line = blockIdx.x / static_cast<uint32_t>(tiles);
  const int index = static_cast<int>(line / static_cast<uint32_t>(args.heads_v));
  if (index >= count) return false;
  item.row = (third ? args.tables.rows3() : args.tables.rows1())[index];
  item.head = static_cast<int>(line % static_cast<uint32_t>(args.heads_v));
  item.tile = static_cast<int>(blockIdx.x % static_cast<uint32_t>(tiles));
  const int value_tiles = tiles_of(extent.dv, Stage::kColumns);
  item.transition = item.tile >= value_tiles;
  if (item.transition) {
    item.tile -= value_tiles;
    if (item.row.work == Work::kEmit || item.tile >= tiles_of(extent.dk, Stage::kColumns)) return false;
  }
  const int n = item.row.sequence;
  const int64_t begin = args.tables.token_begin()[n], length = args.tables.token_begin()[n + 1] - begin;
  const int64_t offset = static_cast<int64_t>(item.row.begin) * Stage::kTokens;
  const int first_chunk = args.tables.chunk_begin()[n];
  item.sequence_at = args.tables.batched ? n : 0;
  item.token = (args.tables.batched ? 0 : begin) + offset;
  const int64_t left = length - offset, whole = static_cast<int64_t>(item.row.chunks) * Stage::kTokens;
  item.tokens = static_cast<int>(left < whole ? left : whole);
  item.chunk = first_chunk + item.row.begin;
  item.ends_sequence = item.row.begin + item.row.chunks == args.tables.chunk_begin()[n + 1] - first_chunk;
  return true;
}

// Brings chunks of an item into stages.
template <class Stage>
struct Source {
  const uint8_t *query, *key, *value, *record;  // of the next chunk: raw rows (GDN: q, k) and the record
  int64_t query_stride, key_stride, value_stride, record_step;
  Access query_access, key_access, value_access;
  int key_bytes, value_bytes;  // of a row that exist
  int tokens;                  // of the row

  __device__ __forceinline__ Source(const WalkInputs& inputs, const WalkArgs& args, const Extent& extent,
                                    const Item& item) {
    constexpr int kElement = Stage::kElement;
    const int key_head = item.head / (args.heads_v / args.heads_qk);
    auto first = [&](const TensorView& t, int head) {
      return static_cast<const uint8_t*>(t.data) +
             (item.sequence_at * t.sequence + item.token * t.token + head * t.head) * kElement;
    };
    if constexpr (Stage::kScalarGate) {
      query = first(inputs.q, key_head), key = first(inputs.k, key_head);
      query_stride = inputs.q.token * kElement, key_stride = inputs.k.token * kElement;
      query_access = access_of(inputs.q, kElement), key_access = access_of(inputs.k, kElement);
    }
    value = first(inputs.v, item.head) + item.tile * Stage::kColumns * kElement;
    value_stride = inputs.v.token * kElement;
    value_access = access_of(inputs.v, kElement);
    record = args.prepared + (item.chunk * args.heads_v + item.head) * Stage::kRecord.bytes;
    record_step = static_cast<int64_t>(args.heads_v) * Stage::kRecord.bytes;
    key_bytes = extent.dk * kElement;
    value_bytes = item.transition ? 0 : (extent.dv - item.tile * Stage::kColumns) * kElement;
    tokens = item.tokens;
  }

  // The parts of chunk `chunk`, each into the stage at `stage`.
  using Tile = TileCopy<Stage::kTokens, Stage::kRowPieces, Stage::kRowBytes, Stage::kAllThreads>;
  __device__ __forceinline__ void load_query(int chunk, uint32_t stage) const {
    if constexpr (Stage::kScalarGate)
      Tile::load(stage + Stage::kQuery, query + chunk * (Stage::kTokens * query_stride), query_stride,
                 tokens - chunk * Stage::kTokens, key_bytes, query_access);
    else
      Tile::load_all(stage + Stage::kQuery, record + chunk * record_step + Stage::kRecord.query);
  }
  // With two tiles of keys, into that of even or odd chunks.
  __device__ __forceinline__ void load_read(int chunk, uint32_t stage) const {
    const uint32_t to = stage + Stage::kRead + (Stage::kTwoKeys ? chunk % 2 * Stage::kTile : 0);
    if constexpr (Stage::kScalarGate)
      Tile::load(to, key + chunk * (Stage::kTokens * key_stride), key_stride, tokens - chunk * Stage::kTokens,
                 key_bytes, key_access);
    else
      Tile::load_all(to, record + chunk * record_step + Stage::kRecord.read);
  }
  __device__ __forceinline__ void load_update(int chunk, uint32_t stage) const {
    if constexpr (!Stage::kScalarGate)
      Tile::load_all(stage + Stage::kUpdate, record + chunk * record_step + Stage::kRecord.update);
  }
  // Squares and vectors, and the values where there are any. A summary needs no P.
  template <bool kEmit>
  __device__ __forceinline__ void load_rest(int chunk, uint32_t stage) const {
    constexpr int kFrom = kEmit ? Stage::kRecord.p : Stage::kRecord.t;
    load_record_bytes<Stage::kRecord.bytes - kFrom, Stage::kAllThreads>(stage + Stage::at(kFrom),
                                                                        record + chunk * record_step + kFrom);
    if (kEmit || value_bytes > 0)
      TileCopy<Stage::kTokens, Stage::kValuePieces, Stage::kValueRowBytes, Stage::kAllThreads>::load(
          stage + Stage::kV, value + chunk * (Stage::kTokens * value_stride), value_stride,
          tokens - chunk * Stage::kTokens, value_bytes, value_access);
  }
};

}  // namespace deltarelay::cuda::sm80
