#include <cstdint>

#include "kernels/cuda/launch/call.h"
#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/ptx/number.cuh"
#include "kernels/cuda/sm90/accepts.h"
#include "kernels/cuda/sm90/carry/carry.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/stages/local.h"
#include "kernels/cuda/sm90/stages/outputs.h"
#include "kernels/cuda/sm90/stages/pass.h"
#include "kernels/cuda/sm90/stages/stage_launches.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace deltarelay::cuda::sm90 {
namespace {

class StageLaunches {
 public:
  explicit StageLaunches(const DeviceCall& call)
      : call_(call), problem_(call.problem), of_(call), stage_(of_.intermediates()) {}

  void launch(const Step& step) {
    switch (step.stage) {
      case Stage::kWalk:
        pass(step, nullptr);
        break;
      case Stage::kSummary:
        pass(step, stage_.summaries);
        break;
      case Stage::kChunkLocal:
        chunk_local(step);
        break;
      case Stage::kOutputs:
        outputs(step);
        break;
      case Stage::kCarry:
        carry(step);
        break;
      default:
        of_.launch(step);
    }
  }

 private:
  Strips strips() const {
    const int32_t a_head = sm90::strips(problem_);
    return {problem_.heads_v * a_head, a_head};
  }

  bool gdn() const { return problem_.rule == Rule::kGdn; }

  // A contiguous tensor [T, heads, width].
  TensorView tokens(const void* data, int64_t heads, int64_t width = kWidth) const {
    const int64_t token = heads * width;
    return view(data, {.token = token, .head = width, .sequence = problem_.seq_len * token}, problem_.dtype);
  }
  CUtensorMap map(const TensorView& tensor, int64_t heads, int32_t halves = 2, int32_t box_halves = 1) const {
    const bool batched = problem_.batched();
    return make_map({.tensor = tensor,
                     .sequences = batched ? problem_.num_seqs : 1,
                     .tokens = batched ? problem_.seq_len : problem_.num_tokens,
                     .heads = heads,
                     .box_tokens = call_.chunk,
                     .box_halves = box_halves,
                     .halves = halves});
  }
  // Where the lengths are known at execution, it has as many states as the bounds allow. Nobody touches more than there
  // are: a box is part of one state.
  // Value-major: rows of keys, strips side by side as heads. Key-major: rows of values, in halves numbered through the
  // strips of a head.
  CUtensorMap states_map() const {
    const int64_t matrix = int64_t{kWidth} * problem_.dv,
                  rows = problem_.chunk_rows(problem_.num_tokens, problem_.num_seqs);
    const bool key_major = stage_.states_layout == StateLayout::kKeyMajor;
    const int32_t a_head = strips().a_head;
    const Strides strides = {.token = key_major ? problem_.dv : kWidth,
                             .head = key_major ? matrix : kWidth * kWidth,
                             .sequence = matrix * problem_.heads_v};
    return make_map({.tensor = view(stage_.states, strides, problem_.dtype),
                     .sequences = rows,
                     .tokens = kWidth,
                     .heads = key_major ? problem_.heads_v : strips().all,
                     .box_tokens = key_major ? kWidth : kHalfWidth,
                     .box_halves = key_major ? 1 : 2,
                     .halves = key_major ? 2 * a_head : 2});
  }

  StageGates gates() const {
    const bool sums = stage_.gives(DR_GATE_SUMS);
    return {.sums = sums ? stage_.gate_sums : nullptr,
            .sums_scale = sums && !stage_.sums_base_2 ? kLog2e : 1.0f,
            .heads = problem_.heads_v,
            .activation = of_.activation()};
  }

  StatePassArgs pass_args(const Step& step, float* summaries) const {
    StatePassArgs args{};
    args.walk = of_.walk_args(step);
    if (step.phase == 0) args.walk.phase = 1;
    if (summaries != nullptr) args.walk.vanish_bound = 0.0f;
    args.walk.strips = strips();
    args.walk.o = tokens(stage_.wants(DR_V_NEW) ? stage_.v_new : nullptr, strips().all);
    args.gates = gates();
    args.scales_v_new = !stage_.gives(DR_K_TO_END);
    args.wants_states = stage_.wants(DR_STATES);
    args.key_major = stage_.states_layout == StateLayout::kKeyMajor;
    args.summaries = summaries;
    return args;
  }
  StatePassMaps pass_maps(const StatePassArgs& args) const {
    StatePassMaps maps{};
    maps.w = map(tokens(stage_.w, problem_.heads_v), problem_.heads_v);
    maps.keys = args.scales_v_new ? map(of_.k(), problem_.heads_qk)
                                  : map(tokens(stage_.k_to_end, problem_.heads_v), problem_.heads_v);
    maps.u = map(tokens(stage_.u, strips().all), strips().all);
    if (stage_.wants(DR_V_NEW)) maps.v_new = map(args.walk.o, strips().all);
    if (args.wants_states) maps.states = states_map();
    return maps;
  }
  void pass(const Step& step, float* summaries) const {
    const StatePassArgs args = pass_args(step, summaries);
    const StatePassLaunch how{.dtype = problem_.dtype, .scalar_gate = gdn(), .form = step.form, .ctas = of_.ctas(step)};
    check(launch_state_pass(pass_maps(args), args, how, of_.stream()), "launch of the state pass");
  }

