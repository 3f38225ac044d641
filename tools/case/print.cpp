#include <charconv>

#include "case/case.h"
#include "case/words.h"

namespace deltarelay::cases {
namespace {

// The shortest text that reads back as the same number.
std::string number(double value) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return error == std::errc() ? std::string(text, end) : "?";
}

std::string print_lengths(const Case& c) {
  if (c.batched) return "batch=" + std::to_string(c.num_seqs()) + "x" + std::to_string(c.lengths[0]);
  if (c.lengths.empty()) return "seqs=none";
  std::string text = "seqs=";
  for (size_t i = 0; i < c.lengths.size();) {
    size_t end = i + 1;
    while (end < c.lengths.size() && c.lengths[end] == c.lengths[i]) ++end;
    if (i > 0) text += ',';
    text += std::to_string(c.lengths[i]);
    if (end - i > 1) text += "x" + std::to_string(end - i);
    i = end;
  }
  return text;
}

std::string print_gate(const Case& c) {
  std::string text = "gate=" + std::string(text_of(kGateForms, c.gate_form));
  if (c.gate_profile == GateProfile::kInit) {
    const std::string init = "init" + (c.gate_spread != 1.0 ? ":" + number(c.gate_spread) : "");
    if (c.gate_form == (c.rule == DR_KDA ? DR_GATE_RAW_SOFTPLUS : DR_GATE_LOG)) return "gate=" + init;
    return text + (c.gate_form == DR_GATE_RAW_BOUNDED ? ":" + number(c.lower_bound) : "") + ":" + init;
  }
  if (c.gate_profile == GateProfile::kMixed && c.gate_form == DR_GATE_LOG) return "gate=mixed";
  if (c.gate_form == DR_GATE_RAW_SOFTPLUS) return text;
  if (c.gate_form == DR_GATE_RAW_BOUNDED)
    return text + ":" + number(c.lower_bound) + (c.gate_profile == GateProfile::kAtBound ? ":low" : "");
  if (c.gate_profile == GateProfile::kRange) return text + ":" + number(c.gate_low) + "," + number(c.gate_high);
  if (c.gate_profile == GateProfile::kMean) return text + ":mean:" + number(c.gate_low);
  return text + ":" + std::string(text_of(kGateProfiles, c.gate_profile));
}

std::string print_state(const std::string& word, const State& state) {
  State plain;
  plain.use = DR_STATE_ROWS;
  if (state == plain) return word;
  std::string text = word + "=" + std::string(text_of(kStateUses, state.use));
  if (state.layout != plain.layout) text += ":" + std::string(text_of(kLayouts, state.layout));
  if (state.dtype != plain.dtype) text += ":" + std::string(text_of(kFloatTypes, state.dtype));
  if (state.index_dtype != plain.index_dtype) text += ":" + std::string(text_of(kIntTypes, state.index_dtype));
  if (state.pool != 0) text += ":pool=" + std::to_string(state.pool);
  if (state.null_index) text += ":null=" + std::to_string(*state.null_index);
  if (state.negative) text += ":negative";
  if (state.pad != 0) text += ":pad=" + std::to_string(state.pad);
  return text;
}

std::string print_checkpoints(const Case& c) {
  if (c.checkpoints == DR_CHECKPOINTS_CHUNKS) return "checkpoints=chunks";
  if (c.checkpoints == DR_CHECKPOINTS_EVERY) return "checkpoints=every:" + std::to_string(c.checkpoint_every);
  std::string text = "checkpoints=list:";
  for (size_t i = 0; i < c.checkpoint_list.size(); ++i)
    text += (i > 0 ? "," : "") + std::to_string(c.checkpoint_list[i]);
  return text;
}

std::string print_segments(const Case& c) {
  switch (c.segments) {
    case DR_SEGMENTS_OFF:
      return "segments=off";
    case DR_SEGMENTS_COUNT:
      return "segments=" + std::to_string(c.segment_value);
    case DR_SEGMENTS_LENGTH:
      return "segments=len:" + std::to_string(c.segment_value);
    default:
      return "segments=auto";
  }
}

// "w,u", or "none".
std::string print_intermediates(int32_t bits) {
  std::string text;
  for (const auto& [name, bit] : kIntermediates)
    if ((bits & bit) != 0) text += (text.empty() ? "" : ",") + std::string(name);
  return text.empty() ? "none" : text;
}

// The words of a stage, with a blank before each.
std::string print_stage(const Case& c) {
  const Stage& s = c.stage;
  const StageBits bits = stage_bits(c.op);
  std::string text;
  if (s.chunk != default_chunk(c.op)) text += " chunk=" + std::to_string(s.chunk);
  if (s.given != bits.must) text += " given=" + print_intermediates(s.given);
  if (s.wanted != (bits.may_want & ~s.given)) text += " want=" + print_intermediates(s.wanted);
  if (s.sums_base_2) text += " sums=" + std::string(text_of(kSums, s.sums_base_2));
  if (s.dtype != 0) text += " intermediates=" + std::string(text_of(kFloatTypes, s.dtype));
  if (s.dtype_states == 0 && s.states_layout != DR_STATE_KEY_MAJOR) return text;
  text += " states=" + std::string(text_of(kLayouts, s.states_layout));
  return text + (s.dtype_states != 0 ? ":" + std::string(text_of(kFloatTypes, s.dtype_states)) : "");
}

}  // namespace

