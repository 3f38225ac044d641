/* The memory layout of the API on every 64-bit platform: offsets that the current header and the frozen header of 0.2.0
 * share. A structure with a size may get new fields at its end; nothing else may change. Offsets of new fields form a
 * separate list. */
#include <stddef.h>

#include "deltarelay/deltarelay.h"
#include "frozen_0_2_0.h"

#define AT(structure, field, offset)                                                                \
  _Static_assert(offsetof(structure, field) == (offset), #structure "." #field);                    \
  _Static_assert(offsetof(frozen_##structure, field) == (offset), "0.2.0: " #structure "." #field); \
  _Static_assert(sizeof(((structure*)0)->field) == sizeof(((frozen_##structure*)0)->field), #structure "." #field)
/* Nested structures have no size field, so their size never changes. */
#define NESTED(structure, bytes)                            \
  _Static_assert(sizeof(structure) == (bytes), #structure); \
  _Static_assert(sizeof(frozen_##structure) == (bytes), "0.2.0: " #structure)
#define SIZE(structure, bytes)                              \
  _Static_assert(sizeof(structure) >= (bytes), #structure); \
  _Static_assert(sizeof(frozen_##structure) == (bytes), "0.2.0: " #structure)

NESTED(dr_layout, 32);
AT(dr_layout, token, 0);
AT(dr_layout, head, 8);
AT(dr_layout, sequence, 16);
AT(dr_layout, alignment_bytes, 24);
AT(dr_layout, reserved, 28);

NESTED(dr_state, 88);
AT(dr_state, use, 0);
AT(dr_state, layout, 4);
AT(dr_state, dtype, 8);
AT(dr_state, index_dtype, 12);
AT(dr_state, num_slots, 16);
AT(dr_state, stride_slot, 24);
AT(dr_state, stride_head, 32);
AT(dr_state, has_null_index, 40);
AT(dr_state, alignment_bytes, 44);
AT(dr_state, null_index, 48);
AT(dr_state, reserved, 56);

SIZE(dr_problem, 616);
AT(dr_problem, size, 0);
AT(dr_problem, rule, 4);
AT(dr_problem, op, 8);
AT(dr_problem, reserved, 12);
AT(dr_problem, num_seqs, 16);
AT(dr_problem, num_tokens, 24);
AT(dr_problem, seq_len, 32);
AT(dr_problem, seq_offsets, 40);
AT(dr_problem, seq_offsets_dtype, 48);
AT(dr_problem, heads_qk, 52);
AT(dr_problem, heads_v, 56);
AT(dr_problem, dk, 60);
AT(dr_problem, dv, 64);
AT(dr_problem, dtype, 68);
AT(dr_problem, dtype_o, 72);
AT(dr_problem, dtype_gate, 76);
AT(dr_problem, dtype_beta, 80);
AT(dr_problem, dtype_a_log, 84);
AT(dr_problem, dtype_dt_bias, 88);
AT(dr_problem, gate_form, 92);
AT(dr_problem, beta_form, 96);
AT(dr_problem, l2norm, 100);
AT(dr_problem, scale_given, 104);
AT(dr_problem, scale, 108);
AT(dr_problem, lower_bound, 112);
AT(dr_problem, gate_floor, 116);
AT(dr_problem, layout_q, 120);
AT(dr_problem, layout_k, 152);
AT(dr_problem, layout_v, 184);
AT(dr_problem, layout_o, 216);
AT(dr_problem, layout_g, 248);
AT(dr_problem, layout_beta, 280);
AT(dr_problem, initial, 312);
AT(dr_problem, final, 400);
AT(dr_problem, initial_mask, 488);
AT(dr_problem, checkpoints, 492);
AT(dr_problem, checkpoint_every, 496);
AT(dr_problem, checkpoint, 504);
AT(dr_problem, chunks, 592);
AT(dr_problem, backward, 600);
AT(dr_problem, steps, 608);

SIZE(dr_device, 136);
AT(dr_device, size, 0);
AT(dr_device, kind, 4);
AT(dr_device, name, 8);
AT(dr_device, model, 40);
AT(dr_device, units, 104);
AT(dr_device, compute_capability, 108);
AT(dr_device, l1_bytes, 112);
AT(dr_device, l2_bytes, 120);
AT(dr_device, bytes_per_ns, 128);
AT(dr_device, flops_per_ns, 132);

SIZE(dr_costs, 152);
AT(dr_costs, size, 0);
AT(dr_costs, rule, 4);
AT(dr_costs, op, 8);
AT(dr_costs, measured, 12);
AT(dr_costs, backend, 16);
AT(dr_costs, variant, 40);
AT(dr_costs, measured_on, 64);
AT(dr_costs, chunk, 104);
AT(dr_costs, emit_ns, 108);
AT(dr_costs, summarize_ns, 112);
AT(dr_costs, local_ns, 116);
AT(dr_costs, summarize_local_ns, 120);
AT(dr_costs, carry_ns, 124);
AT(dr_costs, carry_unit_ns, 128);
AT(dr_costs, split_ns, 132);
AT(dr_costs, item_ns, 136);
AT(dr_costs, emit_bytes, 140);
AT(dr_costs, summarize_bytes, 144);
AT(dr_costs, prepare_ns, 148);

SIZE(dr_options, 120);
AT(dr_options, size, 0);
AT(dr_options, segments, 4);
AT(dr_options, segment_value, 8);
AT(dr_options, backend, 16);
AT(dr_options, isa, 24);
AT(dr_options, variant, 32);
AT(dr_options, policy, 40);
AT(dr_options, device, 48);
AT(dr_options, threads, 56);
AT(dr_options, invariant, 60);
AT(dr_options, carry, 64);
AT(dr_options, carry_log_decay, 68);
AT(dr_options, columns, 72);
AT(dr_options, num_columns, 80);
AT(dr_options, math, 84);
AT(dr_options, costs, 88);
AT(dr_options, num_costs, 96);
AT(dr_options, reserved, 100);
AT(dr_options, parallel_for, 104);
AT(dr_options, parallel_pool, 112);

SIZE(dr_plan_summary, 88);
AT(dr_plan_summary, size, 0);
AT(dr_plan_summary, chunk, 4);
AT(dr_plan_summary, backend, 8);
AT(dr_plan_summary, isa, 16);
AT(dr_plan_summary, variant, 24);
AT(dr_plan_summary, num_segments, 32);
AT(dr_plan_summary, max_segments, 40);
AT(dr_plan_summary, cut_sequences, 48);
AT(dr_plan_summary, threads, 56);
AT(dr_plan_summary, value_tiles, 60);
AT(dr_plan_summary, grain, 64);
AT(dr_plan_summary, predicted_ns, 72);
AT(dr_plan_summary, unsplit_ns, 80);

SIZE(dr_tensors, 200);
AT(dr_tensors, size, 0);
AT(dr_tensors, reserved, 4);
AT(dr_tensors, num_tokens, 8);
AT(dr_tensors, num_seqs, 16);
AT(dr_tensors, q, 24);
AT(dr_tensors, k, 32);
AT(dr_tensors, v, 40);
AT(dr_tensors, g, 48);
AT(dr_tensors, beta, 56);
AT(dr_tensors, a_log, 64);
AT(dr_tensors, dt_bias, 72);
AT(dr_tensors, o, 80);
AT(dr_tensors, initial, 88);
AT(dr_tensors, initial_index, 96);
AT(dr_tensors, has_initial, 104);
AT(dr_tensors, final, 112);
AT(dr_tensors, final_index, 120);
AT(dr_tensors, checkpoint, 128);
AT(dr_tensors, checkpoint_index, 136);
AT(dr_tensors, checkpoint_offsets, 144);
AT(dr_tensors, checkpoint_positions, 152);
AT(dr_tensors, seq_offsets, 160);
AT(dr_tensors, report, 168);
AT(dr_tensors, intermediates, 176);
AT(dr_tensors, gradients, 184);
AT(dr_tensors, drafts, 192);

SIZE(dr_chunks, 32);
AT(dr_chunks, size, 0);
AT(dr_chunks, chunk, 4);
AT(dr_chunks, given, 8);
AT(dr_chunks, wanted, 12);
AT(dr_chunks, dtype, 16);
AT(dr_chunks, dtype_states, 20);
AT(dr_chunks, states_layout, 24);
AT(dr_chunks, sums_base_2, 28);

SIZE(dr_intermediates, 96);
AT(dr_intermediates, size, 0);
AT(dr_intermediates, reserved, 4);
AT(dr_intermediates, aqk, 8);
AT(dr_intermediates, inverse, 16);
AT(dr_intermediates, w, 24);
AT(dr_intermediates, u, 32);
AT(dr_intermediates, k_to_end, 40);
AT(dr_intermediates, q_from_start, 48);
AT(dr_intermediates, gate_sums, 56);
AT(dr_intermediates, v_new, 64);
AT(dr_intermediates, states, 72);
AT(dr_intermediates, summaries, 80);
AT(dr_intermediates, composed, 88);
