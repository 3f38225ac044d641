// The cuda-sm90 backend: a call as a chain of launches, each set up while the one before it drains. Either the fused walk, carry, the fused
// walk; or prepare, walk, carry, walk.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/carry.cuh"
#include "kernels/cuda/checkpoint.cuh"
#include "kernels/cuda/finish.cuh"
#include "kernels/cuda/sm90/accepts.h"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/prepare_gdn.cuh"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "kernels/cuda/status.h"

namespace deltarelay::cuda::sm90 {
namespace {

// Scores in the frame of a chunk's middle are safe down to this log-decay per token: 16 x 5 = 80 < 88, where e^x leaves fp32.
constexpr float kMidFrameGate = -5.0f;

TensorView view(const void* data, const Strides& strides, DType dtype) {
  return {const_cast<void*>(data), strides.token, strides.head, strides.sequence, dtype};
}

StateView view(const StatePool& pool, const void* data, const void* index) {
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
          pool.has_null_index};
}

class Call {
 public:
  explicit Call(const DeviceCall& call)
      : call_(call), problem_(call.problem), tensors_(call.tensors), stream_(static_cast<cudaStream_t>(call.stream)) {}

  void enqueue() const {
    if (call_.bounds.chunks > 0) {
      if (call_.way == kFused)
        enqueue_fused();
      else
        enqueue_prepared();
    }
    if (leaves_anything()) finish();
  }

 private:
  void enqueue_prepared() const {
    prepare();
    const WalkMaps maps = make_maps();
    const bool summarizes = call_.bounds.folds > 0;  // a summary takes a pair of CTAs whatever the tiling
    walk(maps, 1, call_.bounds.rows1, summarizes ? 2 : call_.tiling.value_tiles);
    if (summarizes) carry();
    if (call_.bounds.rows3 > 0) walk(maps, 3, call_.bounds.rows3, call_.tiling.value_tiles);
    if (leaves_checkpoints()) take_checkpoints_on();
  }

  void enqueue_fused() const {
    const FusedMaps maps{.q = map(tensors_.q, problem_.q, problem_.heads_qk, 1),
                         .k = map(tensors_.k, problem_.k, problem_.heads_qk, 1),
                         .g = gdn() ? CUtensorMap{} : map(tensors_.g, problem_.g, problem_.heads_v, 1),
                         .v = map(tensors_.v, problem_.v, problem_.heads_v, 1),
                         .o = map(tensors_.o, problem_.o, problem_.heads_v, 1)};
    const bool summarizes = call_.bounds.folds > 0;  // a summary takes a pair of CTAs whatever the tiling
    walk_fused(maps, 1, call_.bounds.rows1, summarizes ? 2 : call_.tiling.value_tiles);
    if (summarizes) carry();
    if (call_.bounds.rows3 > 0) walk_fused(maps, 3, call_.bounds.rows3, call_.tiling.value_tiles);
  }

  bool gdn() const { return problem_.op == Op::kGdn; }

  CUtensorMap map(const void* data, const Strides& strides, int64_t heads, int32_t box_halves) const {
    const bool batched = problem_.batched();
    return make_map({.tensor = view(data, strides, problem_.dtype),
                     .sequences = batched ? problem_.num_seqs : 1,
                     .tokens = batched ? problem_.seq_len : problem_.num_tokens,
                     .heads = heads,
                     .box_tokens = call_.chunk,
                     .box_halves = box_halves});
  }

  WalkMaps make_maps() const {
    WalkMaps maps{};
    maps.v = map(tensors_.v, problem_.v, problem_.heads_v, 1);
    maps.o = map(tensors_.o, problem_.o, problem_.heads_v, 1);
    if (gdn()) {
      maps.q = map(tensors_.q, problem_.q, problem_.heads_qk, 1);  // CTAs share them by halves
      maps.k = map(tensors_.k, problem_.k, problem_.heads_qk, 1);
    }
    return maps;
  }

  Activation activation() const {
    return {.g = view(tensors_.g, problem_.g, problem_.dtype_gate),
            .beta = view(tensors_.beta, problem_.beta, problem_.dtype_beta),
            .a_log = tensors_.a_log,
            .dt_bias = tensors_.dt_bias,
            .gate_form = problem_.gate_form,
            .beta_form = problem_.beta_form,
            .lower_bound = problem_.lower_bound,
            .gate_floor = problem_.gate_floor,
            .scale = problem_.scale,
            .l2norm = problem_.l2norm};
  }

  void prepare() const {
    const PrepareArgs args{
        .tables = call_.tables,
        .activation = activation(),
        .q = view(tensors_.q, problem_.q, problem_.dtype),
        .k = view(tensors_.k, problem_.k, problem_.dtype),
        .prepared = reinterpret_cast<uint8_t*>(call_.prepared),
        .heads_qk = problem_.heads_qk,
        .heads_v = problem_.heads_v,
        .chunks = static_cast<int32_t>(call_.bounds.chunks),
    };
    if (gdn()) {
      const GdnTiles tiles{.q = map(tensors_.q, problem_.q, problem_.heads_qk, 2),
                           .k = map(tensors_.k, problem_.k, problem_.heads_qk, 2)};
      check(launch_prepare_gdn(tiles, args, problem_.dtype, call_.units, stream_), "launch of prepare (GDN)");
    } else {
      const bool mid_frame = problem_.least_gate() >= kMidFrameGate;
      check(launch_prepare_kda(args, problem_.dtype, mid_frame, stream_), "launch of prepare (KDA)");
    }
  }

