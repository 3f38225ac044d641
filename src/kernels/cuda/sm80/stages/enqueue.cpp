// Launches the steps of a stage.
#include "kernels/cuda/sm80/stages/enqueue.h"

#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/sm80/accepts.h"
#include "kernels/cuda/sm80/launch.h"
#include "kernels/cuda/sm80/shape.h"
#include "kernels/cuda/sm80/stages/launch.h"

namespace deltarelay::cuda::sm80 {
namespace {

// The operands of a summary that is given none: what chunk-local leaves in the prepared memory.
Intermediates prepared(const Problem& p, const Intermediates& stage, std::byte* memory) {
  const PreparedPlaces places = prepared_places(p);
  Intermediates made = stage;
  made.w = memory + places.w;
  made.u = memory + places.u;
  made.k_to_end = memory + places.k_to_end;
  made.gate_sums = reinterpret_cast<float*>(memory + places.gate_sums);
  made.dtype = p.dtype;
  return made;
}
constexpr int32_t kPrepared = DR_W | DR_U | DR_K_TO_END | DR_GATE_SUMS;

ChunkArgs prepare_args(const DeviceCall& device_call, const Call& call, const Step& step) {
  ChunkArgs args = call.chunk_args(step);
  args.stage = prepared(device_call.problem, args.stage, device_call.prepared);
  args.stage.given = 0;
  args.stage.wanted = kPrepared;
  return args;
}

PassArgs summary_args(const DeviceCall& device_call, const Call& call, const Step& step) {
  PassArgs args = call.pass_args(step);
  args.phase = 1;
  if (args.stage.gives(DR_W)) return args;
  args.stage = prepared(device_call.problem, args.stage, device_call.prepared);
  args.stage.given = kPrepared;
  return args;
}

}  // namespace

void launch_stage(const DeviceCall& device_call, const Call& call, const Step& step) {
  const StageNumbers numbers = stage_numbers(device_call.problem);
  const cudaStream_t stream = call.stream();
  switch (step.stage) {
    case Stage::kPrepare:
      check(launch_local(prepare_args(device_call, call, step), numbers, stream), "launch of prepare (cuda-sm80)");
      break;
    case Stage::kChunkLocal:
      check(launch_local(call.chunk_args(step), numbers, stream), "launch of chunk-local (cuda-sm80)");
      break;
    case Stage::kOutputs:
      check(launch_outputs(call.chunk_args(step), numbers, stream), "launch of outputs (cuda-sm80)");
      break;
    case Stage::kWalk:
      check(launch_pass(call.pass_args(step), numbers, call.ctas(step), stream), "launch of state-pass (cuda-sm80)");
      break;
    case Stage::kCarry:
      check(launch_carry(call.carry_args(step), shape_of(device_call.problem), call.ctas(step), stream),
            "launch of carry (cuda-sm80)");
      break;
    case Stage::kSummary:
      check(launch_pass(summary_args(device_call, call, step), numbers, call.ctas(step), stream),
            "launch of summary (cuda-sm80)");
      break;
    case Stage::kChains:
      check(launch_chains(call.pass_args(step), call.ctas(step), stream), "launch of carry of chains (cuda-sm80)");
      break;
    default:
      call.launch(step);
  }
}

void load_stage(const Problem& p) {
  const StageNumbers numbers = stage_numbers(p);
  switch (p.op) {
    case Op::kChunkLocal:
      return check(load_local(numbers), "loading chunk-local of cuda-sm80");
    case Op::kOutputs:
      return check(load_outputs(numbers), "loading outputs of cuda-sm80");
    case Op::kCarry:
      return check(load_chains(), "loading the carry of chains of cuda-sm80");
    case Op::kSummary:
      check(load_local(numbers), "loading chunk-local of cuda-sm80");
      break;
    default:
      for (const int32_t width : kWidths) check(load_carry(width), "loading carry of cuda-sm80");
  }
  check(load_pass(numbers), "loading the passes of cuda-sm80");
}

}  // namespace deltarelay::cuda::sm80
