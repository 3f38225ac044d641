#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "case/case.h"
#include "case/text.h"
#include "case/words.h"

namespace deltarelay::cases {
namespace {

// Far above any real case, and low enough that a product of two does not overflow.
constexpr int64_t kMaxLength = int64_t{1} << 36;
constexpr int64_t kMaxSequences = int64_t{1} << 24;
constexpr int64_t kMaxHeads = 1 << 16;
constexpr int64_t kMaxTokenHeads = int64_t{1} << 46;  // times a width this still fits int64_t; the library accepts 2^44
constexpr int64_t kMaxWidth = 1 << 12;  // above the library's limit, so that a case can ask for an invalid width

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] != separator) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

// Parses an integer; the suffix k means 1024.
int64_t parse_integer(std::string_view word, std::string_view text, int64_t low, int64_t high) {
  const std::string expected = "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  std::string_view digits = text;
  const bool kilo = !digits.empty() && digits.back() == 'k';
  if (kilo) digits.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) fail(word, expected, text);
  if (__builtin_mul_overflow(value, kilo ? 1024 : 1, &value) || value < low || value > high) fail(word, expected, text);
  return value;
}

double parse_number(std::string_view word, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    fail(word, "a finite number", text);
  return value == 0 ? 0.0 : value;  // -0 becomes 0
}

template <typename T, size_t N>
T parse_word(std::string_view word, std::string_view text, const std::array<Word<T>, N>& words) {
  const T* value = find_word(words, text);
  if (value == nullptr) fail(word, list_words(words), text);
  return *value;
}

// Is the text a name that errors and results can print?
bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::string parse_name(std::string_view word, std::string_view text) {
  if (!is_name(text)) fail(word, "a name", text);
  return std::string(text);
}

void parse_seqs(std::string_view text, Case& c) {
  c.batched = false;
  c.lengths.clear();
  if (text == "none") return;
  for (std::string_view item : split(text, ',')) {
    const size_t times = item.find('x');
    const int64_t length = parse_integer("seqs", item.substr(0, times), 0, kMaxLength);
    const int64_t room = kMaxSequences - c.num_seqs();
    const int64_t count =
        times == std::string_view::npos ? 1 : parse_integer("seqs", item.substr(times + 1), 1, kMaxSequences);
    if (count > room) fail("seqs", "at most " + std::to_string(kMaxSequences) + " sequences", text);
    c.lengths.insert(c.lengths.end(), static_cast<size_t>(count), length);
  }
}

void parse_batch(std::string_view text, Case& c) {
  const size_t times = text.find('x');
  if (times == std::string_view::npos) fail("batch", "BxT, such as 4x8192", text);
  const int64_t count = parse_integer("batch", text.substr(0, times), 1, kMaxSequences);
  const int64_t length = parse_integer("batch", text.substr(times + 1), 1, kMaxLength);
  c.batched = true;
  c.lengths.assign(static_cast<size_t>(count), length);
}

void parse_bound(std::string_view text, Case& c) {
  const size_t times = text.find('x');
  if (times == std::string_view::npos) fail("bound", "TOKENSxSEQUENCES, such as 8192x64", text);
  c.bound_tokens = parse_integer("bound", text.substr(0, times), 0, kMaxLength);
  c.bound_seqs = parse_integer("bound", text.substr(times + 1), 1, kMaxSequences);
}

// Parses "init" or "init:SPREAD". Returns false for anything else.
bool parse_init(std::string_view text, Case& c) {
  if (text != "init" && text.substr(0, 5) != "init:") return false;
  c.gate_profile = GateProfile::kInit;
  if (text == "init") return true;
  c.gate_spread = parse_number("gate", text.substr(5));
  if (c.gate_spread < 0) fail("gate", "init:SPREAD with a standard deviation of at least 0", text);
  return true;
}

