#include "problem/types.h"

namespace deltarelay {

const char* name_of(Rule rule) {
  switch (rule) {
    case Rule::kKda:
      return "kda";
    case Rule::kGdn:
      return "gdn";
  }
  return "?";
}

const char* name_of_op(int32_t op) {
  static constexpr const char* kNames[] = {"forward", "backward", "chunk-local", "state-pass", "outputs",
                                           "summary", "carry",    "step",        "commit"};
  return op >= DR_FORWARD && op <= DR_COMMIT ? kNames[op] : nullptr;
}

const char* name_of(DType type) {
  switch (type) {
    case DType::kFp32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
  }
  return "?";
}

const char* name_of(GateForm form) {
  switch (form) {
    case GateForm::kLog:
      return "log";
    case GateForm::kLinear:
      return "linear";
    case GateForm::kRawSoftplus:
      return "raw softplus";
    case GateForm::kRawBounded:
      return "raw bounded";
  }
  return "?";
}

const char* name_of(BetaForm form) {
  switch (form) {
    case BetaForm::kValue:
      return "value";
    case BetaForm::kLogit:
      return "logit";
    case BetaForm::kTwiceLogit:
      return "twice logit";
  }
  return "?";
}

const char* name_of(StateLayout layout) {
  switch (layout) {
    case StateLayout::kValueMajor:
      return "value-major";
    case StateLayout::kKeyMajor:
      return "key-major";
  }
  return "?";
}

const char* name_of(Checkpoints checkpoints) {
  switch (checkpoints) {
    case Checkpoints::kNone:
      return "none";
    case Checkpoints::kEvery:
      return "every";
    case Checkpoints::kList:
      return "list";
    case Checkpoints::kChunks:
      return "chunks";
  }
  return "?";
}

}  // namespace deltarelay
