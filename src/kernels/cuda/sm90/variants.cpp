// What cuda-sm90 offers for a problem: its two variants, as values.
#include <cstdint>
#include <cstring>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm90/accepts.h"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/single_ctas.h"

namespace deltarelay::cuda::sm90 {
namespace {

// Chunks of a row, on average, from which twins walk it. Going on from one row to the next takes them longer. H200: 8
// chunks a row are as long with and without, 16 take 4 % less, and a chunk 97 hundredths of the time, 2026-11-17.
constexpr int32_t kTwinsFrom = 16, kTwinsHundredths = 97;

// What a CTA of a pair takes to start, in tenths of what one that walks alone does. It has half of the state, and in
// the fused walks as much else. Of these measured on an H200, 2026-11-16: pairs that come in waves 5.5 us (GDN) and 6.3
// (KDA) each.
int32_t pair_start_tenths(Rule rule, int32_t way) { return way == kPrepared ? 5 : rule == Rule::kKda ? 6 : 8; }

// Segments of KDA with unbounded gates that pairs emit rather than single CTAs, though the model has them up to 5 %
// slower. It knows neither that summaries end where memory ends, after so many tokens however short the segment, nor
// what gates without a bound cost single CTAs. H200, dada381, whole calls with gates of N(0,1) and N(0,2), ms: segments
// of 61 chunks 0.312 and 0.414 (32k tokens, 8 heads; of pairs, half as many, 0.293 and 0.401), 0.321 and 0.427 (64k, 4
// heads; 0.308 and 0.424); of 121 chunks 0.570 and 0.677 (128k, 4 heads; 0.576 and 0.798). With bounded gates those of
// 61 chunks take 0.22, and pairs 0.28.
constexpr int32_t kPairsUpTo = 64;

Forms forms_of(const Problem& p, int32_t way) {
  Forms forms{.pairs = true, .pair_start_tenths = pair_start_tenths(p.rule, way)};
  if (way != kFused) return forms;
  if (p.rule == Rule::kKda && p.least_gate() < kMidFrameGate) forms.pairs_up_to = kPairsUpTo;
  const int32_t strips_a_key = p.group() * strips(p);  // of all value heads that share one key head
  // Two strips of one key share what does not depend on their values.
  if (p.rule == Rule::kGdn && strips_a_key % 2 == 0) {
    forms.twins_from = kTwinsFrom;
    forms.twins_hundredths = kTwinsHundredths;
  }
  if (p.lengths_known) {
    forms.relay_strips = strips_a_key;
    forms.relay_parts = p.rule == Rule::kGdn ? kMostItemsGdn : kMostItems;
  }
  return forms;
}

// Where rows are long enough for a suffix (suffix.cuh). Some summaries of KDA will be short, not all, and phase 1 ends
// earlier by that only when they take turns on the multiprocessors. The walk through records that stores checkpoints is
// compiled without. The fused walks walk summaries backwards and need no suffix (fused/adjoint.cuh).
SuffixRule suffix_of(const Problem& p, int32_t way) {
  if (way == kFused) return {};
  const bool gdn = p.rule == Rule::kGdn;
  return {.tries = true, .least_chunks = gdn ? 8 : 32, .crowded = !gdn, .beside_checkpoints = false};
}

// Log gates that may decay by anything. Layers whose gates are computed ahead have these, so their gates are mostly
// those of softplus gates; but nobody promises it.
bool has_open_log_gates(const Problem& p) {
  return p.rule == Rule::kKda && p.gate_form == GateForm::kLog && p.least_gate() < kMidFrameGate;
}

Variant variant_of(const Problem& p, int32_t way) {
  Variant v;
  v.name = kWayNames[way];
  v.number = way;
  v.chunk = p.rule == Rule::kGdn && way == kPrepared ? GdnRecord::kChunk : KdaRecord::kChunk;
  v.panel_columns = kHalfWidth;  // a work item holds 64 value columns, or two such panels
  v.strips = strips(p);
  v.state_floats = v.transition_floats = int64_t{v.strips} * kWidth * kWidth;
  if (way == kPrepared) v.record_bytes = p.rule == Rule::kGdn ? GdnRecord::kBytes : KdaRecord::kBytes;
  // Of the 128 gates of a KDA head there is mostly one that forgets nothing. Where all forget, the fused walk of a
  // first segment is slow too: of log gates that may do so it is kept short.
  v.short_summaries = p.rule == Rule::kGdn || (way == kFused && has_open_log_gates(p));
  v.forms = forms_of(p, way);
  v.suffix = suffix_of(p, way);
  v.backwards = way == kFused;
  return v;
}

// The state pass walks pairs of CTAs or single ones, as the forward does; its summaries have no local part. The other
// stages take their chunks, or whole sequences, all at once.
Variant stage_variant(const Problem& p) {
  Variant v;
  v.name = kStagesName;
  v.number = kStages;
  v.chunk = p.chunks.chunk;
  v.panel_columns = kHalfWidth;
  v.strips = strips(p);
  v.value_tiles = 0;
  if (p.op != Op::kStatePass) {
    v.value_tiles = v.strips;
    return v;
  }
  v.state_floats = v.transition_floats = int64_t{v.strips} * kWidth * kWidth;
  v.short_summaries = p.rule == Rule::kGdn;
  v.forms = {.pairs = true, .pair_start_tenths = 9};
  v.suffix = {.tries = true, .least_chunks = 8};
  return v;
}

// The fused walk of KDA makes scores of channels that decay by more than 2^230 within a chunk by windows. Where all do,
// it takes 1.1 to 1.5 times as long as the walk through records, with gates in fp32 up to 1.6; with linear gates and
// bounds below -5, whose tokens cost more, up to 1.54 in bf16 (H200, whole calls, 2026-11-19). Gates of layers seldom
// do so. Log gates are common, so they are fused; the other two are by name only.
bool by_name_only(const Problem& p, int32_t way) {
  return way == kFused && p.rule == Rule::kKda && p.gate_form != GateForm::kRawSoftplus &&
         p.least_gate() < kMidFrameGate && !has_open_log_gates(p);
}

}  // namespace

// At least one, so that costs of shapes that are declined can be asked for too.
int32_t strips(const Problem& p) { return p.dv > kWidth ? p.dv / kWidth : 1; }

Variants variants(const Problem& p, const Request& request) {
  Variants list;
  if (is_stage(p.op)) {
    list.add(stage_variant(p));
    return list;
  }
  for (int32_t way = 0; way < kNumWays; ++way) {
    if (request.variant != nullptr && std::strcmp(request.variant, kWayNames[way]) != 0) continue;
    if (request.variant == nullptr && by_name_only(p, way)) continue;
    if (takes_way(p, way)) list.add(variant_of(p, way));
  }
  return list;
}

}  // namespace deltarelay::cuda::sm90
