// Every tensor of dr_tensors and dr_intermediates, listed once: name, axes, type, direction, operations and alignment.
//
// The library checks a call against this list, and `deltarelay tensors` prints it. Tools that allocate, copy or check
// the tensors of a call walk the list instead of naming the fields again. To add a tensor, add a field to its structure
// and a line here. The compiler then reports what src/problem/tensor_facts.cpp has to know as well.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "deltarelay/deltarelay.h"

namespace deltarelay {

enum class Tensor : int32_t {
  kQ,
  kK,
  kV,
  kG,
  kBeta,
  kALog,
  kDtBias,
  kO,
  kInitial,
  kInitialIndex,
  kHasInitial,
  kFinal,
  kFinalIndex,
  kCheckpoint,
  kCheckpointIndex,
  kCheckpointOffsets,
  kCheckpointPositions,
  kSeqOffsets,
  kReport,
  kAqk,  // from here on fields of dr_intermediates, in the order of their bits
  kInverse,
  kW,
  kU,
  kKToEnd,
  kQFromStart,
  kGateSums,
  kVNew,
  kStates,
  kSummaries,
  kComposed,
};
constexpr int32_t kNumTensors = static_cast<int32_t>(Tensor::kComposed) + 1;

constexpr bool is_intermediate(Tensor tensor) { return tensor >= Tensor::kAqk; }
// Bit of an intermediate in dr_chunks.given and dr_chunks.wanted; 0 for other tensors.
constexpr int32_t bit_of(Tensor tensor) {
  if (!is_intermediate(tensor)) return 0;
  return int32_t{1} << (static_cast<int32_t>(tensor) - static_cast<int32_t>(Tensor::kAqk));
}
static_assert(bit_of(Tensor::kAqk) == DR_AQK && bit_of(Tensor::kInverse) == DR_INVERSE && bit_of(Tensor::kW) == DR_W);
static_assert(bit_of(Tensor::kU) == DR_U && bit_of(Tensor::kKToEnd) == DR_K_TO_END);
static_assert(bit_of(Tensor::kQFromStart) == DR_Q_FROM_START && bit_of(Tensor::kGateSums) == DR_GATE_SUMS);
static_assert(bit_of(Tensor::kVNew) == DR_V_NEW && bit_of(Tensor::kStates) == DR_STATES);
static_assert(bit_of(Tensor::kSummaries) == DR_SUMMARIES && bit_of(Tensor::kComposed) == DR_COMPOSED);

enum class TensorKind : int32_t {
  kRows,       // one row per token; a dr_layout of the problem gives strides and alignment
  kPool,       // states; a dr_state of the problem describes them
  kParameter,  // parameter of a layer, contiguous
  kIndex,      // slots of a pool
  kList,       // offsets, positions, masks
  kReport,     // written by the library about the call
  kStage,      // intermediate of the stages, contiguous
};

enum class TensorAxis : int32_t {
  kNone,
  kTokens,          // T
  kSequences,       // N
  kBounds,          // N + 1
  kHeadsQk,         // HQK
  kHeadsV,          // HV
  kKeyWidth,        // DK
  kValueWidth,      // DV
  kGateWidth,       // DK (KDA); absent (GDN)
  kCheckpointRows,  // checkpoint rows of all sequences
  kSlots,           // dr_state.num_slots
  kMatrix,          // two axes, [DV, DK] or [DK, DV] by dr_state.layout
  kChunk,           // C
  kStateRows,       // R, chunks of all sequences; T in DR_CARRY
  kStateMatrix,     // two axes, [DV, DK] or [DK, DV] by dr_chunks.states_layout
  kSummaryRows,     // N; T in DR_CARRY
  kSummaryMatrix,   // two axes, [DV + DK, DK]
};

// Which field of the problem states the element type.
enum class TensorType : int32_t {
  kData,
  kOutput,
  kGate,
  kBeta,
  kALog,
  kDtBias,
  kState,       // dr_state.dtype
  kStateIndex,  // dr_state.index_dtype
  kOffsets,     // seq_offsets_dtype
  kByte,
  kInt32,
  kIntermediate,  // dr_chunks.dtype
  kStates,        // dr_chunks.dtype_states
  kFp32,
};

enum class TensorDirection : int32_t {
  kIn,
  kOut,
  kEither,  // in if dr_chunks.given has its bit, out if dr_chunks.wanted has it
};

constexpr uint32_t operation_bit(int32_t op) { return uint32_t{1} << op; }

struct TensorEntry {
  Tensor tensor;
  const char* name;  // field of dr_tensors or dr_intermediates
  size_t offset;     // of that field, in bytes
  TensorKind kind;
  TensorDirection direction;
  TensorType type;
  std::array<TensorAxis, 3> axes;
  uint32_t operations;  // operation_bit of each operation that has the tensor
  int32_t alignment;    // default in bytes if the problem promises an alignment; 0: size of an element
  const char* given;    // when a caller passes the tensor, in words
};

inline constexpr std::array<TensorEntry, kNumTensors> kTensors = [] {
  using enum Tensor;
  using enum TensorAxis;
  using K = TensorKind;
  using D = TensorDirection;
  using T = TensorType;
  constexpr uint32_t kForward = operation_bit(DR_FORWARD), kLocal = operation_bit(DR_CHUNK_LOCAL);
  constexpr uint32_t kPass = operation_bit(DR_STATE_PASS), kOutputs = operation_bit(DR_OUTPUTS);
  constexpr uint32_t kSummary = operation_bit(DR_SUMMARY), kCarry = operation_bit(DR_CARRY);
  constexpr uint32_t kAll = kForward | kLocal | kPass | kOutputs | kSummary | kCarry;
  constexpr uint32_t kQueries = kForward | kLocal | kOutputs, kValues = kForward | kLocal | kSummary;
  constexpr uint32_t kWritten = kForward | kOutputs;
  constexpr uint32_t kKeys = kForward | kLocal | kPass | kOutputs | kSummary, kPools = kForward | kPass | kCarry;
  constexpr const char *kAlways = "always", *kRaw = "raw gates; may be NULL", *kSlotsUsed = "with DR_STATE_SLOTS";
  constexpr const char *kListed = "DR_CHECKPOINTS_LIST", *kIfUsed = "if the problem uses it";
  constexpr const char* kChosen = "if dr_chunks.given or wanted names it";
// clang-format off
#define DR_TENSOR(tensor, field) tensor, #field, offsetof(dr_tensors, field)
  return std::array<TensorEntry, kNumTensors>{{
      {DR_TENSOR(kQ, q), K::kRows, D::kIn, T::kData, {kTokens, kHeadsQk, kKeyWidth}, kQueries, 16, kAlways},
      {DR_TENSOR(kK, k), K::kRows, D::kIn, T::kData, {kTokens, kHeadsQk, kKeyWidth}, kKeys, 16, kAlways},
      {DR_TENSOR(kV, v), K::kRows, D::kIn, T::kData, {kTokens, kHeadsV, kValueWidth}, kValues, 16, kAlways},
      {DR_TENSOR(kG, g), K::kRows, D::kIn, T::kGate, {kTokens, kHeadsV, kGateWidth}, kKeys, 16, kAlways},
      {DR_TENSOR(kBeta, beta), K::kRows, D::kIn, T::kBeta, {kTokens, kHeadsV, kNone}, kValues, 0, kAlways},
      {DR_TENSOR(kALog, a_log), K::kParameter, D::kIn, T::kALog, {kHeadsV, kNone, kNone}, kKeys, 0,
       "raw gates; may be NULL in the bounded form"},
      {DR_TENSOR(kDtBias, dt_bias), K::kParameter, D::kIn, T::kDtBias, {kHeadsV, kGateWidth, kNone}, kKeys, 0, kRaw},
      {DR_TENSOR(kO, o), K::kRows, D::kOut, T::kOutput, {kTokens, kHeadsV, kValueWidth}, kWritten, 16, kAlways},
      {DR_TENSOR(kInitial, initial), K::kPool, D::kIn, T::kState, {kSlots, kHeadsV, kMatrix}, kPools, 16, kIfUsed},
      {DR_TENSOR(kInitialIndex, initial_index), K::kIndex, D::kIn, T::kStateIndex, {kSequences, kNone, kNone},
       kPools, 0, kSlotsUsed},
      {DR_TENSOR(kHasInitial, has_initial), K::kList, D::kIn, T::kByte, {kSequences, kNone, kNone}, kPools, 0,
       "with initial_mask"},
      {DR_TENSOR(kFinal, final), K::kPool, D::kOut, T::kState, {kSlots, kHeadsV, kMatrix}, kPools, 16, kIfUsed},
      {DR_TENSOR(kFinalIndex, final_index), K::kIndex, D::kIn, T::kStateIndex, {kSequences, kNone, kNone}, kPools, 0,
       kSlotsUsed},
      {DR_TENSOR(kCheckpoint, checkpoint), K::kPool, D::kOut, T::kState, {kSlots, kHeadsV, kMatrix}, kForward, 16,
       kIfUsed},
      {DR_TENSOR(kCheckpointIndex, checkpoint_index), K::kIndex, D::kIn, T::kStateIndex,
       {kCheckpointRows, kNone, kNone}, kForward, 0, kSlotsUsed},
      {DR_TENSOR(kCheckpointOffsets, checkpoint_offsets), K::kList, D::kIn, T::kInt32, {kBounds, kNone, kNone},
       kForward, 0, kListed},
      {DR_TENSOR(kCheckpointPositions, checkpoint_positions), K::kList, D::kIn, T::kInt32,
       {kCheckpointRows, kNone, kNone}, kForward, 0, kListed},
      {DR_TENSOR(kSeqOffsets, seq_offsets), K::kList, D::kIn, T::kOffsets, {kBounds, kNone, kNone}, kAll, 0,
       "when the problem has no lengths"},
      {DR_TENSOR(kReport, report), K::kReport, D::kOut, T::kInt32, {kNone, kNone, kNone}, kAll, 0, "if wanted"},
#define DR_STAGE(tensor, field) tensor, #field, offsetof(dr_intermediates, field), K::kStage, D::kEither
      {DR_STAGE(kAqk, aqk), T::kIntermediate, {kTokens, kHeadsV, kChunk}, kLocal | kOutputs, 16, kChosen},
      {DR_STAGE(kInverse, inverse), T::kIntermediate, {kTokens, kHeadsV, kChunk}, kLocal, 16, kChosen},
      {DR_STAGE(kW, w), T::kIntermediate, {kTokens, kHeadsV, kKeyWidth}, kLocal | kPass | kSummary, 16, kChosen},
      {DR_STAGE(kU, u), T::kIntermediate, {kTokens, kHeadsV, kValueWidth}, kLocal | kPass | kSummary, 16, kChosen},
      {DR_STAGE(kKToEnd, k_to_end), T::kIntermediate, {kTokens, kHeadsV, kKeyWidth}, kLocal | kPass | kSummary, 16,
       kChosen},
      {DR_STAGE(kQFromStart, q_from_start), T::kIntermediate, {kTokens, kHeadsV, kKeyWidth}, kLocal | kOutputs, 16,
       kChosen},
      {DR_STAGE(kGateSums, gate_sums), T::kFp32, {kTokens, kHeadsV, kGateWidth}, kLocal | kPass | kOutputs | kSummary,
       16, kChosen},
      {DR_STAGE(kVNew, v_new), T::kIntermediate, {kTokens, kHeadsV, kValueWidth}, kPass | kOutputs, 16, kChosen},
      {DR_STAGE(kStates, states), T::kStates, {kStateRows, kHeadsV, kStateMatrix}, kPass | kOutputs | kCarry, 16,
       kChosen},
      {DR_STAGE(kSummaries, summaries), T::kFp32, {kSummaryRows, kHeadsV, kSummaryMatrix}, kSummary | kCarry, 16,
       kChosen},
      {DR_STAGE(kComposed, composed), T::kFp32, {kSequences, kHeadsV, kSummaryMatrix}, kCarry, 16, kChosen},
  }};
#undef DR_STAGE
#undef DR_TENSOR
  // clang-format on
}();

// The entries that are fields of dr_tensors: all but the intermediates of the stages.
inline constexpr std::span<const TensorEntry> kCallTensors{kTensors.data(), static_cast<size_t>(Tensor::kAqk)};

constexpr const TensorEntry& entry_of(Tensor tensor) { return kTensors[static_cast<size_t>(tensor)]; }

// Which fields of a problem describe tensors of tokens and pools of states. The member types have names because nvcc
// writes unnamed ones in a form that GCC warns about.
using LayoutMember = dr_layout dr_problem::*;
using StateMember = dr_state dr_problem::*;
struct TensorLayout {
  Tensor tensor;
  LayoutMember layout;
  const char* argument;
};
inline constexpr TensorLayout kTensorLayouts[] = {{Tensor::kQ, &dr_problem::layout_q, "problem.layout_q"},
                                                  {Tensor::kK, &dr_problem::layout_k, "problem.layout_k"},
                                                  {Tensor::kV, &dr_problem::layout_v, "problem.layout_v"},
                                                  {Tensor::kG, &dr_problem::layout_g, "problem.layout_g"},
                                                  {Tensor::kBeta, &dr_problem::layout_beta, "problem.layout_beta"},
                                                  {Tensor::kO, &dr_problem::layout_o, "problem.layout_o"}};
struct TensorPool {
  Tensor tensor;
  StateMember state;
};
inline constexpr TensorPool kTensorPools[] = {{Tensor::kInitial, &dr_problem::initial},
                                              {Tensor::kFinal, &dr_problem::final},
                                              {Tensor::kCheckpoint, &dr_problem::checkpoint}};

// The pointer that an entry names; NULL for an intermediate of a call without dr_intermediates.
inline const void* pointer_of(const dr_tensors& tensors, const TensorEntry& entry) {
  const void* holder = &tensors;
  if (is_intermediate(entry.tensor)) holder = tensors.intermediates;
  const void* pointer = nullptr;
  if (holder != nullptr) std::memcpy(&pointer, static_cast<const char*>(holder) + entry.offset, sizeof pointer);
  return pointer;
}
// Sets the pointer of an entry of kCallTensors.
inline void set_pointer(dr_tensors& tensors, const TensorEntry& entry, const void* pointer) {
  std::memcpy(reinterpret_cast<char*>(&tensors) + entry.offset, &pointer, sizeof pointer);
}
// Sets the pointer of an intermediate.
inline void set_pointer(dr_intermediates& intermediates, const TensorEntry& entry, void* pointer) {
  std::memcpy(reinterpret_cast<char*>(&intermediates) + entry.offset, &pointer, sizeof pointer);
}

// Sizes of the axes of one call.
struct TensorSizes {
  int64_t tokens, sequences, heads_qk, heads_v, dk, dv;
  int64_t gates;  // gate channels per head: DK (KDA) or 1 (GDN)
  int64_t checkpoint_rows;
  int64_t chunk = 0, state_rows = 0, summary_rows = 0;  // of the stages
};

// Number of indices of an axis. Returns 1 for kNone and for the axes of a pool, which are no sizes of the call.
constexpr int64_t size_of_axis(const TensorSizes& sizes, TensorAxis axis) {
  switch (axis) {
    case TensorAxis::kTokens:
      return sizes.tokens;
    case TensorAxis::kSequences:
      return sizes.sequences;
    case TensorAxis::kBounds:
      return sizes.sequences + 1;
    case TensorAxis::kHeadsQk:
      return sizes.heads_qk;
    case TensorAxis::kHeadsV:
      return sizes.heads_v;
    case TensorAxis::kKeyWidth:
      return sizes.dk;
    case TensorAxis::kValueWidth:
      return sizes.dv;
    case TensorAxis::kGateWidth:
      return sizes.gates;
    case TensorAxis::kCheckpointRows:
      return sizes.checkpoint_rows;
    case TensorAxis::kChunk:
      return sizes.chunk;
    case TensorAxis::kStateRows:
      return sizes.state_rows;
    case TensorAxis::kStateMatrix:
      return sizes.dv * sizes.dk;
    case TensorAxis::kSummaryRows:
      return sizes.summary_rows;
    case TensorAxis::kSummaryMatrix:
      return (sizes.dv + sizes.dk) * sizes.dk;
    case TensorAxis::kSlots:
    case TensorAxis::kMatrix:
    case TensorAxis::kNone:
      break;
  }
  return 1;
}

// Number of elements of a parameter, an index array, a list or an intermediate.
constexpr int64_t count_of(const TensorSizes& sizes, const TensorEntry& entry) {
  int64_t count = 1;
  for (const TensorAxis axis : entry.axes) count *= size_of_axis(sizes, axis);
  return count;
}

}  // namespace deltarelay
