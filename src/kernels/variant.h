// A backend's way to do an operation, as a value: what the planner needs to weigh it. The planner compares variants and
// never asks whose they are.
#pragma once
#include <cstddef>
#include <cstdint>

namespace deltarelay {

// How much of everything a call has: exact when the plan knew the lengths, else upper bounds for which grids and
// workspace are sized (the table itself then says how many there are).
struct CallBounds {
  int64_t rows1 = 0, folds = 0, rows3 = 0;
  int64_t chunks = 0;  // of all sequences
  int64_t slots = 0;
  int64_t sequences = 0;
};

// A CTA of the kernel that takes most of the time, and how many of them a unit of the device runs at once.
struct CtaTiling {
  int32_t value_columns = 0;  // 0: not stated, and a unit runs one work item
  int32_t threads = 0;
  int32_t stages = 0;  // chunks that shared memory holds at once
  int32_t shared_bytes = 0;
  int32_t registers = 0;         // that a thread may have
  int32_t by_registers = 1;      // CTAs that a unit has registers for,
  int32_t by_shared_memory = 1;  // and shared memory
  int32_t together() const {
    const int32_t fewer = by_registers < by_shared_memory ? by_registers : by_shared_memory;
    return fewer < 1 ? 1 : fewer;
  }
};

// Where the costs that a device states (dr_costs) are not those of this variant.
struct CostFactors {
  int32_t walk = 1;       // time of emit and summarize against the stated one
  int32_t prepare = 1;    // the same of prepare
  bool has_local = true;  // false: all of a chunk's time goes with its value columns
};

// Forms of the walks (form.h). Tilings then count the CTAs of a strip: with one, single CTAs or twins walk the rows,
// with two, pairs do; a pair walks a summary whatever the tiling, and the first segments beside it.
struct Forms {
  bool pairs = false;              // false: the backend has no forms, and a work item is what walks
  int32_t pair_start_tenths = 10;  // a CTA of a pair starts in so many tenths of `item_ns`
  int32_t pairs_up_to = 0;         // chunks of single CTAs' segments up to which pairs may be predicted 1/16 slower
  int32_t twins_from = 0;          // chunks of a row, on average, from which single CTAs walk as twins; 0: never
  int32_t twins_hundredths = 100;  // time of a chunk as one of twins
  int32_t relay_strips = 0;        // strips of one key head: CTAs with a whole strip can hand on rows; 0: they cannot
  int32_t relay_parts = 0;         // largest number of parts in a share (relay.h)
};

// Which summaries walk the last chunks of a row first.
struct SuffixRule {
  bool tries = false;
  int32_t least_chunks = 0;        // of a row, on average
  bool crowded = false;            // only where there are more CTAs with summaries than units, two for a row and strip
  bool exact = false;              // only with an exact carry
  bool beside_checkpoints = true;  // also in calls whose walks store checkpoints
};

struct Variant {
  const char* name = "";        // as options.variant has it; "" where there is no choice by name
  const char* isa = "";         // of a CPU: the instruction set
  const char* isa_reason = "";  // why it is not the best of this machine, where none was named; "": it is
  int32_t number = 0;           // the backend's own, for its kernels
  int32_t chunk = 0;            // tokens
  int32_t panel_columns = 1;    // value columns that are never spread over work items
  // Strips that the value columns of a head are divided into. Each is walked as a head of its own, with its own state
  // and transition; tilings count work items of a head, so they are multiples of this.
  int32_t strips = 1;
  int32_t value_tiles = 0;  // of a head, where the tiling is not for the planner to choose; 0: it is
  CtaTiling cta;
  int64_t state_floats = 0;       // per (slot, head)
  int64_t transition_floats = 0;  // per (slot, head); 0: no sequence can be cut
  int64_t record_bytes =
      0;  // per (chunk, value head): operands that `prepare` leaves in memory; 0: there is no prepare
  bool short_summaries = false;  // may summaries turn out short, since gates mostly forget a segment?
  CostFactors costs;
  Forms forms;
  SuffixRule suffix;
  bool backwards = false;  // summaries walk a row from its last chunk, until its transition has vanished
};

// Variants of a backend that serve a request, in order of preference.
class Variants {
 public:
  static constexpr int32_t kMost = 4;
  void add(const Variant& variant) { variants_[count_++] = variant; }
  const Variant* begin() const { return variants_; }
  const Variant* end() const { return variants_ + count_; }
  int32_t size() const { return count_; }
  const Variant& operator[](int32_t i) const { return variants_[i]; }

 private:
  Variant variants_[kMost];
  int32_t count_ = 0;
};

}  // namespace deltarelay
