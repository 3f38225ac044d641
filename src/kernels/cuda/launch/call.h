// A call in the terms of kernels: what each of them is told, made from the problem, the caller's tensors and the
// workspace; and the launches that end it, which are the same on every architecture. The plan's steps say what is
// launched (kernels/step.h).
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/checkpoint.cuh"
#include "kernels/cuda/launch/finish.cuh"
#include "kernels/cuda/stage_args.h"
#include "kernels/stages.h"
#include "kernels/step.h"

namespace deltarelay::cuda {

TensorView view(const void* data, const Strides& strides, DType dtype);

class Call {
 public:
  explicit Call(const DeviceCall& call) : call_(call), problem_(call.problem), tensors_(call.tensors) {}

  cudaStream_t stream() const { return static_cast<cudaStream_t>(call_.stream); }
  TensorView q() const { return view(tensors_.q, problem_.q, problem_.dtype); }
  TensorView k() const { return view(tensors_.k, problem_.k, problem_.dtype); }
  TensorView v() const { return view(tensors_.v, problem_.v, problem_.dtype); }
  TensorView g() const { return view(tensors_.g, problem_.g, problem_.dtype_gate); }
  TensorView o() const { return view(tensors_.o, problem_.o, problem_.dtype_o); }

  Activation activation() const;
  PrepareArgs prepare_args(const Step& step) const;
  WalkArgs walk_args(const Step& step) const;
  CarryArgs carry_args(const Step& step) const;
  // Of a stage.
  ChunkArgs chunk_args(const Step& step) const;
  PassArgs pass_args(const Step& step) const;
  Intermediates intermediates() const;
  // The grid of a walk.
  unsigned ctas(const Step& step) const;

  // A step that is the same on every architecture: checkpoints, aliases, finish.
  void launch(const Step& step) const;

 private:
  void finish_checkpoints(const Step& step) const;
  void report_aliases(const Step& step) const;
  void finish(const Step& step) const;
  StateView initial() const;
  StateView final() const;
  StateView checkpoint() const;
  StateView walked_checkpoint() const;
  CheckpointView checkpoints(const StateView& pool) const;
  const uint8_t* has_initial() const { return problem_.initial_mask ? tensors_.has_initial : nullptr; }

  const DeviceCall& call_;
  const Problem& problem_;
  const dr_tensors& tensors_;
};

}  // namespace deltarelay::cuda
