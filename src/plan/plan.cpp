// Making a plan: choose a backend, weigh the tilings, cut the sequences, book the workspace.
#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "plan/backends.h"
#include "plan/choice.h"
#include "plan/describe/describe.h"
#include "plan/modes.h"
#include "plan/ops/forward.h"
#include "plan/ops/stages.h"
#include "plan/search/estimate.h"
#include "plan/search/forms.h"
#include "plan/search/grain.h"
#include "plan/search/search.h"
#include "plan/table.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

const Backend& choose_backend(const Problem& problem, const Options& options) {
  const Request request = request_of(options);
  if (!options.backend.empty()) {
    const Backend* backend = backend_named(options.backend);
    if (backend == nullptr) fail_invalid("options.backend", "a backend of this library", "'" + options.backend + "'");
    const std::string reason = backend->decline(problem, request);
    if (!reason.empty()) fail_unsupported(options.backend + ": " + reason);
    return *backend;
  }
  for (int32_t i = 0; i < backend_count(); ++i) {
    if (backend_at(i)->decline(problem, request).empty()) return *backend_at(i);
  }
  std::string reasons = "no backend serves this problem";
  for (const Declined& declined : declined_of(problem, options, nullptr))
    reasons += "; " + declined.backend + ": " + declined.reason;
  fail_unsupported(reasons);
}

// A variant that keeps no transitions computes every sequence whole.
bool can_cut(const Plan& plan) { return plan.variant.transition_floats > 0; }

void check_sizes(const Plan& plan) {
  const int64_t chunks = plan::ceil_div(plan.problem.num_tokens, plan.chunk()) + plan.problem.num_seqs;
  if (chunks > kMostChunks) {
    fail_unsupported("problem.num_tokens: expected at most " + std::to_string(kMostChunks) + " chunks of " +
                     std::to_string(plan.chunk()) + " tokens in all, found " + std::to_string(chunks));
  }
}

int32_t length_in_chunks(const Plan& plan) {
  const int64_t tokens = plan.options.segment_value;
  if (tokens % plan.chunk() != 0) {
    fail_invalid("options.segment_value", "a multiple of the chunk of " + std::to_string(plan.chunk()) + " tokens",
                 std::to_string(tokens));
  }
  return static_cast<int32_t>(std::min(tokens / plan.chunk(), kMostChunks));
}

// Heads as the walk counts them: strips.
int64_t walked_heads(const Plan& plan) { return int64_t{plan.problem.heads_v} * plan.variant.strips; }

void choose_grain(Plan& plan) {
  const dr_device& device = plan.options.device;
  plan.grain = plan::kInfiniteGrain;
  if (!can_cut(plan) || plan.options.segments == DR_SEGMENTS_OFF) return;
  if (plan.options.segments == DR_SEGMENTS_LENGTH) {
    plan.grain = length_in_chunks(plan);
  } else if (device.kind == DR_DEVICE_CUDA) {
    plan.grain = plan::gpu_grain(walked_heads(plan), device.units, plan.chunk());
  } else {
    plan.grain =
        plan::cpu_grain(plan.problem.heads_v, most_tiles(plan.problem, plan.variant), device.units, plan.chunk());
  }
}

void choose_rule(Plan& plan) {
  const Options& options = plan.options;
  if (options.invariant) {
    choose_grain(plan);
    if (plan.grain > 0) {
      plan.rule = CutRule::kGrain;
      plan.cut_value = static_cast<int32_t>(plan.grain);
    }
    return;
  }
  if (options.policy != kOwnPolicy) {
    if (!plan.problem.lengths_known) {
      fail_unsupported("options.policy: '" + options.policy + "' needs the lengths when the plan is made");
    }
    plan.rule = CutRule::kPolicy;
    return;
  }
  switch (options.segments) {
    case DR_SEGMENTS_AUTO:
      plan.rule = can_cut(plan) ? CutRule::kSearch : CutRule::kWhole;
      break;
    case DR_SEGMENTS_COUNT:
      plan.rule = CutRule::kCount;
      plan.cut_value = static_cast<int32_t>(std::min(options.segment_value, kMostChunks + 1));
      break;
    case DR_SEGMENTS_LENGTH:
      plan.rule = CutRule::kLength;
      plan.cut_value = length_in_chunks(plan);
      break;
    default:
      plan.rule = CutRule::kWhole;
  }
}

