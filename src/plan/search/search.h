// The search for a cut: four rounds of numbered trials. Round 0 casts the net, rounds 1 to 3 polish the best so far.
// Trials of one round do not depend on each other and the lowest (time, number) wins, so a walk on the host and a
// thread block with one trial per thread find the same decision.
#pragma once
#include <cstdint>

#include "plan/search/costs.h"
#include "plan/search/cut.h"
#include "plan/search/estimate.h"
#include "plan/search/lengths.h"
#include "plan/search/makespan.h"

namespace deltarelay::plan {

struct Trial {
  int32_t segment = 0;  // 0: no such trial
  int32_t cut_seqs = 0;
  int32_t ratio = 256;
};

constexpr int32_t kWaveSeeds = 3;     // segments that make exactly 1, 2, 3 waves
constexpr int32_t kRoomSeeds = 2;     // one wave less 1 or 2 columns of units, left to whole sequences
constexpr int32_t kSurplusSeeds = 6;  // full waves of whole sequences, only the surplus is cut
constexpr int32_t kSweepSeeds = 48;   // geometric sweep, for mixes and long carries
constexpr int32_t kFirstSweep = kWaveSeeds + kRoomSeeds + kSurplusSeeds;
constexpr int32_t kSeeds = kFirstSweep + kSweepSeeds;
constexpr int32_t kVariants = 3;
constexpr int32_t kRounds = 4;
DR_HD constexpr int32_t trials_in(int32_t round) { return round == 0 ? kSeeds * kVariants : round == 1 ? 12 : 4; }

// 256 x (first segment / middle one). Where gates forget, summaries end after a few chunks, and phase 1 is as long as
// its first segments: they are kept short. Where they do not forget, that makes all others longer by at most one part
// in kLeastSlots. It takes segments of some length, and a sequence that is most of the call.
constexpr int32_t kLeastSlots = 4, kLeastForgotten = 8;
DR_HD inline int32_t first_ratio(const Lengths& n, const Costs& c) {
  const int32_t balanced = balanced_ratio(c), slots = c.units / c.copies;  // segments of every head that run at once
  if (c.short_first == 0 || c.short_first >= balanced || slots < kLeastSlots) return balanced;
  const bool forgets = n.sorted[0] / slots >= kLeastForgotten && 2 * int64_t{n.sorted[0]} >= n.tail[0];
  return forgets ? c.short_first : balanced;
}

DR_HD constexpr int32_t first_for(int32_t segment, int32_t ratio) {
  const int64_t first = int64_t{segment} * ratio / 256;
  return first < 1 ? 1 : static_cast<int32_t>(min_of(first, kMostChunks));
}
DR_HD constexpr Shape shape_of(int32_t segment, int32_t ratio) { return {segment, first_for(segment, ratio), ratio}; }

// Do the `cut_seqs` longest sequences (< 0: those longer than a segment) become more than `target` pieces? Sums say so
// in most cases; else the pieces of every sequence are counted.
DR_HD inline bool makes_more(const Lengths& n, int64_t target, int32_t segment, int32_t first, int32_t cut_seqs) {
  constexpr int32_t kFewSequences = 16;  // are counted sooner than bounded
  const int32_t whole = first > segment ? first : segment;
  if (n.count > kFewSequences) {
    const int32_t longer = n.longer_than(cut_seqs < 0 ? whole : first);
    const int64_t cut = cut_seqs < 0 ? longer : min_of(longer, cut_seqs), others = cut_seqs < 0 ? 0 : cut_seqs - cut;
    const int64_t chunks = n.chunks(0, static_cast<int32_t>(cut)) - cut * first;  // behind first segments
    if (others + max_of(cut, ceil_div(chunks, segment)) > target) return true;
    if (others + chunks / segment + cut <= target) return false;
  }
  const Divider by_segment(static_cast<uint32_t>(segment));
  int64_t pieces = 0;
  for (int32_t i = 0; (cut_seqs < 0 ? i < n.count && n.sorted[i] > whole : i < cut_seqs) && pieces <= target; ++i) {
    pieces += n.sorted[i] <= first ? 1 : by_segment(static_cast<uint32_t>(n.sorted[i] - first + segment - 1));
  }
  return pieces > target;
}

// Smallest segment that cuts them into at most `target` pieces.
DR_HD_CALL inline int32_t segment_for(const Lengths& n, int64_t target, int32_t ratio, int32_t cut_seqs) {
  int32_t lo = 1, hi = n.sorted[0];
  target = min_of(target, kMostPieces);
  while (lo < hi) {
    const int32_t mid = lo + (hi - lo) / 2;
    if (makes_more(n, target, mid, first_for(mid, ratio), cut_seqs)) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo;
}

// Who is cut: sequences longer than a first segment (variant 0), or also those longer than a half or a quarter of it,
// which become two segments without a summary.
DR_HD inline int32_t cut_count(const Lengths& n, int32_t segment, int32_t ratio, int32_t variant) {
  const int32_t first = first_for(segment, ratio), whole = first > segment ? first : segment;
  return n.longer_than(whole >> variant);
}

struct Seed {
  int32_t segment;   // 0: none
  int32_t cut_seqs;  // -1: the variants choose
};

// The sweep: the first segment, and the one after `segment`; 0 at its end.
DR_HD inline int32_t sweep_from(const Lengths& n) { return n.sorted[0] / 2; }
DR_HD inline int32_t sweep_after(const Lengths& n, int32_t segment) {
  const int32_t next = segment - segment / (n.count > 16 ? 4 : 6) - 1;
  return next > 0 ? next : 0;
}

DR_HD inline Seed seed(const Lengths& n, const Costs& c, int32_t i, int32_t ratio) {
  const int32_t slots = c.units / c.copies;  // segments of every head that run at once
  if (i < kWaveSeeds) {
    const int64_t target = int64_t{i + 1} * c.units / c.copies;
    return {target < 1 ? 0 : segment_for(n, target, ratio, -1), -1};
  }
  if (i < kWaveSeeds + kRoomSeeds) {
    const int32_t target = slots - (i - kWaveSeeds + 1);
    return {target < 1 ? 0 : segment_for(n, target, ratio, -1), -1};
  }
  if (i < kFirstSweep) {
    const int32_t k = i - kWaveSeeds - kRoomSeeds;
    const int64_t keep = int64_t{k / 2 + 1} * c.units / c.copies;
    const int64_t cut_seqs = n.count - keep;
    if (keep < 1 || cut_seqs < 1 || cut_seqs > slots) return {0, 0};
    const int32_t surplus = static_cast<int32_t>(cut_seqs);
    return {segment_for(n, int64_t{k % 2 + 1} * slots, ratio, surplus), surplus};
  }
  int32_t segment = sweep_from(n);
  for (int32_t k = kFirstSweep; k < i && segment > 0; ++k) segment = sweep_after(n, segment);
  return {segment, -1};
}
DR_HD constexpr int32_t variants_of(int32_t i, const Seed& s) { return s.cut_seqs >= 0 ? 1 : i < kWaveSeeds ? 3 : 2; }

// Trial i of a polishing round around the best decision so far.
DR_HD inline Trial polish(const Lengths& n, const Costs& c, int32_t round, int32_t i, const Decision& best) {
  const int32_t ratio = first_ratio(n, c), at = best.segment;
  if (round == 1) {  // six segments within 3 steps of 1/32, two variants each
    const int32_t step = i / 2 < 3 ? i / 2 - 3 : i / 2 - 2, segment = at + step * (at / 32 + 1);
    return segment < 1 ? Trial{} : Trial{segment, cut_count(n, segment, ratio, i % 2), ratio};
  }
  if (round == 2) {  // one chunk, or one sequence, more or less
    const int32_t step = i % 2 * 2 - 1;
    if (i >= 2) return {at, best.cut_seqs + step, ratio};
    return at + step < 1 ? Trial{} : Trial{at + step, cut_count(n, at + step, ratio, 0), ratio};
  }
  const int32_t other = ratio * (i < 1 ? 7 : 8 + i) / 8;  // another first segment: phase 3 may be bound by memory
  return {segment_for(n, best.pieces, other, best.cut_seqs), best.cut_seqs, other};
}

DR_HD inline Estimate trial_time(const Lengths& n, const Costs& c, const Limits& limits, const Trial& t, ns give_up) {
  if (t.segment < limits.min_segment || t.cut_seqs < 1 || t.cut_seqs > n.count || n.sorted[t.cut_seqs - 1] < 2)
    return {};
  return cut_time(n, c, limits, shape_of(t.segment, t.ratio), t.cut_seqs, give_up);
}

DR_HD inline void take(Decision& best, const Trial& t, const Estimate& e, int32_t mode) {
  best.mode = mode;
  best.segment = t.segment;
  best.first = first_for(t.segment, t.ratio);
  best.ratio = t.ratio;
  best.cut_seqs = t.cut_seqs;
  best.pieces = e.pieces;
  best.in_phase1 = e.in_phase1;
  best.phase1 = e.phase1;
  best.carry = e.carry;
  best.phase3 = e.phase3;
  best.predicted = e.total;
}

// Lowers `best` (whose `predicted` is the bar to pass) by the best cut of one mode.
DR_HD inline void search_mode(const Lengths& n, const Costs& c, const Limits& limits, int32_t mode, Decision& best) {
  const int32_t ratio = first_ratio(n, c);
  auto consider = [&](const Trial& t) {
    const Estimate e = trial_time(n, c, limits, t, best.predicted);
    if (e.total < best.predicted) take(best, t, e, mode);
  };
  int32_t swept = 0;  // the sweep is walked here; a thread that has one trial counts its way to it
  for (int32_t i = 0; i < kSeeds; ++i) {
    if (i >= kFirstSweep) swept = i == kFirstSweep ? sweep_from(n) : sweep_after(n, swept);
    const Seed s = i < kFirstSweep ? seed(n, c, i, ratio) : Seed{swept, -1};
    if (s.segment < limits.min_segment) {
      if (i > kFirstSweep) break;  // the sweep only gets shorter
      continue;
    }
    int32_t last = -1;
    for (int32_t variant = 0; variant < variants_of(i, s); ++variant) {
      const int32_t cut_seqs = s.cut_seqs >= 0 ? s.cut_seqs : cut_count(n, s.segment, ratio, variant);
      if (cut_seqs != last) consider({s.segment, cut_seqs, ratio});
      last = cut_seqs;
    }
  }
  const bool found = best.segment > 0 && best.mode == mode;
  for (int32_t round = 1; round < kRounds && found; ++round) {
    const Decision from = best;
    for (int32_t i = 0; i < trials_in(round); ++i) consider(polish(n, c, round, i, from));
  }
}

// The best plan that cuts nothing. costs[0] is the plain mode; another must be 2 % faster, the estimates are not
// better.
DR_HD inline Decision decide_whole(const Lengths& n, const Costs* costs, int32_t modes) {
  Decision whole;
  whole.in_phase1 = n.count;
  if (n.count == 0) return whole;
  const WholeTime first = time_wholes(n, costs[0]);
  whole.predicted = first.time;
  whole.relay = first.relay;
  for (int32_t m = 1; m < modes; ++m) {
    const WholeTime other = time_wholes(n, costs[m]);
    if (other.time < whole.predicted - whole.predicted / 50) {
      whole.predicted = other.time;
      whole.relay = other.relay;
      whole.mode = m;
    }
  }
  whole.phase1 = whole.unsplit = whole.predicted;
  return whole;
}

// time * permille / 1000, for any time that sums may reach.
DR_HD constexpr ns permille_of(ns time, int32_t permille) {
  return time / 1000 * permille + time % 1000 * permille / 1000;
}

// What a cut must stay below.
DR_HD inline ns bar_of(const Decision& whole, const Limits& limits) {
  return whole.predicted - max_of(limits.margin_ns, permille_of(whole.predicted, limits.margin_permille));
}

// Does the cut still pay in the world where it pays least: emit cheaper, memory slower, all else dearer by the risk?
DR_HD inline bool holds_up(const Lengths& n, const Costs& c, const Limits& limits, const Decision& d) {
  if (limits.risk_permille == 0) return true;
  auto shifted = [](int32_t x, int32_t permille) {
    return static_cast<int32_t>(min_of(x + int64_t{x} * permille / 1000, INT32_MAX));
  };
  const int32_t risk = limits.risk_permille;
  Costs odd = c;
  odd.emit = shifted(c.emit, -risk);
  if (odd.emit < 1) odd.emit = 1;
  odd.bytes_per_ns = shifted(c.bytes_per_ns, -risk);
  odd.summarize = shifted(c.summarize, risk);
  odd.first_extra = shifted(c.first_extra, risk);
  odd.carry = shifted(c.carry, risk);
  odd.carry_unit = shifted(c.carry_unit, risk);
  odd.barrier = shifted(c.barrier, risk);
  odd.item = shifted(c.item, risk);
  odd.piece_extra = shifted(c.piece_extra, risk);
  return cut_time(n, odd, limits, {d.segment, d.first, d.ratio}, d.cut_seqs, INT64_MAX).total <= whole_time(n, odd);
}

// Could any cut end before `bar`? Both phases together leave bar - barrier on every unit. The first and the last
// segment of a sequence are emitted one after the other, so together they hold at most (bar - barrier) / emit chunks;
// all others are summarized too. If that work is more than the units can do in time, the search would be in vain.
DR_HD inline bool can_beat(const Lengths& n, const Costs& c, ns bar) {
  const ns time = bar - c.barrier;
  if (time <= 0) return false;
  const int64_t ends = time / c.emit;
  const int32_t longer = n.longer_than(static_cast<int32_t>(min_of(ends, INT32_MAX)));
  const int64_t summed = n.chunks(0, longer) - longer * ends;
  return (n.tail[0] * c.emit + summed * c.summarize) * c.copies < time * c.units;
}

// What a cut of another mode than the first must stay below: it must win by 3 %. Beside segments so short that the
// model flatters the first mode (Forms::pairs_up_to) it may lose a sixteenth.
DR_HD inline ns bar_beside(const Decision& first, const Limits& limits, ns bar) {
  const bool shorter = first.segment > 0 && first.segment <= limits.tiles_up_to;
  return shorter ? min_of(bar, first.predicted + first.predicted / 16) : first.predicted - first.predicted / 32;
}

// The decision, given the best plan that cuts nothing.
DR_HD inline Decision decide_beside(const Decision& whole, const Lengths& n, const Costs* costs, int32_t modes,
                                    const Limits& limits) {
  const ns bar = min_of(bar_of(whole, limits), limits.give_up);
  if (n.count == 0 || bar <= 0) return whole;
  Decision best = whole;
  best.predicted = bar;
  for (int32_t m = 0; m < modes; ++m) {
    Decision trial = best;
    if (m > 0) trial.predicted = bar_beside(best, limits, bar);
    const ns start = trial.predicted;
    if (!can_beat(n, costs[m], start)) continue;
    search_mode(n, costs[m], limits, m, trial);
    if (trial.predicted < start) best = trial;
  }
  return best.predicted < bar && holds_up(n, costs[best.mode], limits, best) ? best : whole;
}
DR_HD inline Decision decide(const Lengths& n, const Costs* costs, int32_t modes, const Limits& limits) {
  return decide_beside(decide_whole(n, costs, modes), n, costs, modes, limits);
}

}  // namespace deltarelay::plan
