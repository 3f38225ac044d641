// Constants of the cpu backend, each with its reason, and the table of kernels that one instruction set exports.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/stages.h"

namespace deltarelay::cpu {

// Tokens per chunk. On a CPU chunking saves no arithmetic; it turns matrix-vector work into matrix work. Scores and
// solve grow with the chunk, so the shortest chunk that fills the micro-kernel is fastest (fp32, 1 thread, T=4096:
// 527k, 467k and 368k token-heads/s at 16, 32 and 64 in the first prototype). kChunk also equals kCheckpointAlignment,
// so every checkpoint lies on a chunk boundary.
constexpr int32_t kChunk = 16;
static_assert(kChunk == kCheckpointAlignment);

// Tokens per sub-chunk. Key-key and query-key products inside a sub-chunk are formed pair by pair. Products between two
// sub-chunks are relative to the start of the later one. So no decay is divided out and no gate can overflow.
constexpr int32_t kSubChunk = 4;

// Channels are padded to a multiple of this number, which the longest vector (16 floats) and the tallest tile (8 rows)
// divide.
constexpr int32_t kChannelPad = 16;

constexpr int32_t padded_channels(int32_t dk) { return (dk + kChannelPad - 1) / kChannelPad * kChannelPad; }

// Value columns [first, first + count) of one item, in panels. Columns from DV on are the columns of the transition M.
struct PanelRange {
  int32_t first;
  int32_t count;
};

// One work item: a row of the table, one value head, some of its panels.
struct Item {
  Row row;
  int32_t head;
  PanelRange panels;
  int64_t first_checkpoint;  // row of the sequence's first checkpoint, or of its first state in a state pass
};

struct StageKernels;  // stages/stages.h

// The kernels of one instruction set. State panels are [panel][padded DK][panel columns] in fp32. M has the same form,
// with DK columns instead of DV.
struct Kernels {
  int32_t panel_columns;
  size_t (*scratch_bytes)(const Problem& problem, int32_t panels);
  void (*run_item)(const StageArgs& args, const Item& item, std::byte* scratch);
  void (*run_fold)(const StageArgs& args, const Fold& fold, int32_t head, PanelRange panels, std::byte* scratch);
  const StageKernels* stages;  // nullptr: kernels of bf16 products, whose stages are those of fp32 arithmetic
};

// Instruction sets of this machine, best first.
int32_t kernels_count();
const Kernels& kernels_at(int32_t index);

// Number of panels for this many columns.
constexpr int32_t panels_for(int32_t columns, int32_t panel_columns) {
  return (columns + panel_columns - 1) / panel_columns;
}

}  // namespace deltarelay::cpu