void parse_gate(std::string_view text, Case& c) {
  // A profile of a whole layer implies the form in which engines pass such gates.
  if (parse_init(text, c)) {
    c.gate_form = c.rule == DR_KDA ? DR_GATE_RAW_SOFTPLUS : DR_GATE_LOG;
    return;
  }
  if (text == "mixed") text = "log:mixed";
  const size_t colon = text.find(':');
  const int32_t* form = find_word(kGateForms, text.substr(0, colon));
  if (form == nullptr) fail("gate", list_words(kGateForms) + ", or init or mixed", text.substr(0, colon));
  c.gate_form = *form;
  const bool bare = colon == std::string_view::npos;
  const std::string_view rest = bare ? std::string_view() : text.substr(colon + 1);
  if (c.gate_form == DR_GATE_RAW_SOFTPLUS) {
    if (!bare && !parse_init(rest, c)) fail("gate", "softplus, softplus:init or softplus:init:SPREAD", text);
    return;
  }
  if (c.gate_form == DR_GATE_RAW_BOUNDED) {
    if (bare) return;
    const size_t end = rest.find(':');
    c.lower_bound = parse_number("gate", rest.substr(0, end));
    if (end == std::string_view::npos) return;
    const std::string_view profile = rest.substr(end + 1);
    if (profile == "low") {
      c.gate_profile = GateProfile::kAtBound;
    } else if (!parse_init(profile, c)) {
      fail("gate", "bounded:B, bounded:B:low, bounded:B:init or bounded:B:init:SPREAD", text);
    }
    return;
  }
  if (bare || parse_init(rest, c)) return;
  if (const GateProfile* profile = find_word(kGateProfiles, rest)) {
    c.gate_profile = *profile;
    c.gate_low = -5.0;
    return;
  }
  if (rest.substr(0, 5) == "mean:") {
    c.gate_profile = GateProfile::kMean;
    c.gate_low = parse_number("gate", rest.substr(5));
    if (c.gate_low > 0) fail("gate", "a mean log-decay of at most 0", text);
    return;
  }
  const std::vector<std::string_view> ends = split(rest, ',');
  if (ends.size() != 2) fail("gate", "LOW,HIGH or mean:X or init or " + list_words(kGateProfiles), rest);
  c.gate_low = parse_number("gate", ends[0]);
  c.gate_high = parse_number("gate", ends[1]);
  if (c.gate_low > c.gate_high) fail("gate", "LOW,HIGH with LOW <= HIGH", rest);
}

// Attributes in any order: rows|slots, value|key, a data type, int32|int64, pool=N, null=I, negative, pad=N.
State parse_state(std::string_view word, std::string_view text) {
  State state;
  state.use = DR_STATE_ROWS;
  if (text.empty()) return state;
  bool slots_only = false;
  for (std::string_view part : split(text, ':')) {
    const size_t equals = part.find('=');
    const std::string_view key = part.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    if (const int32_t* use = find_word(kStateUses, part)) {
      state.use = *use;
    } else if (const int32_t* layout = find_word(kLayouts, part)) {
      state.layout = *layout;
    } else if (const int32_t* dtype = find_word(kFloatTypes, part)) {
      state.dtype = *dtype;
    } else if (const int32_t* index = find_word(kIntTypes, part)) {
      state.index_dtype = *index;
      slots_only = slots_only || *index != DR_INT32;
    } else if (part == "negative") {
      state.negative = slots_only = true;
    } else if (key == "pool") {
      state.pool = parse_integer(word, value, 1, kMaxSequences);
      slots_only = true;
    } else if (key == "null") {
      state.null_index = parse_integer(word, value, 0, kMaxSequences);
      slots_only = true;
    } else if (key == "pad") {
      state.pad = parse_integer(word, value, 0, 1 << 20);
    } else {
      fail(word,
           "rows or slots, value or key, " + list_words(kFloatTypes) +
               ", int32 or int64, pool=N, null=I, negative or pad=N, with colons between",
           part);
    }
  }
  if (slots_only && state.use != DR_STATE_SLOTS) fail(word, "slots beside int64, pool, null and negative", text);
  return state;
}

