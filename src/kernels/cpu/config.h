// Constants of the cpu backend, each with its cause, and the table that one instruction set exports.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/stages.h"

namespace deltarelay::cpu {

// Tokens a chunk. Chunking saves no arithmetic on a CPU, it only turns matrix-vector work into matrix work; scores and
// solve grow with the chunk, so the shortest chunk that fills the micro-kernel wins (fp32, 1 thread, T=4096: 527k, 467k and
// 368k token-heads/s at 16, 32 and 64 in the first prototype). It also equals kCheckpointAlignment, so every state inside
// a sequence that a caller may ask for lies on a chunk boundary.
constexpr int32_t kChunk = 16;
static_assert(kChunk == kCheckpointAlignment);

// Tokens a sub-chunk: key-key and query-key products inside one are formed pair by pair, products between two are referenced
// to the start of the later one, so that no decay is ever divided out and no gate can overflow.
constexpr int32_t kSubChunk = 4;

// Channels are padded to a multiple of this: the longest vector (16 floats) and the tallest tile (8 rows) divide it.
constexpr int32_t kChannelPad = 16;

constexpr int32_t padded_channels(int32_t dk) { return (dk + kChannelPad - 1) / kChannelPad * kChannelPad; }

// Value columns [first, first + count) in panels of one item; columns past DV are the columns of the transition M.
struct PanelRange {
  int32_t first;
  int32_t count;
};

// One work item: a row of the table, one value head, some of its panels.
struct Item {
  Row row;
  int32_t head;
  PanelRange panels;
  int64_t first_checkpoint;  // checkpoint row of the sequence's first checkpoint
};

// What one instruction set compiles. State panels are [panel][padded DK][panel columns] fp32; M has the same form with its
// DK columns in place of the DV columns.
struct Kernels {
  int32_t panel_columns;
  size_t (*scratch_bytes)(const Problem& problem, int32_t panels);
  void (*run_item)(const StageArgs& args, const Item& item, std::byte* scratch);
  void (*run_fold)(const StageArgs& args, const Fold& fold, int32_t head, PanelRange panels, std::byte* scratch);
};

// Instruction sets of this machine, best first.
int32_t kernels_count();
const Kernels& kernels_at(int32_t index);

// Panels of the state of one head, and of its transition.
constexpr int32_t panels_for(int32_t columns, int32_t panel_columns) {
  return (columns + panel_columns - 1) / panel_columns;
}

}  // namespace deltarelay::cpu
