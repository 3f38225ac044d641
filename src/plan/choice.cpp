#include "plan/choice.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "plan/search/policies.h"
#include "plan/search/search.h"
#include "plan/table.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

using plan::ns;

Sequences sequences_of(const Problem& problem) {
  return {problem.batched() ? nullptr : problem.offsets.data(), problem.seq_len, problem.num_seqs};
}

Ordered order(const Sequences& sequences, int64_t num_tokens, int32_t chunk) {
  Ordered ordered;
  ordered.memory.reset(new std::byte[space_bytes(sequences.num_seqs)]);  // not cleared
  ordered.input = order_sequences(sequences, num_tokens, chunk, space_in(ordered.memory.get(), sequences.num_seqs));
  return ordered;
}

Ordered order(const Plan& plan) { return order(sequences_of(plan.problem), plan.problem.num_tokens, plan.chunk()); }

SegmentTable write(const TableInput& input, const plan::Costs& costs) {
  const int32_t riders = riders_of(input, costs);
  const plan::TableSize size = table_size_of(input, riders);
  SegmentTable table;
  table.rows1.resize(static_cast<size_t>(size.rows1));
  table.folds.resize(static_cast<size_t>(size.folds));
  table.rows3.resize(static_cast<size_t>(size.rows3));
  table.num_slots = size.slots;
  write_table_of(input, riders, costs, {table.rows1.data(), table.folds.data(), table.rows3.data()});
  return table;
}

std::vector<PolicyCut> cuts_of_policy(const Plan& plan) {
  PolicyRequest request;
  for (int64_t n = 0; n < plan.problem.num_seqs; ++n) request.lengths.push_back(plan.problem.length(n));
  request.heads = plan.problem.heads_v;
  request.units = plan.options.device.units;
  request.compute_capability = plan.options.device.compute_capability;
  std::vector<PolicyCut> cuts = policy_cuts(policy_find(plan.options.policy), request);
  cuts.resize(static_cast<size_t>(plan.problem.num_seqs));  // none: every sequence whole
  return cuts;
}

// Cuts that are given, not searched for: every mode is timed, and another than the first must win by 3 %.
void choose_given(const TableInput& input, const Modes& modes, Choice& best) {
  for (int32_t m = 0; m < modes.count; ++m) {
    const PhaseTimes times = time_cuts(input, modes.costs[m]);
    if (m > 0 && times.total() >= best.times.total() - best.times.total() / 32) continue;
    best.mode = m;
    best.times = times;
  }
}

Choice choose(const Plan& plan, Ordered sequences, const Modes& modes) {
  Choice choice;
  choice.sequences = std::move(sequences);
  TableInput& input = choice.sequences.input;
  input.rule = plan.rule;
  input.value = plan.cut_value;
  const plan::Decision whole = plan::decide_whole(input.lengths, modes.costs, modes.count);
  choice.unsplit = whole.unsplit;
  choice.decision = whole;
  if (plan.rule == CutRule::kSearch || plan.rule == CutRule::kWhole) {
    if (plan.rule == CutRule::kSearch) {
      choice.decision = plan::decide_beside(whole, input.lengths, modes.costs, modes.count, plan.limits);
    }
    choice.mode = choice.decision.mode;
    choice.times = {choice.decision.phase1, choice.decision.carry, choice.decision.phase3};
    input.decision = choice.decision;
    if (choice.decision.segment == 0) choice.relay = choice.decision.relay;
    return choice;
  }
  if (plan.rule == CutRule::kPolicy) {
    choice.sequences.policy = cuts_of_policy(plan);
    input.policy = choice.sequences.policy.data();
  }
  check_segments(table_size_of(input, 0).slots);
  choose_given(input, modes, choice);
  return choice;
}

}  // namespace

void check_segments(int64_t pieces) {
  if (pieces <= kMostSegments) return;
  fail_unsupported("segments: expected cuts into at most " + std::to_string(kMostSegments) +
                   " segments beyond the first of each sequence, found " + std::to_string(pieces));
}

Choice choose_cuts(const Plan& plan, const Modes& modes) { return choose(plan, order(plan), modes); }

SegmentTable write_chosen(const Choice& choice, const Modes& modes) {
  return write(choice.sequences.input, modes.costs[choice.mode]);
}

int32_t choose_tiling(const Plan& plan, const Modes& modes) {
  if (plan.problem.num_seqs == 0 || modes.count == 1) return 0;
  const int64_t each = plan::ceil_div(std::max<int64_t>(plan.problem.num_tokens, 1), plan.problem.num_seqs);
  return choose(plan, order({nullptr, each, plan.problem.num_seqs}, each * plan.problem.num_seqs, plan.chunk()), modes)
      .mode;
}

std::vector<Weighed> weigh(const Plan& plan, const Modes& modes) {
  std::vector<Weighed> weighed;
  if (!plan.problem.lengths_known) return weighed;
  const Ordered ordered = order(plan);
  const plan::Lengths& lengths = ordered.input.lengths;
  if (lengths.count == 0) return weighed;
  for (int32_t m = 0; m < modes.count; ++m) {
    Weighed whole;
    whole.mode = m;
    whole.predicted = plan.prepare_ns + plan::whole_time(lengths, modes.costs[m]);
    weighed.push_back(whole);
    if (plan.variant.transition_floats == 0) continue;
    Weighed cut;
    cut.mode = m;
    cut.cut = true;
    cut.decision.predicted = std::numeric_limits<ns>::max();
    plan::search_mode(lengths, modes.costs[m], plan.limits, m, cut.decision);
    if (cut.decision.segment == 0) continue;
    cut.predicted = plan.prepare_ns + cut.decision.predicted;
    weighed.push_back(cut);
  }
  return weighed;
}

plan::Decision decide_whole(const Plan& plan, const Modes& modes) {
  const Ordered ordered = order(plan);
  return plan::decide_whole(ordered.input.lengths, modes.costs, modes.count);
}

SegmentTable whole_table(const Plan& plan, const plan::Costs& costs) {
  const Ordered ordered = order(plan);
  return write(ordered.input, costs);
}

}  // namespace deltarelay