void parse_checkpoints(std::string_view text, Case& c) {
  if (text == "chunks") {
    c.checkpoints = DR_CHECKPOINTS_CHUNKS;
  } else if (text.substr(0, 6) == "every:") {
    c.checkpoints = DR_CHECKPOINTS_EVERY;
    c.checkpoint_every = parse_integer("checkpoints", text.substr(6), 1, kMaxLength);
  } else if (text.substr(0, 5) == "list:") {
    c.checkpoints = DR_CHECKPOINTS_LIST;
    for (std::string_view item : split(text.substr(5), ','))
      c.checkpoint_list.push_back(parse_integer("checkpoints", item, 1, kMaxLength));
    for (size_t i = 1; i < c.checkpoint_list.size(); ++i)
      if (c.checkpoint_list[i] <= c.checkpoint_list[i - 1]) fail("checkpoints", "increasing positions", text);
  } else {
    fail("checkpoints", "every:N, list:P,P,... or chunks", text);
  }
}

// "none", or names of intermediates with commas between.
int32_t parse_intermediates(std::string_view word, std::string_view text) {
  if (text == "none") return 0;
  int32_t bits = 0;
  for (std::string_view item : split(text, ',')) {
    const int32_t* bit = find_word(kIntermediates, item);
    if (bit == nullptr) fail(word, "none, or of " + list_words(kIntermediates) + ", with commas between", item);
    if ((bits & *bit) != 0) fail(word, "each intermediate once", text);
    bits |= *bit;
  }
  return bits;
}

// "value" or "key", and a type behind a colon.
void parse_states(std::string_view text, Case& c) {
  const size_t colon = text.find(':');
  c.stage.states_layout = parse_word("states", text.substr(0, colon), kLayouts);
  if (colon != std::string_view::npos) c.stage.dtype_states = parse_word("states", text.substr(colon + 1), kFloatTypes);
}

void parse_carry(std::string_view text, Case& c) {
  const size_t colon = text.find(':');
  c.carry = parse_word("carry", text.substr(0, colon), kCarries);
  c.carry_log_decay = 0;
  if (colon == std::string_view::npos) return;
  if (c.carry != DR_CARRY_TRUNCATED) fail("carry", "exact, truncated or truncated:LOG-DECAY", text);
  c.carry_log_decay = parse_number("carry", text.substr(colon + 1));
}

void parse_segments(std::string_view text, Case& c) {
  if (text == "auto") {
    c.segments = DR_SEGMENTS_AUTO;
  } else if (text == "off" || text == "1") {
    c.segments = DR_SEGMENTS_OFF;
  } else if (text.substr(0, 4) == "len:") {
    c.segments = DR_SEGMENTS_LENGTH;
    c.segment_value = parse_integer("segments", text.substr(4), 1, kMaxLength);
  } else if (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    c.segments = DR_SEGMENTS_COUNT;
    c.segment_value = parse_integer("segments", text, 1, kMaxLength);
  } else {
    fail("segments", "off, auto, a number or len:N", text);
  }
}

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

int32_t parse_int32(std::string_view word, std::string_view text, int64_t low, int64_t high) {
  return static_cast<int32_t>(parse_integer(word, text, low, high));
}

// "N" for all tensors or "TENSOR:N" for one, separated by commas.
void parse_alignments(std::string_view text, Case& c) {
  constexpr int32_t kMost = 4096;
  c.alignment = 0;
  c.alignments = {};
  for (std::string_view item : split(text, ',')) {
    const size_t colon = item.find(':');
    int32_t* alignment = &c.alignment;
    if (colon != std::string_view::npos)
      alignment = &c.alignments[parse_word("align", item.substr(0, colon), kAlignedTensors)];
    if (*alignment != 0) fail("align", "each tensor once", text);
    *alignment = parse_int32("align", colon == std::string_view::npos ? item : item.substr(colon + 1), 1, kMost);
  }
}