std::string print_without_name(const Case& c) {
  std::string line(text_of(kRules, c.rule));
  if (c.op != DR_FORWARD) line += ' ' + std::string(text_of(kOps, c.op));
  const auto add = [&](const std::string& word) { line += " " + word; };
  const auto add_type = [&](const char* word, int32_t dtype) {
    if (dtype != 0) add(std::string(word) + "=" + dtype_name(dtype));
  };
  add(dtype_name(c.dtype));
  add_type("o", c.dtype_o);
  add_type("g", c.dtype_gate);
  add_type("b", c.dtype_beta);
  add("hqk=" + std::to_string(c.heads_qk));
  add("hv=" + std::to_string(c.heads_v));
  add("dk=" + std::to_string(c.dk));
  add("dv=" + std::to_string(c.dv));
  add(print_lengths(c));
  if (c.tail != 0) add("tail=" + std::to_string(c.tail));
  if (c.offsets_dtype != DR_INT32) add("offsets=" + std::string(text_of(kIntTypes, c.offsets_dtype)));
  if (c.lengths_at != LengthsAt::kPlan) add("lengths=" + std::string(text_of(kLengthsAt, c.lengths_at)));
  if (c.bound_seqs > 0) add("bound=" + std::to_string(c.bound_tokens) + "x" + std::to_string(c.bound_seqs));
  if (c.is_stage()) line += print_stage(c);

  if (c.initial.use != DR_STATE_NONE) add(print_state("init", c.initial));
  if (c.mask) add("mask");
  if (c.in_place) {
    add("final=in-place");
  } else if (c.final.use != DR_STATE_NONE) {
    add(print_state("final", c.final));
  }
  if (c.checkpoints != DR_CHECKPOINTS_NONE) {
    add(print_checkpoints(c));
    const std::string state = print_state("checkpoint-state", c.checkpoint);
    if (state != "checkpoint-state") add(state);
  }

  add(print_gate(c));
  if (!c.a_log) add("no-a-log");
  if (!c.dt_bias) add("no-dt-bias");
  if (c.dtype_a_log != DR_FP32) add("a-log=" + std::string(text_of(kFloatTypes, c.dtype_a_log)));
  if (c.dtype_dt_bias != DR_FP32) add("dt-bias=" + std::string(text_of(kFloatTypes, c.dtype_dt_bias)));
  if (c.gate_floor != 0) add("floor=" + number(c.gate_floor));
  if (c.beta != BetaProfile::kValue) add("beta=" + std::string(text_of(kBetaProfiles, c.beta)));
  if (c.keys != KeyProfile::kNormal) add("keys=" + std::string(text_of(kKeyProfiles, c.keys)));
  if (c.l2norm) add("l2norm");
  if (c.scale) add("scale=" + number(*c.scale));
  if (c.strides != Strides::kContiguous) add("strides=" + std::string(text_of(kStrides, c.strides)));
  std::string alignments = c.alignment != 0 ? "," + std::to_string(c.alignment) : "";
  for (const auto& [name, tensor] : kAlignedTensors) {
    const int32_t bytes = c.alignments[tensor];
    if (bytes != 0) alignments += "," + std::string(name) + ":" + std::to_string(bytes);
  }
  if (!alignments.empty()) add("align=" + alignments.substr(1));

  if (!c.backend.empty()) add("backend=" + c.backend);
  if (!c.isa.empty()) add("isa=" + c.isa);
  if (!c.variant.empty()) add("variant=" + c.variant);
  if (c.math != DR_MATH_DEFAULT) add("math=" + std::string(text_of(kMaths, c.math)));
  if (!c.policy.empty()) add("policy=" + c.policy);
  if (!c.device.empty()) add("device=" + c.device);
  if (c.segments != DR_SEGMENTS_AUTO) add(print_segments(c));
  if (c.threads != 0) add("threads=" + std::to_string(c.threads));
  if (c.invariant) add("invariant");
  if (c.carry != DR_CARRY_EXACT) {
    const std::string bound = c.carry_log_decay != 0 ? ":" + number(c.carry_log_decay) : "";
    add("carry=" + std::string(text_of(kCarries, c.carry)) + bound);
  }
  if (c.seed != 1) add("seed=" + std::to_string(c.seed));
  return line;
}

std::string print(const Case& c) { return (c.name.empty() ? "" : c.name + ": ") + print_without_name(c); }

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case DR_FP32:
      return "fp32";
    case DR_BF16:
      return "bf16";
    case DR_FP16:
      return "fp16";
    case DR_INT32:
      return "int32";
    case DR_INT64:
      return "int64";
    default:
      return "?";
  }
}

}  // namespace deltarelay::cases
