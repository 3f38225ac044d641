#include "kernels/cuda/launch/call.h"

#include <string>

#include "kernels/cuda/launch/aliases.cuh"
#include "kernels/cuda/launch/status.h"
#include "problem/aliasing.h"
#include "problem/status.h"

namespace deltarelay::cuda {
namespace {

StateView view(const StatePool& pool, int32_t columns, const void* data, const void* index) {
  if (!pool.used()) return {};
  return {const_cast<void*>(data),
          pool.use == StateUse::kSlots ? index : nullptr,
          pool.stride_slot,
          pool.stride_head,
          pool.num_slots,
          pool.null_index,
          pool.layout,
          pool.dtype,
          pool.index_dtype,
          pool.has_null_index,
          columns};
}

}  // namespace

TensorView view(const void* data, const Strides& strides, DType dtype) {
  return {const_cast<void*>(data), strides.token, strides.head, strides.sequence, dtype};
}

Activation Call::activation() const {
  return {.g = g(),
          .beta = view(tensors_.beta, problem_.beta, problem_.dtype_beta),
          .a_log = tensors_.a_log,
          .dt_bias = tensors_.dt_bias,
          .dtype_a_log = problem_.dtype_a_log,
          .dtype_dt_bias = problem_.dtype_dt_bias,
          .gate_form = problem_.gate_form,
          .beta_form = problem_.beta_form,
          .lower_bound = problem_.lower_bound,
          .gate_floor = problem_.gate_floor,
          .scale = problem_.scale,
          .l2norm = problem_.l2norm};
}

PrepareArgs Call::prepare_args(const Step& step) const {
  return {.tables = call_.tables,
          .activation = activation(),
          .q = q(),
          .k = k(),
          .prepared = reinterpret_cast<uint8_t*>(call_.prepared),
          .heads_qk = problem_.heads_qk,
          .heads_v = problem_.heads_v,
          .chunks = static_cast<int32_t>(step.rows)};
}

WalkArgs Call::walk_args(const Step& step) const {
  return {.tables = call_.tables,
          .phase = step.phase,
          .row_bound = static_cast<int32_t>(step.rows),
          .prepared = reinterpret_cast<const uint8_t*>(call_.prepared),
          .initial = initial(),
          .final = final(),
          .has_initial = has_initial(),
          .o = o(),
          .slot_state = call_.slot_state,
          .slot_transition = call_.slot_transition,
          .slot_lives = call_.slot_lives,
          .report = tensors_.report,
          .heads_qk = problem_.heads_qk,
          .heads_v = problem_.heads_v,
          .strips = {problem_.heads_v, 1},
          .vanish_bound = call_.vanish_bound,
          .checkpoints = checkpoints(walked_checkpoint()),
          .relay = {step.phase == 1 ? call_.relay : RelayLine{}, call_.relay_states, call_.relay_marks}};
}

CarryArgs Call::carry_args(const Step& step) const {
  return {.tables = call_.tables,
          .fold_bound = static_cast<int32_t>(step.rows),
          .initial = initial(),
          .has_initial = has_initial(),
          .slot_state = call_.slot_state,
          .slot_transition = call_.slot_transition,
          .slot_lives = call_.slot_lives,
          .heads_v = problem_.heads_v,
          .strips = {problem_.heads_v, 1}};
}

Intermediates Call::intermediates() const {
  const Chunks& c = problem_.chunks;
  const dr_intermediates none{}, &t = tensors_.intermediates == nullptr ? none : *tensors_.intermediates;
  return {.aqk = t.aqk,
          .inverse = t.inverse,
          .w = t.w,
          .u = t.u,
          .k_to_end = t.k_to_end,
          .q_from_start = t.q_from_start,
          .gate_sums = static_cast<float*>(t.gate_sums),
          .v_new = t.v_new,
          .states = t.states,
          .summaries = static_cast<float*>(t.summaries),
          .composed = static_cast<float*>(t.composed),
          .given = c.given,
          .wanted = c.wanted,
          .chunk = call_.chunk,
          .dtype = c.dtype,
          .dtype_states = c.dtype_states,
          .states_layout = c.states_layout,
          .sums_base_2 = c.sums_base_2};
}

ChunkArgs Call::chunk_args(const Step& step) const {
  return {.tables = call_.tables,
          .rule = problem_.rule,
          .activation = activation(),
          .q = q(),
          .k = k(),
          .v = v(),
          .o = o(),
          .stage = intermediates(),
          .heads_qk = problem_.heads_qk,
          .heads_v = problem_.heads_v,
          .dk = problem_.dk,
          .dv = problem_.dv,
          .chunks = static_cast<int32_t>(step.rows)};
}

PassArgs Call::pass_args(const Step& step) const {
  return {.tables = call_.tables,
          .rule = problem_.rule,
          .phase = step.phase,
          .row_bound = static_cast<int32_t>(step.rows),
          .activation = activation(),
          .k = k(),
          .stage = intermediates(),
          .initial = initial(),
          .final = final(),
          .has_initial = has_initial(),
          .slot_state = call_.slot_state,
          .slot_transition = call_.slot_transition,
          .slot_lives = call_.slot_lives,
          .report = tensors_.report,
          .heads_qk = problem_.heads_qk,
          .heads_v = problem_.heads_v,
          .dk = problem_.dk,
          .dv = problem_.dv,
          .vanish_bound = call_.vanish_bound};
}

StateView Call::initial() const {
  return view(problem_.initial, problem_.dv, tensors_.initial, tensors_.initial_index);
}
StateView Call::final() const { return view(problem_.final, problem_.dv, tensors_.final, tensors_.final_index); }

StateView Call::checkpoint() const {
  return view(problem_.checkpoint, problem_.dv, tensors_.checkpoint, tensors_.checkpoint_index);
}

// Where the walk stores them: the pool, or places in the workspace that have its slots. A pool may have many more slots
// than there can be checkpoints; then each has the place of its number, also one whose slot is null. Only a list with
// entries that break its rules is longer than that: numbers past the end count as slots outside the pool.
StateView Call::walked_checkpoint() const {
  StateView walked = checkpoint();
  if (call_.checkpoints == nullptr || walked.data == nullptr) return walked;
  walked.data = call_.checkpoints;
  walked.stride_head = int64_t{problem_.dk} * problem_.dv;
  walked.stride_slot = walked.stride_head * problem_.heads_v;
  walked.layout = StateLayout::kValueMajor;
  walked.dtype = DType::kFp32;
  if (walked.num_slots > call_.checkpoint_places) {
    walked.index = nullptr;
    walked.num_slots = call_.checkpoint_places;
  }
  return walked;
}

CheckpointView Call::checkpoints(const StateView& pool) const {
  return {.pool = pool,
          .kind = problem_.checkpoints,
          .every = problem_.checkpoint_every,
          .offsets = tensors_.checkpoint_offsets,
          .positions = tensors_.checkpoint_positions};
}

unsigned Call::ctas(const Step& step) const {
  return static_cast<unsigned>(call_.tables.memory == nullptr ? step.ctas : step.ctas_stored);
}

void Call::launch(const Step& step) const {
  switch (step.stage) {
    case Stage::kCheckpoints:
      finish_checkpoints(step);
      break;
    case Stage::kAliases:
      report_aliases(step);
      break;
    case Stage::kFinish:
      finish(step);
      break;
    default:
      throw Error(DR_INTERNAL, std::string("step: expected one that this backend has, found ") + name_of(step));
  }
}

void Call::finish_checkpoints(const Step& step) const {
  const CheckpointArgs args{.tables = call_.tables,
                            .checkpoints = checkpoints(checkpoint()),
                            .walked = walked_checkpoint(),
                            .activation = activation(),
                            .k = k(),
                            .v = v(),
                            .heads_qk = problem_.heads_qk,
                            .heads_v = problem_.heads_v,
                            .dk = problem_.dk,
                            .dv = problem_.dv,
                            .chunk = call_.chunk,
                            .report = tensors_.report};
  check(launch_checkpoint(args, problem_.rule == Rule::kKda, step, stream()), "launch of checkpoint");
}

// Launches nothing if pools share no memory and no slot is named by an index.
void Call::report_aliases(const Step& step) const {
  const StatePool &written = problem_.final, &inside = problem_.checkpoint;
  const auto memory = [this](const StatePool& pool, const void* data) {
    return pool_memory(problem_, pool, data, pool.num_slots);
  };
  const PoolMemory initial_memory = memory(problem_.initial, tensors_.initial);
  const PoolMemory final_memory = memory(written, tensors_.final);
  const PoolMemory checkpoint_memory = memory(inside, tensors_.checkpoint);
  const AliasArgs args{.tables = call_.tables,
                       .initial = initial(),
                       .final = final(),
                       .checkpoints = checkpoints(checkpoint()),
                       .has_initial = has_initial(),
                       .final_initial = slot_shifts(final_memory, initial_memory),
                       .final_checkpoint = slot_shifts(final_memory, checkpoint_memory),
                       .checkpoint_initial = slot_shifts(checkpoint_memory, initial_memory),
                       .report = tensors_.report};
  const bool share = args.final_initial.count + args.final_checkpoint.count + args.checkpoint_initial.count > 0;
  if (!share && written.use != StateUse::kSlots && inside.use != StateUse::kSlots) return;
  check(launch_aliases(args, step.ctas, stream()), "launch of aliases");
}

void Call::finish(const Step& step) const {
  FinishArgs args{.tables = call_.tables,
                  .rows = {},
                  .num_rows = 0,
                  .num_tokens = problem_.num_tokens,
                  .initial = {},
                  .final = {},
                  .has_initial = has_initial(),
                  .summaries = nullptr,
                  .report = tensors_.report,
                  .heads_v = problem_.heads_v,
                  .dk = problem_.dk,
                  .dv = problem_.dv};
  for (const WrittenRows& rows : written_tensors(problem_, tensors_)) args.rows[args.num_rows++] = rows;
  if (problem_.op != Op::kCarry) {  // a chain without summaries is a chain
    args.initial = initial();
    args.final = final();
  }
  if (problem_.op == Op::kSummary) args.summaries = intermediates().summaries;
  check(launch_finish(args, step.ctas, stream()), "launch of finish");
}

}  // namespace deltarelay::cuda
