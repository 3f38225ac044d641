// The work of one CTA of the walk: its item, and the stages of its ring in shared memory.
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

// Offsets in a stage, and the sizes of a CTA (tiling.h) under the names that the kernels use.
template <Rule kRule, class Number, int kKeyWidth, int kTileColumns, bool kWalksBoth = false>
struct Stage {
  static constexpr WalkTiling kTiling =
      walk_tiling(kRule, sizeof(Number), kKeyWidth, kTileColumns, kIsFine<Number>, kWalksBoth);
  static constexpr int kWidth = kKeyWidth;
  static constexpr bool kBoth = kWalksBoth;  // in a summary, the second half of the columns is M^T
  static constexpr bool kScalarGate =
      kRule == Rule::kGdn;  // factors per token and tiles of the caller; KDA: factors in tiles
  static constexpr int kColumns = kTileColumns, kRowTiles = kTiling.row_tiles;
  static constexpr int kAllThreads = kTiling.threads, kWarps = kAllThreads / 32;
  static constexpr int kElement = sizeof(Number);
  static constexpr RecordPlaces kRecord = record_places(kRule, kElement, kWidth, kIsFine<Number>);
  static constexpr int kRowBytes = kTiling.row_bytes, kRowPieces = kWidth * kElement / 16;
  static constexpr int kValueRowBytes = kTiling.value_row_bytes, kValuePieces = kTiling.value_columns * kElement / 16;

  // First value column of a warp in the tile. Value columns are rows of S^T.
  static __device__ constexpr int first_row(int warp) { return warp * 16 * kRowTiles; }

  static constexpr bool kOverlaid = kTiling.overlaid;
  // Narrow heads leave registers free: for source addresses of copies, and for outputs that wait for the end of a
  // chunk.
  static constexpr bool kNarrow = kElement == 2 && kWidth == 64;
  static constexpr int kQuery = kTiling.query, kRead = kTiling.read, kUpdate = kTiling.update, kV = kTiling.values;
  static constexpr int kBytes = kTiling.stage_bytes;
  // Offset in a stage of what is at `offset` in the record. Not for tiles.
  static constexpr int at(int offset) { return kTiling.behind + offset - kRecord.aqk; }

  static constexpr int kMostOfM = kBoth ? kColumns / 2 : kColumns;  // rows of M^T per CTA
  static constexpr int kTogether = kTiling.together;                // CTAs per multiprocessor that registers allow
  static constexpr int kStages = kTiling.stages;
  static constexpr int kSharedBytes = kTiling.shared_bytes;
  static_assert(kSharedBytes <= kMostShared && kBytes % 16 == 0);
};

// Items are numbered (row, head, tile), the last innermost. Rows come longest first, and so do CTAs.
//
// A last tile of value columns that is not full comes after the full tiles of all rows. Otherwise, with an even number
// of multiprocessors, some would get two full tiles and others two tiles that idle.
//
// A row to emit has the tiles of its value columns. A row to summarize has the tiles of B; the tiles of M^T of all rows
// come after those. If gates forget, most tiles of M^T end early, and in between they would delay the others. If a CTA
// walks both B and M^T, rows that are likely to end early come last for the same reason. Only the kernel can tell which
// rows those are, so each has two CTAs, and one of the two returns at once.
struct Item {
  Row row;
  int head, tile;
  bool transition;  // a tile of M^T
  bool promising;   // kBoth: this CTA takes the row if its last chunks are likely to suffice
  int sequence_at;  // batched: index of the sequence, else 0
  int64_t token;    // first token of the row: in the packed tensor, or in the sequence
  int tokens;
  int64_t chunk;  // first chunk of the row, counted over the whole call
  bool ends_sequence;
};

