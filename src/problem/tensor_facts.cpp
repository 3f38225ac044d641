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
    case Tensor::kK:
    case Tensor::kV:
    case Tensor::kG:
    case Tensor::kBeta:
    case Tensor::kO:
      return p.num_tokens == 0 ? Need::kMay : Need::kAlways;
    case Tensor::kALog:
      if (!p.raw_gate()) return Need::kIgnored;
      return p.gate_form == GateForm::kRawSoftplus ? Need::kAlways : Need::kMay;
    case Tensor::kDtBias:
      return p.raw_gate() ? Need::kMay : Need::kIgnored;
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
  }
  return Need::kAlways;
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
  int64_t promised = entry.kind == TensorKind::kPool ? facts.pool->alignment : 1;
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
          .checkpoint_rows = checkpoint_rows};
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
