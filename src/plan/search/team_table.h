// The table of a call, filled by a team in the memory of a device: offsets are read and brought into range, sequences
// ordered, the cut decided, rows and folds written. Every element follows from its own number and sums over those
// before it, so the table is the one that the host writes.
#pragma once
#include <cstdint>

#include "kernels/rows.h"
#include "plan/search/cut_rules.h"
#include "plan/search/grain.h"
#include "plan/search/rows.h"
#include "plan/search/team.h"
#include "plan/search/team_search.h"

namespace deltarelay::plan {

// What of a plan its table depends on. Travels as a kernel parameter.
struct TableRequest {
  int64_t num_tokens;  // bounds
  int32_t num_seqs;
  int32_t chunk;  // tokens
  CutRule rule;   // all but kPolicy
  int32_t value;  // of the rule
  Costs costs;
  Limits limits;
};

// Where the table goes.
struct TeamTable {
  int32_t* counts;       // rows1, folds, rows3, slots
  int64_t* token_begin;  // [num_seqs + 1]
  int32_t* chunk_begin;  // [num_seqs + 1]
  Table rows;
};

// Scratch: of the team alone, in the fastest memory that holds it.
struct TeamSpace {
  int64_t* tail;       // [num_seqs + 1]
  Run* runs1;          // [kRunsPerSequence * num_seqs]
  Run* runs3;          // [kRunsPerSequence * num_seqs]
  Key* keys;           // [num_seqs]
  int32_t* sorted;     // [num_seqs]
  int32_t* row_begin;  // [kRunsPerSequence * num_seqs]
  TeamDecision* agreed;
};

// Bytes of scratch for each sequence, and for all together.
constexpr int64_t kTeamSpacePerSequence = sizeof(int64_t) + 2 * kRunsPerSequence * sizeof(Run) + sizeof(Key) +
                                          sizeof(int32_t) + kRunsPerSequence * sizeof(int32_t);
constexpr int64_t kTeamSpaceAlone = sizeof(int64_t) + sizeof(TeamDecision);

// Scratch of `num_seqs` sequences at `memory`, which is aligned for int64_t: the wider arrays come first.
template <class Byte>
DR_HD inline TeamSpace team_space(Byte* memory, int64_t num_seqs) {
  TeamSpace s;
  s.agreed = reinterpret_cast<TeamDecision*>(memory);
  s.tail = reinterpret_cast<int64_t*>(s.agreed + 1);
  s.runs1 = reinterpret_cast<Run*>(s.tail + num_seqs + 1);
  s.runs3 = s.runs1 + kRunsPerSequence * num_seqs;
  s.keys = reinterpret_cast<Key*>(s.runs3 + kRunsPerSequence * num_seqs);
  s.sorted = reinterpret_cast<int32_t*>(s.keys + num_seqs);
  s.row_begin = s.sorted + num_seqs;
  return s;
}
static_assert(alignof(TeamDecision) <= 8 && alignof(Run) <= 8 && sizeof(TeamDecision) % 8 == 0 && sizeof(Run) % 8 == 0);

namespace internal {

// What comes before a place: slots, folds and runs of cut sequences, and sequences that are whole.
struct Tally {
  int32_t slots = 0, folds = 0, wholes = 0, runs1 = 0, runs3 = 0;
  DR_HD Tally joined(const Tally& later) const {
    return {slots + later.slots, folds + later.folds, wholes + later.wholes, runs1 + later.runs1, runs3 + later.runs3};
  }
};

// The load of phase 1 before whole sequences ride in it.
struct LoadTally {
  int64_t work = 0, longest = 0, wholes = 0;
  DR_HD LoadTally joined(const LoadTally& later) const {
    return {work + later.work, max_of(longest, later.longest), wholes + later.wholes};
  }
};

// The sequence at a place, cut by every rule but the grain.
struct FreePlace {
  Key key;
  Cut cut;

  DR_HD FreePlace(const TableInput& input, int32_t place)
      : key(input.space.keys[place]), cut(CutBy(input)(place, key.chunks)) {}
  DR_HD bool whole() const { return cut.pieces() == 0; }
  DR_HD int32_t slots() const { return cut.pieces(); }
  DR_HD bool folded() const { return cut.pieces() > 1; }
  DR_HD PhaseOne load(const Costs& c) const { return phase_one(cut, key.chunks, c); }
  DR_HD int32_t runs(bool third, bool rides, int32_t place, int32_t base, const Costs& c, Run* to) const {
    return runs_of(third, cut, rides, place, base, c, to);
  }
  DR_HD Row row(bool third, const Run& run, int32_t j) const { return row_of(third, cut, run, j, key.sequence); }
  DR_HD Fold fold(int32_t base) const { return {key.sequence, base, cut.pieces() - 1, false}; }
};

// The sequence at a place, cut at multiples of the grain.
struct GrainPlace {
  Key key;
  int32_t grain, full;

