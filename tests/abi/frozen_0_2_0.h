/* The structures of version 0.2.0, as its header had them. Programs that were compiled with that header pass these,
 * whatever the header of the day says, so this file never changes. Only the fields are here: reasons and units are in
 * deltarelay.h. */
#ifndef DELTARELAY_TESTS_ABI_FROZEN_0_2_0_H_
#define DELTARELAY_TESTS_ABI_FROZEN_0_2_0_H_

#include <stdint.h>

typedef struct frozen_dr_layout {
  int64_t token;
  int64_t head;
  int64_t sequence;
  int32_t alignment_bytes;
  int32_t reserved;
} frozen_dr_layout;

typedef struct frozen_dr_state {
  int32_t use;
  int32_t layout;
  int32_t dtype;
  int32_t index_dtype;
  int64_t num_slots;
  int64_t stride_slot;
  int64_t stride_head;
  int32_t has_null_index;
  int32_t alignment_bytes;
  int64_t null_index;
  int64_t reserved[4];
} frozen_dr_state;

typedef struct frozen_dr_problem {
  uint32_t size;
  int32_t rule;
  int32_t op;
  int32_t reserved;
  int64_t num_seqs;
  int64_t num_tokens;
  int64_t seq_len;
  const void* seq_offsets;
  int32_t seq_offsets_dtype;
  int32_t heads_qk;
  int32_t heads_v;
  int32_t dk;
  int32_t dv;
  int32_t dtype;
  int32_t dtype_o;
  int32_t dtype_gate;
  int32_t dtype_beta;
  int32_t dtype_a_log;
  int32_t dtype_dt_bias;
  int32_t gate_form;
  int32_t beta_form;
  int32_t l2norm;
  int32_t scale_given;
  float scale;
  float lower_bound;
  float gate_floor;
  frozen_dr_layout layout_q, layout_k;
  frozen_dr_layout layout_v, layout_o;
  frozen_dr_layout layout_g;
  frozen_dr_layout layout_beta;
  frozen_dr_state initial;
  frozen_dr_state final;
  int32_t initial_mask;
  int32_t checkpoints;
  int64_t checkpoint_every;
  frozen_dr_state checkpoint;
  const void* chunks;
  const void* backward;
  const void* steps;
} frozen_dr_problem;

typedef struct frozen_dr_device {
  uint32_t size;
  int32_t kind;
  char name[32];
  char model[64];
  int32_t units;
  int32_t compute_capability;
  int64_t l1_bytes;
  int64_t l2_bytes;
  int32_t bytes_per_ns;
  int32_t flops_per_ns;
} frozen_dr_device;

typedef struct frozen_dr_costs {
  uint32_t size;
  int32_t rule;
  int32_t op;
  int32_t measured;
  char backend[24];
  char variant[24];
  char measured_on[40];
  int32_t chunk;
  int32_t emit_ns;
  int32_t summarize_ns;
  int32_t local_ns;
  int32_t summarize_local_ns;
  int32_t carry_ns;
  int32_t carry_unit_ns;
  int32_t split_ns;
  int32_t item_ns;
  int32_t emit_bytes;
  int32_t summarize_bytes;
  int32_t prepare_ns;
} frozen_dr_costs;

typedef void (*frozen_dr_parallel_for)(void* pool, int64_t count, void (*body)(void* context, int64_t i),
                                       void* context);

typedef struct frozen_dr_options {
  uint32_t size;
  int32_t segments;
  int64_t segment_value;
  const char* backend;
  const char* isa;
  const char* variant;
  const char* policy;
  const frozen_dr_device* device;
  int32_t threads;
  int32_t invariant;
  int32_t carry;
  float carry_log_decay;
  const int32_t* columns;
  int32_t num_columns;
  int32_t math;
  const frozen_dr_costs* costs;
  int32_t num_costs;
  int32_t reserved;
  frozen_dr_parallel_for parallel_for;
  void* parallel_pool;
} frozen_dr_options;

typedef struct frozen_dr_plan_summary {
  uint32_t size;
  int32_t chunk;
  const char* backend;
  const char* isa;
  const char* variant;
  int64_t num_segments;
  int64_t max_segments;
  int64_t cut_sequences;
  int32_t threads;
  int32_t value_tiles;
  int64_t grain;
  int64_t predicted_ns;
  int64_t unsplit_ns;
} frozen_dr_plan_summary;

typedef struct frozen_dr_tensors {
  uint32_t size;
  uint32_t reserved;
  int64_t num_tokens;
  int64_t num_seqs;
  const void* q;
  const void* k;
  const void* v;
  const void* g;
  const void* beta;
  const void* a_log;
  const void* dt_bias;
  void* o;
  const void* initial;
  const void* initial_index;
  const uint8_t* has_initial;
  void* final;
  const void* final_index;
  void* checkpoint;
  const void* checkpoint_index;
  const int32_t* checkpoint_offsets;
  const int32_t* checkpoint_positions;
  const void* seq_offsets;
  uint32_t* report;
  const void* intermediates;
  const void* gradients;
  const void* drafts;
} frozen_dr_tensors;

typedef struct frozen_dr_chunks {
  uint32_t size;
  int32_t chunk;
  int32_t given;
  int32_t wanted;
  int32_t dtype;
  int32_t dtype_states;
  int32_t states_layout;
  int32_t sums_base_2;
} frozen_dr_chunks;

typedef struct frozen_dr_intermediates {
  uint32_t size;
  uint32_t reserved;
  void* aqk;
  void* inverse;
  void* w;
  void* u;
  void* k_to_end;
  void* q_from_start;
  void* gate_sums;
  void* v_new;
  void* states;
  void* summaries;
  void* composed;
} frozen_dr_intermediates;

#endif /* DELTARELAY_TESTS_ABI_FROZEN_0_2_0_H_ */
