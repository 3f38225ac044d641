// The cuda-sm90 backend: the steps of a call as launches, each set up while the one before it drains.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/launch/aliases.cuh"
#include "kernels/cuda/launch/call.h"
#include "kernels/cuda/launch/status.h"
#include "kernels/cuda/sm90/accepts.h"
#include "kernels/cuda/sm90/carry/carry.cuh"
#include "kernels/cuda/sm90/launch.h"
#include "kernels/cuda/sm90/record.h"
#include "kernels/cuda/sm90/records/prepare_gdn.cuh"
#include "kernels/cuda/sm90/stages/stage_launches.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace deltarelay::cuda::sm90 {
namespace {

// The launches of a call.
class Launches {
 public:
  explicit Launches(const DeviceCall& call) : call_(call), problem_(call.problem), tensors_(call.tensors), of_(call) {}

  void launch(const Step& step) {
    switch (step.stage) {
      case Stage::kPrepare:
        prepare(step);
        break;
      case Stage::kWalk:
        if (call_.variant == kFused)
          walk_fused(step);
        else
          walk(step);
        break;
      case Stage::kCarry:
        carry(step);
        break;
      default:
        of_.launch(step);
    }
  }

 private:
  // Maps of the fused walk. Both phases have them in common, but for the box of v.
  const FusedMaps& fused_maps(const Step& step) {
    const int32_t halves = halves_a_cta(step.form);
    if (halves_ == 0) {
      fused_ = {.q = map(tensors_.q, problem_.q, problem_.heads_qk, 1),
                .k = map(tensors_.k, problem_.k, problem_.heads_qk, 1),
                .v = {},
                .o = strip_map(tensors_.o, problem_.o, 1),
                .g = {},
                .beta = {},
                .copies_gates = false,
                .order = {}};
      if (gdn())
        map_gates(fused_);
      else
        fused_.g = gate_map();
    }
    // A CTA has both halves of a strip's values, or one.
    if (halves_ != halves) fused_.v = strip_map(tensors_.v, problem_.v, halves);
    halves_ = halves;
    fused_.order = order_of(step);
    return fused_;
  }

  // Gates of KDA: 128 bytes of a row are half of the channels, in fp32 a quarter.
  CUtensorMap gate_map() const {
    MapRequest asked = request(view(tensors_.g, problem_.g, problem_.dtype_gate), problem_.heads_v);
    asked.halves = kWidth * static_cast<int32_t>(size_of(problem_.dtype_gate)) / kRowBytes;
    return make_map(asked);
  }

