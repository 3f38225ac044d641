// The steps of a plan. A step is what is launched and what is printed: `run` walks the plan's list from its first step
// to its last, and nothing else decides what is launched, in which order, or how it is spread.
#pragma once
#include <cstdint>

#include "kernels/form.h"

namespace deltarelay {

enum class Stage : int32_t {
  kTable,        // writes or sends the segment table
  kPrepare,      // everything of a chunk that needs no state, as records
  kWalk,         // summarizes and emits the rows of a phase
  kCarry,        // folds transitions
  kCheckpoints,  // finishes checkpoints that the walk has left inside a chunk
  kAliases,      // reports slots that alias
  kFinish,       // what belongs to no row: output rows past the last offset, final states of empty sequences
  // A stage of the forward as an operation of its own, if no sequence is cut, with what belongs to no row.
  kChunkLocal,
  kStatePass,
  kOutputs,
  kSummary,
  kChains,  // DR_CARRY
};

// Calls of a plan that take a step. All that is decided when a plan runs.
enum class When : int32_t {
  kAlways,
  kReport,       // the caller wants a report
  kPoolsReport,  // the caller wants a report, and pools of states share memory
};

// Pieces of the workspace.
enum class BufferId : int32_t {
  kScratch,      // [threads, scratch_bytes]
  kSlotState,    // [slot, HV, state_floats] fp32
  kTransition,   // [slot, HV, transition_floats] fp32
  kPrepared,     // [chunk, HV, record_bytes]
  kLives,        // [slot, HV, strips, 2] uint32, on a GPU
  kCheckpoints,  // [checkpoints, HV, DV, DK] fp32, on a GPU: on their way to a pool of 16 bits, where some may be due
                 // inside a chunk
  kRelayStates,  // [relay.places(), DV / strips, DK] fp32, on a GPU
  kRelayMarks,   // [relay.places(), 2] RelayMark, on a GPU
  kTable,        // lengths known only at execution, or on a GPU
  kOffsets,      // [num_seqs + 1] int64, lengths known only at execution, on a CPU
};
inline constexpr int32_t kNumBuffers = 10;
const char* name_of(BufferId buffer);

// A set of buffers.
class BufferSet {
 public:
  constexpr BufferSet() = default;
  template <class... Ids>
  constexpr explicit BufferSet(Ids... ids) : bits_((0u | ... | bit(ids))) {}
  constexpr bool holds(BufferId id) const { return (bits_ & bit(id)) != 0; }
  constexpr BufferSet operator|(BufferSet other) const { return BufferSet(bits_ | other.bits_, 0); }

 private:
  constexpr BufferSet(uint32_t bits, int) : bits_(bits) {}
  static constexpr uint32_t bit(BufferId id) { return uint32_t{1} << static_cast<int32_t>(id); }
  uint32_t bits_ = 0;
};

struct Step {
  Stage stage = Stage::kWalk;
  int32_t phase = 0;        // of a walk: 1 or 3
  bool summarizes = false;  // a walk: are there rows to summarize?
  bool emits = false;       // a walk: are there rows to emit?
  bool suffix = false;      // a walk: do summaries walk the last chunks of a row first?
  bool backwards = false;   // a walk: do they walk a row from its last chunk, until its transition has vanished?
  bool ordered = false;     // a walk: do heads that keep most come first?
  bool has_form = false;    // a stage of a backend with forms
  Form form = Form::kSingle;
  When when = When::kAlways;
  int64_t rows = 0;  // rows, folds or chunks: exact if the plan knows the lengths, else an upper bound
  // How the work is spread over CTAs. 0: on a CPU, and the table's kernels.
  int64_t ctas = 0;
  int64_t ctas_stored = 0;  // with a table in memory, which tells the host nothing: wherever a report is wanted
  int32_t each = 0;         // of one CTA: value columns (walk), value rows (carry), chunks or heads (prepare);
                            // checkpoints: CTAs that share those of a sequence, head and tile
  bool together = false;    // a walk: a CTA has columns of B and of M of one row
  // Printed, not run.
  int64_t items = 0;  // work items: rows x heads x value tiles, or chunks x heads to prepare
  int64_t predicted_ns = 0;
  const char* variant = "";
  BufferSet buffers{};
};

// "summarize + emit", "carry", ...
const char* name_of(const Step& step);
// "" for a step of every call.
const char* text_of(When when);

// The steps of one call, in order. Made without allocating, since a call with fewer rows than the plan's bounds has its
// own.
class Steps {
 public:
  static constexpr int32_t kMost = 12;
  void add(const Step& step) { steps_[count_++] = step; }
  const Step* begin() const { return steps_; }
  const Step* end() const { return steps_ + count_; }
  int32_t size() const { return count_; }
  const Step& operator[](int32_t i) const { return steps_[i]; }

 private:
  Step steps_[kMost];
  int32_t count_ = 0;
};

}  // namespace deltarelay
