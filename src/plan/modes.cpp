#include "plan/modes.h"

#include <algorithm>
#include <limits>

#include "plan/backends.h"
#include "plan/search/forms.h"
#include "plan/search/lengths.h"

namespace deltarelay {
namespace {

constexpr int64_t kStatedWidth = 128;  // DK and DV at which a device states its costs

// Costs::short_first. An eighth was measured before it and is 2 to 4 % slower where gates forget (docs/planner.md).
constexpr int32_t kShortFirst = 256 / 16;

int32_t clamp_cost(int64_t value, int32_t least) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, least, std::numeric_limits<int32_t>::max()));
}

// value * up / down, rounded to nearest.
int64_t scaled(int64_t value, int64_t up, int64_t down) { return (value * up + down / 2) / down; }

// Bytes of one token and strip. A group shares q and k; the strips of a head share everything but v and o. Summaries
// read neither q nor o, and preparing reads all but v.
struct TokenBytes {
  int64_t emit, summarize, prepare;
};

TokenBytes token_bytes(Rule rule, int64_t dk, int64_t dv, int64_t group, int64_t data, int64_t output, int64_t gate,
                       int64_t beta, int64_t strips = 1) {
  const int64_t gates = (rule == Rule::kKda ? dk : 1) * gate + beta, keys = dk * data / group;
  const int64_t summarize = (keys + gates) / strips + dv / strips * data;
  return {summarize + keys / strips + dv / strips * output, summarize, 2 * dk * data / group + gates};
}

TokenBytes bytes_of(const Problem& p, int64_t strips) {
  auto bytes = [](DType type) { return static_cast<int64_t>(size_of(type)); };
  return token_bytes(p.rule, p.dk, p.dv, p.group(), bytes(p.dtype), bytes(p.dtype_o), bytes(p.dtype_gate),
                     bytes(p.dtype_beta), strips);
}

// The same of a state pass on a GPU: what it reads and writes lies in memory as it is, in value heads but for k.
TokenBytes pass_bytes(const Problem& p, int64_t strips) {
  const Chunks& c = p.chunks;
  const int64_t dv = p.dv / strips, data = static_cast<int64_t>(size_of(c.dtype));
  const int64_t keys = c.gives(DR_K_TO_END) ? p.dk : p.dk / p.group();
  const int64_t read = (p.dk + keys + dv) * data;
  const int64_t states = c.wants(DR_STATES) ? p.dk * dv * static_cast<int64_t>(size_of(c.dtype_states)) / c.chunk : 0;
  return {read + (c.wants(DR_V_NEW) ? dv * data : 0) + states, read, 0};
}

// What a device's byte figures stand for: 16-bit data; KDA with a 16-bit gate and one value head a key head, GDN with
// an fp32 gate and four (the cases of the speed targets).
TokenBytes stated_bytes(Rule rule) {
  return rule == Rule::kKda ? token_bytes(rule, kStatedWidth, kStatedWidth, 1, 2, 2, 2, 2)
                            : token_bytes(rule, kStatedWidth, kStatedWidth, 4, 2, 2, 4, 4);
}

// Of what preparing a chunk of GDN costs a value head where four share a key head, three parts in fourteen are for the
// key head: on an H200 1.18 us, and 1.94 where none is shared. In KDA all of it is for the value head.
constexpr int64_t kShares = 14;
int64_t prepare_share(const Problem& p) {
  return p.rule == Rule::kGdn ? 11 + 12 / std::max<int64_t>(1, p.group()) : kShares;
}

// Time of a chunk in an operation that does a part of what the forward does. The parts of `c` were measured within the
// forward, not alone.
int32_t stage_cost(Op op, int32_t local, const plan::Costs& c) {
  switch (op) {
    case Op::kChunkLocal:
      return local > 0 ? local : c.emit;
    case Op::kSummary:
      return c.summarize;
    case Op::kCarry:  // a "chunk" is one summary
      return std::max(1, c.carry);
    default:
      return c.emit;
  }
}

