// The cuda-sm90 backend: a call as a chain of launches, each set up while the one before it drains. Either the fused
// walk, carry, the fused walk; or prepare, walk, carry, walk.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/launch/aliases.cuh"
#include "kernels/cuda/launch/call.h"
#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/sm90/accepts.h"
#include "kernels/cuda/sm90/carry/carry.cuh"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/records/prepare_gdn.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace deltarelay::cuda::sm90 {
namespace {

// A call as its launches.
class Chain {
 public:
  explicit Chain(const DeviceCall& call) : call_(call), problem_(call.problem), tensors_(call.tensors), of_(call) {}

  void enqueue() const {
    if (call_.bounds.chunks > 0) {
      if (call_.way == kFused)
        enqueue_fused();
      else
        enqueue_prepared();
    }
    of_.finish();
  }

 private:
  void enqueue_prepared() const {
    prepare();
    const WalkMaps maps = make_maps();
    const bool summarizes = call_.bounds.folds > 0;  // a summary takes a pair of CTAs whatever the tiling
    walk(maps, 1, summarizes ? 2 : value_tiles());
    if (summarizes) carry();
    if (call_.bounds.rows3 > 0) walk(maps, 3, value_tiles());
    of_.take_checkpoints_on();
  }

  void enqueue_fused() const {
    const bool summarizes = call_.bounds.folds > 0;  // a summary takes a pair of CTAs whatever the tiling
    const int32_t tiles1 = summarizes ? 2 : value_tiles(), tiles3 = value_tiles();
    FusedMaps maps{.q = map(tensors_.q, problem_.q, problem_.heads_qk, 1),
                   .k = map(tensors_.k, problem_.k, problem_.heads_qk, 1),
                   .v = value_map(tiles1),
                   .o = strip_map(tensors_.o, problem_.o, 1),
                   .g = {},
                   .beta = {},
                   .copies_gates = false};
    if (gdn())
      map_gates(maps);
    else
      maps.g = map(tensors_.g, problem_.g, problem_.heads_v, 1);
    walk_fused(maps, 1, tiles1);
    if (summarizes) carry();
    if (call_.bounds.rows3 == 0) return;
    if (tiles3 != tiles1) maps.v = value_map(tiles3);
    walk_fused(maps, 3, tiles3);
  }

  // A CTA of the fused walk has both halves of a strip's values, or one of two tiles.
  CUtensorMap value_map(int32_t value_tiles) const { return strip_map(tensors_.v, problem_.v, 2 / value_tiles); }

  // v and o as strips (args.h). `decline` has checked that the heads lie side by side where a head has several strips.
  Strips strips() const {
    const int32_t a_head = sm90::strips(problem_);
    return {problem_.heads_v * a_head, a_head};
  }
  Strides of_strips(Strides strides) const {
    if (strips().a_head > 1) strides.head = kWidth;
    return strides;
  }
  CUtensorMap strip_map(const void* data, const Strides& strides, int32_t box_halves) const {
    return map(data, of_strips(strides), strips().all, box_halves);
  }
  int32_t value_tiles() const { return call_.tiling.value_tiles / strips().a_head; }  // CTAs a strip
  WalkArgs walk_args(int32_t phase) const {
    WalkArgs args = of_.walk_args(phase);
    args.strips = strips();
    args.o.head = of_strips(problem_.o).head;
    return args;
  }

  // Gates and strengths of GDN, where they can be used as they lie.
  void map_gates(FusedMaps& maps) const {
    const Activation activation = of_.activation();
    maps.copies_gates = activation.gate_form == GateForm::kLog && activation.beta_form == BetaForm::kValue &&
                        can_copy_numbers(activation.g) && can_copy_numbers(activation.beta);
    if (!maps.copies_gates) return;
    auto numbers = [&](const TensorView& tensor) { return make_number_map(request(tensor, problem_.heads_v)); };
    maps.g = numbers(activation.g);
    maps.beta = numbers(activation.beta);
  }

  bool gdn() const { return problem_.rule == Rule::kGdn; }

