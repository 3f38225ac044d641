// The problem without pointers to tensors: validated once (validate.h), every default resolved.
#pragma once
#include <cstdint>
#include <vector>

#include "problem/host_device.h"
#include "problem/types.h"

namespace deltarelay {

struct Strides {  // elements; the feature stride is 1
  int64_t token = 0;
  int64_t head = 0;
  int64_t sequence = 0;  // batched problems only
};

// Promised alignment of each pointer, in bytes.
struct Alignments {
  int64_t q = 16, k = 16, v = 16, o = 16, g = 16, beta = 16;
};

struct StatePool {
  StateUse use = StateUse::kNone;
  StateLayout layout = StateLayout::kValueMajor;
  DType dtype = DType::kFp32;
  DType index_dtype = DType::kInt32;
  int64_t num_slots = 0;
  int64_t stride_slot = 0;  // elements
  int64_t stride_head = 0;
  int64_t alignment = 16;  // bytes, promised
  bool has_null_index = false;
  int64_t null_index = 0;

  bool used() const { return use != StateUse::kNone; }
  bool is_null(int64_t slot) const { return slot < 0 || (has_null_index && slot == null_index); }
};

// dr_chunks: what a stage reads and writes.
struct Chunks {
  int32_t chunk = 0;  // tokens; 0: the operation has no chunks
  int32_t given = 0;  // DR_AQK, ...
  int32_t wanted = 0;
  DType dtype = DType::kFp32;
  DType dtype_states = DType::kFp32;
  StateLayout states_layout = StateLayout::kValueMajor;
  bool sums_base_2 = false;

  bool gives(int32_t bits) const { return (given & bits) == bits; }
  bool wants(int32_t bits) const { return (wanted & bits) != 0; }
};

// Which tensors of tokens a call reads.
struct Reads {
  bool q = true, k = true, v = true, g = true, beta = true;
};

struct Problem {
  Rule rule = Rule::kKda;
  Op op = Op::kForward;
  Chunks chunks;  // of a stage

  int64_t num_seqs = 0;
  int64_t num_tokens = 0;     // rows of a packed tensor; num_seqs * seq_len when batched
  int64_t seq_len = 0;        // > 0: batched
  bool lengths_known = true;  // false: offsets come with the tensors, and num_seqs and num_tokens are upper bounds
  DType offsets_dtype = DType::kInt32;
  std::vector<int64_t> offsets;  // packed and known: num_seqs + 1 entries, else empty

  int32_t heads_qk = 0;
  int32_t heads_v = 0;
  int32_t dk = 0;
  int32_t dv = 0;

  DType dtype = DType::kFp32;
  DType dtype_o = DType::kFp32;
  DType dtype_gate = DType::kFp32;
  DType dtype_beta = DType::kFp32;
  DType dtype_a_log = DType::kFp32;
  DType dtype_dt_bias = DType::kFp32;

  GateForm gate_form = GateForm::kLog;
  BetaForm beta_form = BetaForm::kValue;
  bool l2norm = false;
  float scale = 1.0f;
  float lower_bound = 0.0f;  // raw bounded gate
  float gate_floor = 0.0f;   // 0: no promise

  Strides q, k, v, o, g, beta;
  Alignments alignment;

  StatePool initial, final;
  bool initial_mask = false;
  Checkpoints checkpoints = Checkpoints::kNone;
  int64_t checkpoint_every = 0;
  StatePool checkpoint;

  bool batched() const { return seq_len > 0; }
  int32_t group() const { return heads_v / heads_qk; }  // value heads that share a query/key head
  bool raw_gate() const { return gate_form == GateForm::kRawSoftplus || gate_form == GateForm::kRawBounded; }
  bool reads_gate_parameters() const { return raw_gate() && reads().g; }  // a_log and dt_bias
  // Length of sequence n; only when lengths_known.
  int64_t length(int64_t n) const { return batched() ? seq_len : offsets[n + 1] - offsets[n]; }

  Reads reads() const;
  bool writes_o() const { return op == Op::kForward || op == Op::kOutputs; }
  // Chunks of all sequences in the tensors of a stage; if lengths are not known yet, the largest count that these
  // counts allow.
  int64_t chunk_rows(int64_t tokens, int64_t sequences) const;

  // Smallest log-decay per token that any input can give after clamping; -infinity if there is no bound.
  float least_gate() const;

  // Checkpoint rows of a sequence of this length; for a list, an upper bound.
  int64_t checkpoint_rows(int64_t length) const;
  // Checkpoint rows of all sequences; if lengths are not known yet, the largest count that num_tokens and num_seqs
  // allow.
  int64_t checkpoint_rows() const;
  // Can a checkpoint fall inside a chunk of this many tokens? For a list, true: its positions come at execution.
  bool checkpoints_inside(int64_t chunk) const;
};

// Rows and sequences of one execution: those of the problem, or fewer if lengths come with the tensors.
struct CallCounts {
  int64_t num_tokens;
  int64_t num_seqs;
};

// The rows of each sequence, as kernels see them, whether lengths came with the plan or with the tensors.
struct Sequences {
  const int64_t* offsets = nullptr;  // packed: num_seqs + 1 entries
  int64_t seq_len = 0;               // batched when > 0
  int64_t num_seqs = 0;

  DR_HD int64_t length(int64_t n) const { return seq_len > 0 ? seq_len : offsets[n + 1] - offsets[n]; }
  // Element offset of the first token of sequence n in a tensor with these strides.
  int64_t start(int64_t n, const Strides& s) const { return seq_len > 0 ? n * s.sequence : offsets[n] * s.token; }
};

}  // namespace deltarelay
