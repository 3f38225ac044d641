// The cuda-sm80 backend: the steps of a call as launches.
#include "kernels/cuda/sm80/stages/enqueue.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string>

#include "kernels/cuda/decline.h"
#include "kernels/cuda/launch/aliases.cuh"
#include "kernels/cuda/launch/call.h"
#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/sm80/accepts.h"
#include "kernels/cuda/sm80/launch.h"

namespace deltarelay::cuda::sm80 {
namespace {

void walk(const Call& call, const Shape& shape, const Step& step) {
  WalkArgs args = call.walk_args(step);
  if (!step.summarizes) args.slot_transition = nullptr;  // a grid without CTAs for transitions
  const WalkInputs inputs{.q = call.q(), .k = call.k(), .v = call.v()};
  const WalkGrid grid{.columns = step.each,
                      .both = step.together,
                      .tiles = walk_tiles(shape, step.each, step.together, step.summarizes),
                      .ctas = step.ctas};
  check(launch_walk(inputs, args, shape, grid, call.stream()),
        step.phase == 1 ? "launch of summarize and emit (cuda-sm80)" : "launch of emit (cuda-sm80)");
}

void launch(const Call& call, const Shape& shape, const Step& step) {
  switch (step.stage) {
    case Stage::kPrepare:
      check(launch_prepare(call.prepare_args(step), shape, call.stream()), "launch of prepare (cuda-sm80)");
      break;
    case Stage::kWalk:
      walk(call, shape, step);
      break;
    case Stage::kCarry:
      check(launch_carry(call.carry_args(step), shape, call.ctas(step), call.stream()), "launch of carry (cuda-sm80)");
      break;
    default:
      call.launch(step);
  }
}

void enqueue(const DeviceCall& device_call, std::span<const Step> steps) {
  const Call call(device_call);
  if (is_stage(device_call.problem.op)) {
    for (const Step& step : steps) launch_stage(device_call, call, step);
    return;
  }
  const Shape shape = shape_of(device_call.problem, device_call.variant);
  for (const Step& step : steps) launch(call, shape, step);
}

// A GPU of this machine needs code that was built for it, or that can be compiled for it.
std::string decline_here(const Problem& problem, const Request& request) {
  std::string reason = decline(problem, request);
  if (reason.empty() && request.here && !has_code_for(request.compute_capability, DELTARELAY_CUDA_ARCHITECTURES)) {
    reason = found("compute capability", "one of those this library was built for, " DELTARELAY_CUDA_ARCHITECTURES,
                   capability_text(request.compute_capability));
  }
  return reason;
}

void load_shared(int32_t) {
  check(load_checkpoint(), "loading checkpoint");
  check(load_finish(), "loading finish");
  check(load_aliases(), "loading aliases");
}

void load_shape(const Problem& problem) {
  if (is_stage(problem.op)) return load_stage(problem);
  check(load(shape_of(problem)), "loading the kernels of cuda-sm80");
}

}  // namespace
}  // namespace deltarelay::cuda::sm80

namespace deltarelay {

constinit const Backend kCudaSm80Backend = [] {
  Backend backend = cuda::sm80::planned_backend();
  backend.decline = cuda::sm80::decline_here;
  backend.enqueue = cuda::sm80::enqueue;
  backend.load = cuda::sm80::load_shared;
  backend.shape = cuda::sm80::shape_number;
  backend.load_shape = cuda::sm80::load_shape;
  return backend;
}();

}  // namespace deltarelay