using Setter = std::function<void(std::string_view value, Case& c)>;

// "a|b|c", for help.
template <typename T, size_t N>
std::string choices(const std::array<Word<T>, N>& words) {
  std::string list;
  for (const Word<T>& word : words) list += (list.empty() ? "" : "|") + std::string(word.text);
  return list;
}

// key=value words. The parser and the help use the same table.
struct Key {
  std::string_view key;
  std::string values;   // as help prints them
  const char* meaning;  // one line of help
  Setter set;
};

const std::vector<Key>& keys() {
  static const std::vector<Key> table = {
      {"o", "TYPE", "type of the output: fp32, bf16 or fp16; default: as q, k, v",
       [](auto v, Case& c) { c.dtype_o = parse_word("o", v, kFloatTypes); }},
      {"g", "TYPE", "type of the gate", [](auto v, Case& c) { c.dtype_gate = parse_word("g", v, kFloatTypes); }},
      {"b", "TYPE", "type of beta", [](auto v, Case& c) { c.dtype_beta = parse_word("b", v, kFloatTypes); }},
      {"hqk", "N", "query/key heads; default: as hv, or 1",
       [](auto v, Case& c) { c.heads_qk = parse_int32("hqk", v, 1, kMaxHeads); }},
      {"hv", "N", "value heads; default: as hqk, or 1",
       [](auto v, Case& c) { c.heads_v = parse_int32("hv", v, 1, kMaxHeads); }},
      {"dk", "N", "key width; default 128", [](auto v, Case& c) { c.dk = parse_int32("dk", v, 1, kMaxWidth); }},
      {"dv", "N", "value width; default: as dk", [](auto v, Case& c) { c.dv = parse_int32("dv", v, 1, kMaxWidth); }},
      {"seqs", "L,LxN,...", "lengths of packed sequences, 1300x3 for three of 1300; none: no sequence", parse_seqs},
      {"batch", "BxT", "B sequences of T tokens instead, as [B, T, ...] tensors", parse_batch},
      {"tail", "N", "packed: rows after the last offset",
       [](auto v, Case& c) { c.tail = parse_integer("tail", v, 0, kMaxLength); }},
      {"offsets", choices(kIntTypes), "type of the offsets",
       [](auto v, Case& c) { c.offsets_dtype = parse_word("offsets", v, kIntTypes); }},
      {"lengths", choices(kLengthsAt), "when the library learns the lengths",
       [](auto v, Case& c) { c.lengths_at = parse_word("lengths", v, kLengthsAt); }},
      {"bound", "TxN", "with lengths=execute: tokens and sequences that the plan is made for, more than the case has",
       parse_bound},
      {"chunk", "N", "stages: tokens per chunk; default 64",
       [](auto v, Case& c) { c.stage.chunk = parse_int32("chunk", v, 1, kMaxWidth); }},
      {"given", "NAME,...|none", "stages: intermediates that the call reads; default: the least that it needs",
       [](auto v, Case& c) { c.stage.given = parse_intermediates("given", v); }},
      {"want", "NAME,...|none", "stages: intermediates that it writes; default: all that are not given",
       [](auto v, Case& c) { c.stage.wanted = parse_intermediates("want", v); }},
      {"sums", choices(kSums), "stages: logarithm of gate_sums; default natural",
       [](auto v, Case& c) { c.stage.sums_base_2 = parse_word("sums", v, kSums); }},
      {"intermediates", "TYPE", "stages: type of the intermediates; default: as q, k, v",
       [](auto v, Case& c) { c.stage.dtype = parse_word("intermediates", v, kFloatTypes); }},
      {"states", "value|key[:TYPE]", "stages: layout and type of states; default: value, as the intermediates",
       parse_states},
      {"gate", "FORM[:VALUES]",
       "log, linear with :LOW,HIGH, :mean:X, :zero, :extreme, :inf or :mixed; softplus; bounded:B or bounded:B:low; "
       "init, mixed: gates of a freshly initialised layer, and of heads that forget beside heads that do not",
       parse_gate},
      {"floor", "X", "promise that log-decays are at least X; lower values are raised to it",
       [](auto v, Case& c) { c.gate_floor = parse_number("floor", v); }},
      {"beta", choices(kBetaProfiles), "write strengths: values, or logits for sigmoid and 2 x sigmoid",
       [](auto v, Case& c) { c.beta = parse_word("beta", v, kBetaProfiles); }},
      {"keys", choices(kKeyProfiles), "how q and k are drawn",
       [](auto v, Case& c) { c.keys = parse_word("keys", v, kKeyProfiles); }},
      {"scale", "X", "factor on q; default: dk^-1/2", [](auto v, Case& c) { c.scale = parse_number("scale", v); }},
      {"strides", choices(kStrides), "how the tensors lie in memory",
       [](auto v, Case& c) { c.strides = parse_word("strides", v, kStrides); }},
      {"align", "N|TENSOR:N,...",
       "promised alignment of pointers in bytes, a power of two: of all, and of single tensors", parse_alignments},
      {"init", "ATTRIBUTES",
       "initial states: rows or slots, value or key, a type, int32 or int64, pool=N, null=I, negative, pad=N, with "
       "colons between; init alone: rows",
       [](auto v, Case& c) { c.initial = parse_state("init", v); }},
      {"final", "ATTRIBUTES", "final states, or final=in-place: over the initial ones",
       [](auto v, Case& c) {
         c.in_place = v == "in-place";
         if (!c.in_place) c.final = parse_state("final", v);
       }},
      {"checkpoints", "every:N|list:P,...|chunks", "states inside sequences to keep", parse_checkpoints},
      {"checkpoint-state", "ATTRIBUTES", "their pool",
       [](auto v, Case& c) { c.checkpoint = parse_state("checkpoint-state", v); }},
      {"backend", "NAME", "reference, cpu, cuda-sm90 or cuda-sm80; default: the first that accepts",
       [](auto v, Case& c) { c.backend = parse_name("backend", v); }},
      {"isa", "NAME", "instruction set of the cpu backend", [](auto v, Case& c) { c.isa = parse_name("isa", v); }},
      {"variant", "NAME", "kernels of a backend that has several: fused or prepared of cuda-sm90",
       [](auto v, Case& c) { c.variant = parse_name("variant", v); }},
      {"math", choices(kMaths), "how exact products of fp32 are",
       [](auto v, Case& c) { c.math = parse_word("math", v, kMaths); }},
      {"a-log", "TYPE", "type of A_log", [](auto v, Case& c) { c.dtype_a_log = parse_word("a-log", v, kFloatTypes); }},
      {"dt-bias", "TYPE", "type of dt_bias",
       [](auto v, Case& c) { c.dtype_dt_bias = parse_word("dt-bias", v, kFloatTypes); }},
      {"policy", "NAME", "plan as another system would: fla, cula-sm100, ...",
       [](auto v, Case& c) { c.policy = parse_name("policy", v); }},
      {"device", "NAME", "cuda: the GPU that is here; h200, ...: plan for a device that need not be here",
       [](auto v, Case& c) { c.device = v == "cuda" ? "cuda:0" : parse_name("device", v); }},
      {"segments", "auto|off|N|len:N", "cuts of every sequence: chosen, none, a number, or a length in tokens",
       parse_segments},
      {"threads", "N", "worker threads; default: all",
       [](auto v, Case& c) { c.threads = parse_int32("threads", v, 1, kMaxInt32); }},
      {"carry", "exact|truncated[:X]", "whether history under a log-decay of X may be dropped", parse_carry},
      {"seed", "N", "of the inputs; default 1",
       [](auto v, Case& c) {
         c.seed = static_cast<uint64_t>(parse_integer("seed", v, 0, std::numeric_limits<int64_t>::max()));
       }},
  };
  return table;
}

