// Making a plan: choose a backend, weigh the tilings, cut the sequences, book the workspace.
#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "plan/choice.h"
#include "plan/describe/schedule.h"
#include "plan/modes.h"
#include "plan/search/estimate.h"
#include "plan/search/grain.h"
#include "plan/search/search.h"
#include "plan/table.h"
#include "problem/status.h"

namespace deltarelay {
namespace {

// Is this way of the plan's backend one for its problem, and the one asked for, or one that need not be?
bool may_take(const Plan& plan, int32_t way) {
  const Backend& backend = *plan.backend;
  const std::string& asked = plan.options.variant;
  if ((way == backend.tf32_way) != (plan.options.math == DR_MATH_TF32)) return false;
  return (asked.empty() || asked == backend.way_names[way]) && backend.takes_way(plan.problem, way);
}

// `way`: of the backend that is chosen; -1: the first that serves the problem.
void choose_backend(Plan& plan, int32_t way) {
  const Options& options = plan.options;
  const Request request = request_of(options);
  if (!options.backend.empty()) {
    plan.backend = backend_named(options.backend);
    if (plan.backend == nullptr)
      fail_invalid("options.backend", "a backend of this library", "'" + options.backend + "'");
    const std::string reason = plan.backend->decline(plan.problem, request);
    if (!reason.empty()) fail_unsupported(options.backend + ": " + reason);
  } else {
    for (int32_t i = 0; i < backend_count() && plan.backend == nullptr; ++i) {
      if (backend_at(i)->decline(plan.problem, request).empty()) plan.backend = backend_at(i);
    }
    if (plan.backend == nullptr) {
      std::string reasons = "no backend serves this problem";
      for (const Declined& declined : declined_of(plan)) reasons += "; " + declined.backend + ": " + declined.reason;
      fail_unsupported(reasons);
    }
  }
  plan.isa = plan.backend == &kCpuBackend ? std::max(0, cpu_isa_find(request.isa)) : std::max(0, way);
  while (way < 0 && plan.backend->num_ways > 0 && !may_take(plan, plan.isa)) ++plan.isa;
  plan.chunk = plan.backend->chunk(plan.problem, plan.isa);
  plan.sizes = plan.backend->sizes(plan.problem, plan.isa, plan.tiling);
}

// A backend that keeps no transitions computes every sequence whole.
bool can_cut(const Plan& plan) { return plan.sizes.transition_floats > 0; }

void check_sizes(const Plan& plan) {
  const int64_t chunks = plan::ceil_div(plan.problem.num_tokens, plan.chunk) + plan.problem.num_seqs;
  if (chunks > kMostChunks) {
    fail_unsupported("problem.num_tokens: expected at most " + std::to_string(kMostChunks) + " chunks of " +
                     std::to_string(plan.chunk) + " tokens in all, found " + std::to_string(chunks));
  }
}

int32_t length_in_chunks(const Plan& plan) {
  const int64_t tokens = plan.options.segment_value;
  if (tokens % plan.chunk != 0) {
    fail_invalid("options.segment_value", "a multiple of the chunk of " + std::to_string(plan.chunk) + " tokens",
                 std::to_string(tokens));
  }
  return static_cast<int32_t>(std::min(tokens / plan.chunk, kMostChunks));
}

// Heads as the walk counts them: strips.
int64_t walked_heads(const Plan& plan) {
  return int64_t{plan.problem.heads_v} * strips_of(plan.problem, *plan.backend);
}

void choose_grain(Plan& plan) {
  const dr_device& device = plan.options.device;
  plan.grain = plan::kInfiniteGrain;
  if (!can_cut(plan) || plan.options.segments == DR_SEGMENTS_OFF) return;
  if (plan.options.segments == DR_SEGMENTS_LENGTH) {
    plan.grain = length_in_chunks(plan);
  } else if (device.kind == DR_DEVICE_CUDA) {
    plan.grain = plan::gpu_grain(walked_heads(plan), device.units, plan.chunk);
  } else {
    plan.grain = plan::cpu_grain(plan.problem.heads_v, most_tiles(plan.problem, *plan.backend, plan.isa), device.units,
                                 plan.chunk);
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
                         stated_costs(plan.problem, plan.options, *plan.backend, plan.sizes.record_bytes).measured == 0;
  plan.limits.risk_permille = estimated ? kRiskOfEstimates : 0;
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

const char* first_stage(const SegmentTable& table) {
  const bool sums =
      std::any_of(table.rows1.begin(), table.rows1.end(), [](const Row& row) { return row.work == Work::kSummarize; });
  const bool emits =
      std::any_of(table.rows1.begin(), table.rows1.end(), [](const Row& row) { return row.work == Work::kEmit; });
  return !sums ? "emit" : emits ? "summarize + emit" : "summarize";
}

// Where a backend leaves records, chunks are prepared all at once before the phases.
void list_prepare(Plan& plan) {
  if (plan.sizes.record_bytes == 0 || plan.num_chunks == 0) return;
  plan.steps.push_back({"prepare", plan.num_chunks * plan.problem.heads_v, plan.prepare_ns});
}

void list_steps(Plan& plan, const PhaseTimes& times) {
  const int64_t copies = plan.costs.copies;
  const SegmentTable& table = plan.table;
  auto add = [&](const char* stage, size_t rows, int64_t time) {
    if (rows > 0) plan.steps.push_back({stage, static_cast<int64_t>(rows) * copies, time});
  };
  plan.steps.reserve(4);
  list_prepare(plan);
  add(first_stage(table), table.rows1.size(), times.phase1);
  add("carry", table.folds.size(), times.carry);
  add("emit", table.rows3.size(), times.phase3);
}

void plan_known_lengths(Plan& plan, const Modes& modes, const Choice& choice) {
  plan.tiling.value_tiles = modes.tiles[choice.mode];
  plan.costs = modes.costs[choice.mode];
  plan.decision = choice.decision;
  plan.prepare_ns = plan::prepare_time(plan.costs, plan.num_chunks);
  plan.predicted_ns = plan.prepare_ns + choice.times.total();
  plan.unsplit_ns = plan.prepare_ns + choice.unsplit;
  plan.relay = choice.relay;
}

void write_known_table(Plan& plan, const Modes& modes, const Choice& choice) {
  plan.table = write_chosen(choice, modes);
  plan.capacity = {static_cast<int64_t>(plan.table.rows1.size()), static_cast<int64_t>(plan.table.folds.size()),
                   static_cast<int64_t>(plan.table.rows3.size()), plan.table.num_slots};
  list_steps(plan, choice.times);
}

// Room for the table of a call with these counts, spread over so many units.
plan::TableSize capacity_for(const Plan& plan, const CallCounts& counts, int32_t units) {
  return capacity_of(
      {plan.rule, plan.cut_value, counts.num_tokens, counts.num_seqs, plan.chunk, walked_heads(plan), units},
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
  plan.steps.push_back({"segment table", 1, 0});
  list_prepare(plan);
  const int64_t copies = plan.costs.copies;
  if (plan.capacity.slots > 0) {
    plan.steps.push_back({"summarize + emit", plan.capacity.rows1 * copies, 0});
    plan.steps.push_back({"carry", plan.capacity.folds * copies, 0});
    plan.steps.push_back({"emit", plan.capacity.rows3 * copies, 0});
  } else {
    plan.steps.push_back({"emit", plan.capacity.rows1 * copies, 0});
  }
}

// A GPU takes a checkpoint inside a chunk on from the start of that chunk. Until it is finished it is kept in fp32, for
// a pool of 16 bits would round it twice. No two are written to one slot, so there are at most as many as the pool has
// slots, however many a list may name.
int64_t count_waiting_checkpoints(const Plan& plan) {
  const Problem& p = plan.problem;
  if (p.checkpoint.dtype == DType::kFp32 || !p.checkpoints_inside(plan.chunk)) return 0;
  return std::min(p.checkpoint.num_slots, p.checkpoint_rows());
}

// A GPU reads the table from its own memory. What the plan knows of it is kept as the bytes to send; else the GPU
// writes it.
void lay_out_device_table(Plan& plan) {
  const Problem& p = plan.problem;
  plan.device_table = device_table_layout(p.num_seqs, plan.capacity, !p.lengths_known);
  if (!p.lengths_known) return;
  const Sequences sequences{p.batched() ? nullptr : p.offsets.data(), p.seq_len, p.num_seqs};
  plan.device_image = device_table_image(plan.device_table, sequences, plan.chunk, plan.table);
}

void book_workspace(Plan& plan) {
  plan.sizes = plan.backend->sizes(plan.problem, plan.isa, plan.tiling);
  if (!plan.problem.lengths_known) {
    // The tiling may change with the bounds while the workspace must only grow with them: book for the largest.
    const Modes modes = modes_of(plan.problem, plan.options, *plan.backend, plan.isa);
    for (int32_t m = 0; m < modes.count; ++m) {
      const Sizes other = plan.backend->sizes(plan.problem, plan.isa, {plan.tiling.threads, modes.tiles[m]});
      plan.sizes.scratch_bytes = std::max(plan.sizes.scratch_bytes, other.scratch_bytes);
    }
  }
  auto book = [&](const char* name, size_t bytes) {
    if (bytes > 0) plan.ledger.book(name, bytes);
  };
  const size_t states = static_cast<size_t>(plan.table.num_slots) * static_cast<size_t>(plan.problem.heads_v);
  book(kBufferScratch, static_cast<size_t>(plan.tiling.threads) * plan.sizes.scratch_bytes);
  book(kBufferSlotState, states * static_cast<size_t>(plan.sizes.state_floats) * sizeof(float));
  book(kBufferTransition, states * static_cast<size_t>(plan.sizes.transition_floats) * sizeof(float));
  book(kBufferPrepared, static_cast<size_t>(plan.num_chunks) * static_cast<size_t>(plan.problem.heads_v) *
                            static_cast<size_t>(plan.sizes.record_bytes));
  if (plan.options.device.kind == DR_DEVICE_CUDA) {
    const auto strips = static_cast<size_t>(strips_of(plan.problem, *plan.backend));
    book(kBufferLives, states * strips * 2 * sizeof(uint32_t));
    plan.checkpoints = count_waiting_checkpoints(plan);
    const Problem& p = plan.problem;
    book(kBufferCheckpoints, static_cast<size_t>(plan.checkpoints) * static_cast<size_t>(p.heads_v) *
                                 static_cast<size_t>(p.dk) * static_cast<size_t>(p.dv) * sizeof(float));
    const auto places = static_cast<size_t>(plan.relay.places());
    book(kBufferRelayStates, places * static_cast<size_t>(plan.sizes.state_floats) / strips * sizeof(float));
    book(kBufferRelayMarks, places * 2 * sizeof(RelayMark));
    lay_out_device_table(plan);
    book(kBufferTable, plan.device_table.bytes);
  } else if (!plan.problem.lengths_known) {
    book(kBufferTable, table_bytes(plan.problem.num_seqs, plan.capacity));
    book(kBufferOffsets, sizeof(int64_t) * static_cast<size_t>(plan.problem.num_seqs + 1));
  }
}

// A plan by one way of its backend, up to its table and its workspace, which only the plan that is taken needs.
struct Draft {
  std::unique_ptr<Plan> plan;
  Modes modes;
  Choice choice;  // where lengths are known

  // What all units need for all chunks, if every one was summarized and emitted: which of two ways is likely to win.
  int64_t work() const {
    const plan::Costs& c = modes.costs[0];
    return plan->num_chunks * (c.copies * (int64_t{c.emit} + c.summarize) + int64_t{c.heads} * c.prepare);
  }
};

Draft draft_way(Problem problem, Options options, int32_t way) {
  Draft draft{std::make_unique<Plan>(), {}, {}};
  Plan& plan = *draft.plan;
  plan.problem = std::move(problem);
  plan.options = std::move(options);
  plan.tiling.threads = plan.options.device.kind == DR_DEVICE_CPU ? plan.options.threads : 1;  // of the host
  choose_backend(plan, way);
  check_sizes(plan);
  plan.num_chunks = uncut_bounds(plan.problem, plan.chunk).chunks;
  choose_rule(plan);
  set_limits(plan);
  draft.modes = modes_of(plan.problem, plan.options, *plan.backend, plan.isa);
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

std::unique_ptr<Plan> complete(Draft draft) {
  if (draft.plan->problem.lengths_known) write_known_table(*draft.plan, draft.modes, draft.choice);
  book_workspace(*draft.plan);
  return std::move(draft.plan);
}

// Ways differ in bits and in workspace: what may not depend on the batch, or only grow with it, keeps to the first.
bool may_choose(const Plan& plan) { return !plan.options.invariant && plan.problem.lengths_known; }

// Segments of a given length are whole chunks, which another way may count differently.
bool fits(const Plan& plan, int32_t way) {
  const bool given = plan.options.segments == DR_SEGMENTS_LENGTH;
  return !given || plan.options.segment_value % plan.backend->chunk(plan.problem, way) == 0;
}

}  // namespace

CallBounds bounds_of(const Plan& plan) {
  return {.rows1 = plan.capacity.rows1,
          .folds = plan.capacity.folds,
          .rows3 = plan.capacity.rows3,
          .chunks = plan.num_chunks,
          .slots = plan.capacity.slots,
          .checkpoints = plan.checkpoints};
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
  bounds.chunks = late_chunks(counts, plan.chunk);
  return bounds;
}

bool tries_suffixes(const Plan& plan) {
  const auto tries = plan.backend->tries_suffixes;
  return tries != nullptr &&
         tries(plan.problem, bounds_of(plan), plan.options.device.units, vanish_bound_of(plan) == 0.0f);
}

bool walks_twins(const Plan& plan) {
  const auto twins = plan.backend->walks_twins;
  return twins != nullptr && plan.sizes.record_bytes == 0 &&
         plan.tiling.value_tiles == strips_of(plan.problem, *plan.backend) && twins(plan.problem, bounds_of(plan));
}

float vanish_bound_of(const Plan& plan) {
  if (plan.options.carry == CarryMode::kExact) return 0.0f;
  const double bound = std::exp(static_cast<double>(plan.options.carry_log_decay)) / plan.problem.dk;
  return std::nextafter(static_cast<float>(bound), 0.0f);  // not above it, however it is rounded
}

const char* isa_name(const Plan& plan) { return plan.backend == &kCpuBackend ? cpu_isa_name(plan.isa) : ""; }

const char* variant_name(const Plan& plan) {
  return plan.backend->num_ways > 0 ? plan.backend->way_names[plan.isa] : "";
}

std::unique_ptr<const Plan> make_plan(Problem problem, Options options) {
  Draft first = draft_way(std::move(problem), std::move(options), -1);
  const Backend& backend = *first.plan->backend;
  for (int32_t way = first.plan->isa + 1; way < backend.num_ways; ++way) {
    if (!may_take(*first.plan, way)) continue;
    if (!may_choose(*first.plan) || !fits(*first.plan, way)) continue;
    Draft second = draft_way(first.plan->problem, first.plan->options, way);
    // The likely winner first: of the other only cuts are looked for that beat it. A little beyond that, for the search
    // comes closer step by step.
    if (second.work() < first.work()) std::swap(first, second);
    decide(first);
    decide(second, first.plan->predicted_ns + first.plan->predicted_ns / 32);
    if (second.plan->predicted_ns < first.plan->predicted_ns) std::swap(first, second);
    first.plan->other_way = second.plan->isa;
    return complete(std::move(first));
  }
  decide(first);
  return complete(std::move(first));
}

int64_t predict_other_way(const Plan& plan) {
  if (plan.other_way < 0) return 0;
  Draft other = draft_way(plan.problem, plan.options, plan.other_way);
  decide(other);
  return other.plan->predicted_ns;
}

}  // namespace deltarelay
