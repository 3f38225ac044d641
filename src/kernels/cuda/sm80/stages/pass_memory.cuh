// Shared memory of a pass, and the item of a CTA.
#pragma once
#include <cstdint>

#include "kernels/cuda/sm80/stages/gates.cuh"
#include "kernels/cuda/sm80/state.cuh"
#include "kernels/cuda/sm80/tile.cuh"

namespace deltarelay::cuda::sm80 {

// Decays are made up to three chunks ahead of their use.
constexpr int kDecayChunks = 4;

// Sizes of the ring: slabs of 64 columns of W, U and the keys, 64 tokens each, in the type of the data.
template <class Element>
struct PassRing {
  static constexpr int kElement = sizeof(Element);
  static constexpr int kRowBytes = kPassSlab * kElement + 16;
  static constexpr int kPieces = kPassSlab * kElement / 16;
  static constexpr int kSlabBytes = kStageTokens * kRowBytes;
  static constexpr int kSlabs = kElement == 2 ? 6 : 4;

  uint8_t slab[kSlabs][kSlabBytes];
  float decay[kDecayChunks][kMostWidth];     // of a chunk, KDA: of each channel
  float whole[kDecayChunks];                 // GDN
  float factor[kDecayChunks][kStageTokens];  // GDN: of V_new in the update
  float norm[kStageTokens];
  float line[kStageTokens];  // GDN: gates or sums of the next chunk
  BlockSums blocks;
};

// Items are numbered (row, head, tile), the last innermost: tiles of the value columns, then those of M^T.
struct PassItem {
  Row row;
  int head, first_column;  // of the tile
  bool of_m, emits, ends_sequence;
  int tokens;        // of the row
  ChunkPlace place;  // of its first chunk
  int64_t chunk;     // that chunk, counted over the whole call
};

__device__ __forceinline__ bool find_pass_item(const PassArgs& args, PassItem& item) {
  const bool third = args.phase == 3, summaries = args.stage.wants(DR_SUMMARIES);
  const uint32_t heads = static_cast<uint32_t>(args.heads_v);
  const uint32_t tiles = gridDim.x / (static_cast<uint32_t>(args.row_bound) * heads);
  const uint32_t line = blockIdx.x / tiles;
  const int tile = static_cast<int>(blockIdx.x % tiles), value_tiles = tiles_of(args.dv, kPassColumns);
  const int index = static_cast<int>(line / heads);
  if (index >= args.tables.counts()[third ? 2 : 0]) return false;
  item.row = (third ? args.tables.rows3() : args.tables.rows1())[index];
  item.head = static_cast<int>(line % heads);
  item.of_m = tile >= value_tiles;
  item.first_column = (item.of_m ? tile - value_tiles : tile) * kPassColumns;
  item.emits = item.row.work == Work::kEmit && !summaries;
  if (item.of_m && item.emits) return false;
  const int n = item.row.sequence, chunk = args.stage.chunk;
  const int64_t begin = args.tables.token_begin()[n], length = args.tables.token_begin()[n + 1] - begin;
  const int64_t offset = static_cast<int64_t>(item.row.begin) * chunk;
  const int64_t left = length - offset, whole = static_cast<int64_t>(item.row.chunks) * chunk;
  const int first = args.tables.chunk_begin()[n];
  item.tokens = static_cast<int>(left < whole ? left : whole);
  item.place = {n, args.tables.batched ? n : 0, (args.tables.batched ? 0 : begin) + offset, 0};
  item.chunk = first + item.row.begin;
  item.ends_sequence = item.row.begin + item.row.chunks == args.tables.chunk_begin()[n + 1] - first;
  return true;
}

// Rows of tokens that are copied as they are, from the first token of the item on.
struct PassSource {
  const uint8_t* data;
  int64_t stride;  // bytes from token to token
  int bytes;       // of a token
  Access access;

  __device__ __forceinline__ PassSource(const Rows& rows, int width) {
    const int element = float_bytes(rows.dtype);
    data = static_cast<const uint8_t*>(rows.data) + rows.at * element;
    stride = rows.step * element;
    bytes = width * element;
    const uint64_t bits = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(stride);
    access = bits % 16 == 0 ? Access::kPieces : bits % 4 == 0 ? Access::kWords : Access::kNumbers;
  }
};

}  // namespace deltarelay::cuda::sm80