  CUtensorMap map(const void* data, const Strides& strides, int64_t heads, int32_t box_halves) const {
    MapRequest asked = request(view(data, strides, problem_.dtype), heads);
    asked.box_halves = box_halves;
    return make_map(asked);
  }
  MapRequest request(const TensorView& tensor, int64_t heads) const {
    const bool batched = problem_.batched();
    return {.tensor = tensor,
            .sequences = batched ? problem_.num_seqs : 1,
            .tokens = batched ? problem_.seq_len : problem_.num_tokens,
            .heads = heads,
            .box_tokens = call_.chunk,
            .box_halves = 1};
  }

  WalkMaps make_maps() const {
    WalkMaps maps{};
    maps.v = strip_map(tensors_.v, problem_.v, 1);
    maps.o = strip_map(tensors_.o, problem_.o, 1);
    if (gdn()) {
      maps.q = map(tensors_.q, problem_.q, problem_.heads_qk, 1);  // CTAs share them by halves
      maps.k = map(tensors_.k, problem_.k, problem_.heads_qk, 1);
    }
    return maps;
  }

  void prepare() const {
    const PrepareArgs args = of_.prepare_args();
    if (gdn()) {
      const GdnTiles tiles{.q = map(tensors_.q, problem_.q, problem_.heads_qk, 2),
                           .k = map(tensors_.k, problem_.k, problem_.heads_qk, 2)};
      check(launch_prepare_gdn(tiles, args, problem_.dtype, call_.units, of_.stream()), "launch of prepare (GDN)");
    } else {
      const bool mid_frame = problem_.least_gate() >= kMidFrameGate;
      check(launch_prepare_kda(args, problem_.dtype, mid_frame, of_.stream()), "launch of prepare (KDA)");
    }
  }

  void walk(const WalkMaps& maps, int32_t phase, int32_t value_tiles) const {
    const WalkArgs args = walk_args(phase);
    const WalkShape shape = shape_of(phase, value_tiles);
    check(gdn() ? launch_walk_gdn(maps, args, shape, of_.stream()) : launch_walk_kda(maps, args, shape, of_.stream()),
          phase == 1 ? "launch of summarize and emit" : "launch of emit");
  }

  void walk_fused(const FusedMaps& maps, int32_t phase, int32_t value_tiles) const {
    const WalkArgs args = walk_args(phase);
    const WalkShape shape = shape_of(phase, value_tiles);
    check(gdn() ? launch_fused_gdn(maps, args, of_.activation(), shape, of_.stream())
                : launch_fused_kda(maps, args, of_.activation(), shape, of_.stream()),
          phase == 1 ? "launch of the fused summarize and emit" : "launch of the fused emit");
  }

  WalkShape shape_of(int32_t phase, int32_t value_tiles) const {
    const bool suffix = phase == 1 && tries_suffixes(problem_, call_.bounds, call_.units, call_.vanish_bound == 0.0f);
    return {.dtype = problem_.dtype,
            .value_tiles = value_tiles,
            .twins = value_tiles == 1 && walks_twins(problem_, call_.bounds),
            .suffix = suffix,
            .units = call_.units};
  }

  void carry() const {
    CarryArgs args = of_.carry_args();
    args.strips = strips();
    check(launch_carry(args, call_.units, of_.stream()), "launch of carry");
  }

  const DeviceCall& call_;
  const Problem& problem_;
  const dr_tensors& tensors_;
  Call of_;
};

void enqueue(const DeviceCall& call) { Chain(call).enqueue(); }

void load(int32_t) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    check(load_prepare_kda(dtype), "loading prepare (KDA)");
    check(load_prepare_gdn(dtype), "loading prepare (GDN)");
    check(load_walk_kda(dtype), "loading summarize and emit (KDA)");
    check(load_walk_gdn(dtype), "loading summarize and emit (GDN)");
    check(load_fused_gdn(dtype), "loading the fused summarize and emit (GDN)");
  }
  check(load_fused_kda(), "loading the fused summarize and emit (KDA)");
  check(load_carry(), "loading carry");
  check(load_checkpoint(), "loading checkpoint");
  check(load_finish(), "loading finish");
  check(load_aliases(), "loading aliases");
}

}  // namespace
}  // namespace deltarelay::cuda::sm90

namespace deltarelay {

constinit const Backend kCudaSm90Backend = [] {
  Backend backend = cuda::sm90::planned_backend();
  backend.enqueue = cuda::sm90::enqueue;
  backend.load = cuda::sm90::load;
  return backend;
}();

}  // namespace deltarelay
