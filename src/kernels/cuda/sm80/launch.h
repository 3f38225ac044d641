// Host side of the portable kernels.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/sm80/grid.h"
#include "kernels/cuda/sm80/record.h"

namespace deltarelay::cuda::sm80 {

// Tensors of the caller, all of type Shape::dtype. The KDA walk reads v only.
struct WalkInputs {
  TensorView q, k, v;
};

// Writes the records of all chunks and value heads to args.prepared, [chunk, HV, record_bytes(shape)].
cudaError_t launch_prepare(const PrepareArgs& args, const Shape& shape, cudaStream_t stream);

// Emits and summarizes the rows of args.phase. Slots have slot_state_floats and slot_transition_floats floats
// (record.h). For every 64 rows of M^T, a byte of args.slot_lives says whether any number in them differs from 0.
// args.slot_transition is nullptr if the phase has no row to summarize; the grid then has no CTAs for M.
cudaError_t launch_walk(const WalkInputs& inputs, const WalkArgs& args, const Shape& shape, const WalkGrid& grid,
                        cudaStream_t stream);

cudaError_t launch_carry(const CarryArgs& args, const Shape& shape, unsigned ctas, cudaStream_t stream);

// Loads all kernels of a shape to the current device. Call it once per device, before the first launch.
cudaError_t load(const Shape& shape);

}  // namespace deltarelay::cuda::sm80