// Words that stand alone.
struct Flag {
  std::string_view word;
  const char* meaning;
  std::function<void(Case&)> set;
};

const std::vector<Flag>& flags() {
  static const std::vector<Flag> table = {
      {"l2norm", "q and k are normalised in the call", [](Case& c) { c.l2norm = true; }},
      {"no-a-log", "raw gates: NULL for A_log", [](Case& c) { c.a_log = false; }},
      {"no-dt-bias", "raw gates: NULL for dt_bias", [](Case& c) { c.dt_bias = false; }},
      {"init", "initial states, one row a sequence", [](Case& c) { c.initial = parse_state("init", ""); }},
      {"final", "final states, one row a sequence", [](Case& c) { c.final = parse_state("final", ""); }},
      {"mask", "sequences 1, 4, 7, ... have no initial state", [](Case& c) { c.mask = true; }},
      {"invariant", "the bits of a sequence do not depend on the rest of the batch",
       [](Case& c) { c.invariant = true; }},
  };
  return table;
}

// Returns the entry of a table whose `name` is `text`, or nullptr.
template <typename Entry>
const Entry* find_entry(const std::vector<Entry>& table, std::string_view Entry::*name, std::string_view text) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const Entry& entry) { return entry.*name == text; });
  return found == table.end() ? nullptr : &*found;
}