void set_limits(Plan& plan) {
  // Estimates for a GPU that nobody has timed may be far off one by one. On a CPU all costs are ratios of the same
  // arithmetic on the same core, so their errors move together and the margin alone is enough.
  constexpr int32_t kRiskOfEstimates = 150;
  const dr_device& device = plan.options.device;
  const bool estimated = device.kind == DR_DEVICE_CUDA &&
                         stated_costs(plan.problem, plan.options, *plan.backend, plan.variant).measured == 0;
  plan.limits.risk_permille = estimated ? kRiskOfEstimates : 0;
  plan.limits.tiles_up_to = plan.variant.forms.pairs_up_to;
}

// Sums of the model are numbers of 64 bits. Facts and sizes that belong together stay far below that; others are
// refused, not reckoned wrong.
void check_sums(const Plan& plan, const Modes& modes) {
  constexpr double kMost = 0x1p61;
  const auto chunks = static_cast<double>(plan.num_chunks);
  const double rows = static_cast<double>(plan.problem.num_seqs) + std::min<double>(chunks, kMostSegments);
  for (int32_t m = 0; m < modes.count; ++m) {
    const plan::Costs& c = modes.costs[m];
    auto sum = [](auto... costs) { return (static_cast<double>(costs) + ...); };
    const double of_chunk = sum(c.emit, c.summarize, c.first_extra),
                 bytes_of_chunk = sum(c.emit_bytes, c.summarize_bytes);
    const double of_row = sum(c.item, c.piece_extra, c.carry, c.carry_unit, c.barrier);
    const double bytes_of_row = sum(c.transition_bytes, c.state_bytes, c.state_bytes);
    const double time = (chunks * of_chunk + rows * of_row) * std::max(c.copies, c.units);
    const double bytes = (chunks * bytes_of_chunk + rows * bytes_of_row) * c.copies * c.units;
    const double prepare = chunks * c.heads * sum(c.prepare, c.prepare_bytes);
    if (time + bytes + prepare < kMost) continue;
    fail_unsupported(
        "options.device: expected costs and sizes whose sums the cost model can hold (below 2^61 ns or bytes, over all "
        "units), found more for " +
        std::to_string(plan.num_chunks) + " chunks, " + std::to_string(plan.problem.heads_v) + " heads and " +
        std::to_string(c.units) + " units");
  }
}

void plan_known_lengths(Plan& plan, const Modes& modes, const Choice& choice) {
  plan.tiling.value_tiles = modes.tiles[choice.mode];
  plan.costs = modes.costs[choice.mode];
  plan.decision = choice.decision;
  plan.prepare_ns = plan::prepare_time(plan.costs, plan.num_chunks);
  plan.predicted_ns = plan.prepare_ns + choice.times.total();
  plan.unsplit_ns = plan.prepare_ns + choice.unsplit;
  plan.relay = choice.relay;
  plan.times = choice.times;
}

void write_known_table(Plan& plan, const Modes& modes, const Choice& choice) {
  plan.table = write_chosen(choice, modes);
  plan.capacity = {static_cast<int64_t>(plan.table.rows1.size()), static_cast<int64_t>(plan.table.folds.size()),
                   static_cast<int64_t>(plan.table.rows3.size()), plan.table.num_slots};
}

// Room for the table of a call with these counts, spread over so many units.
plan::TableSize capacity_for(const Plan& plan, const CallCounts& counts, int32_t units) {
  return capacity_of(
      {plan.rule, plan.cut_value, counts.num_tokens, counts.num_seqs, plan.chunk(), walked_heads(plan), units},
      plan.limits);
}

