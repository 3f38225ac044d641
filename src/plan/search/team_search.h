// The search of search.h by a team, one trial a member. Trials of a round are all held against the best of the round
// before and the lowest (time, number) wins; the walk of the host, which holds each against the best so far, finds the
// same.
#pragma once
#include <cstdint>

#include "plan/search/search.h"
#include "plan/search/team.h"

namespace deltarelay::plan {

// What the members of a team agree on.
struct TeamDecision {
  Decision whole, best;
};

struct Tried {
  Trial trial;
  Estimate estimate;
  DR_HD ns time() const { return estimate.total; }
};

// Trial i of round 0: one of up to three answers to who is cut, for a segment of a seed.
DR_HD inline Trial seed_trial(const Lengths& n, const Costs& c, int32_t i) {
  const int32_t ratio = first_ratio(n, c), variant = i % kVariants;
  const Seed s = seed(n, c, i / kVariants, ratio);
  if (s.segment < 1 || variant >= variants_of(i / kVariants, s)) return {};
  return {s.segment, s.cut_seqs >= 0 ? s.cut_seqs : cut_count(n, s.segment, ratio, variant), ratio};
}

// As `decide` with one mode, which is what is left to choose when the tiling is fixed. The result is in agreed.best.
template <class Team>
DR_HD void decide_by(Team& team, const Lengths& n, const Costs& c, const Limits& limits, TeamDecision& agreed) {
  team.once([&] { agreed.whole = agreed.best = decide_whole(n, &c, 1); });
  const ns bar = bar_of(agreed.whole, limits);
  if (n.count == 0 || bar <= 0 || !can_beat(n, c, bar)) return;
  team.once([&] { agreed.best.predicted = bar; });
  for (int32_t round = 0; round < kRounds; ++round) {
    const Decision from = agreed.best;
    if (round > 0 && from.segment == 0) break;  // no cut passed the bar
    team.least(
        trials_in(round), from.predicted,
        [&](int32_t i) {
          const Trial t = round == 0 ? seed_trial(n, c, i) : polish(n, c, round, i, from);
          return Tried{t, trial_time(n, c, limits, t, from.predicted)};
        },
        [&](const Tried& t) { take(agreed.best, t.trial, t.estimate, 0); });
  }
  team.once([&] {
    if (agreed.best.segment == 0 || !holds_up(n, c, limits, agreed.best)) agreed.best = agreed.whole;
  });
}

}  // namespace deltarelay::plan