  // The first run of summaries, if their table comes with the launch.
  RowOrder order_of(const Step& step) const {
    const Tables& table = call_.tables;
    if (!step.ordered || table.memory != nullptr) return {};
    const Row *rows = table.rows1(), *end = rows + table.counts()[0];
    const auto summary = [](const Row& row) { return row.work == Work::kSummarize; };
    const Row* first = std::find_if(rows, end, summary);
    if (first == end) return {};
    const int64_t begin = table.batched ? 0 : table.token_begin()[first->sequence];
    const int64_t token = begin + int64_t{first->begin + first->chunks - 1} * call_.chunk;
    return {.first = static_cast<int>(first - rows),
            .count = static_cast<int>(std::find_if_not(first, end, summary) - first),
            .token = static_cast<int>(token),
            .sequence_at = table.batched ? first->sequence : 0};
  }

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
  WalkArgs walk_args(const Step& step) const {
    WalkArgs args = of_.walk_args(step);
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

  const WalkMaps& walk_maps() {
    if (has_walk_maps_) return walk_;
    has_walk_maps_ = true;
    walk_.v = strip_map(tensors_.v, problem_.v, 1);
    walk_.o = strip_map(tensors_.o, problem_.o, 1);
    if (gdn()) {
      walk_.q = map(tensors_.q, problem_.q, problem_.heads_qk, 1);  // CTAs share them by halves
      walk_.k = map(tensors_.k, problem_.k, problem_.heads_qk, 1);
    }
    return walk_;
  }

  void prepare(const Step& step) const {
    const PrepareArgs args = of_.prepare_args(step);
    if (gdn()) {
      const GdnTiles tiles{.q = map(tensors_.q, problem_.q, problem_.heads_qk, 2),
                           .k = map(tensors_.k, problem_.k, problem_.heads_qk, 2)};
      check(launch_prepare_gdn(tiles, args, problem_.dtype, step.each, of_.stream()), "launch of prepare (GDN)");
    } else {
      check(launch_prepare_kda(args, problem_.dtype, kda_scores(), step.each, of_.stream()), "launch of prepare (KDA)");
    }
  }

  void walk(const Step& step) {
    const WalkMaps& maps = walk_maps();
    const WalkArgs args = walk_args(step);
    const WalkShape shape = shape_of(step);
    check(gdn() ? launch_walk_gdn(maps, args, shape, of_.stream()) : launch_walk_kda(maps, args, shape, of_.stream()),
          step.phase == 1 ? "launch of summarize and emit" : "launch of emit");
  }

  void walk_fused(const Step& step) {
    const FusedMaps& maps = fused_maps(step);
    const WalkArgs args = walk_args(step);
    const WalkShape shape = shape_of(step);
    const Activation activation = of_.activation();
    const auto launch = args.checkpoints.pool.data != nullptr ? fused_launcher<true>() : fused_launcher<false>();
    check(launch(maps, args, activation, shape, of_.stream()),
          step.phase == 1 ? "launch of the fused summarize and emit" : "launch of the fused emit");
  }

  template <bool kCheckpoints>
  auto fused_launcher() const
      -> cudaError_t (*)(const FusedMaps&, const WalkArgs&, const Activation&, const WalkShape&, cudaStream_t) {
    using enum GateSource;
    if (gdn()) return launch_fused_gdn<kCheckpoints>;
    if (problem_.dtype == DType::kFp16) return launch_fused_kda<true, kHalfTiles, kCheckpoints>;
    if (problem_.dtype_gate == DType::kFp32) {
      return in_mid_frame(problem_) ? launch_fused_kda<true, kWideTiles, kCheckpoints>
                                    : launch_fused_kda<false, kWideTiles, kCheckpoints>;
    }
    return in_mid_frame(problem_) ? launch_fused_kda<true, kTiles, kCheckpoints>
                                  : launch_fused_kda<false, kTiles, kCheckpoints>;
  }

  WalkShape shape_of(const Step& step) const {
    return {.dtype = problem_.dtype,
            .form = step.form,
            .summarizes = step.summarizes,
            .suffix = step.suffix,
            .ctas = of_.ctas(step),
            .long_rows = problem_.num_tokens >= int64_t{kLongRow} * problem_.num_seqs};
  }
  KdaScores kda_scores() const {
    if (!mid_frame()) return KdaScores::kLevels;
    constexpr int64_t kPiece = 4;  // numbers in 8 bytes
    const Strides& g = problem_.g;
    const bool pieces =
        problem_.alignment.g >= 8 && g.token % kPiece == 0 && g.head % kPiece == 0 && g.sequence % kPiece == 0;
    const bool raw = problem_.gate_form == GateForm::kRawBounded && problem_.dtype_gate == DType::kBf16;
    return raw && pieces ? KdaScores::kRawBounded : KdaScores::kMidFrame;
  }
  bool mid_frame() const { return problem_.least_gate() >= kMidFrameGate; }

  void carry(const Step& step) const {
    CarryArgs args = of_.carry_args(step);
    args.strips = strips();
    check(launch_carry(args, {step.form, step.each, step.ctas}, of_.stream()), "launch of carry");
  }

  const DeviceCall& call_;
  const Problem& problem_;
  const dr_tensors& tensors_;
  Call of_;
  FusedMaps fused_{};
  int32_t halves_ = 0;  // of fused_.v; 0: fused_ has not been made
  WalkMaps walk_{};
  bool has_walk_maps_ = false;
};

void enqueue(const DeviceCall& call, std::span<const Step> steps) {
  if (call.variant == kStages) return enqueue_stages(call, steps);
  Launches launches(call);
  for (const Step& step : steps) launches.launch(step);
}

template <bool kCheckpoints>
void load_fused_kda_of() {
  using enum GateSource;
  check(load_fused_kda<true, kTiles, kCheckpoints>(), "loading the fused summarize and emit (KDA)");
  check(load_fused_kda<false, kTiles, kCheckpoints>(), "loading the fused summarize and emit (KDA, any gates)");
  check(load_fused_kda<true, kWideTiles, kCheckpoints>(), "loading the fused summarize and emit (KDA, fp32 gates)");
  check(load_fused_kda<false, kWideTiles, kCheckpoints>(),
        "loading the fused summarize and emit (KDA, any fp32 gates)");
  check(load_fused_kda<true, kHalfTiles, kCheckpoints>(), "loading the fused summarize and emit (KDA, fp16)");
}

void load(int32_t) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    check(load_prepare_kda(dtype), "loading prepare (KDA)");
    check(load_prepare_gdn(dtype), "loading prepare (GDN)");
    check(load_walk_kda(dtype), "loading summarize and emit (KDA)");
    check(load_walk_gdn(dtype), "loading summarize and emit (GDN)");
    check(load_fused_gdn<false>(dtype), "loading the fused summarize and emit (GDN)");
    check(load_fused_gdn<true>(dtype), "loading the fused summarize and emit (GDN, checkpoints)");
  }
  load_fused_kda_of<false>();
  load_fused_kda_of<true>();
  load_stages();
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
