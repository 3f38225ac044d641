#include "problem/tensor_facts.h"

#include <algorithm>

namespace deltarelay {
namespace {

const StatePool* pool_of(const Problem& p, Tensor tensor) {
  switch (tensor) {
    case Tensor::kInitial:
    case Tensor::kInitialIndex:
      return &p.initial;
    case Tensor::kFinal:
    case Tensor::kFinalIndex:
      return &p.final;
    case Tensor::kCheckpoint:
    case Tensor::kCheckpointIndex:
      return &p.checkpoint;
    default:
      return nullptr;
  }
}

Need need_of_rows(bool used, const Problem& p, const char** reason) {
  if (used) return p.num_tokens == 0 ? Need::kMay : Need::kAlways;
  *reason = "the operation of the problem does not use it";
  return Need::kNever;
}

Need need_of_intermediate(const Problem& p, Tensor tensor, const char** reason) {
  if (((p.chunks.given | p.chunks.wanted) & bit_of(tensor)) == 0) {
    *reason = "neither chunks.given nor chunks.wanted names it";
    return Need::kNever;
  }
  const bool of_sequences = tensor == Tensor::kComposed || (tensor == Tensor::kSummaries && p.op == Op::kSummary);
  return p.num_tokens == 0 && !of_sequences ? Need::kMay : Need::kAlways;
}

// Does the problem need the tensor? If not, `reason` receives why.
Need need_of(const Problem& p, Tensor tensor, const StatePool* pool, const char** reason) {
  const auto never = [reason](const char* why) {
    *reason = why;
    return Need::kNever;
  };
  constexpr const char* kNotListed = "checkpoints is not DR_CHECKPOINTS_LIST";
  const bool listed = p.checkpoints == Checkpoints::kList;
  // Only the lists may say how many checkpoints there are, so a NULL pool is allowed until they are read.
  const Need of_pool = tensor == Tensor::kCheckpoint || tensor == Tensor::kCheckpointIndex ? Need::kMay : Need::kAlways;
  switch (tensor) {
    case Tensor::kQ:
      return need_of_rows(p.reads().q, p, reason);
    case Tensor::kK:
      return need_of_rows(p.reads().k, p, reason);
    case Tensor::kV:
      return need_of_rows(p.reads().v, p, reason);
    case Tensor::kG:
      return need_of_rows(p.reads().g, p, reason);
    case Tensor::kBeta:
      return need_of_rows(p.reads().beta, p, reason);
    case Tensor::kO:
      return need_of_rows(p.writes_o(), p, reason);
    case Tensor::kALog:
      if (!p.reads_gate_parameters()) return Need::kIgnored;
      return p.gate_form == GateForm::kRawSoftplus ? Need::kAlways : Need::kMay;
    case Tensor::kDtBias:
      return p.reads_gate_parameters() ? Need::kMay : Need::kIgnored;
    case Tensor::kInitialIndex:
    case Tensor::kFinalIndex:
    case Tensor::kCheckpointIndex:
      if (pool->use == StateUse::kRows) return never("its use in the problem is DR_STATE_ROWS");
      [[fallthrough]];
    case Tensor::kInitial:
    case Tensor::kFinal:
    case Tensor::kCheckpoint:
      return pool->used() ? of_pool : never("its use in the problem is DR_STATE_NONE");
    case Tensor::kHasInitial:
      return p.initial_mask ? Need::kAlways : never("initial_mask in the problem is 0");
    case Tensor::kCheckpointOffsets:
      return listed ? Need::kAlways : never(kNotListed);
    case Tensor::kCheckpointPositions:
      return listed ? Need::kMay : never(kNotListed);
    case Tensor::kSeqOffsets:
      return p.lengths_known ? never("the problem has the lengths") : Need::kAlways;
    case Tensor::kReport:
      return Need::kMay;
    case Tensor::kAqk:
    case Tensor::kInverse:
    case Tensor::kW:
    case Tensor::kU:
    case Tensor::kKToEnd:
    case Tensor::kQFromStart:
    case Tensor::kGateSums:
    case Tensor::kVNew:
    case Tensor::kStates:
    case Tensor::kSummaries:
    case Tensor::kComposed:
      return need_of_intermediate(p, tensor, reason);
  }
  return Need::kAlways;
}

bool is_written(const Problem& p, const TensorEntry& entry) {
  if (entry.direction == TensorDirection::kEither) return p.chunks.wants(bit_of(entry.tensor));
  return entry.direction == TensorDirection::kOut;
}

}  // namespace

RowsField rows_field(Tensor tensor) {
  switch (tensor) {
    case Tensor::kQ:
      return {&Problem::q, &Alignments::q};
    case Tensor::kK:
      return {&Problem::k, &Alignments::k};
    case Tensor::kV:
      return {&Problem::v, &Alignments::v};
    case Tensor::kG:
      return {&Problem::g, &Alignments::g};
    case Tensor::kBeta:
      return {&Problem::beta, &Alignments::beta};
    case Tensor::kO:
      return {&Problem::o, &Alignments::o};
    default:
      return {nullptr, nullptr};
  }
}

DType dtype_of(const Problem& p, TensorType type, const StatePool* pool) {
  switch (type) {
    case TensorType::kData:
      return p.dtype;
    case TensorType::kOutput:
      return p.dtype_o;
    case TensorType::kGate:
      return p.dtype_gate;
    case TensorType::kBeta:
      return p.dtype_beta;
    case TensorType::kALog:
      return p.dtype_a_log;
    case TensorType::kDtBias:
      return p.dtype_dt_bias;
    case TensorType::kState:
      return pool->dtype;
    case TensorType::kStateIndex:
      return pool->index_dtype;
    case TensorType::kOffsets:
      return p.offsets_dtype;
    case TensorType::kIntermediate:
      return p.chunks.dtype;
    case TensorType::kStates:
      return p.chunks.dtype_states;
    case TensorType::kFp32:
      return DType::kFp32;
    case TensorType::kByte:
    case TensorType::kInt32:
      break;
  }
  return DType::kInt32;
}

TensorFacts facts_of(const Problem& p, const TensorEntry& entry) {
  TensorFacts facts;
  facts.pool = pool_of(p, entry.tensor);
  facts.need = need_of(p, entry.tensor, facts.pool, &facts.reason);
  facts.element_bytes =
      entry.type == TensorType::kByte ? 1 : static_cast<int64_t>(size_of(dtype_of(p, entry.type, facts.pool)));
  facts.written = is_written(p, entry);
  int64_t promised = entry.kind == TensorKind::kPool    ? facts.pool->alignment
                     : entry.kind == TensorKind::kStage ? int64_t{entry.alignment}
                                                        : 1;
  if (const RowsField field = rows_field(entry.tensor); field.strides != nullptr) {
    facts.strides = &(p.*field.strides);
    promised = p.alignment.*field.alignment;
  }
  facts.alignment = std::max(promised, facts.element_bytes);
  return facts;
}

TensorSizes sizes_of(const Problem& p, int64_t tokens, int64_t sequences, int64_t checkpoint_rows) {
  return {.tokens = tokens,
          .sequences = sequences,
          .heads_qk = p.heads_qk,
          .heads_v = p.heads_v,
          .dk = p.dk,
          .dv = p.dv,
          .gates = p.rule == Rule::kKda ? p.dk : 1,
          .checkpoint_rows = checkpoint_rows,
          .chunk = p.chunks.chunk,
          .state_rows = p.op == Op::kCarry ? tokens : p.chunk_rows(tokens, sequences),
          .summary_rows = p.op == Op::kCarry ? tokens : sequences};
}

Footprint footprint_of(const Problem& p, const TensorEntry& entry, const TensorFacts& facts, const TensorSizes& sizes,
                       const void* data) {
  const int64_t bytes = facts.element_bytes;
  if (entry.kind != TensorKind::kRows) return {data, count_of(sizes, entry) * bytes, {}};
  const Strides& s = *facts.strides;
  const FootprintAxis head{size_of_axis(sizes, entry.axes[1]), s.head * bytes};
  const int64_t width = size_of_axis(sizes, entry.axes[2]) * bytes;
  if (!p.batched()) return {data, width, {head, {sizes.tokens, s.token * bytes}}};
  return {data, width, {head, {p.seq_len, s.token * bytes}, {sizes.sequences, s.sequence * bytes}}};
}

}  // namespace deltarelay
