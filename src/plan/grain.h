// Invariant mode: every sequence is cut at absolute multiples of a grain, and the state at a grain boundary is always the
// folded one, so that a sequence's bits depend on nothing but itself.
//
// A sequence with F full grains (all of whose tokens exist) owns slots base .. base + F. The fold copies the caller's initial
// state into slot base and runs over F transitions; phase 1 summarizes full grain j into slot base + 1 + j, the last one too,
// because a final state on a boundary is the folded value; phase 3 emits segment j from slot base + j. A sequence without a
// full grain is emitted whole from its initial state.
#pragma once
#include <cstdint>

#include "kernels/stages.h"
#include "plan/costs.h"
#include "plan/lengths.h"
#include "plan/rows.h"

namespace deltarelay::plan {

constexpr int64_t kInfiniteGrain = -1;

// Grain in chunks of 64 on a GPU, a function of heads and units alone: near the optimum of the model in the mean ratio to free
// cutting, flat within one step (docs/planner.md).
DR_HD constexpr int64_t gpu_grain(int64_t heads, int64_t units) {
  constexpr int32_t kStep[7][2] = {{1, 8}, {2, 12}, {4, 16}, {8, 24}, {12, 32}, {16, 48}, {28, 64}};
  for (const auto& step : kStep) {
    if (heads * 132 <= step[0] * units) return step[1];
  }
  return kInfiniteGrain;
}

// Grain in chunks on a CPU with this many units (of the device, not of the thread option). Value tiles keep `heads` x 4 units
// busy before the chunk-local work that every tile repeats eats the gain, and they cost no second pass: then no grain. Else
// shorter grains for more idle units, never below 512 tokens, where the folds stay under a tenth of the work.
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

template <class FullOf>
DR_HD inline TableSize write_grain_table(const Key* keys, int32_t count, int32_t grain, const FullOf& full_of,
                                         int32_t in_phase1, const Costs& c, Run* runs, const Table& table) {
  TableSize size;
  for (int32_t phase = 1; phase <= 3; phase += 2) {
    const bool third = phase == 3;
    int32_t n = 0, base = 0, wholes = 0;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t chunks = keys[i].chunks;
      const int32_t full = static_cast<int32_t>(full_of(keys[i].sequence) / grain);
      if (full == 0) {
        if ((wholes++ < in_phase1) != third) runs[n++] = {ns{chunks} * c.emit, i, 0, 1, -1};
        continue;
      }
      runs[n++] = {ns{grain} * (third ? c.emit : c.summarize), i, 0, full, base};
      if (third && chunks > full * grain) runs[n++] = {ns{chunks - full * grain} * c.emit, i, full, 1, base};
      if (third) table.folds[size.folds++] = {keys[i].sequence, base, full, true};
      base += full + 1;
    }
    size.slots = base;
    sort_runs(runs, n);
    Row* row = third ? table.rows3 : table.rows1;
    for (int32_t r = 0; r < n; ++r) {
      const Run& run = runs[r];
      const Key key = keys[run.place];
      if (run.base < 0) {
        *row++ = {key.sequence, 0, key.chunks, Work::kEmit, -1, -1, -1};
        continue;
      }
      const bool ragged = run.from > 0;  // full grains are one run from 0 on
      for (int32_t j = run.from; j < run.from + run.count; ++j) {
        const int32_t begin = j * grain, chunks = ragged ? key.chunks - begin : grain;
        if (third) {
          *row++ = {key.sequence, begin, chunks, Work::kEmit, run.base + j, -1, ragged ? -1 : run.base + 1 + j};
        } else {
          *row++ = {key.sequence, begin, chunks, Work::kSummarize, -1, run.base + 1 + j, -1};
        }
      }
    }
    (third ? size.rows3 : size.rows1) = row - (third ? table.rows3 : table.rows1);
  }
  return size;
}

// Sequences without a full grain that ride in phase 1: as many as fit beside the summaries.
template <class FullOf>
DR_HD inline int32_t grain_riders_for(const Key* keys, int32_t count, int32_t grain, const FullOf& full_of,
                                      const Costs& c) {
  int64_t work = 0, wholes = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t full = full_of(keys[i].sequence) / grain;
    work += full * (ns{grain} * c.summarize + c.item);
    wholes += full == 0;
  }
  if (work == 0) return static_cast<int32_t>(wholes);
  work *= c.copies;
  const int64_t area = max_of(ns{grain} * c.summarize + c.item, ceil_div(work, c.units)) * c.units;
  int32_t riders = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (full_of(keys[i].sequence) / grain != 0) continue;
    work += c.copies * (ns{keys[i].chunks} * c.emit + c.item);
    if (work > area) break;
    ++riders;
  }
  return riders;
}

}  // namespace deltarelay::plan