// What a form of the walk changes. `local`: the local part of a chunk.
void add_forms(const Problem& problem, const Variant& variant, int64_t tiles, int32_t units, int32_t local,
               plan::Costs& c) {
  const Forms& forms = variant.forms;
  const int64_t pair_start = scaled(c.item, forms.pair_start_tenths, 10);
  if (tiles > 1) {
    c.item = clamp_cost(pair_start, 0);
    return;
  }
  // A pair walks a summary whatever the tiling, and the first segments beside it: with one tile both of its CTAs start,
  // and of a first segment each repeats the local part.
  c.first_extra = local;
  c.piece_extra = clamp_cost(2 * pair_start - c.item, 0);
  // Twins and those who hand rows on have a whole strip each.
  const CallBounds whole = uncut_bounds(problem, variant.chunk);
  if (plan::emit_form(variant, 1, whole) == Form::kTwins)
    c.emit = clamp_cost(scaled(c.emit, forms.twins_hundredths, 100), 1);
  c.relay = plan::relay_units(variant, 1, whole, units);
}

}  // namespace

int32_t most_tiles(const Problem& problem, const Variant& variant) {
  if (variant.value_tiles > 0) return variant.value_tiles;
  const int32_t panel = std::max(1, variant.panel_columns);
  return std::max(1, static_cast<int32_t>(plan::ceil_div(problem.dv, panel)));
}

const dr_costs& stated_costs(const Problem& problem, const Options& options, const Backend& backend,
                             const Variant& variant) {
  return options.costs.at(cost_row_of(backend, variant), problem.rule);
}

plan::Costs costs_of(const Problem& problem, const Options& options, const Backend& backend, const Variant& variant,
                     int32_t tiles_a_head) {
  const dr_device& device = options.device;
  const dr_costs& stated = stated_costs(problem, options, backend, variant);
  // A strip costs what a head of its width costs. Only prepare works by the head.
  const int64_t strips = variant.strips, tiles = tiles_a_head / strips;
  const int64_t dk = problem.dk, dv = problem.dv / strips, w = kStatedWidth;
  const int64_t chunk = variant.chunk, stated_chunk = std::max(1, stated.chunk);

  // Of each cost the local part goes with DK, the rest with the state it touches: DK x DV, or DK x (DV + DK) for a
  // summary.
  const int64_t local = variant.costs.has_local ? stated.local_ns : 0;
  const int64_t summarize_local = variant.costs.has_local ? stated.summarize_local_ns : 0;
  const int64_t items_a_unit = variant.cta.together();  // each takes its share of the unit
  const int64_t slowdown = variant.costs.walk * items_a_unit;
  auto local_ns = [&](int64_t stated_ns) { return scaled(stated_ns * slowdown, dk * chunk, w * stated_chunk); };
  const int64_t emit_ns = scaled((stated.emit_ns - local) * slowdown, dk * dv * chunk, w * w * stated_chunk);
  const int64_t summarize_ns =
      scaled((stated.summarize_ns - summarize_local) * slowdown, dk * (dv + dk) * chunk, w * 2 * w * stated_chunk);

  // Columns are dealt out in panels, so the largest tile sets the time.
  const int64_t panel = std::max(1, variant.panel_columns);
  const int64_t panels = plan::ceil_div(dv, panel), all_panels = panels + plan::ceil_div(dk, panel);

  // A fold multiplies DK x DK by DK x DV; its columns are independent and spread over all units, whatever the tiling of
  // rows.
  const int64_t units = device.kind == DR_DEVICE_CPU ? std::clamp(options.threads, 1, std::max(1, device.units))
                                                     : device.units * items_a_unit;
  const int64_t fold_tiles = std::min(panels, units);
  auto fold_ns = [&](int64_t stated_ns) { return scaled(stated_ns, dk * dk * dv, w * w * w); };

  const TokenBytes bytes = bytes_of(problem, strips), nominal = stated_bytes(problem.rule);

  plan::Costs c;
  c.units = static_cast<int32_t>(units);
  c.copies = clamp_cost(int64_t{problem.heads_v} * tiles_a_head, 1);
  c.emit = clamp_cost(local_ns(local) + scaled(emit_ns, plan::ceil_div(panels, tiles), panels), 1);
  c.summarize =
      clamp_cost(local_ns(summarize_local) + scaled(summarize_ns, plan::ceil_div(all_panels, tiles), all_panels), 1);
  c.carry = clamp_cost(scaled(fold_ns(stated.carry_ns), plan::ceil_div(panels, fold_tiles), panels), 0);
  c.carry_unit = clamp_cost(scaled(fold_ns(stated.carry_unit_ns * items_a_unit), 1, tiles), 0);
  c.barrier = stated.split_ns;
  c.item = stated.item_ns;
  if (variant.forms.pairs) add_forms(problem, variant, tiles, device.units, clamp_cost(local_ns(local), 0), c);
  // Where gates forget, a summary is a few chunks long, and a first segment would be all of phase 1.
  if (variant.short_summaries) c.short_first = kShortFirst;
  c.emit_bytes = clamp_cost(scaled(stated.emit_bytes, bytes.emit * chunk, nominal.emit * stated_chunk * tiles), 0);
  c.summarize_bytes =
      clamp_cost(scaled(stated.summarize_bytes, bytes.summarize * chunk, nominal.summarize * stated_chunk * tiles), 0);
  c.transition_bytes = clamp_cost(4 * dk * (dk + dv) / tiles, 0);
  c.state_bytes = clamp_cost(4 * dk * dv / tiles, 0);
  c.bytes_per_ns = device.bytes_per_ns;
  c.heads = problem.heads_v;
  if (variant.record_bytes > 0) {  // the variant prepares in a step of its own: tokens are read, records written
    c.prepare = clamp_cost(scaled(items_a_unit * stated.prepare_ns * variant.costs.prepare * prepare_share(problem),
                                  dk * chunk, w * stated_chunk * kShares),
                           0);
    c.prepare_bytes = clamp_cost(variant.record_bytes + chunk * bytes.prepare, 0);
  }
  if (problem.op == Op::kStatePass && device.kind == DR_DEVICE_CUDA) {
    const TokenBytes own = pass_bytes(problem, strips);
    c.emit_bytes = clamp_cost(own.emit * chunk / tiles, 0);
    c.summarize_bytes = clamp_cost(own.summarize * chunk / tiles, 0);
  }
  if (is_stage(problem.op)) c.emit = stage_cost(problem.op, clamp_cost(local_ns(stated.local_ns), 0), c);
  return c;
}

