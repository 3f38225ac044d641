// Every tensor of dr_tensors, listed once: name, axes, type, direction, operations and alignment.
//
// The library checks a call against this list, and `deltarelay tensors` prints it. Tools that allocate, copy or check
// the tensors of a call walk the list instead of naming the fields again. To add a tensor, add a field to dr_tensors
// and a line here. The compiler then reports what src/problem/tensor_facts.cpp has to know as well.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

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
};
constexpr int32_t kNumTensors = static_cast<int32_t>(Tensor::kReport) + 1;

enum class TensorKind : int32_t {
  kRows,       // one row per token; a dr_layout of the problem gives strides and alignment
  kPool,       // states; a dr_state of the problem describes them
  kParameter,  // parameter of a layer, contiguous
  kIndex,      // slots of a pool
  kList,       // offsets, positions, masks
  kReport,     // written by the library about the call
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
};

enum class TensorDirection : int32_t { kIn, kOut };

constexpr uint32_t operation_bit(int32_t op) { return uint32_t{1} << op; }

struct TensorEntry {
  Tensor tensor;
  const char* name;  // field of dr_tensors
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
  constexpr uint32_t kForward = operation_bit(DR_FORWARD);
  constexpr const char *kAlways = "always", *kRaw = "raw gates; may be NULL", *kSlotsUsed = "with DR_STATE_SLOTS";
  constexpr const char *kListed = "DR_CHECKPOINTS_LIST", *kIfUsed = "if the problem uses it";
// clang-format off
#define DR_TENSOR(tensor, field) tensor, #field, offsetof(dr_tensors, field)
  return std::array<TensorEntry, kNumTensors>{{
      {DR_TENSOR(kQ, q), K::kRows, D::kIn, T::kData, {kTokens, kHeadsQk, kKeyWidth}, kForward, 16, kAlways},
      {DR_TENSOR(kK, k), K::kRows, D::kIn, T::kData, {kTokens, kHeadsQk, kKeyWidth}, kForward, 16, kAlways},
      {DR_TENSOR(kV, v), K::kRows, D::kIn, T::kData, {kTokens, kHeadsV, kValueWidth}, kForward, 16, kAlways},
      {DR_TENSOR(kG, g), K::kRows, D::kIn, T::kGate, {kTokens, kHeadsV, kGateWidth}, kForward, 16, kAlways},
      {DR_TENSOR(kBeta, beta), K::kRows, D::kIn, T::kBeta, {kTokens, kHeadsV, kNone}, kForward, 0, kAlways},
      {DR_TENSOR(kALog, a_log), K::kParameter, D::kIn, T::kALog, {kHeadsV, kNone, kNone}, kForward, 0,
       "raw gates; may be NULL in the bounded form"},
      {DR_TENSOR(kDtBias, dt_bias), K::kParameter, D::kIn, T::kDtBias, {kHeadsV, kGateWidth, kNone}, kForward, 0, kRaw},
      {DR_TENSOR(kO, o), K::kRows, D::kOut, T::kOutput, {kTokens, kHeadsV, kValueWidth}, kForward, 16, kAlways},
      {DR_TENSOR(kInitial, initial), K::kPool, D::kIn, T::kState, {kSlots, kHeadsV, kMatrix}, kForward, 16, kIfUsed},
      {DR_TENSOR(kInitialIndex, initial_index), K::kIndex, D::kIn, T::kStateIndex, {kSequences, kNone, kNone},
       kForward, 0, kSlotsUsed},
      {DR_TENSOR(kHasInitial, has_initial), K::kList, D::kIn, T::kByte, {kSequences, kNone, kNone}, kForward, 0,
       "with initial_mask"},
      {DR_TENSOR(kFinal, final), K::kPool, D::kOut, T::kState, {kSlots, kHeadsV, kMatrix}, kForward, 16, kIfUsed},
      {DR_TENSOR(kFinalIndex, final_index), K::kIndex, D::kIn, T::kStateIndex, {kSequences, kNone, kNone}, kForward, 0,
       kSlotsUsed},
      {DR_TENSOR(kCheckpoint, checkpoint), K::kPool, D::kOut, T::kState, {kSlots, kHeadsV, kMatrix}, kForward, 16,
       kIfUsed},
      {DR_TENSOR(kCheckpointIndex, checkpoint_index), K::kIndex, D::kIn, T::kStateIndex,
       {kCheckpointRows, kNone, kNone}, kForward, 0, kSlotsUsed},
      {DR_TENSOR(kCheckpointOffsets, checkpoint_offsets), K::kList, D::kIn, T::kInt32, {kBounds, kNone, kNone},
       kForward, 0, kListed},
      {DR_TENSOR(kCheckpointPositions, checkpoint_positions), K::kList, D::kIn, T::kInt32,
       {kCheckpointRows, kNone, kNone}, kForward, 0, kListed},
      {DR_TENSOR(kSeqOffsets, seq_offsets), K::kList, D::kIn, T::kOffsets, {kBounds, kNone, kNone}, kForward, 0,
       "when the problem has no lengths"},
      {DR_TENSOR(kReport, report), K::kReport, D::kOut, T::kInt32, {kNone, kNone, kNone}, kForward, 0, "if wanted"},
  }};
#undef DR_TENSOR
  // clang-format on
}();

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

// Read and write the pointer in dr_tensors that an entry names.
inline const void* pointer_of(const dr_tensors& tensors, const TensorEntry& entry) {
  const void* pointer = nullptr;
  std::memcpy(&pointer, reinterpret_cast<const char*>(&tensors) + entry.offset, sizeof pointer);
  return pointer;
}
inline void set_pointer(dr_tensors& tensors, const TensorEntry& entry, const void* pointer) {
  std::memcpy(reinterpret_cast<char*>(&tensors) + entry.offset, &pointer, sizeof pointer);
}

// Sizes of the axes of one call.
struct TensorSizes {
  int64_t tokens, sequences, heads_qk, heads_v, dk, dv;
  int64_t gates;  // gate channels per head: DK (KDA) or 1 (GDN)
  int64_t checkpoint_rows;
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
    case TensorAxis::kSlots:
    case TensorAxis::kMatrix:
    case TensorAxis::kNone:
      break;
  }
  return 1;
}

// Number of elements of a parameter, an index array or a list.
constexpr int64_t count_of(const TensorSizes& sizes, const TensorEntry& entry) {
  int64_t count = 1;
  for (const TensorAxis axis : entry.axes) count *= size_of_axis(sizes, axis);
  return count;
}

}  // namespace deltarelay
