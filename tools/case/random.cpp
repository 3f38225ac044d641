#include <algorithm>
#include <array>

#include "case/case.h"
#include "case/mix.h"

namespace deltarelay::cases {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(mix(seed)) {}

  int64_t below(int64_t n) { return static_cast<int64_t>(mix(seed_ ^ mix(count_++)) % static_cast<uint64_t>(n)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  template <typename T, size_t N>
  T pick(const std::array<T, N>& from) {
    return from[static_cast<size_t>(below(N))];
  }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

constexpr std::array<int32_t, 3> kFloats = {DR_FP32, DR_BF16, DR_FP16};
constexpr std::array<int32_t, 2> kHalves = {DR_BF16, DR_FP16};
constexpr std::array<int64_t, 18> kEdges = {0,  1,  2,   15,  16,  17,  31,  33,  63,
                                            64, 65, 127, 129, 255, 257, 511, 513, 1000};
constexpr std::array<int32_t, 10> kWidths = {16, 32, 60, 64, 96, 100, 128, 128, 192, 256};

int32_t random_width(Dice& dice) {
  return dice.one_in(3) ? static_cast<int32_t>(1 + dice.below(256)) : dice.pick(kWidths);
}

// cuda-sm90 accepts one key width, some value widths, one 16-bit type and aligned tensors. It would decline nine in ten
// other cases.
bool is_hopper(const Case& c) { return c.backend == "cuda-sm90"; }

int32_t random_value_width(Dice& dice, const Case& c) {
  if (is_hopper(c)) return static_cast<int32_t>(dice.one_in(4) ? 128 * (2 + dice.below(3)) : 128);
  if (dice.one_in(2)) return c.dk;
  return dice.one_in(6) ? static_cast<int32_t>(257 + dice.below(256)) : random_width(dice);
}

void random_types(Dice& dice, Case& c) {
  c.dtype = is_hopper(c) ? dice.pick(kHalves) : dice.pick(kFloats);
  if (dice.one_in(4) && !is_hopper(c)) c.dtype_o = dice.pick(kFloats);
  if (dice.one_in(3)) c.dtype_gate = DR_FP32;
  if (dice.one_in(3)) c.dtype_beta = DR_FP32;
}

// The error of a block is estimated from its numbers. With 16-bit products and fewer numbers than this, the estimate
// exceeds the tolerance by chance. Measured: bf16 on a CPU, 20,000 cases, three at 5.0e-3 to 5.5e-3 on 9 to 16 numbers
// of tensors whose overall error is 3e-3.
constexpr int64_t kLeastBlock = 128;
// fp32 data, whose own error is far below, is stored in 16 bits only in blocks of so many elements: the tolerance for
// rounding is its root mean square, which a few elements may exceed by chance.
constexpr int64_t kTypicalBlock = 1024;
constexpr int64_t kMostHostile = 2048;  // tokens of a hostile case in bf16 covered by the tolerance table
// Below this key width |k|^2 of normal numbers is often above 2: one in 20 at 8 channels, one in 6 at one channel.
constexpr int32_t kLeastNormal = 8;

// Outputs of a token that starts from a zero state are one number, q.k, times a vector, and q.k may be the rest of a
// cancellation. In fp32, whose tolerance is near its last bit, that shows (two of 10,000 cases). With four tokens, at
// least one is not affected.
constexpr int64_t kLeastFp32 = 4;
// The same for GPU backends, which also round scores to 16 bits: on an H200, 2 of about 7,500 cases, both of two
// tokens, at 5.8e-3 and 1.1e-2 with an overall error of 3e-3.
constexpr int64_t kLeastRounded = 12;

bool rounds_scores(const Case& c) { return c.dtype != DR_FP32 && c.backend.rfind("cuda", 0) == 0; }

int64_t least_length(const Case& c) {
  if (c.dtype == DR_FP32) return kLeastFp32;
  return std::max(rounds_scores(c) ? kLeastRounded : 1, (kLeastBlock + c.dv - 1) / c.dv);
}

// Returns the length drawn, or else the smallest length that can be measured if `left` allows it, or else 0.
int64_t measurable_length(int64_t drawn, int64_t left, const Case& c) {
  const int64_t length = std::max(drawn, least_length(c));
  return drawn > 0 && length <= left ? length : 0;
}

int64_t shortest_block(const Case& c) {
  int64_t shortest = c.num_tokens();
  for (const int64_t length : c.lengths)
    if (length > 0) shortest = std::min(shortest, length);
  return shortest * c.dv;
}

void random_sizes(Dice& dice, int64_t cost, Case& c) {
  constexpr std::array<int32_t, 5> kGroups = {1, 2, 3, 4, 8};
  c.dk = is_hopper(c) ? 128 : random_width(dice);
  c.dv = random_value_width(dice, c);
  if (int64_t{c.dk} * c.dv < kLeastBlock) c.dtype = DR_FP32;  // a state is a block too
  c.heads_qk = static_cast<int32_t>(1 + dice.below(3));
  c.heads_v = c.heads_qk * (dice.one_in(2) ? 1 : dice.pick(kGroups));
  const int64_t area = int64_t{c.dk} * c.dv;
  while (c.heads_v > c.heads_qk && c.heads_v * area * 64 > cost) c.heads_v -= c.heads_qk;
  constexpr int64_t kMostTokens = 8192;  // otherwise narrow heads would get millions
  const int64_t tokens = std::clamp<int64_t>(cost / (c.heads_v * area), 1, kMostTokens);

  c.batched = dice.one_in(4);
  if (c.batched) {
    const int64_t count = 1 + dice.below(4);
    const int64_t drawn = std::max(least_length(c), dice.pick(kEdges));
    const int64_t length = std::max<int64_t>(1, std::min(tokens / count, drawn));
    c.lengths.assign(static_cast<size_t>(count), length);
    if (shortest_block(c) < kLeastBlock) c.dtype = DR_FP32;
    return;
  }
  const int64_t count = 1 + dice.below(7);
  int64_t left = tokens;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t drawn = std::min(left, dice.one_in(3) ? dice.below(left + 1) : dice.pick(kEdges));
    const int64_t length = measurable_length(drawn, left, c);
    c.lengths.push_back(length);
    left -= length;
  }
  if (dice.one_in(4)) c.tail = 1 + dice.below(40);
  if (dice.one_in(3)) c.offsets_dtype = DR_INT64;
  if (dice.one_in(5)) c.lengths_at = LengthsAt::kExecute;
}

// Long products of (I - beta k k^T) with beta |k|^2 above 2 grow without bound.
bool needs_l2norm(const Case& c) {
  return c.beta == BetaProfile::kNear2 || c.beta == BetaProfile::kTwice || c.dk < kLeastNormal;
}

void random_values(Dice& dice, Case& c) {
  constexpr std::array<int32_t, 6> kForms = {DR_GATE_LOG,    DR_GATE_LOG,          DR_GATE_LOG,
                                             DR_GATE_LINEAR, DR_GATE_RAW_SOFTPLUS, DR_GATE_RAW_BOUNDED};
  constexpr std::array<GateProfile, 6> kProfiles = {GateProfile::kRange,   GateProfile::kRange, GateProfile::kZero,
                                                    GateProfile::kExtreme, GateProfile::kInf,   GateProfile::kMean};
  constexpr std::array<double, 6> kLows = {-0.01, -0.5, -5, -5, -20, -50};
  constexpr std::array<BetaProfile, 7> kBetas = {BetaProfile::kValue, BetaProfile::kValue, BetaProfile::kOne,
                                                 BetaProfile::kZero,  BetaProfile::kNear2, BetaProfile::kLogit,
                                                 BetaProfile::kTwice};
  c.gate_form = dice.pick(kForms);
  if (c.raw_gate()) {
    c.a_log = !dice.one_in(4) || c.gate_form == DR_GATE_RAW_SOFTPLUS;
    c.dt_bias = !dice.one_in(4);
    if (c.gate_form == DR_GATE_RAW_BOUNDED) {
      c.lower_bound = dice.one_in(4) ? -12.5 : -5;
      if (dice.one_in(4)) c.gate_profile = GateProfile::kAtBound;
    }
  } else {
    c.gate_profile = dice.pick(kProfiles);
    if (c.gate_profile == GateProfile::kRange || c.gate_profile == GateProfile::kMean) c.gate_low = dice.pick(kLows);
    if (dice.one_in(5)) c.gate_floor = dice.one_in(2) ? -5 : -0.5;
  }
  c.beta = dice.pick(kBetas);
  c.keys = dice.one_in(4) ? KeyProfile::kCorrelated : KeyProfile::kNormal;
  c.l2norm = dice.one_in(3);
  if (needs_l2norm(c)) c.l2norm = true;
  // If nothing is written, only the initial state is left, and a strong decay brings it below the range of every type.
  if (c.beta == BetaProfile::kZero) {
    c.gate_form = DR_GATE_LOG;
    c.gate_profile = GateProfile::kZero;
    c.gate_low = -5.0;
    c.gate_floor = 0.0;
    c.a_log = c.dt_bias = true;
    c.lower_bound = -5.0;
  }
  if (dice.one_in(5)) c.scale = 0.25;
}

// Are states drawn in 16 bits typical? After strong decay a state is the outer product of its last key and value, so it
// has only that many free numbers.
bool states_round_typically(const Case& c) { return std::min(c.dk, c.dv) >= 64; }

void keep_rounding_typical(Case& c) {
  if (c.dtype == DR_BF16 && c.hostile())
    for (int64_t& length : c.lengths) length = std::min(length, kMostHostile);
  if (c.dtype != DR_FP32) return;
  if (shortest_block(c) < kTypicalBlock) c.dtype_o = 0;
  for (State* state : {&c.initial, &c.final, &c.checkpoint})
    if (!states_round_typically(c)) state->dtype = DR_FP32;
}

State random_state(Dice& dice) {
  State state;
  state.use = dice.one_in(2) ? DR_STATE_SLOTS : DR_STATE_ROWS;
  state.layout = dice.one_in(2) ? DR_STATE_KEY_MAJOR : DR_STATE_VALUE_MAJOR;
  state.dtype = dice.one_in(3) ? dice.pick(kFloats) : DR_FP32;
  if (dice.one_in(4)) state.pad = 1 + dice.below(64);
  if (state.use == DR_STATE_SLOTS) {
    if (dice.one_in(3)) state.index_dtype = DR_INT64;
    if (dice.one_in(3)) state.null_index = dice.below(3);
    state.negative = dice.one_in(3);
  }
  return state;
}

void random_states(Dice& dice, Case& c) {
  if (dice.one_in(2)) {
    c.initial = random_state(dice);
    c.mask = dice.one_in(3);
  }
  if (c.initial.use != DR_STATE_NONE && dice.one_in(3)) {
    c.in_place = true;
    c.final = c.initial;
  } else if (dice.one_in(2)) {
    c.final = random_state(dice);
  }
  if (!dice.one_in(4)) return;
  c.checkpoint = random_state(dice);
  switch (dice.below(3)) {
    case 0:
      c.checkpoints = DR_CHECKPOINTS_EVERY;
      c.checkpoint_every = 16 * (1 + dice.below(20));
      break;
    case 1:
      c.checkpoints = DR_CHECKPOINTS_LIST;
      for (int64_t at = 16 * (1 + dice.below(4)), n = 0; n < 4; ++n, at += 16 * (1 + dice.below(12)))
        c.checkpoint_list.push_back(at);
      break;
    default:
      c.checkpoints = DR_CHECKPOINTS_CHUNKS;
  }
}

// Every chunk length divides 64. A forced split leaves sequences with fewer chunks whole, so it is drawn only if every
// chunk length cuts something.
void random_segments(Dice& dice, Case& c) {
  constexpr int64_t kLargestChunk = 64;
  c.invariant = dice.one_in(6);
  const int64_t longest = c.lengths.empty() ? 0 : *std::max_element(c.lengths.begin(), c.lengths.end());
  const int64_t chunks = longest / kLargestChunk;
  if (chunks >= 2 && c.lengths_at == LengthsAt::kPlan && !c.invariant && !dice.one_in(3)) {
    c.segments = DR_SEGMENTS_COUNT;
    c.segment_value = 2 + dice.below(std::min<int64_t>(chunks - 1, 6));
  } else if (dice.one_in(8)) {
    c.segments = DR_SEGMENTS_OFF;
  } else if (dice.one_in(3)) {
    c.segments = DR_SEGMENTS_LENGTH;
    c.segment_value = kLargestChunk * (1 + dice.below(4));
  }
}

// Draws a truncated carry if the contract allows it. What may be dropped is at most the rounding of fp32.
void random_carry(Dice& dice, Case& c) {
  if (!c.l2norm || c.beta_form() == DR_BETA_VALUE || !dice.one_in(3)) return;
  c.carry = DR_CARRY_TRUNCATED;
  if (dice.one_in(2)) c.carry_log_decay = -16.0 - static_cast<double>(dice.below(48));
}

// Draws a variant that the backend accepts for the rest of the case.
void random_way(Dice& dice, Case& c) {
  const bool tf32 = c.backend == "cuda-sm80" && c.dtype == DR_FP32 && shortest_block(c) >= kLeastBlock;
  if (tf32 && dice.one_in(3)) c.math = DR_MATH_TF32;
  if (!is_hopper(c) || !dice.one_in(2)) return;
  c.variant = c.rule == DR_GDN && dice.one_in(2) ? "fused" : "prepared";
}

// Replaces the drawn gates by those of fresh or trained layers.
void random_layer_gates(Dice& dice, Case& c) {
  if (c.beta == BetaProfile::kZero || !dice.one_in(6)) return;  // if nothing is written, gates stay at 0
  const bool mixed = !c.raw_gate() && dice.one_in(2);
  c.gate_profile = mixed ? GateProfile::kMixed : GateProfile::kInit;
  if (!mixed && dice.one_in(3)) c.gate_spread = 2.0;
  if (!mixed && !c.raw_gate()) c.dtype_gate = DR_FP32;  // the grammar's default
  c.gate_low = -5.0;
  keep_rounding_typical(c);
}

// Draws promised alignments of single tensors. Widths fix the alignment of views of a packed row. cuda-sm90 needs no
// alignment of gates and beta alone.
void random_alignments(Dice& dice, Case& c) {
  constexpr std::array<int32_t, 4> kAlignments = {2, 4, 8, 32};
  if (!dice.one_in(4)) return;
  for (const TensorEntry& entry : kTensors) {
    const bool number = entry.tensor == Tensor::kG || entry.tensor == Tensor::kBeta;
    const bool row =
        entry.kind == TensorKind::kRows && (number || entry.tensor == Tensor::kO || c.strides != Strides::kPacked);
    const bool drawn = is_hopper(c) ? number : row || entry.kind == TensorKind::kPool;
    if (drawn && dice.one_in(3)) c.alignments[entry.tensor] = dice.pick(kAlignments);
  }
}

// A subset of `bits`.
int32_t random_bits(Dice& dice, int32_t bits) {
  int32_t chosen = 0;
  for (int32_t bit = 1; bit <= bits; bit *= 2)
    if ((bits & bit) != 0 && dice.one_in(2)) chosen |= bit;
  return chosen;
}

void random_intermediates(Dice& dice, Case& c) {
  constexpr std::array<int32_t, 4> kChunks = {64, 64, 32, 16};
  const StageBits bits = stage_bits(c.op);
  Stage& s = c.stage;
  s.chunk = c.op == DR_CARRY ? 0 : dice.pick(kChunks);
  s.given = bits.must;
  const bool solved = c.op != DR_SUMMARY || dice.one_in(2);
  if (c.op == DR_SUMMARY && solved) s.given = DR_W | DR_U;
  if (solved) s.given |= random_bits(dice, bits.may_give);
  const int32_t left = bits.may_want & ~s.given;
  s.wanted = dice.one_in(3) ? left : random_bits(dice, left);
  const bool writes_more = c.op == DR_OUTPUTS || c.final.use != DR_STATE_NONE;
  if (s.wanted == 0 && !writes_more) s.wanted = left;
  s.sums_base_2 = dice.one_in(2);
  if (((s.given | s.wanted) & DR_STATES) != 0)
    s.states_layout = dice.one_in(2) ? DR_STATE_KEY_MAJOR : DR_STATE_VALUE_MAJOR;
}

// For the same reasons as in random_sizes and keep_rounding_typical: is a stage too short for 16-bit data, and may
// intermediates be stored in 16 bits?
bool stage_needs_fp32(const Case& c) {
  return !is_hopper(c) && shortest_block(c) / c.dv * std::min({c.dk, c.dv, 16}) < 2 * kLeastBlock;
}
bool may_round_intermediates(const Case& c) {
  const int64_t shortest = shortest_block(c) / c.dv;
  return c.dtype != DR_FP32 || (shortest >= 64 && shortest * std::min(c.dk, c.dv) >= kTypicalBlock);
}

void random_stage_types(Dice& dice, Case& c) {
  if (stage_needs_fp32(c)) {
    c.dtype = DR_FP32;
    c.dtype_o = 0;
  }
  const int32_t drawn = dice.pick(kFloats), drawn_states = dice.pick(kFloats);
  if (dice.one_in(3) && (drawn == DR_FP32 || may_round_intermediates(c))) c.stage.dtype = drawn;
  if (c.stage.states_layout != 0 && dice.one_in(3) && (drawn_states == DR_FP32 || states_round_typically(c)))
    c.stage.dtype_states = drawn_states;
}

// Summaries of a few tokens each, instead of tokens.
void count_summaries(Case& c) {
  for (int64_t& length : c.lengths) length = c.batched ? 1 + length % 8 : length % 12;
  c.tail %= 5;
  c.bound_tokens = c.bound_seqs = 0;
  c.strides = Strides::kContiguous;
  c.alignments = {};
}

// The table has no wider column for intermediates, and sums that are given must be finite.
bool stage_gates_are_typical(const Case& c) {
  const bool may_be_infinite = c.gate_form == DR_GATE_LINEAR || c.gate_profile == GateProfile::kInf;
  // What every token decays by e^-12.5 is below the normal numbers of fp16 from the first token on.
  const bool fades =
      c.intermediate_dtype() == DR_FP16 && c.gate_profile == GateProfile::kAtBound && c.lower_bound < -5.0;
  return !c.hostile() && !c.strained() && !fades && !(may_be_infinite && c.gives(DR_GATE_SUMS));
}

// Without writes a summary is its decays alone, which may leave the normal numbers of fp32.
bool only_decays(const Case& c) { return c.op == DR_SUMMARY && c.beta == BetaProfile::kZero; }

void keep_stage_typical(Case& c) {
  if (only_decays(c)) c.beta = BetaProfile::kValue;
  if (stage_gates_are_typical(c)) return;
  c.keys = KeyProfile::kNormal;
  c.gate_form = DR_GATE_LOG;
  c.gate_profile = GateProfile::kRange;
  c.gate_low = -5.0;
  c.gate_spread = 1.0;
  c.gate_floor = 0.0;
  c.lower_bound = -5.0;
  c.a_log = c.dt_bias = true;
}

bool lengths_are_typical(const Case& c) {
  const int64_t least = c.op == DR_CARRY ? 0 : least_length(c);  // a carry has summaries
  const int64_t most = c.dtype == DR_BF16 && c.hostile() ? kMostHostile : c.tokens();
  return std::all_of(c.lengths.begin(), c.lengths.end(),
                     [&](int64_t length) { return length == 0 || (length >= least && length <= most); });
}

bool values_are_typical(const Case& c) {
  // Of states that are only decayed nothing normal may be left.
  const bool writes = c.beta != BetaProfile::kZero || c.gate_profile == GateProfile::kZero;
  return writes && (c.l2norm || !needs_l2norm(c));
}

bool rounding_is_typical(const Case& c) {
  if (c.dtype != DR_FP32) return int64_t{c.dk} * c.dv >= kLeastBlock;
  const auto rounds = [](int32_t dtype) { return dtype != DR_FP32; };
  if (rounds(c.output_dtype()) && shortest_block(c) < kTypicalBlock) return false;
  const bool rounds_states = rounds(c.initial.dtype) || rounds(c.final.dtype) || rounds(c.checkpoint.dtype);
  return !rounds_states || states_round_typically(c);
}

bool stage_is_typical(const Case& c) {
  const auto rounds = [](int32_t dtype) { return dtype != 0 && dtype != DR_FP32; };
  const bool types = (c.dtype == DR_FP32 || !stage_needs_fp32(c)) &&
                     (!rounds(c.stage.dtype) || may_round_intermediates(c)) &&
                     (!rounds(c.stage.dtype_states) || states_round_typically(c));
  return types && !only_decays(c) && stage_gates_are_typical(c);
}

}  // namespace

bool is_measurable(const Case& c) {
  return lengths_are_typical(c) && values_are_typical(c) && rounding_is_typical(c) &&
         (!c.is_stage() || stage_is_typical(c));
}

Case random_stage(uint64_t seed, int64_t cost, const std::string& backend) {
  constexpr std::array<int32_t, 5> kStages = {DR_CHUNK_LOCAL, DR_STATE_PASS, DR_OUTPUTS, DR_SUMMARY, DR_CARRY};
  constexpr uint64_t kSalt = 0x5374616765;  // other numbers than the forward of this seed has
  Case c = random_case(seed, cost, backend);
  Dice dice(seed ^ kSalt);
  c.op = dice.pick(kStages);
  c.variant.clear();
  c.math = DR_MATH_DEFAULT;
  c.invariant = false;
  c.carry = DR_CARRY_EXACT;
  c.carry_log_decay = 0;
  c.checkpoints = DR_CHECKPOINTS_NONE;
  c.checkpoint_every = 0;
  c.checkpoint_list.clear();
  c.checkpoint = {};
  if (c.op != DR_STATE_PASS) {
    c.segments = DR_SEGMENTS_AUTO;
    c.segment_value = 0;
  }
  if (c.op != DR_STATE_PASS && c.op != DR_CARRY) {
    c.initial = c.final = {};
    c.in_place = c.mask = false;
  }
  if (c.op == DR_CARRY) count_summaries(c);
  random_intermediates(dice, c);
  random_stage_types(dice, c);
  keep_stage_typical(c);
  return c;
}

Case random_case(uint64_t seed, int64_t cost, const std::string& backend) {
  Dice dice(seed);
  Case c;
  c.backend = backend;
  c.seed = seed & 0xffffffffu;
  c.rule = dice.one_in(2) ? DR_KDA : DR_GDN;
  random_types(dice, c);
  random_sizes(dice, cost, c);
  random_values(dice, c);
  random_states(dice, c);
  keep_rounding_typical(c);
  constexpr std::array<Strides, 6> kDrawn = {Strides::kContiguous, Strides::kContiguous, Strides::kContiguous,
                                             Strides::kPacked,     Strides::kPadded,     Strides::kHeadFirst};
  c.strides = dice.pick(kDrawn);
  if (is_hopper(c) && c.dv > 128 && c.strides == Strides::kHeadFirst)
    c.strides = Strides::kPadded;  // heads side by side
  if (dice.one_in(3)) c.threads = static_cast<int32_t>(1 + dice.below(3));
  random_segments(dice, c);
  // Widths fix the alignment of views of a packed row.
  constexpr std::array<int32_t, 3> kAlignments = {2, 4, 8};
  if (dice.one_in(6) && c.strides != Strides::kPacked && !is_hopper(c)) c.alignment = dice.pick(kAlignments);
  random_way(dice, c);
  random_carry(dice, c);
  // Drawn last, so that older seeds still draw the same cases.
  if (c.lengths_at == LengthsAt::kExecute && c.strides != Strides::kHeadFirst && c.num_tokens() > 0 && dice.one_in(2)) {
    c.bound_tokens = c.num_tokens() + dice.below(3000);
    c.bound_seqs = c.num_seqs() + dice.below(40);
  }
  constexpr std::array<int32_t, 3> kTypes = {DR_FP32, DR_BF16, DR_FP16};
  if (c.raw_gate() && dice.one_in(2)) {
    c.dtype_a_log = dice.pick(kTypes);
    c.dtype_dt_bias = dice.pick(kTypes);
  }
  random_layer_gates(dice, c);
  random_alignments(dice, c);
  return c;
}

}  // namespace deltarelay::cases
