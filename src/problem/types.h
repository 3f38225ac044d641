// The enumerations of deltarelay.h as C++ enumerations, with the same values.
#pragma once
#include <cstddef>
#include <cstdint>

#include "deltarelay/deltarelay.h"
#include "problem/host_device.h"

namespace deltarelay {

// Which recurrence: a gate per key channel, or per head.
enum class Rule : int32_t { kKda = DR_KDA, kGdn = DR_GDN };

// What is asked. The stages are kChunkLocal to kCarry.
enum class Op : int32_t {
  kForward = DR_FORWARD,
  kBackward = DR_BACKWARD,
  kChunkLocal = DR_CHUNK_LOCAL,
  kStatePass = DR_STATE_PASS,
  kOutputs = DR_OUTPUTS,
  kSummary = DR_SUMMARY,
  kCarry = DR_CARRY,
  kStep = DR_STEP,
  kCommit = DR_COMMIT,
};

constexpr bool is_stage(Op op) { return op >= Op::kChunkLocal && op <= Op::kCarry; }
// Do chunks of this operation depend on the chunks before them? If not, all run at once and no sequence is cut.
constexpr bool is_chained(Op op) { return op != Op::kChunkLocal && op != Op::kOutputs; }

enum class DType : int32_t { kFp32 = DR_FP32, kBf16 = DR_BF16, kFp16 = DR_FP16, kInt32 = DR_INT32, kInt64 = DR_INT64 };

enum class GateForm : int32_t {
  kLog = DR_GATE_LOG,
  kLinear = DR_GATE_LINEAR,
  kRawSoftplus = DR_GATE_RAW_SOFTPLUS,
  kRawBounded = DR_GATE_RAW_BOUNDED,
};

enum class BetaForm : int32_t {
  kValue = DR_BETA_VALUE,
  kLogit = DR_BETA_LOGIT,
  kTwiceLogit = DR_BETA_TWICE_LOGIT,
};

enum class StateLayout : int32_t { kValueMajor = DR_STATE_VALUE_MAJOR, kKeyMajor = DR_STATE_KEY_MAJOR };

enum class StateUse : int32_t { kNone = DR_STATE_NONE, kRows = DR_STATE_ROWS, kSlots = DR_STATE_SLOTS };

enum class Checkpoints : int32_t {
  kNone = DR_CHECKPOINTS_NONE,
  kEvery = DR_CHECKPOINTS_EVERY,
  kList = DR_CHECKPOINTS_LIST,
  kChunks = DR_CHECKPOINTS_CHUNKS,
};

enum class CarryMode : int32_t { kExact = DR_CARRY_EXACT, kTruncated = DR_CARRY_TRUNCATED };

constexpr size_t size_of(DType type) {
  switch (type) {
    case DType::kFp32:
    case DType::kInt32:
      return 4;
    case DType::kBf16:
    case DType::kFp16:
      return 2;
    case DType::kInt64:
      return 8;
  }
  return 0;
}

// size_of for floating-point types. In a kernel it is one select instead of a switch.
DR_HD constexpr int32_t float_bytes(DType type) { return type == DType::kFp32 ? 4 : 2; }

const char* name_of(Rule rule);
// Name of an operation (DR_FORWARD, ...) in the case grammar; nullptr for an unknown number.
const char* name_of_op(int32_t op);
inline const char* name_of(Op op) { return name_of_op(static_cast<int32_t>(op)); }
const char* name_of(DType type);
const char* name_of(GateForm form);
const char* name_of(BetaForm form);
const char* name_of(StateLayout layout);
const char* name_of(Checkpoints checkpoints);

// Positions of listed checkpoints and the period of regular ones are multiples of this number. Every backend ends a
// chunk or a sub-chunk there.
constexpr int64_t kCheckpointAlignment = 16;
// DR_CHECKPOINTS_CHUNKS counts in chunks of FLA.
constexpr int64_t kCheckpointChunk = 64;
constexpr int32_t kMaxKeyWidth = 256;
constexpr int32_t kMaxValueWidth = 512;
// Far above any model and any batch, and low enough to plan every call within milliseconds. With 32 heads of 128 x 128,
// the states of 65,536 sequences take 128 GiB.
constexpr int32_t kMaxHeads = 65536;
constexpr int64_t kMaxSequences = 65536;
// The number of chunks of a sequence is an int32_t, and no backend has a chunk below 16 tokens.
constexpr int64_t kMaxSequenceTokens = ((int64_t{1} << 31) - 1) * kCheckpointAlignment;
// Limit on tokens times value heads. Far above any memory; keeps the planner's sums of nanoseconds within int64_t.
constexpr int64_t kMaxTokenHeads = int64_t{1} << 44;
constexpr float kL2NormEpsilon = 1e-6f;  // inside the root, on the sum of squares
constexpr size_t kWorkspaceAlignment = 256;
constexpr size_t round_up(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace deltarelay