  WalkArgs walk_args(int32_t phase, int64_t rows) const {
    return {
        .tables = call_.tables,
        .phase = phase,
        .row_bound = static_cast<int32_t>(rows),
        .prepared = reinterpret_cast<const uint8_t*>(call_.prepared),
        .initial = initial(),
        .final = final(),
        .has_initial = has_initial(),
        .o = view(tensors_.o, problem_.o, problem_.dtype_o),
        .slot_state = call_.slot_state,
        .slot_transition = call_.slot_transition,
        .slot_lives = call_.slot_lives,
        .report = tensors_.report,
        .heads_qk = problem_.heads_qk,
        .heads_v = problem_.heads_v,
        .checkpoints = checkpoints(),
    };
  }

  void walk(const WalkMaps& maps, int32_t phase, int64_t rows, int32_t value_tiles) const {
    const WalkArgs args = walk_args(phase, rows);
    const WalkShape shape{.dtype = problem_.dtype, .value_tiles = value_tiles};
    check(gdn() ? launch_walk_gdn(maps, args, shape, stream_) : launch_walk_kda(maps, args, shape, stream_),
          phase == 1 ? "launch of summarize and emit" : "launch of emit");
  }

  void walk_fused(const FusedMaps& maps, int32_t phase, int64_t rows, int32_t value_tiles) const {
    const WalkArgs args = walk_args(phase, rows);
    check(gdn() ? launch_fused_gdn(maps, args, activation(), problem_.dtype, value_tiles, stream_)
                : launch_fused_kda(maps, args, activation(), value_tiles, stream_),
          phase == 1 ? "launch of the fused summarize and emit" : "launch of the fused emit");
  }

  void carry() const {
    const CarryArgs args{.tables = call_.tables,
                         .fold_bound = static_cast<int32_t>(call_.bounds.folds),
                         .initial = initial(),
                         .has_initial = has_initial(),
                         .slot_state = call_.slot_state,
                         .slot_transition = call_.slot_transition,
                         .slot_lives = call_.slot_lives,
                         .heads_v = problem_.heads_v};
    check(launch_carry(args, call_.units, stream_), "launch of carry");
  }

  CheckpointView checkpoints() const {
    return {.pool = view(problem_.checkpoint, tensors_.checkpoint, tensors_.checkpoint_index),
            .kind = problem_.checkpoints,
            .every = problem_.checkpoint_every,
            .offsets = tensors_.checkpoint_offsets,
            .positions = tensors_.checkpoint_positions};
  }

  // Inside of chunks, where the walk could not store them; a list says only on the device where they are.
  bool leaves_checkpoints() const {
    return problem_.checkpoints == Checkpoints::kList ||
           (problem_.checkpoints == Checkpoints::kEvery && problem_.checkpoint_every % call_.chunk != 0);
  }

  void take_checkpoints_on() const {
    const CheckpointArgs args{.tables = call_.tables,
                              .checkpoints = checkpoints(),
                              .activation = activation(),
                              .k = view(tensors_.k, problem_.k, problem_.dtype),
                              .v = view(tensors_.v, problem_.v, problem_.dtype),
                              .heads_qk = problem_.heads_qk,
                              .heads_v = problem_.heads_v,
                              .dk = problem_.dk,
                              .dv = problem_.dv,
                              .chunk = call_.chunk,
                              .report = tensors_.report};
    check(launch_checkpoint(args, !gdn(), problem_.checkpoint.num_slots, stream_), "launch of checkpoint");
  }

  // Output rows past the last offset, and final states of empty sequences. With lengths that only the device knows, they may be there.
  bool leaves_anything() const {
    if (problem_.batched()) return false;
    if (!problem_.lengths_known) return true;
    if (problem_.offsets.back() < problem_.num_tokens) return true;
    if (!problem_.final.used()) return false;
    for (int64_t n = 0; n < problem_.num_seqs; ++n) {
      if (problem_.length(n) == 0) return true;
    }
    return false;
  }

  void finish() const {
    const FinishArgs args{.tables = call_.tables,
                          .o = view(tensors_.o, problem_.o, problem_.dtype_o),
                          .num_tokens = problem_.num_tokens,
                          .initial = initial(),
                          .final = final(),
                          .has_initial = has_initial(),
                          .report = tensors_.report,
                          .heads_v = problem_.heads_v,
                          .width = problem_.dv};
    check(launch_finish(args, call_.units, stream_), "launch of finish");
  }

  StateView initial() const { return view(problem_.initial, tensors_.initial, tensors_.initial_index); }
  StateView final() const { return view(problem_.final, tensors_.final, tensors_.final_index); }
  const uint8_t* has_initial() const { return problem_.initial_mask ? tensors_.has_initial : nullptr; }

  const DeviceCall& call_;
  const Problem& problem_;
  const dr_tensors& tensors_;
  cudaStream_t stream_;
};

void enqueue(const DeviceCall& call) { Call(call).enqueue(); }

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
}

}  // namespace
}  // namespace deltarelay::cuda::sm90

namespace deltarelay {

const Backend kCudaSm90Backend{.name = "cuda-sm90",
                               .decline = cuda::sm90::decline,
                               .chunk = cuda::sm90::chunk,
                               .panel_columns = cuda::sm90::panel_columns,
                               .sizes = cuda::sm90::sizes,
                               .run_rows = nullptr,
                               .run_folds = nullptr,
                               .finish = nullptr,
                               .enqueue = cuda::sm90::enqueue,
                               .load = cuda::sm90::load,
                               .num_ways = cuda::sm90::kNumWays,
                               .way_names = cuda::sm90::kWayNames,
                               .takes_way = cuda::sm90::takes_way};

}  // namespace deltarelay