// Every sequence may end within a chunk, and no chunk is empty: without a token there is none.
int64_t late_chunks(const CallCounts& counts, int32_t chunk) {
  return std::min(counts.num_tokens, plan::ChunkCount(chunk)(counts.num_tokens) + counts.num_seqs);
}

CallBounds uncut_bounds(const Problem& p, int32_t chunk) {
  if (!p.lengths_known)
    return {.rows1 = p.num_seqs, .chunks = late_chunks({p.num_tokens, p.num_seqs}, chunk), .sequences = p.num_seqs};
  const plan::ChunkCount chunks_in(chunk);
  if (p.batched()) return {.rows1 = p.num_seqs, .chunks = p.num_seqs * chunks_in(p.seq_len), .sequences = p.num_seqs};
  CallBounds bounds{.sequences = p.num_seqs};
  for (size_t n = 1; n < p.offsets.size(); ++n) {
    const int64_t length = p.offsets[n] - p.offsets[n - 1];
    bounds.rows1 += length > 0 ? 1 : 0;
    bounds.chunks += chunks_in(length);
  }
  return bounds;
}

Modes modes_of(const Problem& problem, const Options& options, const Backend& backend, const Variant& variant) {
  Modes modes;
  const int32_t most = most_tiles(problem, variant);
  if (variant.value_tiles > 0) {
    modes.tiles[0] = most;
    modes.costs[0] = costs_of(problem, options, backend, variant, most);
    modes.count = 1;
    return modes;
  }
  for (int32_t tiles = variant.strips; modes.count < kMaxModes && tiles <= most; tiles *= 2) {
    modes.tiles[modes.count] = tiles;
    modes.costs[modes.count++] = costs_of(problem, options, backend, variant, tiles);
    // Past this point more tiles only balance what is uneven; one more step is allowed for that.
    if (int64_t{problem.heads_v} * tiles >= 2 * int64_t{modes.costs[0].units}) break;
  }
  return modes;
}

}  // namespace deltarelay
