// A plan in words, and the line that fixes its bits. All text is made here, none while a plan is made.
#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "plan/backends.h"
#include "plan/choice.h"
#include "plan/describe/describe.h"
#include "plan/describe/segments.h"
#include "plan/modes.h"
#include "plan/plan.h"
#include "plan/search/policies.h"
#include "plan/search/search.h"

namespace deltarelay {
namespace {

std::string microseconds(int64_t time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f us", static_cast<double>(time) / 1e3);
  return text;
}

std::string megabytes(size_t bytes) {
  char text[32];
  if (bytes < (size_t{1} << 20)) {
    std::snprintf(text, sizeof text, "%.1f KiB", static_cast<double>(bytes) / 1024);
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return text;
}

std::string counted(int64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

std::string grain_text(int64_t grain) {
  return grain < 0 ? std::string("infinite grain") : "grain of " + counted(grain, "chunk");
}

// The way of cutting that the options asked for, in a few words.
std::string rule_text(const Plan& plan) {
  const Options& options = plan.options;
  if (options.invariant) return "invariant, " + grain_text(plan.grain);
  if (options.policy != kOwnPolicy) return "as " + options.policy + " cuts";
  switch (options.segments) {
    case DR_SEGMENTS_OFF:
      return "off";
    case DR_SEGMENTS_COUNT:
      return std::to_string(options.segment_value);
    case DR_SEGMENTS_LENGTH:
      return "len:" + std::to_string(options.segment_value);
    default:
      return "auto";
  }
}

std::string weighed_text(const Weighed& w, const Modes& modes) {
  const std::string tiles = ", " + counted(modes.tiles[w.mode], "value tile");
  if (!w.cut) return "every sequence whole" + tiles;
  return counted(w.decision.cut_seqs, "sequence") + " cut into segments of at most " +
         counted(w.decision.segment, "chunk") + " (first " + std::to_string(w.decision.first) + ")" + tiles;
}

bool is_chosen(const Plan& plan, const Weighed& w, const Modes& modes) {
  if (plan.rule != CutRule::kSearch && plan.rule != CutRule::kWhole) return false;
  if (modes.tiles[w.mode] != plan.tiling.value_tiles) return false;
  return w.cut == (plan.decision.segment > 0);
}

std::string verdict_of(const Plan& plan, const Weighed& w, const Modes& modes, plan::ns bar) {
  if (is_chosen(plan, w, modes)) return "chosen";
  if (plan.rule == CutRule::kWhole && w.cut)
    return plan.options.invariant ? "would depend on the other sequences" : "not asked for";
  if (plan.rule != CutRule::kSearch && plan.rule != CutRule::kWhole) return "not asked for";
  if (w.predicted >= plan.predicted_ns) return "slower";
  if (!w.cut) return "gain below 2 %";
  if (w.predicted >= bar) return "gain below the margin of 8 % and 3 us";
  if (w.mode == 0 && w.decision.segment <= plan.limits.tiles_up_to) return "pairs are better for segments so short";
  if (plan.limits.risk_permille > 0) return "would lose if every estimated cost were 15 % off against it";
  return "gain below 3 %";
}

void append_sequences(const Plan& plan, std::string& text) {
  constexpr size_t kShown = 8;
  const SegmentLists segments(plan.table, plan.problem.num_seqs);
  size_t cut = 0, most = 0;
  for (size_t n = 0; n < segments.size(); ++n) {
    cut += segments[n].size() > 1;
    most = std::max(most, segments[n].size());
  }
  if (cut == 0) {
    text += "  no sequence is cut\n";
    return;
  }
  text += "  " + std::to_string(cut) + " of " + counted(plan.problem.num_seqs, "sequence") + " cut, at most " +
          counted(static_cast<int64_t>(most), "segment") + "\n";
  size_t shown = 0;
  for (size_t n = 0; n < segments.size(); ++n) {
    if (segments[n].size() < 2) continue;
    if (shown++ == kShown) {
      text += "  ... and " + std::to_string(cut - kShown) + " more\n";
      break;
    }
    text += "  sequence " + std::to_string(n) + ": " + counted(static_cast<int64_t>(segments[n].size()), "segment") +
            " of " + cut_text(segments[n]) + " chunks\n";
  }
}

void append_problem(const Plan& plan, std::string& text) {
  const Problem& p = plan.problem;
  const std::string op = p.op == Op::kForward ? "" : std::string(name_of(p.op)) + " ";
  text += std::string(name_of(p.rule)) + " " + op + name_of(p.dtype) + ", " + counted(p.num_seqs, "sequence") + ", " +
          counted(p.num_tokens, "token") + (p.lengths_known ? "" : " at most (lengths come at execution)") + ", " +
          counted(p.heads_v, "value head") + " on " + counted(p.heads_qk, "key head") + ", DK " + std::to_string(p.dk) +
          ", DV " + std::to_string(p.dv) + "\n";
}

void append_device(const Plan& plan, std::string& text) {
  const dr_device& device = plan.options.device;
  text += "device " + std::string(device.name) + ": " + counted(device.units, "unit") +
          (stated_costs(plan.problem, plan.options, *plan.backend, plan.variant).measured != 0 ? ", measured costs"
                                                                                               : ", estimated costs") +
          (plan.options.device_is_here ? "" : "; planned for an absent device: can be read, not executed") + "\n";
}

void append_cta(const Plan& plan, std::string& text) {
  const CtaTiling& cta = plan.variant.cta;
  if (cta.value_columns == 0) return;
  text += "  at most " + counted(cta.together(), "CTA") + " a unit, each with " +
          counted(cta.value_columns, "value column") + ", " + counted(cta.threads, "thread") + ", " +
          counted(cta.stages, "stage") + " and " + megabytes(static_cast<size_t>(cta.shared_bytes)) +
          " of shared memory\n";
}

void append_prediction(const Plan& plan, std::string& text) {
  if (!plan.problem.lengths_known) {
    text += "predicted: depends on the lengths that come at execution\n";
    return;
  }
  text += "predicted " + microseconds(plan.predicted_ns) + "; with nothing cut " + microseconds(plan.unsplit_ns);
  if (plan.predicted_ns > 0 && plan.predicted_ns != plan.unsplit_ns) {
    char ratio[48];
    std::snprintf(ratio, sizeof ratio, " (%.2fx)",
                  static_cast<double>(plan.unsplit_ns) / static_cast<double>(plan.predicted_ns));
    text += ratio;
  }
  text += "\n";
}

// "  emit: 512 items, 73.8 us; 132 CTAs (twins)". Buffers are in the JSON.
void append_step(const Plan& plan, const Step& step, std::string& text) {
  text += std::string("  ") + name_of(step) + ": " + counted(step.items, "item");
  if (!plan.problem.lengths_known) text += " at most";
  if (plan.problem.lengths_known && step.predicted_ns > 0) text += ", " + microseconds(step.predicted_ns);
  if (step.ctas > 0) text += "; " + counted(step.ctas, "CTA");
  if (step.has_form) {
    text += std::string(" (") + name_of(step.form) +
            (step.suffix      ? ", suffixes first)"
             : step.ordered   ? ", summaries backwards, heads that keep most first)"
             : step.backwards ? ", summaries backwards)"
                              : ")");
  }
  if (step.when != When::kAlways) text += std::string("; only if ") + text_of(step.when);
  text += "\n";
}

// Digest (FNV-1a) of the numbers by which the search cuts sequences whose lengths come at execution: equal digests,
// equal cuts. What only predicts times is left out.
class CutDigest {
 public:
  CutDigest(const plan::Costs& costs, const plan::Limits& limits) {
    // By name, so that a new number does not compile before it is here.
    const auto& [units, copies, emit, summarize, first_extra, short_first, carry, carry_unit, barrier, item,
                 piece_extra, emit_bytes, summarize_bytes, transition_bytes, state_bytes, bytes_per_ns, heads, prepare,
                 prepare_bytes, relay] = costs;
    (void)heads, (void)prepare, (void)prepare_bytes;  // a step of its own, the same for every cut
    add(units, copies, emit, summarize, first_extra, short_first, carry, carry_unit, barrier, item, piece_extra,
        emit_bytes, summarize_bytes, transition_bytes, state_bytes, bytes_per_ns);
    const auto& [side, parts] = relay;
    add(side, parts);
    const auto& [margin_permille, margin_ns, risk_permille, max_segments, max_rows, max_waves, min_segment, tiles_up_to,
                 give_up] = limits;
    (void)tiles_up_to;  // there is one tiling
    add(margin_permille, margin_ns, risk_permille, max_segments, max_rows, max_waves, min_segment, give_up);
  }
  std::string text() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_));
    return text;
  }

