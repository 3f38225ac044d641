// Everything the planner decided, for programs: the same facts as the text, with the table and both schedules.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "plan/backends.h"
#include "plan/choice.h"
#include "plan/describe/describe.h"
#include "plan/describe/json_writer.h"
#include "plan/describe/schedule.h"
#include "plan/describe/segments.h"
#include "plan/modes.h"
#include "plan/plan.h"

namespace deltarelay {
namespace {

// Lists of more are left out, and how long they are is said instead: a picture of more has no use, and the text would
// be tens of megabytes.
constexpr int64_t kMostListed = 20000;

// Is a list of so many to be written? If not, `name` says why.
bool is_listed(const char* name, int64_t count, const char* what, JsonWriter& json) {
  if (count <= kMostListed) return true;
  json.member(name, std::to_string(count) + " " + what + ", more than " + std::to_string(kMostListed));
  return false;
}

void write_problem(const Problem& p, JsonWriter& json) {
  json.key("problem").object();
  json.member("rule", name_of(p.rule)).member("op", name_of(p.op));
  json.member("dtype", name_of(p.dtype)).member("num_seqs", p.num_seqs);
  json.member("num_tokens", p.num_tokens).member("seq_len", p.seq_len).member("lengths_known", p.lengths_known);
  json.member("heads_qk", p.heads_qk).member("heads_v", p.heads_v).member("dk", p.dk).member("dv", p.dv);
  json.member("gate_form", name_of(p.gate_form)).member("beta_form", name_of(p.beta_form)).member("l2norm", p.l2norm);
  json.member("initial", p.initial.used()).member("final", p.final.used());
  json.member("checkpoints", name_of(p.checkpoints));
  if (p.lengths_known && is_listed("lengths_omitted", p.num_seqs, "sequences", json)) {
    json.key("lengths").array();
    for (int64_t n = 0; n < p.num_seqs; ++n) json.value(p.length(n));
    json.end_array();
  }
  json.end_object();
}

void write_costs(const dr_costs& c, JsonWriter& json) {
  json.object();
  json.member("backend", static_cast<const char*>(c.backend)).member("variant", static_cast<const char*>(c.variant));
  json.member("rule", name_of(static_cast<Rule>(c.rule))).member("op", name_of_op(c.op));
  json.member("measured", c.measured != 0).member("measured_on", static_cast<const char*>(c.measured_on));
  json.member("chunk", c.chunk).member("emit_ns", c.emit_ns).member("summarize_ns", c.summarize_ns);
  json.member("local_ns", c.local_ns).member("summarize_local_ns", c.summarize_local_ns);
  json.member("carry_ns", c.carry_ns).member("carry_unit_ns", c.carry_unit_ns);
  json.member("split_ns", c.split_ns).member("item_ns", c.item_ns).member("emit_bytes", c.emit_bytes);
  json.member("summarize_bytes", c.summarize_bytes).member("prepare_ns", c.prepare_ns);
  json.end_object();
}

void write_device(const Options& options, JsonWriter& json) {
  const dr_device& d = options.device;
  json.key("device").object();
  json.member("name", static_cast<const char*>(d.name)).member("model", static_cast<const char*>(d.model));
  json.member("kind", d.kind == DR_DEVICE_CPU ? "cpu" : "cuda");
  json.member("units", d.units).member("compute_capability", d.compute_capability);
  json.member("l1_bytes", d.l1_bytes).member("l2_bytes", d.l2_bytes).member("bytes_per_ns", d.bytes_per_ns);
  json.member("flops_per_ns", d.flops_per_ns).member("here", options.device_is_here);
  json.end_object();
  json.key("costs").array();
  for (int32_t row = 0; row < num_cost_rows(); ++row) {
    if (cost_row_at(row).backend->device_kind != d.kind) continue;
    for (const Rule rule : {Rule::kKda, Rule::kGdn}) write_costs(options.costs.at(row, rule), json);
  }
  json.end_array();
}

void write_options(const Options& o, JsonWriter& json) {
  const char* const segments[] = {"auto", "off", "count", "length"};
  json.key("options").object();
  json.member("segments", segments[o.segments]).member("segment_value", o.segment_value).member("backend", o.backend);
  json.member("isa", o.isa)
      .member("variant", o.variant)
      .member("math", math_text(o))
      .member("policy", o.policy)
      .member("threads", o.threads)
      .member("invariant", o.invariant);
  json.member("carry", carry_text(o));
  json.key("columns").array();
  for (const int32_t column : o.columns) json.value(int64_t{column});
  json.end_array().end_object();
}

void write_rows(const char* name, const std::vector<Row>& rows, JsonWriter& json) {
  json.key(name).array();
  for (const Row& row : rows) {
    json.object().member("sequence", row.sequence).member("begin", row.begin).member("chunks", row.chunks);
    json.member("work", row.work == Work::kEmit ? "emit" : "summarize").member("slot_in", row.slot_in);
    json.member("slot_out", row.slot_out).member("slot_folded", row.slot_folded).end_object();
  }
  json.end_array();
}

void write_table(const Plan& plan, JsonWriter& json) {
  json.member("num_slots", plan.table.num_slots);
  const size_t rows = plan.table.rows1.size() + plan.table.folds.size() + plan.table.rows3.size();
  const int64_t listed = std::max(plan.problem.num_seqs, static_cast<int64_t>(rows));
  if (!is_listed("table_omitted", listed, "rows, folds or sequences", json)) return;
  json.key("segments").array();
  const SegmentLists segments(plan.table, plan.problem.num_seqs);
  for (size_t n = 0; n < segments.size(); ++n) {
    json.array();
    for (const plan::Range& range : segments[n])
      json.object().member("begin", range.begin).member("chunks", range.chunks).end_object();
    json.end_array();
  }
  json.end_array();
  write_rows("rows1", plan.table.rows1, json);
  json.key("folds").array();
  for (const Fold& fold : plan.table.folds) {
    json.object().member("sequence", fold.sequence).member("slot", fold.slot).member("count", fold.count);
    json.member("from_initial", fold.from_initial).end_object();
  }
  json.end_array();
  write_rows("rows3", plan.table.rows3, json);
}

// Phases begin when everything is prepared.
void write_items(const char* name, const SegmentTable& table, const plan::Costs& costs, int32_t tiles,
                 const RelayLine& relay, plan::ns prepare, JsonWriter& json) {
  json.key(name).array();
  for (const ScheduledItem& item : schedule_table(table, costs, tiles, relay)) {
    json.object().member("phase", item.phase).member("unit", item.unit).member("start_ns", prepare + item.start);
    json.member("end_ns", prepare + item.end).member("sequence", item.sequence).member("segment", item.segment);
    json.member("head", item.head).member("tile", item.tile).member("work", item.work).end_object();
  }
  json.end_array();
}

void write_schedule(const Plan& plan, JsonWriter& json) {
  if (!is_chained(plan.problem.op)) {
    json.member("schedule_omitted", "chunks do not depend on each other");
    return;
  }
  if (!plan.problem.lengths_known) {
    json.member("schedule_omitted", "lengths come at execution");
    return;
  }
  const Modes modes = modes_of(plan.problem, plan.options, *plan.backend, plan.variant);
  const plan::Decision decided = decide_whole(plan, modes);
  const int32_t mode = decided.mode;
  const SegmentTable whole = whole_table(plan, modes.costs[mode]);
  // What a plan is shown beside: whole sequences at their best, or where it hands rows on just that, in rounds.
  const RelayLine other = plan.relay.shares > 0 ? RelayLine{} : decided.relay;
  const int64_t items =
      scheduled_items(plan.table, plan.costs, plan.relay) + scheduled_items(whole, modes.costs[mode], other);
  if (!is_listed("schedule_omitted", items, "work items", json)) return;
  json.key("schedule").object().member("units", plan.costs.units).member("prepare_ns", plan.prepare_ns);
  json.member("split_ns", plan.prepare_ns + time_table(plan.table, plan.costs, plan.relay).total());
  json.member("unsplit_ns", plan.prepare_ns + time_table(whole, modes.costs[mode], other).total());
  json.member("value_tiles", plan.tiling.value_tiles).member("unsplit_value_tiles", modes.tiles[mode]);
  write_items("split", plan.table, plan.costs, plan.tiling.value_tiles, plan.relay, plan.prepare_ns, json);
  write_items("unsplit", whole, modes.costs[mode], modes.tiles[mode], other, plan.prepare_ns, json);
  json.end_object();
}

void write_cta(const Plan& plan, JsonWriter& json) {
  const CtaTiling& cta = plan.variant.cta;
  if (cta.value_columns == 0) return;
  json.key("cta").object().member("value_columns", cta.value_columns).member("threads", cta.threads);
  json.member("stages", cta.stages).member("shared_bytes", cta.shared_bytes).member("registers", cta.registers);
  json.member("by_registers", cta.by_registers).member("by_shared_memory", cta.by_shared_memory);
  json.member("together", cta.together()).end_object();
}

void write_step(const Step& step, JsonWriter& json) {
  json.object().member("stage", name_of(step)).member("items", step.items).member("predicted_ns", step.predicted_ns);
  json.member("variant", step.variant).member("phase", step.phase);
  json.member("form", step.has_form ? name_of(step.form) : "").member("suffix", step.suffix);
  json.member("backwards", step.backwards).member("ordered", step.ordered);
  json.member("rows", step.rows).member("ctas", step.ctas).member("ctas_stored", step.ctas_stored);
  json.key("buffers").array();
  for (int32_t id = 0; id < kNumBuffers; ++id) {
    if (step.buffers.holds(static_cast<BufferId>(id))) json.value(std::string_view(name_of(static_cast<BufferId>(id))));
  }
  json.end_array().member("condition", text_of(step.when)).end_object();
}

}  // namespace

std::string describe_json(const Plan& plan) {
  JsonWriter json;
  json.object();
  write_problem(plan.problem, json);
  write_options(plan.options, json);
  write_device(plan.options, json);
  json.member("backend", plan.backend->name).member("isa", plan.variant.isa).member("variant", plan.variant.name);
  json.member("chunk", plan.chunk())
      .member("threads", plan.tiling.threads)
      .member("value_tiles", plan.tiling.value_tiles);
  write_cta(plan, json);
  json.member("tries_suffixes", tries_suffixes(plan)).member("twins", walks_twins(plan));
  json.member("relay_shares", plan.relay.places());
  json.member("grain", plan.grain).member("predicted_ns", plan.predicted_ns).member("unsplit_ns", plan.unsplit_ns);
  json.member("signature", describe_signature(plan));
  write_table(plan, json);
  json.key("steps").array();
  for (const Step& step : plan.steps) write_step(step, json);
  json.end_array();
  json.key("candidates").array();
  for (const Candidate& c : candidates_of(plan)) {
    json.object()
        .member("what", c.what)
        .member("predicted_ns", c.predicted_ns)
        .member("verdict", c.verdict)
        .end_object();
  }
  json.end_array();
  json.key("declined").array();
  for (const Declined& d : declined_of(plan)) {
    json.object().member("backend", d.backend).member("reason", d.reason).end_object();
  }
  json.end_array();
  json.member("workspace_bytes", static_cast<int64_t>(plan.ledger.total_bytes()));
  json.key("ledger").array();
  for (const Buffer& b : plan.ledger.buffers()) {
    json.object().member("name", name_of(b.id)).member("offset", static_cast<int64_t>(b.offset));
    json.member("bytes", static_cast<int64_t>(b.bytes)).end_object();
  }
  json.end_array();
  write_schedule(plan, json);
  json.end_object();
  return json.take();
}

}  // namespace deltarelay
