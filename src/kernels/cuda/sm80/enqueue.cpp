// The cuda-sm80 backend: a call as a chain of launches, prepare, walk, carry, walk.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/decline.h"
#include "kernels/cuda/launch/aliases.cuh"
#include "kernels/cuda/launch/call.h"
#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/sm80/accepts.h"
#include "kernels/cuda/sm80/launch.h"

namespace deltarelay::cuda::sm80 {
namespace {

void walk(const Call& call, const Shape& shape, int32_t phase, bool summarizes) {
  WalkArgs args = call.walk_args(phase);
  if (!summarizes) args.slot_transition = nullptr;  // a grid without CTAs for transitions
  const WalkInputs inputs{.q = call.q(), .k = call.k(), .v = call.v()};
  check(launch_walk(inputs, args, shape, call.stream()),
        phase == 1 ? "launch of summarize and emit (cuda-sm80)" : "launch of emit (cuda-sm80)");
}

void enqueue(const DeviceCall& device_call) {
  const Call call(device_call);
  const Shape shape = shape_of(device_call.problem, device_call.way);
  const CallBounds& bounds = device_call.bounds;
  if (bounds.chunks > 0) {
    check(launch_prepare(call.prepare_args(), shape, call.stream()), "launch of prepare (cuda-sm80)");
    const bool summarizes = bounds.folds > 0;
    walk(call, shape, 1, summarizes);
    if (summarizes)
      check(launch_carry(call.carry_args(), shape, device_call.units, call.stream()), "launch of carry (cuda-sm80)");
    if (bounds.rows3 > 0) walk(call, shape, 3, false);
    call.take_checkpoints_on();
  }
  call.finish();
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

void load_shape(const Problem& problem) { check(load(shape_of(problem)), "loading the kernels of cuda-sm80"); }

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
