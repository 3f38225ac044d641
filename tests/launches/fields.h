// The members of the structures that travel as kernel parameters, by name. A member that is missing here is missing in
// every log; types_with_gaps finds most of them.
#pragma once
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/aliases.cuh"
#include "kernels/cuda/launch/checkpoint.cuh"
#include "kernels/cuda/launch/finish.cuh"
#include "kernels/cuda/sm80/launch.h"
#include "kernels/cuda/sm90/rows/walk_maps.h"
#include "kernels/cuda/sm90/stages/local.h"
#include "kernels/cuda/sm90/stages/outputs.h"
#include "kernels/cuda/sm90/stages/pass.h"
#include "kernels/cuda/stage_args.h"
#include "launches/fake_runtime.h"
#include "run/cuda_table.h"

namespace deltarelay::launches {

// Stand for structures of headers that only nvcc can read.
struct Extent {
  int32_t dk, dv;
};
struct GdnTiles {
  CUtensorMap q, k;
};

// A visitor is called as visit(name, member) for each member. It comes back here for members that are structures.

template <class Visit>
void visit_fields(Visit& visit, const cuda::TensorView& x) {
  visit("data", x.data), visit("token", x.token), visit("head", x.head), visit("sequence", x.sequence);
  visit("dtype", x.dtype);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::StateView& x) {
  visit("data", x.data), visit("index", x.index), visit("stride_slot", x.stride_slot);
  visit("stride_head", x.stride_head), visit("num_slots", x.num_slots), visit("null_index", x.null_index);
  visit("layout", x.layout), visit("dtype", x.dtype), visit("index_dtype", x.index_dtype);
  visit("has_null_index", x.has_null_index), visit("columns", x.columns);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::CheckpointView& x) {
  visit("pool", x.pool), visit("kind", x.kind), visit("every", x.every), visit("offsets", x.offsets);
  visit("positions", x.positions);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::Tables& x) {
  visit("memory", x.memory), visit("at_token_begin", x.at_token_begin), visit("at_chunk_begin", x.at_chunk_begin);
  visit("at_rows1", x.at_rows1), visit("at_folds", x.at_folds), visit("at_rows3", x.at_rows3);
  visit("at_counts", x.at_counts), visit("num_seqs", x.num_seqs), visit("batched", x.batched);
  visit("image", x.image);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::Activation& x) {
  visit("g", x.g), visit("beta", x.beta), visit("a_log", x.a_log), visit("dt_bias", x.dt_bias);
  visit("dtype_a_log", x.dtype_a_log), visit("dtype_dt_bias", x.dtype_dt_bias), visit("gate_form", x.gate_form);
  visit("beta_form", x.beta_form), visit("lower_bound", x.lower_bound), visit("gate_floor", x.gate_floor);
  visit("scale", x.scale), visit("l2norm", x.l2norm);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::PrepareArgs& x) {
  visit("tables", x.tables), visit("activation", x.activation), visit("q", x.q), visit("k", x.k);
  visit("prepared", x.prepared), visit("heads_qk", x.heads_qk), visit("heads_v", x.heads_v);
  visit("chunks", x.chunks);
}

template <class Visit>
void visit_fields(Visit& visit, const RelayLine& x) {
  visit("shares", x.shares), visit("length", x.length), visit("heads", x.heads), visit("side", x.side);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::RelayView& x) {
  visit("line", x.line), visit("states", x.states), visit("marks", x.marks);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::Strips& x) {
  visit("all", x.all), visit("a_head", x.a_head);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::WalkArgs& x) {
  visit("tables", x.tables), visit("phase", x.phase), visit("row_bound", x.row_bound), visit("prepared", x.prepared);
  visit("initial", x.initial), visit("final", x.final), visit("has_initial", x.has_initial), visit("o", x.o);
  visit("slot_state", x.slot_state), visit("slot_transition", x.slot_transition), visit("slot_lives", x.slot_lives);
  visit("report", x.report), visit("heads_qk", x.heads_qk), visit("heads_v", x.heads_v), visit("strips", x.strips);
  visit("vanish_bound", x.vanish_bound), visit("checkpoints", x.checkpoints), visit("relay", x.relay);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::CarryArgs& x) {
  visit("tables", x.tables), visit("fold_bound", x.fold_bound), visit("initial", x.initial);
  visit("has_initial", x.has_initial), visit("slot_state", x.slot_state), visit("slot_transition", x.slot_transition);
  visit("slot_lives", x.slot_lives), visit("heads_v", x.heads_v), visit("strips", x.strips);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::CheckpointArgs& x) {
  visit("tables", x.tables), visit("checkpoints", x.checkpoints), visit("walked", x.walked);
  visit("activation", x.activation), visit("k", x.k), visit("v", x.v), visit("heads_qk", x.heads_qk);
  visit("heads_v", x.heads_v), visit("dk", x.dk), visit("dv", x.dv), visit("chunk", x.chunk);
  visit("report", x.report);
}

template <class Visit>
void visit_fields(Visit& visit, const WrittenRows& x) {
  visit("data", x.data), visit("token_bytes", x.token_bytes), visit("head_bytes", x.head_bytes);
  visit("width_bytes", x.width_bytes);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::FinishArgs& x) {
  visit("tables", x.tables), visit("rows0", x.rows[0]), visit("rows1", x.rows[1]), visit("rows2", x.rows[2]);
  visit("rows3", x.rows[3]), visit("rows4", x.rows[4]), visit("rows5", x.rows[5]), visit("rows6", x.rows[6]);
  visit("rows7", x.rows[7]), visit("num_rows", x.num_rows);
  static_assert(WrittenTensors::kMost == 8);
  visit("num_tokens", x.num_tokens), visit("initial", x.initial), visit("final", x.final);
  visit("has_initial", x.has_initial), visit("summaries", x.summaries), visit("report", x.report);
  visit("heads_v", x.heads_v), visit("dk", x.dk), visit("dv", x.dv);
}

template <class Visit>
void visit_fields(Visit& visit, const SlotShifts& x) {
  visit("shift0", x.shift[0]), visit("shift1", x.shift[1]), visit("shift2", x.shift[2]), visit("shift3", x.shift[3]);
  static_assert(SlotShifts::kMost == 4);
  visit("count", x.count), visit("in_place", x.in_place), visit("unlike", x.unlike);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::AliasArgs& x) {
  visit("tables", x.tables), visit("initial", x.initial), visit("final", x.final);
  visit("checkpoints", x.checkpoints), visit("has_initial", x.has_initial), visit("final_initial", x.final_initial);
  visit("final_checkpoint", x.final_checkpoint), visit("checkpoint_initial", x.checkpoint_initial);
  visit("report", x.report);
}

template <class Visit>
void visit_fields(Visit& visit, const RelayUnits& x) {
  visit("side", x.side), visit("parts", x.parts);
}

template <class Visit>
void visit_fields(Visit& visit, const plan::Costs& x) {
  visit("units", x.units), visit("copies", x.copies), visit("emit", x.emit), visit("summarize", x.summarize);
  visit("first_extra", x.first_extra), visit("short_first", x.short_first), visit("carry", x.carry);
  visit("carry_unit", x.carry_unit), visit("barrier", x.barrier), visit("item", x.item);
  visit("piece_extra", x.piece_extra), visit("emit_bytes", x.emit_bytes);
  visit("summarize_bytes", x.summarize_bytes), visit("transition_bytes", x.transition_bytes);
  visit("state_bytes", x.state_bytes), visit("bytes_per_ns", x.bytes_per_ns), visit("heads", x.heads);
  visit("prepare", x.prepare), visit("prepare_bytes", x.prepare_bytes), visit("relay", x.relay);
}

template <class Visit>
void visit_fields(Visit& visit, const plan::Limits& x) {
  visit("margin_permille", x.margin_permille), visit("margin_ns", x.margin_ns);
  visit("risk_permille", x.risk_permille), visit("max_segments", x.max_segments), visit("max_rows", x.max_rows);
  visit("max_waves", x.max_waves), visit("min_segment", x.min_segment), visit("give_up", x.give_up);
}

template <class Visit>
void visit_fields(Visit& visit, const plan::TableRequest& x) {
  visit("num_tokens", x.num_tokens), visit("num_seqs", x.num_seqs), visit("chunk", x.chunk), visit("rule", x.rule);
  visit("value", x.value), visit("costs", x.costs), visit("limits", x.limits);
}

template <class Visit>
void visit_fields(Visit& visit, const plan::TeamTable& x) {
  visit("counts", x.counts), visit("token_begin", x.token_begin), visit("chunk_begin", x.chunk_begin);
  visit("rows1", x.rows.rows1), visit("folds", x.rows.folds), visit("rows3", x.rows.rows3);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::PlanTableArgs& x) {
  visit("request", x.request), visit("table", x.table), visit("scratch", x.scratch), visit("offsets", x.offsets);
  visit("offsets_dtype", x.offsets_dtype), visit("fold_bound", x.fold_bound), visit("report", x.report);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm80::WalkInputs& x) {
  visit("q", x.q), visit("k", x.k), visit("v", x.v);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::Intermediates& x) {
  visit("aqk", x.aqk), visit("inverse", x.inverse), visit("w", x.w), visit("u", x.u), visit("k_to_end", x.k_to_end);
  visit("q_from_start", x.q_from_start), visit("gate_sums", x.gate_sums), visit("v_new", x.v_new);
  visit("states", x.states), visit("summaries", x.summaries), visit("composed", x.composed), visit("given", x.given);
  visit("wanted", x.wanted), visit("chunk", x.chunk), visit("dtype", x.dtype), visit("dtype_states", x.dtype_states);
  visit("states_layout", x.states_layout), visit("sums_base_2", x.sums_base_2);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::ChunkArgs& x) {
  visit("tables", x.tables), visit("rule", x.rule), visit("activation", x.activation), visit("q", x.q), visit("k", x.k),
      visit("v", x.v);
  visit("o", x.o), visit("stage", x.stage), visit("heads_qk", x.heads_qk), visit("heads_v", x.heads_v);
  visit("dk", x.dk), visit("dv", x.dv), visit("chunks", x.chunks);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::PassArgs& x) {
  visit("tables", x.tables), visit("rule", x.rule), visit("phase", x.phase), visit("row_bound", x.row_bound);
  visit("activation", x.activation), visit("k", x.k), visit("stage", x.stage), visit("initial", x.initial);
  visit("final", x.final), visit("has_initial", x.has_initial), visit("slot_state", x.slot_state);
  visit("slot_transition", x.slot_transition), visit("slot_lives", x.slot_lives), visit("report", x.report);
  visit("heads_qk", x.heads_qk), visit("heads_v", x.heads_v), visit("dk", x.dk), visit("dv", x.dv);
  visit("vanish_bound", x.vanish_bound);
}

template <class Visit>
void visit_fields(Visit& visit, const Extent& x) {
  visit("dk", x.dk), visit("dv", x.dv);
}

template <class Visit>
void visit_fields(Visit& visit, const GdnTiles& x) {
  visit("q", x.q), visit("k", x.k);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::WalkMaps& x) {
  visit("q", x.q), visit("k", x.k), visit("v", x.v), visit("o", x.o);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::RowOrder& x) {
  visit("first", x.first), visit("count", x.count), visit("token", x.token), visit("sequence_at", x.sequence_at);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::FusedMaps& x) {
  visit("q", x.q), visit("k", x.k), visit("v", x.v), visit("o", x.o), visit("g", x.g), visit("beta", x.beta);
  visit("copies_gates", x.copies_gates), visit("order", x.order);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::StageGates& x) {
  visit("sums", x.sums), visit("sums_scale", x.sums_scale), visit("heads", x.heads), visit("activation", x.activation);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::StatePassMaps& x) {
  visit("w", x.w), visit("keys", x.keys), visit("u", x.u), visit("v_new", x.v_new);
  visit("states", x.states);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::StatePassArgs& x) {
  visit("walk", x.walk), visit("gates", x.gates), visit("wants_states", x.wants_states);
  visit("key_major", x.key_major), visit("scales_v_new", x.scales_v_new), visit("summaries", x.summaries);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::OutputsMaps& x) {
  visit("q", x.q), visit("keys", x.keys), visit("aqk", x.aqk), visit("v_new", x.v_new), visit("states", x.states);
  visit("o", x.o);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::OutputsArgs& x) {
  visit("tables", x.tables), visit("gates", x.gates), visit("o", x.o), visit("heads_qk", x.heads_qk);
  visit("heads_v", x.heads_v), visit("strips", x.strips), visit("scale", x.scale), visit("raw_q", x.raw_q);
  visit("key_major", x.key_major), visit("has_aqk", x.has_aqk), visit("ctas", x.ctas);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::LocalArgs& x) {
  visit("call", x.call), visit("strips_a_head", x.strips_a_head), visit("group", x.group), visit("reads_q", x.reads_q);
  visit("reads_k", x.reads_k), visit("reads_v", x.reads_v);
}

template <class Visit>
void visit_fields(Visit& visit, const cuda::sm90::LocalMaps& x) {
  visit("q", x.q), visit("k", x.k), visit("v", x.v);
  visit("aqk", x.aqk), visit("inverse", x.inverse), visit("w", x.w), visit("u", x.u);
}

// Calls body(name, type) for every structure that is a parameter: its name in the names of kernels, and a value.
template <class Body>
void for_each_structure(const Body& body) {
  body("AliasArgs", cuda::AliasArgs{});
  body("CarryArgs", cuda::CarryArgs{});
  body("CheckpointArgs", cuda::CheckpointArgs{});
  body("ChunkArgs", cuda::ChunkArgs{});
  body("FinishArgs", cuda::FinishArgs{});
  body("PassArgs", cuda::PassArgs{});
  body("PlanTableArgs", cuda::PlanTableArgs{});
  body("PrepareArgs", cuda::PrepareArgs{});
  body("WalkArgs", cuda::WalkArgs{});
  body("Activation", cuda::Activation{});
  body("sm80::WalkInputs", cuda::sm80::WalkInputs{});
  body("sm80::Extent", Extent{});
  body("sm90::FusedMaps", cuda::sm90::FusedMaps{});
  body("sm90::LocalArgs", cuda::sm90::LocalArgs{});
  body("sm90::LocalMaps", cuda::sm90::LocalMaps{});
  body("sm90::OutputsArgs", cuda::sm90::OutputsArgs{});
  body("sm90::OutputsMaps", cuda::sm90::OutputsMaps{});
  body("sm90::StatePassArgs", cuda::sm90::StatePassArgs{});
  body("sm90::StatePassMaps", cuda::sm90::StatePassMaps{});
  body("sm90::WalkMaps", cuda::sm90::WalkMaps{});
  body("sm90::GdnTiles", GdnTiles{});
}

}  // namespace deltarelay::launches
