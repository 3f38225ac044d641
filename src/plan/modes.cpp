#include "plan/modes.h"

#include <algorithm>
#include <limits>

#include "plan/search/lengths.h"

namespace deltarelay {
namespace {

constexpr int64_t kStatedWidth = 128;  // DK and DV at which a device states its costs
// The token recurrence in double against the chunk form in fp32 on the same core: 76,000 and 527,000 token-heads/s at
// 128.
constexpr int64_t kReferenceSlowdown = 7;
// Products of fp32 data on the portable kernels are three of TF32, each at half the rate of a 16-bit one; not all of a
// chunk's time is products. On an H200 at 128: 4.2 and 4.4 times the time of bf16 (KDA, GDN), 3.3 and 3.1 with one
// product.
constexpr int64_t kPortableFp32Slowdown = 4, kPortableTf32Slowdown = 3;

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

}  // namespace

int32_t most_tiles(const Problem& problem, const Backend& backend, int32_t isa) {
  if (backend.value_tiles != nullptr) return backend.value_tiles(problem);
  const int32_t panel = std::max(1, backend.panel_columns(problem, isa));
  return std::max(1, static_cast<int32_t>(plan::ceil_div(problem.dv, panel)));
}

const dr_costs& stated_costs(const Problem& problem, const Options& options, const Backend& backend,
                             int64_t record_bytes) {
  CostFamily family = CostFamily::kSm90Prepared;
  if (options.device.kind == DR_DEVICE_CPU) family = CostFamily::kCpu;
  if (&backend == &kCudaSm80Backend) family = CostFamily::kSm80;
  if (&backend == &kCudaSm90Backend && record_bytes == 0) family = CostFamily::kSm90Fused;
  return options.costs.at(family, problem.rule);
}

// What a CTA of a pair takes to start, in tenths of what one that walks alone does (cuda-sm90). It has half of the
// state, and in the fused walks as much else. Of these measured on an H200, 2026-11-16: pairs that come in waves 5.5 us
// (GDN) and 6.3 (KDA) each.
int32_t tenths_of_start(Rule rule, bool fused) { return !fused ? 5 : rule == Rule::kKda ? 6 : 8; }

// A chunk of a head that has a twin (walks_twins), in hundredths of one without: H200, 2026-11-17.
constexpr int64_t kTwinHundredths = 97;

plan::Costs costs_of(const Problem& problem, const Options& options, const Backend& backend, int32_t isa,
                     int32_t tiles_a_head) {
  const dr_device& device = options.device;
  const int64_t record_bytes = backend.sizes(problem, isa, {options.threads, tiles_a_head}).record_bytes;
  const dr_costs& stated = stated_costs(problem, options, backend, record_bytes);
  // A strip costs what a head of its width costs. Only prepare works by the head.
  const int64_t strips = strips_of(problem, backend), tiles = tiles_a_head / strips;
  const int64_t dk = problem.dk, dv = problem.dv / strips, w = kStatedWidth;
  const int64_t chunk = backend.chunk(problem, isa), stated_chunk = std::max(1, stated.chunk);
  const bool is_reference = &backend == &kReferenceBackend;
  const bool portable_fp32 = &backend == &kCudaSm80Backend && problem.dtype == DType::kFp32;
  const bool tf32 = portable_fp32 && isa > 0;  // the second of its two ways

  // Of each cost the local part goes with DK, the rest with the state it touches: DK x DV, or DK x (DV + DK) for a
  // summary.
  const int64_t local = is_reference ? 0 : stated.local_ns;
  const int64_t summarize_local = is_reference ? 0 : stated.summarize_local_ns;
  const int64_t items_a_unit = cta_tiling_of(problem, device, backend).together();  // each takes its share of the unit
  const int64_t prepare_slowdown = (portable_fp32 ? kPortableFp32Slowdown : 1) * items_a_unit;
  const int64_t slowdown = is_reference ? kReferenceSlowdown
                           : tf32       ? kPortableTf32Slowdown * items_a_unit
                                        : prepare_slowdown;
  auto local_ns = [&](int64_t stated_ns) { return scaled(stated_ns * slowdown, dk * chunk, w * stated_chunk); };
  const int64_t emit_ns = scaled((stated.emit_ns - local) * slowdown, dk * dv * chunk, w * w * stated_chunk);
  const int64_t summarize_ns =
      scaled((stated.summarize_ns - summarize_local) * slowdown, dk * (dv + dk) * chunk, w * 2 * w * stated_chunk);

  // Columns are dealt out in panels, so the largest tile sets the time.
  const int64_t panel = std::max(1, backend.panel_columns(problem, isa));
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
  if (&backend == &kCudaSm90Backend) {
    const int64_t pair_start = scaled(stated.item_ns, tenths_of_start(problem.rule, record_bytes == 0), 10);
    // A pair walks a summary whatever the tiling, and the first segments beside it: with one tile both of its CTAs
    // start, and of a first segment each repeats the local part.
    if (tiles == 1) {
      c.first_extra = clamp_cost(local_ns(local), 0);
      c.piece_extra = clamp_cost(2 * pair_start - c.item, 0);
      // Twins and those who hand rows on have a whole strip each.
      const CallBounds whole = uncut_bounds(problem, static_cast<int32_t>(chunk));
      if (record_bytes == 0 && backend.walks_twins(problem, whole))
        c.emit = clamp_cost(scaled(c.emit, kTwinHundredths, 100), 1);
      c.relay = backend.relay_units(problem, isa, static_cast<int32_t>(tiles), whole, device.units);
    } else {
      c.item = clamp_cost(pair_start, 0);
    }
  }
  // Where gates forget, a summary is a few chunks long, and a first segment would be all of phase 1.
  if (backend.short_summaries != nullptr && backend.short_summaries(problem)) c.short_first = kShortFirst;
  c.emit_bytes = clamp_cost(scaled(stated.emit_bytes, bytes.emit * chunk, nominal.emit * stated_chunk * tiles), 0);
  c.summarize_bytes =
      clamp_cost(scaled(stated.summarize_bytes, bytes.summarize * chunk, nominal.summarize * stated_chunk * tiles), 0);
  c.transition_bytes = clamp_cost(4 * dk * (dk + dv) / tiles, 0);
  c.state_bytes = clamp_cost(4 * dk * dv / tiles, 0);
  c.bytes_per_ns = device.bytes_per_ns;
  c.heads = problem.heads_v;
  if (record_bytes > 0) {  // the backend prepares in a step of its own: tokens are read, records written
    c.prepare = clamp_cost(
        scaled(stated.prepare_ns * prepare_slowdown * prepare_share(problem), dk * chunk, w * stated_chunk * kShares),
        0);
    c.prepare_bytes = clamp_cost(record_bytes + chunk * bytes.prepare, 0);
  }
  return c;
}

// Every sequence may end within a chunk, and no chunk is empty: without a token there is none.
int64_t late_chunks(const CallCounts& counts, int32_t chunk) {
  return std::min(counts.num_tokens, plan::ChunkCount(chunk)(counts.num_tokens) + counts.num_seqs);
}

CallBounds uncut_bounds(const Problem& p, int32_t chunk) {
  if (!p.lengths_known) return {.rows1 = p.num_seqs, .chunks = late_chunks({p.num_tokens, p.num_seqs}, chunk)};
  const plan::ChunkCount chunks_in(chunk);
  if (p.batched()) return {.rows1 = p.num_seqs, .chunks = p.num_seqs * chunks_in(p.seq_len)};
  CallBounds bounds;
  for (size_t n = 1; n < p.offsets.size(); ++n) {
    const int64_t length = p.offsets[n] - p.offsets[n - 1];
    bounds.rows1 += length > 0 ? 1 : 0;
    bounds.chunks += chunks_in(length);
  }
  return bounds;
}

Modes modes_of(const Problem& problem, const Options& options, const Backend& backend, int32_t isa) {
  Modes modes;
  const int32_t most = most_tiles(problem, backend, isa);
  if (backend.value_tiles != nullptr) {
    modes.tiles[0] = most;
    modes.costs[0] = costs_of(problem, options, backend, isa, most);
    modes.count = 1;
    return modes;
  }
  for (int32_t tiles = strips_of(problem, backend); modes.count < kMaxModes && tiles <= most; tiles *= 2) {
    modes.tiles[modes.count] = tiles;
    modes.costs[modes.count++] = costs_of(problem, options, backend, isa, tiles);
    // Past this point more tiles only balance what is uneven; one more step is allowed for that.
    if (int64_t{problem.heads_v} * tiles >= 2 * int64_t{modes.costs[0].units}) break;
  }
  return modes;
}

}  // namespace deltarelay
