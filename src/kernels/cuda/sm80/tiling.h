// Sizes of a CTA of the walk, in plain C++. Kernels are compiled with them, the planner uses them, and `deltarelay
// tiling` prints them.
#pragma once
#include <cstdint>

#include "kernels/cuda/sm80/record.h"

namespace deltarelay::cuda::sm80 {

// Shared memory that a CTA may have on every device from 8.0 on, and the share of a CTA on a device of 8.0. Stages of
// fp32 numbers or of more than 128 channels need all of it. Then only larger devices can hold more than one CTA.
constexpr int32_t kMostShared = 99 * 1024;
constexpr int32_t shared_share(int32_t ctas) { return ctas == 2 ? 81 * 1024 : 54 * 1024; }
constexpr int32_t kPlanBytes = 448;  // sources and destinations of an item, after the ring
// Shared memory that the system takes per CTA, and the registers of a multiprocessor.
constexpr int32_t kSystemShared = 1024;
constexpr int32_t kUnitRegisters = 64 * 1024, kMostRegisters = 255;

// At 64 key channels two row tiles leave registers free, so more CTAs with fewer warps share a multiprocessor.
constexpr int32_t row_tiles(int32_t element, int32_t width, int32_t columns) {
  return columns == kWideTile || (element == 2 && width == 64) ? 2 : 1;
}
constexpr int32_t ctas_together(int32_t element, int32_t width, int32_t columns) {
  return element == 2 && width == 64 && columns == kTileValues ? 4 : 2;
}

// Sizes and offsets of a stage of the ring, in bytes. Rows of tiles are padded by 16 bytes. Aqk, inverse - I and the
// vectors lie as in the record.
struct WalkTiling {
  int32_t columns = 0;        // columns that the CTA walks
  int32_t value_columns = 0;  // columns with values
  int32_t row_tiles = 0;      // groups of 16 columns per warp; columns are rows of S^T
  int32_t threads = 0;
  int32_t row_bytes = 0, value_row_bytes = 0;
  bool overlaid = false;  // three tiles do not fit: k_to_end replaces k_from_start once that has been read
  int32_t query = 0, read = 0, update = 0;
  int32_t behind = 0;  // the record after its tiles
  int32_t values = 0;
  int32_t stage_bytes = 0;
  int32_t together = 0;  // CTAs per multiprocessor that registers allow
  int32_t stages = 0;
  int32_t shared_bytes = 0;
};

// May a CTA walk B and M^T of a row, a tile of 64 columns each? Then both read a record once, and the CTA knows when M
// has vanished. That helps KDA, whose records are large and have no bound on M (suffix.cuh). Registers suffice at 64
// key channels.
constexpr bool walks_both(Rule rule, int32_t element, int32_t width) {
  return rule == Rule::kKda && element == 2 && width == kTileValues;
}

constexpr bool walks_both(const Shape& shape) {
  const auto element = static_cast<int32_t>(size_of(shape.dtype));
  return walks_both(shape.rule, element, width_of(shape.dk)) && !is_fine(element, shape.dk) && shape.dv <= kTileValues;
}

// `both`: half of the columns are columns of B, half of M.
constexpr WalkTiling walk_tiling(Rule rule, int32_t element, int32_t width, int32_t columns, bool fine,
                                 bool both = false) {
  const RecordPlaces record = record_places(rule, element, width, fine);
  const bool scalar_gate = rule == Rule::kGdn;  // factors per token; one tile of k serves to read and to update
  WalkTiling t;
  t.columns = columns;
  t.row_tiles = row_tiles(element, width, columns);
  t.threads = columns / (16 * t.row_tiles) * 32;
  t.row_bytes = width * element + 16;
  t.value_columns = both ? columns / 2 : columns;
  t.value_row_bytes = t.value_columns * element + 16;
  const int32_t tile = kChunk * t.row_bytes, value_tile = kChunk * t.value_row_bytes, rest = record.bytes - record.aqk;
  t.overlaid = !scalar_gate && 3 * tile + rest + value_tile > kMostShared - kPlanBytes;
  t.read = tile;
  t.update = scalar_gate || t.overlaid ? t.read : 2 * tile;
  t.behind = t.update + tile;
  t.values = t.behind + rest;
  t.stage_bytes = t.values + value_tile;
  t.together = ctas_together(element, width, columns);
  const bool large = element == 4 || width > 128;
  int32_t room = (shared_share(t.together) - kPlanBytes) / t.stage_bytes;
  if (large && room < 2) room = (kMostShared - kPlanBytes) / t.stage_bytes;
  t.stages = room < 1 ? 1 : room > 4 ? 4 : room;
  t.shared_bytes = t.stages * t.stage_bytes + kPlanBytes;
  return t;
}

// Registers per thread if `ctas` CTAs are to share a multiprocessor. Registers are allocated in units of 8.
constexpr int32_t registers_a_thread(int32_t threads, int32_t ctas) {
  const int32_t share = kUnitRegisters / (threads * ctas) / 8 * 8;
  return share < kMostRegisters ? share : kMostRegisters;
}

// Number of CTAs that fit a multiprocessor with this much shared memory.
constexpr int32_t ctas_in(int64_t unit_shared_bytes, int32_t shared_bytes) {
  return static_cast<int32_t>(unit_shared_bytes / (shared_bytes + kSystemShared));
}

}  // namespace deltarelay::cuda::sm80