constexpr std::string_view kStageWords[] = {"chunk", "given", "want", "sums", "intermediates", "states"};

// The same for the words of stages.
void settle_stage(Case& c, const std::set<std::string_view>& given) {
  const auto has = [&](std::string_view word) { return given.count(word) > 0; };
  Stage& s = c.stage;
  if (!c.is_stage()) {
    for (const std::string_view word : kStageWords)
      if (has(word)) fail(word, "a stage behind the rule, chunk-local to carry", text_of(kOps, c.op));
    return;
  }
  const StageBits bits = stage_bits(c.op);
  if (!has("chunk")) s.chunk = default_chunk(c.op);
  if (!has("given")) s.given = bits.must;
  if (!has("want")) s.wanted = bits.may_want & ~s.given;
  const bool has_states = ((s.given | s.wanted) & DR_STATES) != 0;
  if (has_states && !has("states")) s.states_layout = DR_STATE_VALUE_MAJOR;
  if (!has_states && has("states")) fail("states", "states in given= or want=", "neither");
}

// Checks and defaults that involve more than one word.
void settle(Case& c, const std::set<std::string_view>& given) {
  const auto has = [&](std::string_view word) { return given.count(word) > 0; };
  if (!has("hqk") && has("hv")) c.heads_qk = c.heads_v;
  if (!has("hv")) c.heads_v = c.heads_qk;
  if (!has("dv")) c.dv = c.dk;
  // Engines pass log gates of GDN in fp32.
  if (c.gate_profile == GateProfile::kInit && !c.raw_gate() && !has("g")) c.dtype_gate = DR_FP32;
  if (has("seqs") == has("batch"))
    fail("seqs", "one of seqs=LENGTH[xTIMES],... and batch=BxT", has("seqs") ? "both" : "neither");
  if (c.num_tokens() > kMaxTokenHeads / std::max(c.heads_qk, c.heads_v))
    fail("seqs", "at most 2^46 tokens times heads", std::to_string(c.num_tokens()) + " tokens");
  settle_stage(c, given);
  if (c.keys == KeyProfile::kUneven && !c.l2norm) fail("keys", "l2norm beside uneven", "no l2norm");
  if (c.batched && has("tail")) fail("tail", "packed sequences (seqs=)", "batch=");
  if (c.batched && has("offsets")) fail("offsets", "packed sequences (seqs=)", "batch=");
  if (c.bound_seqs > 0) {
    const std::string found = std::to_string(c.bound_tokens) + "x" + std::to_string(c.bound_seqs);
    if (c.lengths_at != LengthsAt::kExecute) fail("bound", "lengths=execute", found);
    if (c.num_tokens() == 0 || c.num_seqs() == 0)
      fail("bound", "a case with tokens and sequences (a count of 0 stands for the bound)", found);
    if (c.bound_tokens < c.num_tokens() || c.bound_seqs < c.num_seqs())
      fail("bound",
           "at least " + std::to_string(c.num_tokens()) + "x" + std::to_string(c.num_seqs()) + ", what the case has",
           found);
  }
  if (c.batched && c.lengths_at == LengthsAt::kExecute) fail("lengths", "packed sequences (seqs=)", "batch=");
  if (!c.raw_gate() && (!c.a_log || !c.dt_bias))
    fail(c.a_log ? "no-dt-bias" : "no-a-log", "gate=softplus or gate=bounded", text_of(kGateForms, c.gate_form));
  if (c.mask && c.initial.use == DR_STATE_NONE) fail("mask", "init", "no initial state");
  if (c.in_place) {
    if (c.initial.use == DR_STATE_NONE) fail("final", "init beside in-place", "no initial state");
    c.final = c.initial;
  }
  if (c.checkpoints != DR_CHECKPOINTS_NONE && !has("checkpoint-state"))
    c.checkpoint = parse_state("checkpoint-state", "");
  if (c.checkpoints == DR_CHECKPOINTS_NONE && has("checkpoint-state"))
    fail("checkpoint-state", "checkpoints=", "no checkpoints");
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr size_t kMost = 60;  // characters of a text that errors show
  std::string shown = "'";
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == kMost) return shown + "...' (" + std::to_string(text.size()) + " bytes)";
    const char c = text[i];
    if (c >= ' ' && c <= '~') {
      shown += c;
    } else {
      constexpr std::string_view kDigits = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(c);
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return shown + "'";
}

