/* The memory layout of the contract, as every 64-bit platform has it. A change here is a change of the ABI: fields may be
 * added at the end of a structure that carries its size, and nothing else. */
#include <stddef.h>

#include "deltarelay/deltarelay.h"

#define AT(structure, field, offset) _Static_assert(offsetof(structure, field) == (offset), #structure "." #field)
#define SIZE(structure, bytes) _Static_assert(sizeof(structure) == (bytes), #structure)

SIZE(dr_strides, 24);
AT(dr_strides, token, 0);
AT(dr_strides, head, 8);
AT(dr_strides, sequence, 16);

SIZE(dr_state, 56);
AT(dr_state, use, 0);
AT(dr_state, layout, 4);
AT(dr_state, dtype, 8);
AT(dr_state, index_dtype, 12);
AT(dr_state, num_slots, 16);
AT(dr_state, stride_slot, 24);
AT(dr_state, stride_head, 32);
AT(dr_state, has_null_index, 40);
AT(dr_state, reserved, 44);
AT(dr_state, null_index, 48);

SIZE(dr_problem, 440);
AT(dr_problem, size, 0);
AT(dr_problem, op, 4);
AT(dr_problem, num_seqs, 8);
AT(dr_problem, num_tokens, 16);
AT(dr_problem, seq_len, 24);
AT(dr_problem, seq_offsets, 32);
AT(dr_problem, seq_offsets_dtype, 40);
AT(dr_problem, heads_qk, 44);
AT(dr_problem, heads_v, 48);
AT(dr_problem, dk, 52);
AT(dr_problem, dv, 56);
AT(dr_problem, dtype, 60);
AT(dr_problem, dtype_o, 64);
AT(dr_problem, dtype_gate, 68);
AT(dr_problem, dtype_beta, 72);
AT(dr_problem, gate_form, 76);
AT(dr_problem, beta_form, 80);
AT(dr_problem, l2norm, 84);
AT(dr_problem, scale_given, 88);
AT(dr_problem, scale, 92);
AT(dr_problem, lower_bound, 96);
AT(dr_problem, gate_floor, 100);
AT(dr_problem, alignment_bytes, 104);
AT(dr_problem, stride_q, 112);
AT(dr_problem, stride_k, 136);
AT(dr_problem, stride_v, 160);
AT(dr_problem, stride_o, 184);
AT(dr_problem, stride_g, 208);
AT(dr_problem, stride_beta, 232);
AT(dr_problem, initial, 256);
AT(dr_problem, final, 312);
AT(dr_problem, initial_mask, 368);
AT(dr_problem, checkpoints, 372);
AT(dr_problem, checkpoint_every, 376);
AT(dr_problem, checkpoint, 384);

SIZE(dr_stage_costs, 48);
AT(dr_stage_costs, chunk, 0);
AT(dr_stage_costs, emit_ns, 4);
AT(dr_stage_costs, summarize_ns, 8);
AT(dr_stage_costs, local_ns, 12);
AT(dr_stage_costs, summarize_local_ns, 16);
AT(dr_stage_costs, carry_ns, 20);
AT(dr_stage_costs, carry_unit_ns, 24);
AT(dr_stage_costs, split_ns, 28);
AT(dr_stage_costs, item_ns, 32);
AT(dr_stage_costs, emit_bytes, 36);
AT(dr_stage_costs, summarize_bytes, 40);
AT(dr_stage_costs, prepare_ns, 44);

SIZE(dr_device, 368);
AT(dr_device, size, 0);
AT(dr_device, kind, 4);
AT(dr_device, name, 8);
AT(dr_device, units, 40);
AT(dr_device, compute_capability, 44);
AT(dr_device, l1_bytes, 48);
AT(dr_device, l2_bytes, 56);
AT(dr_device, bytes_per_ns, 64);
AT(dr_device, measured, 68);
AT(dr_device, kda, 72);
AT(dr_device, gdn, 120);
AT(dr_device, kda_fused, 168);
AT(dr_device, gdn_fused, 216);
AT(dr_device, kda_portable, 264);
AT(dr_device, gdn_portable, 312);
AT(dr_device, portable_measured, 360);
AT(dr_device, reserved, 364);

SIZE(dr_options, 96);
AT(dr_options, size, 0);
AT(dr_options, segments, 4);
AT(dr_options, segment_value, 8);
AT(dr_options, backend, 16);
AT(dr_options, isa, 24);
AT(dr_options, policy, 32);
AT(dr_options, device, 40);
AT(dr_options, threads, 48);
AT(dr_options, invariant, 52);
AT(dr_options, carry, 56);
AT(dr_options, carry_log_decay, 60);
AT(dr_options, columns, 64);
AT(dr_options, num_columns, 72);
AT(dr_options, reserved, 76);
AT(dr_options, parallel_for, 80);
AT(dr_options, parallel_pool, 88);

SIZE(dr_plan_summary, 80);
AT(dr_plan_summary, size, 0);
AT(dr_plan_summary, chunk, 4);
AT(dr_plan_summary, backend, 8);
AT(dr_plan_summary, isa, 16);
AT(dr_plan_summary, num_segments, 24);
AT(dr_plan_summary, max_segments, 32);
AT(dr_plan_summary, cut_sequences, 40);
AT(dr_plan_summary, threads, 48);
AT(dr_plan_summary, value_tiles, 52);
AT(dr_plan_summary, grain, 56);
AT(dr_plan_summary, predicted_ns, 64);
AT(dr_plan_summary, unsplit_ns, 72);

SIZE(dr_tensors, 160);
AT(dr_tensors, size, 0);
AT(dr_tensors, reserved, 4);
AT(dr_tensors, q, 8);
AT(dr_tensors, k, 16);
AT(dr_tensors, v, 24);
AT(dr_tensors, g, 32);
AT(dr_tensors, beta, 40);
AT(dr_tensors, a_log, 48);
AT(dr_tensors, dt_bias, 56);
AT(dr_tensors, o, 64);
AT(dr_tensors, initial, 72);
AT(dr_tensors, initial_index, 80);
AT(dr_tensors, has_initial, 88);
AT(dr_tensors, final, 96);
AT(dr_tensors, final_index, 104);
AT(dr_tensors, checkpoint, 112);
AT(dr_tensors, checkpoint_index, 120);
AT(dr_tensors, checkpoint_offsets, 128);
AT(dr_tensors, checkpoint_positions, 136);
AT(dr_tensors, seq_offsets, 144);
AT(dr_tensors, report, 152);
