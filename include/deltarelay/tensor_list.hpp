// Every tensor of dr_tensors, once: its name, axes, type, direction, the operations that have it, and how it has to lie.
//
// The library checks a call by this list, `deltarelay tensors` prints it, and tools that make, copy or check the tensors of a
// call walk it instead of listing the fields again. A new tensor is a field of dr_tensors and a line here; the compiler then
// asks for what the library has to know besides (src/problem/tensor_facts.cpp).
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
  kRows,       // rows of tokens: strides and alignment in a dr_layout of the problem
  kPool,       // states: a dr_state of the problem
  kParameter,  // of a layer, contiguous
  kIndex,      // slots of a pool
  kList,       // offsets, positions, masks
  kReport,     // what the library tells
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
  kGateWidth,       // DK (KDA), left out (GDN)
  kCheckpointRows,  // checkpoints of all sequences
  kSlots,           // dr_state.num_slots
  kMatrix,          // two axes, [DV, DK] or [DK, DV] by dr_state.layout
};

// Where the type of an element is stated.
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
  const char* name;  // the field of dr_tensors
  size_t offset;     // of that field
  TensorKind kind;
  TensorDirection direction;
  TensorType type;
  std::array<TensorAxis, 3> axes;
  uint32_t operations;  // operation_bit of each
  int32_t alignment;    // default in bytes, where the problem promises one; 0: of an element
  const char* given;    // when it is, for readers
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

// Where a problem says how tensors of tokens and pools lie.
using LayoutMember = dr_layout dr_problem::*;  // of a name: nvcc writes members of such a type so that GCC warns
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

// The pointer of a call that an entry names, and its change.
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
  int64_t gates;  // a head: DK or 1
  int64_t checkpoint_rows;
};

// Indices of an axis; of what a pool has, which is not a size of the call, and of no axis: 1.
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

// Elements of a parameter, an index or a list.
constexpr int64_t count_of(const TensorSizes& sizes, const TensorEntry& entry) {
  int64_t count = 1;
  for (const TensorAxis axis : entry.axes) count *= size_of_axis(sizes, axis);
  return count;
}

}  // namespace deltarelay
