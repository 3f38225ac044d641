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

struct Rows {
  const Strides* strides;
  int64_t alignment;
};

Rows rows_of(const Problem& p, Tensor tensor) {
  switch (tensor) {
    case Tensor::kQ:
      return {&p.q, p.alignment.q};
    case Tensor::kK:
      return {&p.k, p.alignment.k};
    case Tensor::kV:
      return {&p.v, p.alignment.v};
    case Tensor::kG:
      return {&p.g, p.alignment.g};
    case Tensor::kBeta:
      return {&p.beta, p.alignment.beta};
    case Tensor::kO:
      return {&p.o, p.alignment.o};
    default:
      return {nullptr, 1};
  }
}

int64_t element_bytes(const Problem& p, TensorType type, const StatePool* pool) {
  const auto bytes = [](DType dtype) { return static_cast<int64_t>(size_of(dtype)); };
  switch (type) {
    case TensorType::kData:
      return bytes(p.dtype);
    case TensorType::kOutput:
      return bytes(p.dtype_o);
    case TensorType::kGate:
      return bytes(p.dtype_gate);
    case TensorType::kBeta:
      return bytes(p.dtype_beta);
    case TensorType::kALog:
      return bytes(p.dtype_a_log);
    case TensorType::kDtBias:
      return bytes(p.dtype_dt_bias);
    case TensorType::kState:
      return bytes(pool->dtype);
    case TensorType::kStateIndex:
      return bytes(pool->index_dtype);
    case TensorType::kOffsets:
      return bytes(p.offsets_dtype);
    case TensorType::kByte:
      return 1;
    case TensorType::kInt32:
      return 4;
  }
  return 1;
}

// When the problem has a use for the tensor.
Need need_of(const Problem& p, Tensor tensor, const StatePool* pool, const char** reason) {
  const auto never = [reason](const char* why) {
    *reason = why;
    return Need::kNever;
  };
  constexpr const char* kNotListed = "checkpoints is not DR_CHECKPOINTS_LIST";
  const bool listed = p.checkpoints == Checkpoints::kList;
  // How many checkpoints there are may be known only from lists, so their memory is excused until those are read.
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

TensorFacts facts_of(const Problem& p, const TensorEntry& entry) {
  TensorFacts facts;
  facts.pool = pool_of(p, entry.tensor);
  facts.need = need_of(p, entry.tensor, facts.pool, &facts.reason);
  facts.element_bytes = element_bytes(p, entry.type, facts.pool);
  const Rows rows = rows_of(p, entry.tensor);
  facts.strides = rows.strides;
  const bool states = entry.kind == TensorKind::kPool && facts.pool != nullptr;
  const int64_t promised = states ? facts.pool->alignment : rows.alignment;
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
