// The memory of one case: every tensor of a call, generated, guarded and poisoned.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "case/case.h"
#include "check/element.h"
#include "check/memory.h"
#include "check/stage_tensor.h"
#include "deltarelay/tensor_list.hpp"

namespace deltarelay::check {

// A tensor of tokens, [T, heads, width], with its strides.
struct TokenTensor {
  std::byte* data = nullptr;
  int32_t dtype = DR_FP32;
  dr_layout strides{};
  int64_t heads = 0;
  int64_t width = 0;
  const std::vector<int64_t>* offsets = nullptr;  // packed; nullptr: batched

  // Index of the element (sequence, token in the sequence, head, feature).
  int64_t at(int64_t sequence, int64_t t, int64_t head, int64_t i) const {
    const int64_t start =
        offsets != nullptr ? (*offsets)[static_cast<size_t>(sequence)] * strides.token : sequence * strides.sequence;
    return start + t * strides.token + head * strides.head + i;
  }
  double get(int64_t element) const { return load(data, dtype, element); }
  void set(int64_t element, double value) const { store(data, dtype, element, value); }
};

// A pool of states and the slot of each entry (sequence or checkpoint row); -1: null.
struct StateTensor {
  std::byte* data = nullptr;
  cases::State state;
  int64_t num_slots = 0;
  int64_t stride_slot = 0;
  int64_t stride_head = 0;
  int64_t dk = 0;
  int64_t dv = 0;
  std::vector<int64_t> slots;

  bool used() const { return state.use != DR_STATE_NONE; }
  int64_t at(int64_t slot, int64_t head, int64_t i, int64_t column) const {
    return slot * stride_slot + head * stride_head +
           (state.layout == DR_STATE_VALUE_MAJOR ? column * dk + i : i * dv + column);
  }
  double get(int64_t element) const { return load(data, state.dtype, element); }
  void set(int64_t element, double value) const { store(data, state.dtype, element, value); }
};

class TensorSet;
// Writes given inputs instead of drawn ones. The tensors are NaN before.
using Fill = std::function<void(TensorSet&)>;

// Inputs hold the values of the case wherever the contract lets the library read, and NaN everywhere else: rows after
// the last offset, gaps between rows, slots that no sequence reads, states whose mask is off. Of a stage, tensors that
// it does not use have no memory.
class TensorSet {
 public:
  // `alignment` of tensors, unless the case gives one (align=), and no more. Throws cases::CaseError, std::bad_alloc;
  // for a stage with given intermediates also RunError, because the reference makes them, on `reference_threads` (0:
  // all).
  explicit TensorSet(const cases::Case& c, int64_t alignment = kLeastAlignment, const Fill& fill = {},
                     int32_t reference_threads = 0);
  TensorSet(const TensorSet&) = delete;
  TensorSet& operator=(const TensorSet&) = delete;

  const cases::Case& of() const { return case_; }
  // Pointers for dr_execute. With states in place, initial and final are the same memory.
  const dr_tensors& tensors() const { return tensors_; }
  // The same inputs with the generated initial states, for a run that must not see results of an earlier run.
  dr_tensors inputs() const;

  // Intermediates of a stage, in the order of the list.
  const std::vector<StageTensor>& intermediates() const { return stage_; }
  const StageTensor* intermediate(Tensor tensor) const;  // nullptr: the stage has none of these

  // Every piece of memory that tensors() points to, to copy it elsewhere.
  struct Memory {
    const char* name;
    const std::byte* data;
    std::byte* output;  // the same address if a run writes there; nullptr: an input
    int64_t bytes;
    int64_t alignment;
  };
  std::vector<Memory> memory();

