// The rules of dr_chunks, and of the other fields of a problem that asks for a stage.
#include "problem/validate_stages.h"

#include <limits>
#include <string>

#include "deltarelay/tensor_list.hpp"
#include "problem/footprint.h"
#include "problem/status.h"
#include "problem/struct_size.h"
#include "problem/tensor_facts.h"

namespace deltarelay {
namespace {

// Intermediates that an operation may take and give. `must`: without them it has nothing to work on.
struct StageRule {
  int32_t must, may_give, may_want;
};

StageRule rule_of(Op op) {
  constexpr int32_t kDecays = DR_K_TO_END | DR_GATE_SUMS;
  switch (op) {
    case Op::kChunkLocal:
      return {0, DR_INVERSE | DR_GATE_SUMS,
              DR_AQK | DR_INVERSE | DR_W | DR_U | DR_K_TO_END | DR_Q_FROM_START | DR_GATE_SUMS};
    case Op::kStatePass:
      return {DR_W | DR_U, kDecays, DR_STATES | DR_V_NEW};
    case Op::kOutputs:
      return {DR_V_NEW | DR_STATES, DR_AQK | DR_Q_FROM_START | DR_GATE_SUMS, 0};
    case Op::kSummary:
      return {0, DR_W | DR_U | kDecays, DR_SUMMARIES};
    case Op::kCarry:
      return {DR_SUMMARIES, 0, DR_STATES | DR_COMPOSED};
    default:
      return {};
  }
}

// "DR_W, DR_U": the names of bits; "0" for none.
std::string names_of(int32_t bits) {
  std::string names;
  for (int32_t i = static_cast<int32_t>(Tensor::kAqk); i < kNumTensors; ++i) {
    const TensorEntry& entry = kTensors[static_cast<size_t>(i)];
    if ((bits & bit_of(entry.tensor)) == 0) continue;
    names += names.empty() ? "DR_" : ", DR_";
    for (const char* c = entry.name; *c != '\0'; ++c) names += *c >= 'a' && *c <= 'z' ? static_cast<char>(*c - 32) : *c;
    bits &= ~bit_of(entry.tensor);
  }
  if (bits != 0) names += (names.empty() ? "unknown bits " : ", unknown bits ") + std::to_string(bits);
  return names.empty() ? "0" : names;
}

std::string in_operation(Op op) { return std::string(" in ") + name_of(op); }

void check_bits(Op op, const dr_chunks& c) {
  const StageRule rule = rule_of(op);
  const int32_t can_be_given = rule.must | rule.may_give;
  if ((c.given & ~can_be_given) != 0)
    fail_invalid("chunks.given", "of " + names_of(can_be_given) + in_operation(op), names_of(c.given));
  if ((c.given & rule.must) != rule.must)
    fail_invalid("chunks.given", names_of(rule.must) + in_operation(op), names_of(c.given));
  if ((c.wanted & ~rule.may_want) != 0)
    fail_invalid("chunks.wanted", "of " + names_of(rule.may_want) + in_operation(op), names_of(c.wanted));
  if ((c.given & c.wanted) != 0) fail_invalid("chunks.wanted", "nothing that is given", names_of(c.given & c.wanted));
  const bool needs_wish = op == Op::kChunkLocal || op == Op::kSummary;
  if (needs_wish && c.wanted == 0)
    fail_invalid("chunks.wanted", "at least one of " + names_of(rule.may_want) + in_operation(op), "0");
  if (op != Op::kSummary) return;
  constexpr int32_t kSolved = DR_W | DR_U;
  if (c.given != 0 && (c.given & kSolved) != kSolved)
    fail_invalid("chunks.given", "0, or DR_W and DR_U and what follows from them" + in_operation(op),
                 names_of(c.given));
}

int32_t read_chunk(Op op, int32_t chunk) {
  if (op == Op::kCarry) {
    if (chunk != 0) fail_invalid("chunks.chunk", "0 in carry, whose rows are summaries", std::to_string(chunk));
    return 0;
  }
  if (chunk != 0 && chunk != 16 && chunk != 32 && chunk != 64)
    fail_invalid("chunks.chunk", "16, 32 or 64 tokens, or 0 for 64", std::to_string(chunk));
  return chunk != 0 ? chunk : 64;
}

DType read_float(const char* argument, int32_t found, DType otherwise) {
  if (found == 0) return otherwise;
  if (found != DR_FP32 && found != DR_BF16 && found != DR_FP16)
    fail_invalid(argument, "DR_FP32 (1), DR_BF16 (2) or DR_FP16 (3)", std::to_string(found));
  return static_cast<DType>(found);
}

void read_states(const dr_chunks& c, Op op, Chunks* chunks) {
  const bool has_states = ((c.given | c.wanted) & DR_STATES) != 0;
  if (has_states) {
    if (c.states_layout != DR_STATE_VALUE_MAJOR && c.states_layout != DR_STATE_KEY_MAJOR)
      fail_invalid("chunks.states_layout", "DR_STATE_VALUE_MAJOR (1) or DR_STATE_KEY_MAJOR (2) with DR_STATES",
                   std::to_string(c.states_layout));
    chunks->states_layout = static_cast<StateLayout>(c.states_layout);
  } else if (c.states_layout != 0) {
    fail_invalid("chunks.states_layout", "0 unless DR_STATES is given or wanted", std::to_string(c.states_layout));
  }
  chunks->dtype_states =
      read_float("chunks.dtype_states", c.dtype_states, op == Op::kCarry ? DType::kFp32 : chunks->dtype);
}

}  // namespace

Chunks read_chunks(const dr_problem& request, Op op, DType dtype) {
  if (request.chunks == nullptr)
    fail_invalid("problem.chunks", std::string("a pointer with the operation ") + name_of(op), "NULL");
  const dr_chunks c = take_input("chunks", *request.chunks);
  check_bits(op, c);
  Chunks chunks;
  chunks.chunk = read_chunk(op, c.chunk);
  chunks.given = c.given;
  chunks.wanted = c.wanted;
  chunks.dtype = read_float("chunks.dtype", c.dtype, dtype);
  chunks.sums_base_2 = c.sums_base_2 != 0;
  read_states(c, op, &chunks);
  return chunks;
}

namespace {

// Rows of an intermediate may be matrices, so it may be too large where no tensor of tokens is.
void check_sizes(const Problem& p) {
  const TensorSizes sizes = sizes_of(p, p.num_tokens, p.num_seqs, 0);
  for (int32_t i = static_cast<int32_t>(Tensor::kAqk); i < kNumTensors; ++i) {
    const TensorEntry& entry = kTensors[static_cast<size_t>(i)];
    if (((p.chunks.given | p.chunks.wanted) & bit_of(entry.tensor)) == 0) continue;
    Wide bytes = static_cast<Wide>(size_of(dtype_of(p, entry.type, nullptr)));
    for (const TensorAxis axis : entry.axes) bytes *= size_of_axis(sizes, axis);
    if (bytes <= std::numeric_limits<int64_t>::max()) continue;
    const int64_t rows = size_of_axis(sizes, entry.axes[0]);
    fail_invalid("problem.num_tokens",
                 std::string("intermediates.") + entry.name + " of at most 2^63 - 1 bytes" + in_operation(p.op),
                 std::to_string(rows) + " rows of " + std::to_string(static_cast<int64_t>(bytes / rows)) + " bytes");
  }
}

}  // namespace

void check_stage(const Problem& p) {
  const auto refuse = [&p](const char* argument, const char* expected, const char* found) {
    fail_invalid(argument, expected + in_operation(p.op), found);
  };
  if (p.checkpoints != Checkpoints::kNone) refuse("problem.checkpoints", "DR_CHECKPOINTS_NONE", name_of(p.checkpoints));
  const bool has_pools = p.op == Op::kStatePass || p.op == Op::kCarry;
  if (!has_pools && p.initial.used()) refuse("problem.initial.use", "DR_STATE_NONE", "states");
  if (!has_pools && p.final.used()) refuse("problem.final.use", "DR_STATE_NONE", "states");
  if (has_pools && p.chunks.wanted == 0 && !p.final.used())
    refuse("chunks.wanted", "something to write, or final states,", "0, and final.use is DR_STATE_NONE");
  check_sizes(p);
}

}  // namespace deltarelay