// Backend, tiling and workspace from (num_tokens, num_seqs); the table is written at execution. The tiling is the one
// that suits sequences of equal length: a lone long one among them is then cut into segments instead.
void plan_unknown_lengths(Plan& plan, const Modes& modes) {
  const CallCounts most{plan.problem.num_tokens, plan.problem.num_seqs};
  check_segments(capacity_for(plan, most, modes.costs[0].units).slots);
  const int32_t mode = choose_tiling(plan, modes);
  plan.tiling.value_tiles = modes.tiles[mode];
  plan.costs = modes.costs[mode];
  plan.capacity = capacity_for(plan, most, plan.costs.units);
  plan.limits.max_rows = static_cast<int32_t>(std::min<int64_t>(plan.limits.max_rows, plan.capacity.slots));
  plan.table.num_slots = plan.capacity.slots;
}

// A plan by one variant of its backend, up to its table and its workspace, which only the plan that is taken needs.
struct Draft {
  std::unique_ptr<Plan> plan;
  Modes modes;
  Choice choice;  // where lengths are known

  // What all units need for all chunks, if every one was summarized and emitted: which variant is likely to win.
  int64_t work() const {
    const plan::Costs& c = modes.costs[0];
    return plan->num_chunks * (c.copies * (int64_t{c.emit} + c.summarize) + int64_t{c.heads} * c.prepare);
  }
};

Draft draft_of(Problem problem, Options options, const Backend& backend, const Variant& variant) {
  Draft draft{std::make_unique<Plan>(), {}, {}};
  Plan& plan = *draft.plan;
  plan.problem = std::move(problem);
  plan.options = std::move(options);
  plan.tiling.threads = plan.options.device.kind == DR_DEVICE_CPU ? plan.options.threads : 1;  // of the host
  plan.backend = &backend;
  plan.variant = variant;
  check_sizes(plan);
  const CallBounds uncut = uncut_bounds(plan.problem, plan.chunk());
  plan.num_chunks = uncut.chunks;
  plan.num_filled = uncut.rows1;
  choose_rule(plan);
  set_limits(plan);
  draft.modes = modes_of(plan.problem, plan.options, backend, variant);
  check_sums(plan, draft.modes);
  return draft;
}

// Chooses the cuts. Of those that are predicted to take `give_up` or longer none need be found.
void decide(Draft& draft, int64_t give_up = INT64_MAX) {
  Plan& plan = *draft.plan;
  if (!plan.problem.lengths_known) {
    plan_unknown_lengths(plan, draft.modes);
    return;
  }
  if (give_up < INT64_MAX) plan.limits.give_up = give_up - plan::prepare_time(draft.modes.costs[0], plan.num_chunks);
  draft.choice = choose_cuts(plan, draft.modes);
  plan_known_lengths(plan, draft.modes, draft.choice);
  plan.limits.give_up = INT64_MAX;
}

Steps steps_within(const Plan& plan, const CallBounds& bounds) {
  return is_stage(plan.problem.op) ? stage_steps(plan, bounds) : forward_steps(plan, bounds);
}

std::unique_ptr<Plan> complete(Draft draft) {
  Plan& plan = *draft.plan;
  if (plan.problem.lengths_known) write_known_table(plan, draft.modes, draft.choice);
  if (is_stage(plan.problem.op)) time_stage(plan);
  book_forward(plan);
  plan.steps = steps_within(plan, bounds_of(plan));
  return std::move(draft.plan);
}

// Rows and folds of a search at execution. It counts work items of its tiling. The workspace has room for a row of
// every head: it may only grow with the bounds, and the tiling changes with them.
CallBounds within_search(const Plan& plan, CallBounds bounds) {
  if (plan.problem.lengths_known || plan.rule != CutRule::kSearch) return bounds;
  const plan::Costs& c = plan.costs;
  const int64_t pieces = plan::ceil_div(int64_t{plan.limits.max_waves} * c.units, int64_t{c.copies});
  bounds.rows1 = std::min(bounds.rows1, pieces + bounds.sequences);
  bounds.folds = std::min(bounds.folds, pieces);
  bounds.rows3 = std::min(bounds.rows3, pieces + bounds.sequences);
  return bounds;
}

