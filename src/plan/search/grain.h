// Invariant mode: every sequence is cut at absolute multiples of a grain, and the state at a grain boundary is always
// the folded one, so that a sequence's bits depend on nothing but itself.
//
// A sequence with F full grains (all of whose tokens exist) owns slots base .. base + F. The fold copies the caller's
// initial state into slot base and runs over F transitions; phase 1 summarizes full grain j into slot base + 1 + j, the
// last one too, because a final state on a boundary is the folded value; phase 3 emits segment j from slot base + j. A
// sequence without a full grain is emitted whole from its initial state.
#pragma once
#include <cstdint>

#include "kernels/rows.h"
#include "plan/search/costs.h"
#include "plan/search/lengths.h"
#include "plan/search/rows.h"

namespace deltarelay::plan {

constexpr int64_t kInfiniteGrain = -1;

// Grain in chunks on a GPU: a number of tokens that is a function of heads and units alone, near the optimum of the
// model in the mean ratio to free cutting and flat within one step (docs/planner.md).
DR_HD constexpr int64_t gpu_grain(int64_t heads, int64_t units, int64_t chunk) {
  constexpr int32_t kStep[7][2] = {{1, 512}, {2, 768}, {4, 1024}, {8, 1536}, {12, 2048}, {16, 3072}, {28, 4096}};
  for (const auto& step : kStep) {
    if (heads * 132 <= step[0] * units) return ceil_div(step[1], chunk);
  }
  return kInfiniteGrain;
}

// Grain in chunks on a CPU with this many units (of the device, not of the thread option). Value tiles keep `heads` x 4
// units busy before the chunk-local work that every tile repeats eats the gain, and they cost no second pass: then no
// grain. Else shorter grains for more idle units, never below 512 tokens, where the folds stay under a tenth of the
// work.
DR_HD constexpr int64_t cpu_grain(int64_t heads, int64_t most_tiles, int64_t units, int64_t chunk) {
  constexpr int64_t kUsefulTiles = 4;
  const int64_t busy = heads * (most_tiles < kUsefulTiles ? most_tiles : kUsefulTiles);
  if (busy >= units) return kInfiniteGrain;
  const int64_t tokens = units >= 8 * busy ? 512 : units >= 2 * busy ? 1024 : 2048;
  return ceil_div(tokens, chunk);
}

// `full_of(sequence)` gives the whole chunks of a sequence, those with all their tokens.
template <class FullOf>
DR_HD inline TableSize grain_table_size(const Key* keys, int32_t count, int32_t grain, const FullOf& full_of,
                                        int32_t in_phase1) {
  TableSize size;
  int64_t wholes = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t full = full_of(keys[i].sequence) / grain;
    if (full == 0) {
      ++wholes;
      continue;
    }
    ++size.folds;
    size.slots += full + 1;
    size.rows1 += full;
    size.rows3 += full + (keys[i].chunks > full * grain);
  }
  const int64_t riders = wholes < in_phase1 ? wholes : in_phase1;
  size.rows1 += riders;
  size.rows3 += wholes - riders;
  return size;
}

// Runs of one sequence with `full` full grains in a phase. Without one it is whole and runs in phase 1 if it rides
// there.
DR_HD inline int32_t grain_runs_of(bool third, int32_t full, int32_t grain, int32_t chunks, bool rides, int32_t place,
                                   int32_t base, const Costs& c, Run* runs) {
  int32_t n = 0;
  if (full == 0) {
    if (rides != third) runs[n++] = {ns{chunks} * c.emit, place, 0, 1, -1};
    return n;
  }
  runs[n++] = {ns{grain} * (third ? c.emit : c.summarize), place, 0, full, base};
  if (third && chunks > full * grain) runs[n++] = {ns{chunks - full * grain} * c.emit, place, full, 1, base};
  return n;
}

// The row of segment j of a run.
DR_HD inline Row grain_row_of(bool third, int32_t grain, const Run& run, int32_t j, const Key& key) {
  if (run.base < 0) return {key.sequence, 0, key.chunks, Work::kEmit, -1, -1, -1};
  const bool ragged = run.from > 0;  // full grains are one run from 0 on
  const int32_t begin = j * grain, chunks = ragged ? key.chunks - begin : grain;
  if (!third) return {key.sequence, begin, chunks, Work::kSummarize, -1, run.base + 1 + j, -1};
  return {key.sequence, begin, chunks, Work::kEmit, run.base + j, -1, ragged ? -1 : run.base + 1 + j};
}

// As take_runs and take_folds.
template <class FullOf, class Take>
inline void take_grain_runs(bool third, const Key* keys, int32_t count, int32_t grain, const FullOf& full_of,
                            int32_t in_phase1, const Costs& c, Run* runs, const Take& take) {
  int32_t n = 0, base = 0, wholes = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t full = static_cast<int32_t>(full_of(keys[i].sequence) / grain);
    const bool rides = full == 0 && wholes++ < in_phase1;
    n += grain_runs_of(third, full, grain, keys[i].chunks, rides, i, base, c, runs + n);
    if (full > 0) base += full + 1;
  }
  take_in_order(runs, n, [&](const Run& run) {
    const Key key = keys[run.place];
    take(run, [&](int32_t j) { return grain_row_of(third, grain, run, j, key); });
  });
}
template <class FullOf, class Take>
inline int64_t take_grain_folds(const Key* keys, int32_t count, int32_t grain, const FullOf& full_of,
                                const Take& take) {
  int32_t base = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t full = static_cast<int32_t>(full_of(keys[i].sequence) / grain);
    if (full == 0) continue;
    take(Fold{keys[i].sequence, base, full, true});
    base += full + 1;
  }
  return base;
}

// What `full` summaries put on phase 1.
DR_HD constexpr PhaseOne grain_phase_one(int64_t full, int32_t grain, const Costs& c) {
  if (full == 0) return {};
  const ns each = ns{grain} * c.summarize + piece_start(c);
  return {full * each, each};
}

// Sequences without a full grain that ride in phase 1: as many as fit beside the summaries.
template <class FullOf>
DR_HD inline int32_t grain_riders_for(const Key* keys, int32_t count, int32_t grain, const FullOf& full_of,
                                      const Costs& c) {
  int64_t work = 0, wholes = 0;
  ns longest = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t full = full_of(keys[i].sequence) / grain;
    const PhaseOne summaries = grain_phase_one(full, grain, c);
    work += summaries.work;
    longest = max_of(longest, summaries.longest);
    wholes += full == 0;
  }
  if (work == 0) return static_cast<int32_t>(wholes);
  work *= c.copies;
  const int64_t area = area_of(work, longest, c);
  int32_t riders = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (full_of(keys[i].sequence) / grain != 0) continue;
    work += whole_work(keys[i].chunks, c);
    if (work > area) break;
    ++riders;
  }
  return riders;
}

}  // namespace deltarelay::plan