  // Takes the inputs of a case that differs from this one only in how it is run: drawing them again takes longer.
  void copy_inputs(const TensorSet& from);
  // Sets outputs to NaN (states in place: back to the initial states). Call it before every run.
  void poison();
  // Checks what a run must not change or leave out: canaries, gaps, unnamed slots, rows after the last offset (zero).
  // Returns the first finding, or an empty text.
  std::string damage() const;
  // All bytes that a run may change: o, final states, checkpoints, wanted intermediates. Equal for equal results.
  std::vector<std::byte> output_bits() const;
  // Hash of what a run writes: rows of o, named slots of the pools and wanted intermediates as stored, without gaps.
  uint64_t output_hash() const;

  const TokenTensor& q() const { return q_; }
  const TokenTensor& k() const { return k_; }
  const TokenTensor& v() const { return v_; }
  const TokenTensor& g() const { return g_; }
  const TokenTensor& beta() const { return beta_; }
  const TokenTensor& o() const { return o_; }
  // Parameters of raw gates, contiguous; nullptr if the case has none.
  std::byte* a_log() { return buffer(Tensor::kALog).data(); }
  std::byte* dt_bias() { return buffer(Tensor::kDtBias).data(); }
  const StateTensor& initial() const { return initial_; }  // as generated
  const StateTensor& final_state() const { return final_; }
  const StateTensor& checkpoint() const { return checkpoint_; }
  // Sequence of every checkpoint row.
  const std::vector<int64_t>& checkpoint_sequence() const { return checkpoint_sequence_; }

 private:
  // Alignment of a pointer with this promise, or of every pointer (0). At least the size of an element. The library
  // refuses a promise that is no power of two; the tensors of such a case lie at the power of two below.
  int64_t alignment_of(int32_t dtype, int32_t promised = 0) const {
    return std::max<int64_t>(promised != 0 ? std::bit_floor(static_cast<uint32_t>(promised)) : alignment_,
                             bytes_of(dtype));
  }

  struct Index {  // a slot array in the type of the case
    std::vector<int32_t> narrow;
    std::vector<int64_t> wide;
    const void* data() const { return wide.empty() ? static_cast<const void*>(narrow.data()) : wide.data(); }
  };

  TokenTensor allocate_rows(Tensor tensor);
  TokenTensor view(const cases::Rows& rows, std::byte* data) const;
  StateTensor allocate_pool(Tensor tensor, Index& index, const cases::State& state, int64_t entries, uint64_t salt);
  GuardedBuffer& buffer(Tensor tensor) { return buffers_[static_cast<size_t>(tensor)]; }
  const GuardedBuffer& buffer(Tensor tensor) const { return buffers_[static_cast<size_t>(tensor)]; }
  int64_t list_bytes(const TensorEntry& entry) const;     // of an index or a list
  int64_t element_bytes(const TensorEntry& entry) const;  // the same
  void allocate_tokens();
  void allocate_parameters();
  void allocate_intermediates();
  void generate_tokens();
  void generate_initial();
  bool is_written(const TensorEntry& entry) const;
  std::string damaged_output() const;
  std::string damaged_intermediate(const StageTensor& x) const;
  std::string damaged_pool(const char* name, const StateTensor& pool, const GuardedBuffer& buffer,
                           const GuardedBuffer* before) const;

  cases::Case case_;
  cases::Request request_;
  int64_t alignment_;
  std::vector<int64_t> offsets_;
  std::array<GuardedBuffer, kNumTensors> buffers_;  // except lists
  GuardedBuffer memory_qkv_;                        // q, k and v as views of one row
  std::vector<StageTensor> stage_;
  TokenTensor q_, k_, v_, g_, beta_, o_;
  StateTensor initial_, final_, checkpoint_;
  Index initial_index_, final_index_, checkpoint_index_;
  std::vector<uint8_t> mask_;
  std::vector<int64_t> checkpoint_sequence_;
  std::vector<int32_t> checkpoint_offsets_, checkpoint_positions_;
  dr_tensors tensors_;
  dr_intermediates intermediates_;  // of a stage
};

}  // namespace deltarelay::check
