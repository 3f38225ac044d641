// The rules of dr_problem, in the order of its fields.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "deltarelay/tensor_list.hpp"
#include "problem/argument.h"
#include "problem/number.h"
#include "problem/status.h"
#include "problem/strides.h"
#include "problem/struct_size.h"
#include "problem/tensor_facts.h"
#include "problem/validate.h"
#include "problem/validate_stages.h"

namespace deltarelay {
namespace {

struct NamedValue {
  int32_t value;
  const char* name;
};

constexpr NamedValue kFloatTypes[] = {{DR_FP32, "DR_FP32"}, {DR_BF16, "DR_BF16"}, {DR_FP16, "DR_FP16"}};
constexpr NamedValue kIndexTypes[] = {{DR_INT32, "DR_INT32"}, {DR_INT64, "DR_INT64"}};
constexpr NamedValue kRules[] = {{DR_KDA, "DR_KDA"}, {DR_GDN, "DR_GDN"}};
constexpr NamedValue kGateForms[] = {{DR_GATE_LOG, "DR_GATE_LOG"},
                                     {DR_GATE_LINEAR, "DR_GATE_LINEAR"},
                                     {DR_GATE_RAW_SOFTPLUS, "DR_GATE_RAW_SOFTPLUS"},
                                     {DR_GATE_RAW_BOUNDED, "DR_GATE_RAW_BOUNDED"}};
constexpr NamedValue kBetaForms[] = {
    {DR_BETA_VALUE, "DR_BETA_VALUE"}, {DR_BETA_LOGIT, "DR_BETA_LOGIT"}, {DR_BETA_TWICE_LOGIT, "DR_BETA_TWICE_LOGIT"}};
constexpr NamedValue kUses[] = {
    {DR_STATE_NONE, "DR_STATE_NONE"}, {DR_STATE_ROWS, "DR_STATE_ROWS"}, {DR_STATE_SLOTS, "DR_STATE_SLOTS"}};
constexpr NamedValue kLayouts[] = {{DR_STATE_VALUE_MAJOR, "DR_STATE_VALUE_MAJOR"},
                                   {DR_STATE_KEY_MAJOR, "DR_STATE_KEY_MAJOR"}};
constexpr NamedValue kCheckpoints[] = {{DR_CHECKPOINTS_NONE, "DR_CHECKPOINTS_NONE"},
                                       {DR_CHECKPOINTS_EVERY, "DR_CHECKPOINTS_EVERY"},
                                       {DR_CHECKPOINTS_LIST, "DR_CHECKPOINTS_LIST"},
                                       {DR_CHECKPOINTS_CHUNKS, "DR_CHECKPOINTS_CHUNKS"}};

template <typename Enum>
Enum choose(Argument argument, int32_t found, std::span<const NamedValue> choices) {
  for (const NamedValue& choice : choices) {
    if (choice.value == found) return static_cast<Enum>(found);
  }
  std::string expected;
  for (const NamedValue& choice : choices) {
    if (!expected.empty()) expected += &choice == &choices.back() ? " or " : ", ";
    expected += std::string(choice.name) + " (" + std::to_string(choice.value) + ")";
  }
  fail_invalid(argument.name(), expected, std::to_string(found));
}

template <typename Enum>
Enum choose_or(Argument argument, int32_t found, std::span<const NamedValue> choices, Enum otherwise) {
  return found == 0 ? otherwise : choose<Enum>(argument, found, choices);
}

void check_range(const char* argument, int64_t found, int64_t least, int64_t most) {
  if (found >= least && found <= most) return;
  fail_invalid(argument, std::to_string(least) + " to " + std::to_string(most), std::to_string(found));
}

void expect_zero(Argument argument, int64_t found) {
  if (found != 0) fail_invalid(argument.name(), "0", std::to_string(found));
}

// The backward and decode operations have numbers and structures in the header, but this version cannot run them.
Op read_operation(const dr_problem& request) {
  if (name_of_op(request.op) == nullptr) {
    fail_invalid("problem.op", "DR_FORWARD (0) to DR_COMMIT (" + std::to_string(DR_COMMIT) + ")",
                 std::to_string(request.op));
  }
  const auto op = static_cast<Op>(request.op);
  if (op != Op::kForward && !is_stage(op)) {
    fail_unsupported(std::string("problem.op: expected DR_FORWARD (0) or a stage, DR_CHUNK_LOCAL (2) to DR_CARRY (6), "
                                 "the operations of this version, found ") +
                     std::to_string(request.op) + " (" + name_of(op) + ")");
  }
  const auto expect_null = [op](const char* argument, const void* found) {
    if (found != nullptr) fail_invalid(argument, std::string("NULL with the operation ") + name_of(op), "a pointer");
  };
  if (!is_stage(op)) expect_null("problem.chunks", request.chunks);
  expect_null("problem.backward", request.backward);
  expect_null("problem.steps", request.steps);
  expect_zero("problem.reserved", request.reserved);
  return op;
}

void read_heads(const dr_problem& request, Problem* p) {
  check_range("problem.heads_qk", request.heads_qk, 1, kMaxHeads);
  check_range("problem.heads_v", request.heads_v, 1, kMaxHeads);
  if (request.heads_v % request.heads_qk != 0) {
    fail_invalid("problem.heads_v",
                 "a head count that is a multiple of heads_qk = " + std::to_string(request.heads_qk) +
                     " (every query/key head serves as many value heads)",
                 std::to_string(request.heads_v));
  }
  check_range("problem.dk", request.dk, 1, kMaxKeyWidth);
  check_range("problem.dv", request.dv, 1, kMaxValueWidth);
  p->heads_qk = request.heads_qk;
  p->heads_v = request.heads_v;
  p->dk = request.dk;
  p->dv = request.dv;
}

void read_batched(const dr_problem& request, Problem* p) {
  if (request.seq_offsets != nullptr) {
    fail_invalid("problem.seq_offsets",
                 "NULL in a batched problem (seq_len is " + std::to_string(request.seq_len) + ")", "a pointer");
  }
  check_range("problem.seq_len", request.seq_len, 1, kMaxSequenceTokens);
  static_assert(kMaxSequences * kMaxSequenceTokens < INT64_MAX / 2);
  const int64_t tokens = request.num_seqs * request.seq_len;
  if (request.num_tokens != 0 && request.num_tokens != tokens) {
    fail_invalid("problem.num_tokens", "0 or num_seqs * seq_len = " + std::to_string(tokens),
                 std::to_string(request.num_tokens));
  }
  p->seq_len = request.seq_len;
  p->num_tokens = tokens;
}

void read_packed(const dr_problem& request, Problem* p) {
  if (request.num_tokens < 0) {
    fail_invalid("problem.num_tokens", "0 or more rows", std::to_string(request.num_tokens));
  }
  p->num_tokens = request.num_tokens;
  p->lengths_known = request.seq_offsets != nullptr;
  if (!p->lengths_known) return;
  check_index_alignment("problem.seq_offsets", request.seq_offsets, p->offsets_dtype);
  check_offsets("problem.seq_offsets", request.seq_offsets, p->offsets_dtype, p->num_seqs, p->num_tokens);
  p->offsets.resize(static_cast<size_t>(p->num_seqs) + 1);
  for (int64_t n = 0; n <= p->num_seqs; ++n) {
    p->offsets[static_cast<size_t>(n)] = load_index(request.seq_offsets, p->offsets_dtype, n);
  }
}

void read_sequences(const dr_problem& request, Problem* p) {
  check_range("problem.num_seqs", request.num_seqs, 1, kMaxSequences);
  p->num_seqs = request.num_seqs;
  if (request.seq_len < 0) {
    fail_invalid("problem.seq_len", "0 (packed) or a positive length (batched)", std::to_string(request.seq_len));
  }
  p->offsets_dtype = choose_or("problem.seq_offsets_dtype", request.seq_offsets_dtype, kIndexTypes, DType::kInt32);
  if (request.seq_len > 0) {
    read_batched(request, p);
  } else {
    read_packed(request, p);
  }
  if (p->num_tokens > kMaxTokenHeads / p->heads_v) {
    fail_invalid("problem.num_tokens", "at most 2^44 tokens times value heads",
                 std::to_string(p->num_tokens) + " tokens and " + std::to_string(p->heads_v) + " heads");
  }
}

void read_types(const dr_problem& request, Problem* p) {
  p->dtype = choose_or("problem.dtype", request.dtype, kFloatTypes, DType::kFp32);
  p->dtype_o = choose_or("problem.dtype_o", request.dtype_o, kFloatTypes, p->dtype);
  p->dtype_gate = choose_or("problem.dtype_gate", request.dtype_gate, kFloatTypes, p->dtype);
  p->dtype_beta = choose_or("problem.dtype_beta", request.dtype_beta, kFloatTypes, p->dtype);
  p->dtype_a_log = choose_or("problem.dtype_a_log", request.dtype_a_log, kFloatTypes, DType::kFp32);
  p->dtype_dt_bias = choose_or("problem.dtype_dt_bias", request.dtype_dt_bias, kFloatTypes, DType::kFp32);
}

// Default alignment of tensors that kernels read in vectors, from the tensor list.
constexpr int64_t kDefaultAlignment = entry_of(Tensor::kQ).alignment;
static_assert(std::all_of(kTensors.begin(), kTensors.end(), [](const TensorEntry& entry) {
  return entry.alignment == 0 || entry.alignment == kDefaultAlignment;
}));

int64_t read_alignment(Argument argument, int32_t given, int64_t otherwise) {
  if (given < 0 || (given & (given - 1)) != 0) {
    fail_invalid(argument.name(), "0 (" + std::to_string(otherwise) + " bytes) or a power of two",
                 std::to_string(given));
  }
  return given != 0 ? given : otherwise;
}

void read_gate(const dr_problem& request, Problem* p) {
  p->gate_form = choose<GateForm>("problem.gate_form", request.gate_form, kGateForms);
  p->beta_form = choose<BetaForm>("problem.beta_form", request.beta_form, kBetaForms);
  p->l2norm = request.l2norm != 0;

  const float bound = request.lower_bound;
  if (p->gate_form == GateForm::kRawBounded) {
    if (!std::isfinite(bound) || bound >= 0.0f) {
      fail_invalid("problem.lower_bound", "a finite number below 0 with the raw bounded gate", std::to_string(bound));
    }
  } else if (bound != 0.0f) {
    fail_invalid("problem.lower_bound", std::string("0 with the ") + name_of(p->gate_form) + " gate",
                 std::to_string(bound));
  }
  p->lower_bound = bound;

  const float floor = request.gate_floor;
  const bool may_have_floor = p->gate_form == GateForm::kLog || p->gate_form == GateForm::kLinear;
  if (may_have_floor && (!std::isfinite(floor) || floor > 0.0f)) {
    fail_invalid("problem.gate_floor", "0 (no promise) or a finite number below 0", std::to_string(floor));
  }
  if (!may_have_floor && floor != 0.0f) {
    fail_invalid("problem.gate_floor", std::string("0 with the ") + name_of(p->gate_form) + " gate",
                 std::to_string(floor));
  }
  p->gate_floor = floor;
}

void read_scale(const dr_problem& request, Problem* p) {
  if (request.scale_given == 0) {
    // A scale without scale_given would be ignored silently.
    if (request.scale != 0.0f) {
      fail_invalid("problem.scale", "0 while scale_given is 0 (scale is then dk^-1/2)", std::to_string(request.scale));
    }
    p->scale = 1.0f / std::sqrt(static_cast<float>(p->dk));
    return;
  }
  if (!std::isfinite(request.scale)) {
    fail_invalid("problem.scale", "a finite number", std::to_string(request.scale));
  }
  p->scale = request.scale;
}

// beta and the GDN gate have one number per head and are often slices of a projection, so only element alignment is
// needed.
int64_t default_alignment(const Problem& p, const TensorEntry& entry, DType dtype) {
  const bool a_number =
      entry.axes[2] == TensorAxis::kNone || (entry.axes[2] == TensorAxis::kGateWidth && p.rule == Rule::kGdn);
  return a_number ? static_cast<int64_t>(size_of(dtype)) : entry.alignment;
}

void read_strides(const dr_problem& request, Problem* p) {
  const TensorSizes sizes = sizes_of(*p, p->num_tokens, p->num_seqs, 0);
  for (const TensorLayout& of : kTensorLayouts) {
    const TensorEntry& entry = entry_of(of.tensor);
    const dr_layout& given = request.*of.layout;
    const TensorShape shape{.sequences = p->batched() ? p->num_seqs : 1,
                            .tokens = p->batched() ? p->seq_len : p->num_tokens,
                            .heads = size_of_axis(sizes, entry.axes[1]),
                            .width = size_of_axis(sizes, entry.axes[2]),
                            .dtype = dtype_of(*p, entry.type, nullptr),
                            .batched = p->batched()};
    expect_zero(Argument(of.argument, "reserved"), given.reserved);
    const RowsField field = rows_field(of.tensor);
    // clang's analyzer does not follow pointers to members.
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
    p->*field.strides = resolve_strides(of.argument, given, shape);
    p->alignment.*field.alignment = read_alignment(Argument(of.argument, "alignment_bytes"), given.alignment_bytes,
                                                   default_alignment(*p, entry, shape.dtype));
  }
}

// `rows` is the number of rows that DR_STATE_ROWS needs, and the default of num_slots. The fields of an unused pool are
// not checked, so a caller may keep one description and switch it on and off.
StatePool read_state(const char* pool_name, const dr_state& request, const Problem& problem, int64_t rows,
                     bool rows_known) {
  StatePool pool;
  pool.use = choose<StateUse>(Argument(pool_name, "use"), request.use, kUses);
  if (!pool.used()) return pool;
  pool.layout = choose<StateLayout>(Argument(pool_name, "layout"), request.layout, kLayouts);
  pool.dtype = choose_or(Argument(pool_name, "dtype"), request.dtype, kFloatTypes, DType::kFp32);
  pool.index_dtype = choose_or(Argument(pool_name, "index_dtype"), request.index_dtype, kIndexTypes, DType::kInt32);
  for (const int64_t word : request.reserved) expect_zero(Argument(pool_name, "reserved"), word);
  pool.alignment = read_alignment(Argument(pool_name, "alignment_bytes"), request.alignment_bytes, kDefaultAlignment);
  if (request.num_slots < 0) {
    fail_invalid(Argument(pool_name, "num_slots").name(), "0 (one for each row) or the states in the pool",
                 std::to_string(request.num_slots));
  }
  pool.num_slots = request.num_slots != 0 ? request.num_slots : rows;
  if (pool.use == StateUse::kRows && rows_known && pool.num_slots < rows) {
    fail_invalid(Argument(pool_name, "num_slots").name(), "at least " + std::to_string(rows) + " rows",
                 std::to_string(pool.num_slots));
  }
  if (request.has_null_index != 0 && pool.use != StateUse::kSlots) {
    fail_invalid(Argument(pool_name, "has_null_index").name(), "0 unless use is DR_STATE_SLOTS",
                 std::to_string(request.has_null_index));
  }
  if (request.has_null_index == 0 && request.null_index != 0) {
    fail_invalid(Argument(pool_name, "null_index").name(), "0 while has_null_index is 0",
                 std::to_string(request.null_index));
  }
  pool.has_null_index = request.has_null_index != 0;
  pool.null_index = request.null_index;
  resolve_state_strides(pool_name, request, problem.heads_v, static_cast<int64_t>(problem.dk) * problem.dv, &pool);
  return pool;
}

void read_checkpoints(const dr_problem& request, Problem* p) {
  p->checkpoints = choose<Checkpoints>("problem.checkpoints", request.checkpoints, kCheckpoints);
  const int64_t every = request.checkpoint_every;
  if (p->checkpoints == Checkpoints::kEvery) {
    if (every <= 0 || every % kCheckpointAlignment != 0) {
      fail_invalid("problem.checkpoint_every", "a positive multiple of " + std::to_string(kCheckpointAlignment),
                   std::to_string(every));
    }
  } else if (every != 0) {
    fail_invalid("problem.checkpoint_every", "0 unless checkpoints is DR_CHECKPOINTS_EVERY", std::to_string(every));
  }
  p->checkpoint_every = every;
  const bool wanted = p->checkpoints != Checkpoints::kNone;
  // The number of rows of a list comes at execution; its pool may be smaller than the bound.
  const bool rows_known = p->lengths_known && p->checkpoints != Checkpoints::kList;
  p->checkpoint = read_state("problem.checkpoint", request.checkpoint, *p, p->checkpoint_rows(), rows_known);
  if (wanted != p->checkpoint.used()) {
    fail_invalid("problem.checkpoint.use",
                 wanted ? std::string("DR_STATE_ROWS or DR_STATE_SLOTS, a place for the checkpoints")
                        : std::string("DR_STATE_NONE while checkpoints is DR_CHECKPOINTS_NONE"),
                 std::to_string(request.checkpoint.use));
  }
}

}  // namespace

Problem validate(const dr_problem& given) {
  const dr_problem request = take_input("problem", given);
  Problem p;
  p.op = read_operation(request);
  p.rule = choose<Rule>("problem.rule", request.rule, kRules);
  read_heads(request, &p);
  read_sequences(request, &p);
  read_types(request, &p);
  if (is_stage(p.op)) p.chunks = read_chunks(request, p.op, p.dtype);
  read_gate(request, &p);
  read_scale(request, &p);
  read_strides(request, &p);
  p.initial = read_state("problem.initial", request.initial, p, p.num_seqs, true);
  p.final = read_state("problem.final", request.final, p, p.num_seqs, true);
  p.initial_mask = request.initial_mask != 0;
  if (p.initial_mask && !p.initial.used()) {
    fail_invalid("problem.initial_mask", "0 while initial.use is DR_STATE_NONE", std::to_string(request.initial_mask));
  }
  read_checkpoints(request, &p);
  if (is_stage(p.op)) check_stage(p);
  return p;
}

}  // namespace deltarelay
