// Host side of the portable kernels.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm80/record.h"

namespace deltarelay::cuda::sm80 {

// Raw tensors of the call, all of Shape::dtype. KDA reads v alone.
struct WalkInputs {
  TensorView q, k, v;
};

// Records of all chunks and value heads into args.prepared ([chunk, HV, record_bytes(shape)]).
cudaError_t launch_prepare(const PrepareArgs& args, const Shape& shape, cudaStream_t stream);

// Emits and summarizes the rows of args.phase. Slots are slot_state_floats and slot_transition_floats long (record.h). In args.slot_lives a
// byte says of every 64 rows of M^T whether it has a number but 0. args.slot_transition is nullptr when no row of the phase is to be summarized: the grid then has no CTAs for it.
cudaError_t launch_walk(const WalkInputs& inputs, const WalkArgs& args, const Shape& shape, cudaStream_t stream);

cudaError_t launch_carry(const CarryArgs& args, const Shape& shape, int32_t multiprocessors, cudaStream_t stream);

// Brings all kernels of a shape to the current device. Once per device, before any launch.
cudaError_t load(const Shape& shape);

}  // namespace deltarelay::cuda::sm80