  DR_HD GrainPlace(const TableInput& input, int32_t place)
      : key(input.space.keys[place]),
        grain(input.value),
        full(static_cast<int32_t>(FullChunks{input}(key.sequence) / grain)) {}
  DR_HD bool whole() const { return full == 0; }
  DR_HD int32_t slots() const { return full == 0 ? 0 : full + 1; }
  DR_HD bool folded() const { return full > 0; }
  DR_HD PhaseOne load(const Costs& c) const { return grain_phase_one(full, grain, c); }
  DR_HD int32_t runs(bool third, bool rides, int32_t place, int32_t base, const Costs& c, Run* to) const {
    return grain_runs_of(third, full, grain, key.chunks, rides, place, base, c, to);
  }
  DR_HD Row row(bool third, const Run& run, int32_t j) const { return grain_row_of(third, grain, run, j, key); }
  DR_HD Fold fold(int32_t base) const { return {key.sequence, base, full, true}; }
};

// Whole sequences that ride in phase 1 when the cuts are given, not searched for. `fits` is scratch.
template <class Place, class Team>
DR_HD int32_t riders_by(Team& team, const TableInput& input, const Costs& c, int32_t* fits) {
  const int32_t count = input.lengths.count;
  const LoadTally load = team.template scan<LoadTally>(
      count,
      [&](int32_t i) {
        const Place place(input, i);
        const PhaseOne pieces = place.load(c);
        return LoadTally{pieces.work, pieces.longest, place.whole()};
      },
      [](int32_t, const LoadTally&) {});
  if (load.longest == 0) return static_cast<int32_t>(load.wholes);  // nothing is cut: one phase
  const int64_t work = load.work * c.copies, area = area_of(work, load.longest, c);
  auto work_of = [&](int32_t i) {
    const Place place(input, i);
    return Sum{place.whole() ? whole_work(place.key.chunks, c) : 0};
  };
  // Every whole sequence adds work, so those that fit are those before the first that does not.
  team.template scan<Sum>(count, work_of, [&](int32_t i, const Sum& before) {
    const int64_t own = work_of(i).value;
    fits[i] = own > 0 && work + before.value + own <= area;
  });
  const Sum riders = team.template scan<Sum>(
      count, [&](int32_t i) { return Sum{fits[i]}; }, [](int32_t, const Sum&) {});
  return static_cast<int32_t>(riders.value);
}

// Rows of one phase from its runs; returns how many.
template <class Place, class Team>
DR_HD_CALL int32_t write_rows(Team& team, bool third, const TableInput& input, Run* runs, int32_t num_runs,
                              int32_t* row_begin, Row* rows) {
  team.sort(runs, num_runs, RunOrder());
  const Sum total = team.template scan<Sum>(
      num_runs, [&](int32_t r) { return Sum{runs[r].count}; },
      [&](int32_t r, const Sum& before) { row_begin[r] = static_cast<int32_t>(before.value); });
  team.each(total.value, [&](int32_t i) {
    int32_t lo = 0, hi = num_runs - 1;  // the last run that begins at or before row i
    while (lo < hi) {
      const int32_t mid = (lo + hi + 1) / 2;
      if (row_begin[mid] <= i) {
        lo = mid;
      } else {
        hi = mid - 1;
      }
    }
    const Run run = runs[lo];
    rows[i] = Place(input, run.place).row(third, run, run.from + i - row_begin[lo]);
  });
  return static_cast<int32_t>(total.value);
}

template <class Place, class Team>
DR_HD void write_by(Team& team, const TableInput& input, int32_t riders, const Costs& c, const TeamSpace& space,
                    const TeamTable& to) {
  const Tally total = team.template scan<Tally>(
      input.lengths.count,
      [&](int32_t i) {
        const Place place(input, i);
        if (place.whole()) return Tally{0, 0, 1, 0, 0};
        Run unused[kRunsPerSequence];
        return Tally{place.slots(), place.folded(), 0, place.runs(false, false, i, 0, c, unused),
                     place.runs(true, false, i, 0, c, unused)};
      },
      [&](int32_t i, const Tally& before) {
        const Place place(input, i);
        const bool rides = before.wholes < riders;
        const int32_t riding = rides ? before.wholes : riders;
        place.runs(false, rides, i, before.slots, c, space.runs1 + before.runs1 + riding);
        place.runs(true, rides, i, before.slots, c, space.runs3 + before.runs3 + before.wholes - riding);
        if (place.folded()) to.rows.folds[before.folds] = place.fold(before.slots);
      });
  const int32_t riding = total.wholes < riders ? total.wholes : riders;
  const int32_t rows1 =
      write_rows<Place>(team, false, input, space.runs1, total.runs1 + riding, space.row_begin, to.rows.rows1);
  const int32_t rows3 = write_rows<Place>(team, true, input, space.runs3, total.runs3 + total.wholes - riding,
                                          space.row_begin, to.rows.rows3);
  team.once([&] {
    to.counts[0] = rows1;
    to.counts[1] = total.folds;
    to.counts[2] = rows3;
    to.counts[3] = total.slots;
  });
}

// Reads the offsets into token_begin: the first is 0, none lies before its neighbour or past the last token. Returns
// whether one had to be moved for that.
template <class Team, class Offset>
DR_HD bool read_offsets(Team& team, const TableRequest& request, const Offset& offset, const TeamTable& to) {
  auto in_range = [&](int32_t n) {
    const int64_t raw = n == 0 ? 0 : offset(n);
    return Greatest{max_of(0, min_of(raw, request.num_tokens))};
  };
  team.template scan<Greatest>(request.num_seqs + 1, in_range, [&](int32_t n, const Greatest& before) {
    to.token_begin[n] = before.joined(in_range(n)).value;
  });
  return team.any(request.num_seqs + 1, [&](int32_t n) { return to.token_begin[n] != offset(n); });
}

// Orders the sequences of token_begin by length and numbers their chunks.
template <class Team>
DR_HD Lengths order_by(Team& team, const TableRequest& request, const TeamSpace& space, const TeamTable& to) {
  const int32_t n = request.num_seqs;
  const Sum chunks = team.template scan<Sum>(
      n, [&](int32_t i) { return Sum{ceil_div(to.token_begin[i + 1] - to.token_begin[i], request.chunk)}; },
      [&](int32_t i, const Sum& before) {
        to.chunk_begin[i] = static_cast<int32_t>(before.value);
        const int64_t length = to.token_begin[i + 1] - to.token_begin[i];
        space.keys[i] = {static_cast<int32_t>(ceil_div(length, request.chunk)), i};
      });
  team.once([&] {
    to.chunk_begin[n] = static_cast<int32_t>(chunks.value);
    space.tail[n] = 0;
  });
  team.sort(space.keys, n, KeyOrder());
  team.template scan<Sum>(
      n, [&](int32_t i) { return Sum{space.keys[i].chunks}; },
      [&](int32_t i, const Sum& before) {
        space.sorted[i] = space.keys[i].chunks;
        space.tail[i] = chunks.value - before.value;
      });
  Lengths lengths{space.sorted, space.tail, n};
  lengths.count = lengths.longer_than(0);  // empty sequences are last and get no row
  return lengths;
}

}  // namespace internal

// Fills the table for the lengths that offset(0) .. offset(num_seqs) give. Returns whether offsets had to be brought
// into range.
template <class Team, class Offset>
DR_HD bool fill_by(Team& team, const TableRequest& request, const Offset& offset, const TeamSpace& space,
                   const TeamTable& to) {
  const bool moved = internal::read_offsets(team, request, offset, to);
  TableInput input;
  input.sequences = {to.token_begin, 0, request.num_seqs};
  input.chunk = request.chunk;
  input.space = {space.tail, space.runs1, space.keys, space.sorted};
  input.lengths = internal::order_by(team, request, space, to);
  input.rule = request.rule;
  input.value = request.value;
  const Costs& c = request.costs;
  if (request.rule == CutRule::kGrain) {
    const int32_t riders = internal::riders_by<internal::GrainPlace>(team, input, c, space.row_begin);
    internal::write_by<internal::GrainPlace>(team, input, riders, c, space, to);
    return moved;
  }
  int32_t riders = input.lengths.count;
  if (request.rule == CutRule::kSearch) {
    decide_by(team, input.lengths, c, request.limits, *space.agreed);
    input.decision = space.agreed->best;
    riders = input.decision.in_phase1;
  } else if (request.rule != CutRule::kWhole) {
    riders = internal::riders_by<internal::FreePlace>(team, input, c, space.row_begin);
  }
  internal::write_by<internal::FreePlace>(team, input, riders, c, space, to);
  return moved;
}

}  // namespace deltarelay::plan