  void chunk_local(const Step& step) const {
    const Reads reads = problem_.reads();
    LocalMaps maps{};
    if (reads.q) maps.q = map(of_.q(), problem_.heads_qk, 2, 2);
    if (reads.k) maps.k = map(of_.k(), problem_.heads_qk, 2, 2);
    if (reads.v) maps.v = map(of_.v(), problem_.heads_v, 2 * strips().a_head, 2);
    const int32_t heads = problem_.heads_v;
    if (stage_.wants(DR_AQK)) maps.aqk = map(tokens(stage_.aqk, heads, call_.chunk), heads, 1);
    if (stage_.wants(DR_INVERSE)) maps.inverse = map(tokens(stage_.inverse, heads, call_.chunk), heads, 1);
    if (stage_.wants(DR_W)) maps.w = map(tokens(stage_.w, heads), heads);
    if (stage_.wants(DR_U)) maps.u = map(tokens(stage_.u, strips().all), strips().all);
    const LocalArgs args{.call = of_.chunk_args(step),
                         .strips_a_head = strips().a_head,
                         .group = heads / problem_.heads_qk,
                         .reads_q = reads.q,
                         .reads_k = reads.k,
                         .reads_v = reads.v};
    const LocalLaunch how{
        .dtype = problem_.dtype, .scalar_gate = gdn(), .chunks = static_cast<uint32_t>(step.ctas / heads)};
    check(launch_local(maps, args, how, of_.stream()), "launch of chunk-local");
  }

  void outputs(const Step& step) const {
    const bool raw_q = !stage_.gives(DR_Q_FROM_START), has_aqk = stage_.gives(DR_AQK);
    TensorView o = of_.o();
    if (strips().a_head > 1) o.head = kWidth;
    OutputsMaps maps{};
    maps.q =
        raw_q ? map(of_.q(), problem_.heads_qk) : map(tokens(stage_.q_from_start, problem_.heads_v), problem_.heads_v);
    if (has_aqk)
      maps.aqk = map(tokens(stage_.aqk, problem_.heads_v, call_.chunk), problem_.heads_v, 1);
    else
      maps.keys = map(of_.k(), problem_.heads_qk);
    maps.v_new = map(tokens(stage_.v_new, strips().all), strips().all);
    maps.states = states_map();
    maps.o = map(o, strips().all);
    const OutputsArgs args{.tables = call_.tables,
                           .gates = gates(),
                           .o = o,
                           .heads_qk = problem_.heads_qk,
                           .heads_v = problem_.heads_v,
                           .strips = strips(),
                           .scale = problem_.scale,
                           .raw_q = raw_q,
                           .key_major = stage_.states_layout == StateLayout::kKeyMajor,
                           .has_aqk = has_aqk,
                           .ctas = static_cast<uint32_t>(step.ctas)};
    check(launch_outputs(maps, args, problem_.dtype, of_.stream()), "launch of outputs");
  }

  void carry(const Step& step) const {
    CarryArgs args = of_.carry_args(step);
    args.strips = strips();
    check(launch_carry(args, {step.form, step.each, step.ctas}, of_.stream()), "launch of carry");
  }

  const DeviceCall& call_;
  const Problem& problem_;
  Call of_;
  Intermediates stage_;
};

}  // namespace

void enqueue_stages(const DeviceCall& call, std::span<const Step> steps) {
  StageLaunches launches(call);
  for (const Step& step : steps) launches.launch(step);
}

void load_stages() {
  check(load_state_pass(), "loading the state pass");
  check(load_outputs(), "loading outputs");
  check(load_local(), "loading chunk-local");
}

}  // namespace deltarelay::cuda::sm90