template <class Stage>
__device__ __forceinline__ bool find_item(const WalkArgs& args, const Extent& extent, int tiles, Item& item) {
  const bool third = args.phase == 3;
  const int count = args.tables.counts()[third ? 2 : 0];
  const int value_tiles = Stage::kBoth ? tiles : tiles_of(extent.dv, Stage::kColumns);
  const int64_t values = int64_t{args.row_bound} * args.heads_v * value_tiles;
  const bool later = blockIdx.x >= values;
  item.transition = later && !Stage::kBoth;
  item.promising = later && Stage::kBoth;
  const uint32_t number = blockIdx.x - (later ? static_cast<uint32_t>(values) : 0u);
  uint32_t line, tile;
  if (item.transition) {
    const uint32_t each = static_cast<uint32_t>(tiles - value_tiles);
    line = number / each;
    tile = number % each;
  } else {
    const uint32_t ragged = value_tiles > 1 && extent.dv % Stage::kColumns != 0 ? 1u : 0u;
    const uint32_t whole = static_cast<uint32_t>(value_tiles) - ragged;
    const uint32_t lines = static_cast<uint32_t>(args.row_bound) * static_cast<uint32_t>(args.heads_v);
    const bool last = number >= lines * whole;
    line = last ? number - lines * whole : number / whole;
    tile = last ? whole : number % whole;
  }
  const int index = static_cast<int>(line / static_cast<uint32_t>(args.heads_v));
  if (index >= count) return false;
  item.row = (third ? args.tables.rows3() : args.tables.rows1())[index];
  item.head = static_cast<int>(line % static_cast<uint32_t>(args.heads_v));
  item.tile = static_cast<int>(tile);
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

// Source of one tile for every chunk of an item: rows of tokens in a tensor of the caller or in a record.
struct alignas(16) TileSource {
  const uint8_t* data;  // first chunk of the item
  int64_t stride;       // bytes per token
  int64_t step;         // bytes per chunk
  int place;            // offset in a stage
  int whole_chunks;     // leading chunks with all their tokens, which may be copied in pieces of 16 bytes
  int tokens;           // tokens of the item that exist
  Access access;
  int bytes;  // bytes per token that exist
};

struct RecordSource {
  const uint8_t* data;
  int64_t step;
};

// Copies chunks of an item to stages.
template <class Stage>
struct Source {
  static constexpr int kElement = Stage::kElement;
  enum : int { kQuery, kRead, kUpdate };  // roles of tiles; GDN uses one tile of k to read and to update
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
      tile[kQuery] = part_of_record(Stage::kRecord.q_from_start, Stage::kQuery);
      tile[kRead] = part_of_record(Stage::kRecord.k_from_start, Stage::kRead);
      tile[kUpdate] = part_of_record(Stage::kRecord.k_to_end, Stage::kUpdate);
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

  // `thread` of kAllThreads makes copies: threads of the CTA, or of one warp. `source` is the shared-memory address of
  // a Source. Reading through a pointer would compute the address again each time.
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
  // Copies squares and vectors, with all threads. A summary needs no Aqk.
  template <bool kEmit>
  static __device__ __forceinline__ void load_rest(uint32_t source, int chunk, uint32_t stage, int thread) {
    constexpr int kFrom = kEmit ? Stage::kRecord.aqk : Stage::kRecord.inverse;
    const auto from = load_object<RecordSource>(source + static_cast<int>(sizeof(TileSource)) * (kKeyTiles + 1));
    load_record_bytes<Stage::kRecord.bytes - kFrom, Stage::kAllThreads>(stage + Stage::at(kFrom),
                                                                        from.data + chunk * from.step + kFrom, thread);
  }
};

// Copies whole chunks, one after the other, from addresses that a thread keeps in registers: pieces of every tile and
// of the rest of a record. next() returns false if it leaves a chunk to Source.
template <class Stage, bool kEmit, bool kNarrow = Stage::kNarrow>
struct Copies {
  __device__ __forceinline__ Copies(uint32_t, int, bool, int) {}
  __device__ __forceinline__ bool next(int, uint32_t, bool, int) { return false; }
  __device__ __forceinline__ void go_on() {}
};
template <class Stage, bool kEmit>
struct Copies<Stage, kEmit, true> {
  using Source = sm80::Source<Stage>;
  static constexpr int kThreads = Stage::kAllThreads;
  static constexpr bool kScalarGate = Stage::kScalarGate;
  // A thread's part of a tile whose rows have kPieces pieces: one piece of every kDown-th row.
  template <int kPieces>
  struct Part {
    static constexpr int kDown = kThreads / kPieces;
    static_assert(kThreads % kPieces == 0 && kChunk % kDown == 0);
    static __device__ __forceinline__ uint32_t place(int thread, int row_bytes) {
      return thread / kPieces * row_bytes + thread % kPieces * 16;
    }
  };
  using Key = Part<Stage::kRowPieces>;
  using Value = Part<Stage::kValuePieces>;
  struct Rows {
    const uint8_t* before;  // one step above the first row
    uint32_t down;          // bytes from one of its rows to the next, also across chunks

    // Each address has its own registers, and `before` advances later: a copy holds its address registers until it is
    // issued.
    template <class Part>
    __device__ __forceinline__ void copy(uint32_t to, int row_bytes) const {
      constexpr uint32_t kCount = kChunk / Part::kDown;
#pragma unroll
      for (uint32_t i = 0; i < kCount; ++i)
        copy_piece(to + i * Part::kDown * row_bytes, before + static_cast<uint64_t>(down) * (i + 1));
    }
    template <class Part>
    __device__ __forceinline__ void go_on() {
      before += static_cast<uint64_t>(down) * (kChunk / Part::kDown);
    }
  };
  static constexpr int64_t kMostDown = 0xffffffff;

  int whole;  // leading chunks that are whole in all tensors
  const uint8_t* record;
  int64_t record_step;
  Rows query{}, read{}, values{};  // query and read: GDN only

  __device__ __forceinline__ Copies(uint32_t source, int chunk, bool with_values, int thread) {
    const auto from =
        load_object<RecordSource>(source + static_cast<int>(sizeof(TileSource)) * (Source::kKeyTiles + 1));
    record = from.data + chunk * from.step + thread * 16;
    record_step = from.step;
    whole = 0x7fffffff;
    auto rows_of = [&]<int kPieces>(int which, Part<kPieces>) {
      const auto tile = load_object<TileSource>(source + which * static_cast<int>(sizeof(TileSource)));
      const int64_t down = Part<kPieces>::kDown * tile.stride;
      whole = down <= kMostDown ? min(whole, tile.whole_chunks) : 0;
      return Rows{tile.data + chunk * tile.step + thread / kPieces * tile.stride + thread % kPieces * 16 - down,
                  static_cast<uint32_t>(down)};
    };
    if constexpr (kScalarGate) {
      if constexpr (kEmit) query = rows_of(Source::kQuery, Key{});
      read = rows_of(Source::kRead, Key{});
    }
    if (with_values) values = rows_of(Source::kValues, Value{});
  }

  __device__ __forceinline__ bool next(int chunk, uint32_t stage, bool with_values, int thread) {
    if (chunk >= whole) return false;
    constexpr int kFrom = kEmit ? Stage::kRecord.aqk : Stage::kRecord.inverse;
    const uint32_t key = stage + Key::place(thread, Stage::kRowBytes);
    if constexpr (kScalarGate) {
      if constexpr (kEmit) query.template copy<Key>(key + Stage::kQuery, Stage::kRowBytes);
      read.template copy<Key>(key + Stage::kRead, Stage::kRowBytes);
    } else {
      if constexpr (kEmit) copy_tile(key + Stage::kQuery, record + Stage::kRecord.q_from_start);
      copy_tile(key + Stage::kRead, record + Stage::kRecord.k_from_start);
      copy_tile(key + Stage::kUpdate, record + Stage::kRecord.k_to_end);
    }
    if (with_values)
      values.template copy<Value>(stage + Stage::kV + Value::place(thread, Stage::kValueRowBytes),
                                  Stage::kValueRowBytes);
    constexpr int kRest = Stage::kRecord.bytes - kFrom, kStep = kThreads * 16;
#pragma unroll
    for (int at = 0; at < kRest; at += kStep) {
      if (at + kStep <= kRest || thread * 16 < kRest - at)
        copy_piece(stage + Stage::at(kFrom) + thread * 16 + at, record + kFrom + at);
    }
    return true;
  }
  // Advances to the next chunk. Call it some time after the copies.
  __device__ __forceinline__ void go_on() {
    if constexpr (kScalarGate) {
      if constexpr (kEmit) query.template go_on<Key>();
      read.template go_on<Key>();
    }
    values.template go_on<Value>();
    record += record_step;
  }

 private:
  // In the record the rows of a tile are contiguous.
  static __device__ __forceinline__ void copy_tile(uint32_t to, const uint8_t* from) {
#pragma unroll
    for (int row = 0; row < kChunk; row += Key::kDown)
      copy_piece(to + row * Stage::kRowBytes, from + row * Stage::kRowPieces * 16);
  }
};

}  // namespace deltarelay::cuda::sm80
