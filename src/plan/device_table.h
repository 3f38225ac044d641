// The table of a call on a GPU, as it lies in the workspace: counts, token_begin, chunk_begin, rows of phase 1, folds,
// rows of phase 3, and, when a GPU has to write it from lengths that only it knows, scratch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/search/rows.h"
#include "plan/search/team_table.h"

namespace deltarelay {

struct Plan;
struct SegmentTable;
struct Sequences;

struct DeviceTableLayout {  // offsets in bytes
  size_t counts = 0, token_begin = 0, chunk_begin = 0, rows1 = 0, folds = 0, rows3 = 0;
  size_t scratch = 0;  // where the table ends
  size_t bytes = 0;    // with scratch
};

// `scratch`: a GPU will write the table.
DeviceTableLayout device_table_layout(int64_t num_seqs, const plan::TableSize& capacity, bool scratch);

// The bytes of a table whose lengths are known; its layout is of exactly that size.
std::vector<std::byte> device_table_image(const DeviceTableLayout& layout, const Sequences& sequences, int32_t chunk,
                                          const SegmentTable& table);

// The arrays of a table at `memory`, which may be a GPU's: nothing is read.
plan::TeamTable device_tables_in(std::byte* memory, const DeviceTableLayout& layout);

// What the table of a plan depends on besides the offsets.
plan::TableRequest table_request(const Plan& plan);
plan::TableRequest table_request(const Plan& plan, const CallCounts& counts);

}  // namespace deltarelay
