// What one CTA of the walk works on: its item, and the stages of its ring in shared memory.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm80/arithmetic.cuh"
#include "kernels/cuda/sm80/launch.h"
#include "kernels/cuda/sm80/record.h"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/tile.cuh"
#include "kernels/cuda/sm80/tiling.h"

namespace deltarelay::cuda::sm80 {

// Places in a stage, and the sizes of a CTA (tiling.h) as the kernels name them.
template <Op kOp, class Number, int kWidth, int kTileColumns>
struct Stage {
  static constexpr WalkTiling kTiling = walk_tiling(kOp, sizeof(Number), kWidth, kTileColumns, kIsFine<Number>);
  static constexpr bool kScalarGate = kOp == Op::kGdn;  // factors per token, raw tiles; else factors are in the tiles
  static constexpr int kColumns = kTileColumns, kRowTiles = kTiling.row_tiles;
  static constexpr int kAllThreads = kTiling.threads, kWarps = kAllThreads / 32;
  static constexpr int kElement = sizeof(Number);
  static constexpr RecordPlaces kRecord = record_places(kOp, kElement, kWidth, kIsFine<Number>);
  static constexpr int kRowBytes = kTiling.row_bytes, kRowPieces = kWidth * kElement / 16;
  static constexpr int kValueRowBytes = kTiling.value_row_bytes, kValuePieces = kColumns * kElement / 16;

  // First value column of a warp in the tile; they are rows of the state.
  static __device__ constexpr int first_row(int warp) { return warp * 16 * kRowTiles; }

  static constexpr bool kOverlaid = kTiling.overlaid;
  static constexpr int kQuery = kTiling.query, kRead = kTiling.read, kUpdate = kTiling.update, kV = kTiling.values;
  static constexpr int kBytes = kTiling.stage_bytes;
  // Place of what the record has at `offset`, not a tile.
  static constexpr int at(int offset) { return kTiling.behind + offset - kRecord.p; }

  static constexpr int kTogether = kTiling.together;  // CTAs a multiprocessor, by registers
  static constexpr int kStages = kTiling.stages;
  static constexpr int kSharedBytes = kTiling.shared_bytes;
  static_assert(kSharedBytes <= kMostShared && kBytes % 16 == 0);
};

// Items are numbered (row, head, tile), the last innermost: rows come longest first, and so do the CTAs. The tiles of a row to emit are
// those of the value columns; of one to summarize those of B, and after those of all rows those of M^T: where gates forget, most of them end
// early, and would have had the others wait.
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
  const int value_tiles = tiles_of(extent.dv, Stage::kColumns);
  const int64_t values = int64_t{args.row_bound} * args.heads_v * value_tiles;
  item.transition = blockIdx.x >= values;
  const uint32_t number = blockIdx.x - (item.transition ? static_cast<uint32_t>(values) : 0u);
  const uint32_t each = static_cast<uint32_t>(item.transition ? tiles - value_tiles : value_tiles);
  const uint32_t line = number / each;
  const int index = static_cast<int>(line / static_cast<uint32_t>(args.heads_v));
  if (index >= count) return false;
  item.row = (third ? args.tables.rows3() : args.tables.rows1())[index];
  item.head = static_cast<int>(line % static_cast<uint32_t>(args.heads_v));
  item.tile = static_cast<int>(number % each);
  if (item.transition && item.row.work == Work::kEmit) return false;
  const int n = item.row.sequence;
  const int64_t begin = args.tables.token_begin()[n], length = args.tables.token_begin()[n + 1] - begin;
  const int64_t offset = static_cast<int64_t>(item.row.begin) * kChunk;
  const int first_chunk = args.tables.chunk_begin()[n];
  item.sequence_at = args.tables.batched ? n : 0;
  item.token = (args.tables.batched ? 0 : begin) + offset;
  const int64_t left = length - offset, whole = static_cast<int64_t>(item.row.chunks) * kChunk;
  item.tokens = static_cast<int>(left < whole ? left : whole);
  item.chunk = first_chunk + item.row.begin;
  item.ends_sequence = item.row.begin + item.row.chunks == args.tables.chunk_begin()[n + 1] - first_chunk;
  return true;
}

// A tile of every chunk of an item: rows of tokens in a tensor of the caller, or of a record.
struct alignas(16) TileSource {
  const uint8_t* data;  // of the item's first chunk
  int64_t stride;       // bytes of a token
  int64_t step;         // bytes of a chunk
  int place;            // in a stage
  int whole_chunks;     // so many of them are whole, and may be copied in pieces
  int tokens;           // that exist of the item
  Access access;
  int bytes;  // that exist of a token
};

struct RecordSource {
  const uint8_t* data;
  int64_t step;
};