std::vector<GrammarWord> grammar() {
  std::vector<GrammarWord> words = {
      {choices(kRules), "the rule, first: one gate for every key channel, or one for a head"},
      {choices(kOps), "the operation, behind the rule; default forward"},
      {choices(kFloatTypes), "type of q, k, v; default fp32"}};
  for (const Key& key : keys()) words.push_back({std::string(key.key) + "=" + key.values, key.meaning});
  for (const Flag& flag : flags()) words.push_back({std::string(flag.word), flag.meaning});
  return words;
}

Case parse(std::string_view line) {
  std::vector<std::string_view> words = words_of(line);
  Case c;
  size_t next = 0;
  if (next < words.size() && words[next].back() == ':') {
    c.name = std::string(words[next].substr(0, words[next].size() - 1));
    if (!is_name(c.name) || c.name.find_first_of("=:,") != std::string::npos)
      fail("name", "letters, digits, dots and dashes before the colon", words[next]);
    ++next;
  }
  if (next == words.size()) fail("rule", list_words(kRules), "");
  c.rule = parse_word("rule", words[next++], kRules);
  if (next < words.size() && find_word(kOps, words[next]) != nullptr) c.op = *find_word(kOps, words[next++]);

  std::set<std::string_view> given;
  for (; next < words.size(); ++next) {
    const std::string_view word = words[next];
    const size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    const bool is_type = find_word(kFloatTypes, word) != nullptr;
    if (!given.insert(is_type ? std::string_view("data type") : key).second)
      fail(is_type ? "data type" : key, "to be given once", word);
    if (is_type) {
      c.dtype = *find_word(kFloatTypes, word);
    } else if (equals != std::string_view::npos) {
      const Key* known = find_entry(keys(), &Key::key, key);
      if (known == nullptr) fail("word", "a key of the case grammar (deltarelay help cases)", word);
      known->set(word.substr(equals + 1), c);
    } else {
      const Flag* flag = find_entry(flags(), &Flag::word, word);
      if (flag == nullptr) fail("word", "a word of the case grammar (deltarelay help cases)", word);
      flag->set(c);
    }
  }
  settle(c, given);
  return c;
}

}  // namespace deltarelay::cases