 private:
  template <class... Numbers>
  void add(Numbers... numbers) {
    for (const int64_t number : {static_cast<int64_t>(numbers)...}) {
      for (int32_t shift = 0; shift < 64; shift += 8) {
        hash_ ^= static_cast<uint64_t>(number) >> shift & 0xff;
        hash_ *= 0x100000001b3;
      }
    }
  }

  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace

SegmentLists::SegmentLists(const SegmentTable& table, int64_t num_seqs) : begin_(static_cast<size_t>(num_seqs) + 1) {
  auto each_emitted = [&](const auto& take) {
    for (const auto* rows : {&table.rows1, &table.rows3}) {
      for (const Row& row : *rows) {
        if (row.work == Work::kEmit) take(static_cast<size_t>(row.sequence), plan::Range{row.begin, row.chunks});
      }
    }
  };
  each_emitted([&](size_t sequence, const plan::Range&) { ++begin_[sequence + 1]; });
  for (size_t n = 1; n < begin_.size(); ++n) begin_[n] += begin_[n - 1];
  ranges_.resize(begin_.back());
  std::vector<size_t> end(begin_.begin(), begin_.end() - 1);
  each_emitted([&](size_t sequence, const plan::Range& range) { ranges_[end[sequence]++] = range; });
  for (size_t n = 0; n < size(); ++n) {
    std::sort(ranges_.data() + begin_[n], ranges_.data() + begin_[n + 1],
              [](const plan::Range& a, const plan::Range& b) { return a.begin < b.begin; });
  }
}

std::string cut_text(std::span<const plan::Range> segments) {
  std::string text;
  for (size_t i = 0; i < segments.size();) {
    size_t next = i + 1;
    while (next < segments.size() && segments[next].chunks == segments[i].chunks) ++next;
    if (i > 0) text += "+";
    if (next - i > 1) text += std::to_string(next - i) + "x";
    text += std::to_string(segments[i].chunks);
    i = next;
  }
  return text;
}

// " (avx2)", " (fused)", " (tf32)": how the backend does it, where there is a choice.
std::string way_text(const Plan& plan) {
  for (const char* name : {plan.variant.isa, plan.variant.name, plan.options.math == DR_MATH_TF32 ? "tf32" : ""}) {
    if (*name != '\0') return std::string(" (") + name + ")";
  }
  return {};
}

std::string carry_text(const Options& options) {
  if (options.carry == CarryMode::kExact) return "exact";
  char text[40];  // digits that read back as the same number
  std::snprintf(text, sizeof text, "truncated:%.9g", static_cast<double>(options.carry_log_decay));
  return text;
}

std::vector<Candidate> candidates_of(const Plan& plan) {
  const Modes modes = modes_of(plan.problem, plan.options, *plan.backend, plan.variant);
  std::vector<Candidate> candidates;
  if (!plan.problem.lengths_known || !is_chained(plan.problem.op)) return candidates;
  if (plan.rule != CutRule::kSearch && plan.rule != CutRule::kWhole) {
    candidates.push_back({"segments " + rule_text(plan) + ", " + counted(plan.tiling.value_tiles, "value tile"),
                          plan.predicted_ns, "chosen"});
  }
  plan::Decision whole;
  whole.predicted = plan.unsplit_ns - plan.prepare_ns;  // the margin is one of the phases
  const plan::ns bar = plan.prepare_ns + plan::bar_of(whole, plan.limits);
  for (const Weighed& w : weigh(plan, modes)) {
    // The search stops at the margin; the plan's own figure is the one it was chosen by.
    const plan::ns predicted = is_chosen(plan, w, modes) ? plan.predicted_ns : w.predicted;
    candidates.push_back({weighed_text(w, modes), predicted, verdict_of(plan, w, modes, bar)});
  }
  if (plan.other_variant >= 0) {
    const bool prepares = plan.variant.record_bytes > 0;
    candidates.push_back(
        {prepares ? "the best without prepare" : "the best with prepare", predict_other_variant(plan), "slower"});
  }
  return candidates;
}

std::vector<Declined> declined_of(const Problem& problem, const Options& options, const Backend* chosen) {
  std::vector<Declined> declined;
  const Request request = request_of(options);
  for (int32_t i = 0; i < backend_count(); ++i) {
    const Backend* backend = backend_at(i);
    if (backend == chosen) continue;
    const std::string reason = backend->decline(problem, request);
    if (!reason.empty()) {
      declined.push_back({backend->name, reason});
    } else if (!options.backend.empty()) {
      declined.push_back({backend->name, "accepts; " + options.backend + " was asked for"});
    } else if (chosen != nullptr) {
      declined.push_back({backend->name, std::string("accepts; ") + chosen->name + " comes first"});
    }
  }
  return declined;
}

std::string describe_text(const Plan& plan) {
  std::string text;
  append_problem(plan, text);
  append_device(plan, text);
  text += "backend " + std::string(plan.backend->name);
  text += way_text(plan);
  text += ": chunks of " + std::to_string(plan.chunk()) + " tokens, ";
  if (plan.options.device.kind == DR_DEVICE_CPU) text += counted(plan.tiling.threads, "thread") + ", ";
  text += counted(plan.tiling.value_tiles, "value tile") + " a head";
  text += walks_twins(plan) ? ", two heads of a key as twins\n" : "\n";
  if (*plan.variant.isa_reason != '\0')
    text += std::string("  not the best instruction set of this machine: ") + plan.variant.isa_reason + "\n";
  append_cta(plan, text);
  text += "segments " + rule_text(plan) + "\n";
  if (plan.problem.lengths_known) {
    append_sequences(plan, text);
  } else {
    const CallBounds bounds = bounds_of(plan);
    text += "  cut at execution: at most " + counted(bounds.rows1, "row") + " in phase 1, " +
            counted(bounds.rows3, "row") + " in phase 3, " + counted(bounds.slots, "slot") + "\n";
  }
  if (plan.relay.shares > 0) {
    text += "  rows are handed on from one unit to another, so that all have as much to do: " +
            counted(plan.relay.places(), "share") + " of some " + counted(plan.relay.length, "chunk") + "\n";
  }
  if (tries_suffixes(plan)) {
    text +=
        "  summaries try the last chunks of a segment first: they are enough where gates forget what came before "
        "(not in the prediction)\n";
  }
  if (plan.variant.backwards && bounds_of(plan).folds > 0) {
    text +=
        "  summaries walk a segment from its end, until nothing of what came before is left: a few chunks where gates "
        "forget (not in the prediction)\n";
  }
  if (plan.options.carry == CarryMode::kTruncated) {
    const bool drops = plan.options.device.kind == DR_DEVICE_CUDA;
    text += "carry " + carry_text(plan.options) +
            (drops ? ": a segment's history is dropped where its norm is known to be below that\n"
                   : ": this backend drops nothing, its carry is exact\n");
  }
  append_prediction(plan, text);
  text += "steps\n";
  for (const Step& step : plan.steps) append_step(plan, step, text);
  const std::vector<Candidate> candidates = candidates_of(plan);
  if (!candidates.empty()) text += "weighed\n";
  for (const Candidate& c : candidates)
    text += "  " + c.what + ": " + microseconds(c.predicted_ns) + ", " + c.verdict + "\n";
  text += "other backends\n";
  for (const Declined& d : declined_of(plan)) text += "  " + d.backend + ": " + d.reason + "\n";
  text += "workspace " + megabytes(plan.ledger.total_bytes()) + "\n";
  for (const Buffer& buffer : plan.ledger.buffers())
    text += "  " + std::string(name_of(buffer.id)) + ": " + megabytes(buffer.bytes) + "\n";
  text += "signature " + describe_signature(plan) + "\n";
  return text;
}

// Threads and tiling do not change bits and are left out; neither does where a whole sequence runs. Cuts that are
// searched for at execution are no part of the plan, so what they follow from is named, and threads and tiling with it.
std::string describe_signature(const Plan& plan) {
  std::string text = name_of(plan.problem.rule);
  if (plan.problem.op != Op::kForward) text += std::string(" ") + name_of(plan.problem.op);
  text += std::string(" backend=") + plan.backend->name;
  if (*plan.variant.isa != '\0') text += std::string(" isa=") + plan.variant.isa;
  if (*plan.variant.name != '\0') text += std::string(" variant=") + plan.variant.name;
  if (plan.options.math == DR_MATH_TF32) text += " math=tf32";
  text += " chunk=" + std::to_string(plan.chunk()) + " carry=" + carry_text(plan.options);
  if (plan.options.invariant) {
    return text + " grain=" + (plan.grain < 0 ? std::string("infinite") : std::to_string(plan.grain));
  }
  if (!plan.problem.lengths_known && plan.rule != CutRule::kWhole) {
    text += " cuts=at-execution:" + rule_text(plan);
    if (plan.rule != CutRule::kSearch) return text;
    return text + " units=" + std::to_string(plan.costs.units) + " model=" + CutDigest(plan.costs, plan.limits).text();
  }
  std::string cuts;
  if (plan.problem.lengths_known) {
    const SegmentLists segments(plan.table, plan.problem.num_seqs);
    for (size_t n = 0; n < segments.size(); ++n) {
      if (segments[n].size() < 2) continue;
      if (!cuts.empty()) cuts += ',';
      cuts += std::to_string(n) + ':' + cut_text(segments[n]);
    }
  }
  return text + " cuts=" + (cuts.empty() ? "none" : cuts);
}

}  // namespace deltarelay