// Brings chunks of an item into stages.
template <class Stage>
struct Source {
  static constexpr int kElement = Stage::kElement;
  enum : int { kQuery, kRead, kUpdate };  // what tiles are. GDN reads and updates with the same one
  static constexpr int kKeyTiles = Stage::kScalarGate ? 2 : 3, kValues = kKeyTiles;
  TileSource tile[kKeyTiles + 1];
  RecordSource record;

  __device__ __forceinline__ Source(const WalkInputs& inputs, const WalkArgs& args, const Extent& extent,
                                    const Item& item) {
    record = {args.prepared + (item.chunk * args.heads_v + item.head) * Stage::kRecord.bytes,
              static_cast<int64_t>(args.heads_v) * Stage::kRecord.bytes};
    if constexpr (Stage::kScalarGate) {
      const int key_head = item.head / (args.heads_v / args.heads_qk), bytes = extent.dk * kElement;
      tile[kQuery] = rows_of(inputs.q, item, key_head, 0, Stage::kQuery, bytes, Stage::kRowPieces);
      tile[kRead] = rows_of(inputs.k, item, key_head, 0, Stage::kRead, bytes, Stage::kRowPieces);
    } else {
      auto part_of_record = [&](int offset, int place) {
        constexpr int kBytes = Stage::kRowPieces * 16;
        const int chunks = item.row.chunks;
        return TileSource{record.data + offset, kBytes,          record.step, place, chunks,
                          chunks * kChunk,      Access::kPieces, kBytes};
      };
      tile[kQuery] = part_of_record(Stage::kRecord.query, Stage::kQuery);
      tile[kRead] = part_of_record(Stage::kRecord.read, Stage::kRead);
      tile[kUpdate] = part_of_record(Stage::kRecord.update, Stage::kUpdate);
    }
    const int bytes = item.transition ? 0 : (extent.dv - item.tile * Stage::kColumns) * kElement;
    tile[kValues] =
        rows_of(inputs.v, item, item.head, item.tile * Stage::kColumns, Stage::kV, bytes, Stage::kValuePieces);
  }

  static __device__ __forceinline__ TileSource rows_of(const TensorView& t, const Item& item, int head, int column,
                                                       int place, int bytes, int pieces) {
    const Access access = access_of(t, kElement);
    const bool whole = access == Access::kPieces && bytes >= pieces * 16;
    return {static_cast<const uint8_t*>(t.data) +
                (item.sequence_at * t.sequence + item.token * t.token + head * t.head + column) * kElement,
            t.token * kElement,
            t.token * kElement * kChunk,
            place,
            whole ? item.tokens / kChunk : 0,
            item.tokens,
            access,
            bytes};
  }

  // Copies are made by `thread` of kAllThreads: of the CTA, or of one warp. `source` is the address of a Source in shared memory: what is read
  // through a pointer costs its address anew each time.
  template <int kAllThreads>
  static __device__ __forceinline__ void load_tile(uint32_t source, int which, int chunk, uint32_t stage, int thread) {
    using KeyTile = TileCopy<kChunk, Stage::kRowPieces, Stage::kRowBytes, kAllThreads>;
    using ValueTile = TileCopy<kChunk, Stage::kValuePieces, Stage::kValueRowBytes, kAllThreads>;
    const auto from = load_object<TileSource>(source + which * static_cast<int>(sizeof(TileSource)));
    if (!std::is_same_v<KeyTile, ValueTile> && which == kValues)
      load_chunk<ValueTile>(from, chunk, stage, thread);
    else
      load_chunk<KeyTile>(from, chunk, stage, thread);
  }
  template <class Copy>
  static __device__ __forceinline__ void load_chunk(const TileSource& from, int chunk, uint32_t stage, int thread) {
    const uint8_t* data = from.data + chunk * from.step;
    if (chunk < from.whole_chunks)
      Copy::load_whole(stage + from.place, data, from.stride, thread);
    else
      Copy::load_some(stage + from.place, data, from.stride, from.tokens - chunk * kChunk, from.bytes, from.access,
                      thread);
  }
  // Squares and vectors, by all. A summary needs no P.
  template <bool kEmit>
  static __device__ __forceinline__ void load_rest(uint32_t source, int chunk, uint32_t stage, int thread) {
    constexpr int kFrom = kEmit ? Stage::kRecord.p : Stage::kRecord.t;
    const auto from = load_object<RecordSource>(source + static_cast<int>(sizeof(TileSource)) * (kKeyTiles + 1));
    load_record_bytes<Stage::kRecord.bytes - kFrom, Stage::kAllThreads>(stage + Stage::at(kFrom),
                                                                        from.data + chunk * from.step + kFrom, thread);
  }
};

}  // namespace deltarelay::cuda::sm80
