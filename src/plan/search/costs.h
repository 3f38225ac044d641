// The numbers the planner reckons with. Everything in this family of headers (costs, lengths, cut, makespan, search,
// rows, grain, cut_rules, team) is integer arithmetic without allocation or recursion, so that the same text gives the
// same table on the host and in one thread block of a GPU. Times are whole nanoseconds.
#pragma once
#include <cstdint>

#include "kernels/relay.h"
#include "problem/host_device.h"

namespace deltarelay::plan {

using ns = int64_t;

// Most chunks of all sequences: leaves room for sums and for products with a ratio of 256.
constexpr int64_t kMostChunks = int64_t{1} << 30;

// What one mode of one device needs for one problem. A mode is a number of value tiles; a row of the table becomes
// `copies` work items, each of which one unit runs alone.
struct Costs {
  int32_t units = 1;        // work items that run at once
  int32_t copies = 1;       // work items of a row: value heads x value tiles
  int32_t emit = 1;         // per chunk of one item
  int32_t summarize = 1;    // per chunk of one item
  int32_t first_extra = 0;  // beyond emit, per chunk of a first segment: it runs beside summaries
  int32_t short_first = 0;  // > 0: 256 x (first segment / middle one) where summaries may turn out short (first_ratio)
  int32_t carry = 0;        // latency of one fold
  int32_t carry_unit = 0;   // one unit's time for one fold of one item: the throughput of the carry
  int32_t barrier = 0;      // extra launches and waits of a plan with more than one phase
  int32_t item = 0;         // start-up of one item
  int32_t piece_extra = 0;  // beyond that, of a segment in phase 1
  int32_t emit_bytes = 0;   // per chunk of one item
  int32_t summarize_bytes = 0;   // per chunk of one item
  int32_t transition_bytes = 0;  // (M, B) of one item
  int32_t state_bytes = 0;       // one state of one item
  int32_t bytes_per_ns = 0;      // 0: memory is never the limit
  int32_t heads = 1;             // value heads: a chunk is prepared once for each, whatever the tiling
  int32_t prepare = 0;           // one unit's time for one chunk and head, before the first phase
  int32_t prepare_bytes = 0;     // per chunk and head
  RelayUnits relay;              // of whole sequences: units that can hand them on (kernels/relay.h)
};

// Pieces that a search cuts sequences into: three waves of 1,365 units. It bounds the time of a search for a device of
// any size.
constexpr int32_t kMostPieces = 4096;

struct Limits {
  int32_t margin_permille = 80;    // cutting must promise this gain over whole sequences ...
  int32_t margin_ns = 3000;        // ... and this many ns: a guard against errors of the model, not of history
  int32_t risk_permille = 0;       // > 0: cutting must also hold up when every cost errs this far against it
  int32_t max_segments = 128;      // of one sequence: the carry is serial over them
  int32_t max_rows = kMostPieces;  // pieces per phase that table and workspace can hold
  int32_t max_waves = 2;           // pieces x copies <= max_waves x units: more gains nothing and costs workspace
  int32_t min_segment = 2;         // chunks
  int32_t tiles_up_to = 0;         // chunks of the first mode's segments up to which another may lose (bar_beside)
  ns give_up = INT64_MAX;          // only a cut below this is looked for: there is a plan of another way
};

// Everything the search decides. The cut of a sequence follows from its length, its place in longest-first order and
// the three integers (segment, first, ratio), so rows can be written in any order or in parallel.
struct Decision {
  int32_t mode = 0;       // index of the chosen Costs
  int32_t segment = 0;    // longest middle or last segment in chunks; 0: nothing is cut
  int32_t first = 0;      // longest first segment
  int32_t ratio = 256;    // 256 x (first segment / middle segment)
  int32_t cut_seqs = 0;   // how many sequences are cut: the longest ones
  int32_t pieces = 0;     // sum over cut sequences of (segments - 1): rows of cut sequences in either phase
  int32_t in_phase1 = 0;  // whole sequences (the longest) that ride in phase 1
  ns phase1 = 0, carry = 0, phase3 = 0;
  ns predicted = 0;
  ns unsplit = 0;   // the best plan that cuts nothing
  RelayLine relay;  // of that one
};

DR_HD constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
DR_HD constexpr ns max_of(ns a, ns b) { return a > b ? a : b; }
DR_HD constexpr ns min_of(ns a, ns b) { return a < b ? a : b; }

DR_HD constexpr ns first_time(const Costs& c, int64_t chunks) { return chunks * (int64_t{c.emit} + c.first_extra); }

DR_HD constexpr ns piece_start(const Costs& c) { return int64_t{c.item} + c.piece_extra; }

// 256 x summarize / emit: a first segment this much longer than a middle one is emitted while the middle one is
// summarized.
DR_HD constexpr int32_t balanced_ratio(const Costs& c) {
  constexpr ns kMostRatio = 1 << 20;  // beyond any two costs that belong together
  const ns emit = first_time(c, 1);
  return static_cast<int32_t>(min_of((int64_t{c.summarize} * 256 + emit / 2) / emit, kMostRatio));
}

}  // namespace deltarelay::plan