// Variants differ in bits and in workspace: what may not depend on the batch, or only grow with it, keeps to the first.
bool may_choose(const Plan& plan) { return !plan.options.invariant && plan.problem.lengths_known; }

// Segments of a given length are whole chunks, which another variant may count differently.
bool fits(const Plan& plan, const Variant& variant) {
  const bool given = plan.options.segments == DR_SEGMENTS_LENGTH;
  return !given || plan.options.segment_value % variant.chunk == 0;
}

}  // namespace

CallBounds bounds_of(const Plan& plan) {
  const CallBounds bounds{.rows1 = plan.capacity.rows1,
                          .folds = plan.capacity.folds,
                          .rows3 = plan.capacity.rows3,
                          .chunks = plan.num_chunks,
                          .slots = plan.capacity.slots,
                          .sequences = plan.problem.num_seqs};
  return within_search(plan, bounds);
}

CallBounds bounds_of(const Plan& plan, const CallCounts& counts) {
  const Problem& p = plan.problem;
  if (counts.num_seqs == p.num_seqs && counts.num_tokens == p.num_tokens) return bounds_of(plan);
  const plan::TableSize size = capacity_for(plan, counts, plan.costs.units);
  CallBounds bounds = bounds_of(plan);
  bounds.rows1 = std::min(bounds.rows1, size.rows1);
  bounds.folds = std::min(bounds.folds, size.folds);
  bounds.rows3 = std::min(bounds.rows3, size.rows3);
  bounds.slots = std::min(bounds.slots, size.slots);
  bounds.chunks = late_chunks(counts, plan.chunk());
  bounds.sequences = counts.num_seqs;
  return within_search(plan, bounds);
}

Steps steps_of(const Plan& plan, const CallCounts& counts) { return steps_within(plan, bounds_of(plan, counts)); }

bool tries_suffixes(const Plan& plan) {
  return plan::tries_suffixes(plan.variant, bounds_of(plan), walked_heads(plan), plan.options.device.units,
                              vanish_bound_of(plan) == 0.0f);
}

bool walks_twins(const Plan& plan) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.form == Form::kTwins; });
}

float vanish_bound_of(const Plan& plan) {
  if (plan.options.carry == CarryMode::kExact) return 0.0f;
  const double bound = std::exp(static_cast<double>(plan.options.carry_log_decay)) / plan.problem.dk;
  return std::nextafter(static_cast<float>(bound), 0.0f);  // not above it, however it is rounded
}

std::unique_ptr<const Plan> make_plan(Problem problem, Options options) {
  const Backend& backend = choose_backend(problem, options);
  const Variants variants = backend.variants(problem, request_of(options));
  Draft first = draft_of(std::move(problem), std::move(options), backend, variants[0]);
  for (const Variant* variant = variants.begin() + 1; variant < variants.end(); ++variant) {
    if (!may_choose(*first.plan) || !fits(*first.plan, *variant)) continue;
    Draft second = draft_of(first.plan->problem, first.plan->options, backend, *variant);
    // The likely winner first: of the other only cuts are looked for that beat it. A little beyond that, for the search
    // comes closer step by step.
    if (second.work() < first.work()) std::swap(first, second);
    decide(first);
    decide(second, first.plan->predicted_ns + first.plan->predicted_ns / 32);
    if (second.plan->predicted_ns < first.plan->predicted_ns) std::swap(first, second);
    first.plan->other_variant = second.plan->variant.number;
    return complete(std::move(first));
  }
  decide(first);
  return complete(std::move(first));
}

int64_t predict_other_variant(const Plan& plan) {
  for (const Variant& variant : plan.backend->variants(plan.problem, request_of(plan.options))) {
    if (variant.number != plan.other_variant) continue;
    Draft other = draft_of(plan.problem, plan.options, *plan.backend, variant);
    decide(other);
    return other.plan->predicted_ns;
  }
  return 0;
}

}  // namespace deltarelay
