// Grids of the portable kernels, in plain C++: the planner asks, and the launches follow.
#pragma once
#include <cstdint>
#include <limits>

#include "kernels/cuda/sm80/tiling.h"

namespace deltarelay::cuda::sm80 {

constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();  // along the first axis of a grid

// Prepare: value heads of a query/key head that a CTA of GDN has, and CTAs that share them.
constexpr int32_t kHeadsTogether = 4;
constexpr uint32_t shares_of(uint32_t group) { return (group + kHeadsTogether - 1) / kHeadsTogether; }

// Prepare: y counts chunks, z counts overflows of y. The grid may have up to kMostY - 1 chunks more than requested.
struct ChunkCounts {
  static constexpr uint32_t kMostY = 32768;
  uint32_t y, z;
  constexpr explicit ChunkCounts(int32_t chunks)
      : y(static_cast<uint32_t>(chunks) < kMostY ? static_cast<uint32_t>(chunks) : kMostY),
        z((static_cast<uint32_t>(chunks) + kMostY - 1) / kMostY) {}
  constexpr int64_t chunks() const { return int64_t{y} * z; }
};

// The walk: tiles of a row and head, and CTAs. A phase that summarizes also has the tiles of M^T.
struct WalkGrid {
  int32_t columns;  // of a tile
  bool both;        // a CTA has a tile of B and one of M^T
  int32_t tiles;
  int64_t ctas;
};

constexpr int32_t walk_tiles(const Shape& shape, int32_t columns, bool both, bool summarizes) {
  return both ? 1 : tiles_of(shape.dv, columns) + (summarizes ? tiles_of(shape.dk, columns) : 0);
}

// `items`: rows x heads.
constexpr WalkGrid walk_grid(const Shape& shape, int64_t items, bool summarizes, int32_t multiprocessors) {
  auto grid = [&](int32_t columns, bool both) {
    const int32_t tiles = walk_tiles(shape, columns, both, summarizes);
    return WalkGrid{columns, both, tiles, items * tiles * (both ? 2 : 1)};
  };
  if (summarizes && walks_both(shape)) return grid(kWideTile, true);
  const WalkGrid narrow = grid(kTileValues, false);
  // Wide tiles read less memory. Narrow tiles are faster if each has a multiprocessor of its own. Results do not
  // change.
  return tile_of(shape) == kWideTile && narrow.ctas > multiprocessors ? grid(kWideTile, false) : narrow;
}

// Carry: value rows of a CTA, and CTAs of a fold and head.
constexpr int32_t kCarryRows = 16;
constexpr int32_t carry_slices(int32_t dv) { return whole_tiles(dv) * kTileValues / kCarryRows; }

}  // namespace deltarelay::cuda::sm80
