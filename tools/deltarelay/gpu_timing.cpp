// Times a call on the GPU: replays graphs of the call on alternating inputs.
#include <algorithm>
#include <chrono>
#include <memory>

#include "check/device_memory.h"
#include "check/device_tensors.h"
#include "deltarelay/timing.h"

namespace deltarelay::command {
namespace {

namespace gpu = check::gpu;

constexpr double kClockWarmUpSeconds = 0.1;  // clocks rise under load
constexpr int64_t kMostReplays = 200;        // per slice; their launches fit the driver's queue
constexpr int64_t kLeastReplays = 4;
constexpr int64_t kMostSets = 64;  // tiny calls stay below three times the cache; launch overhead dominates them anyway
constexpr int64_t kCacheMultiple = 3;  // all sets together, in multiples of the L2 cache
constexpr int kHostCalls = 200;
constexpr double kHostSeconds = 0.2;

// One graph per set of tensors, so that a replay finds none of its inputs in the cache.
class Replays {
 public:
  Replays(const cases::Case& c, const std::vector<gpu::DeviceTensors*>& sets, const gpu::Stream& stream) : run_(c) {
    // One eager call first: what a first call loads must not be part of a graph.
    run_.execute(sets[0]->tensors(), stream);
    stream.synchronize();
    for (const gpu::DeviceTensors* set : sets)
      graphs_.emplace_back(stream, [this, set, &stream] { run_.execute(set->tensors(), stream); });
  }

  check::PlannedRun& run() { return run_; }
  const std::vector<gpu::Graph>& graphs() const { return graphs_; }

  // Checks that a replay gives the same bits as the checked call.
  void require_same_bits(gpu::DeviceTensors& set, const gpu::Stream& stream) {
    set.poison();
    run_.execute(set.tensors(), stream);
    stream.synchronize();
    const uint64_t expected = set.output_hash();
    set.poison();
    graphs_[0].launch(stream);
    stream.synchronize();
    if (set.output_hash() != expected)
      throw check::RunError(DR_INTERNAL, "graph: a replay left other bits than the call it was captured from");
  }

  // Number of replays that take about `seconds`, in whole rounds over the sets, so that every set is cold again.
  int64_t replays_in(double seconds, const gpu::Stream& stream) const {
    const double one = percentile(gpu::time_replays(stream, graphs_, whole_rounds(kLeastReplays)), 0.5);
    const double count = 1e3 * seconds / std::max(one, 1e-3);
    return whole_rounds(std::clamp(static_cast<int64_t>(count), kLeastReplays, kMostReplays));
  }

  void warm_up(const gpu::Stream& stream) const {
    const auto begin = Clock::now();
    do gpu::time_replays(stream, graphs_, whole_rounds(kLeastReplays));
    while (seconds_since(begin) < kClockWarmUpSeconds);
  }

 private:
  int64_t whole_rounds(int64_t count) const {
    const auto sets = static_cast<int64_t>(graphs_.size());
    return (count + sets - 1) / sets * sets;
  }
  check::PlannedRun run_;
  std::vector<gpu::Graph> graphs_;
};

double time_host_us(check::PlannedRun& run, const dr_tensors& tensors, const gpu::Stream& stream) {
  std::vector<double> us;
  const auto begin = Clock::now();
  while (us.size() < static_cast<size_t>(kLeastReplays) ||
         (us.size() < kHostCalls && seconds_since(begin) < kHostSeconds)) {
    const auto call = Clock::now();
    run.execute(tensors, stream);
    us.push_back(1e6 * seconds_since(call));
    stream.synchronize();
  }
  return percentile(us, 0.5);
}

}  // namespace

TimedInputs::TimedInputs(check::Trial& trial) : trial_(trial) {
  const cases::Case& c = trial.tensors().of();
  if (!c.on_gpu()) return;
  gpu::DeviceTensors& first = trial.device_tensors();
  const int64_t wanted = kCacheMultiple * gpu::facts().l2_bytes;
  const int64_t size = std::max<int64_t>(first.bytes(), 1);
  const int64_t num_sets = std::clamp<int64_t>((wanted + size - 1) / size, 1, kMostSets);
  sets_.push_back(&first);
  for (int64_t i = 1; i < num_sets; ++i) {
    others_.push_back(std::make_unique<gpu::DeviceTensors>(first));
    // If only the CPU can draw other values, or the values were given, they stay the same.
    if (trial.drawn()) others_.back()->generate(c.seed + static_cast<uint64_t>(i));
    sets_.push_back(others_.back().get());
  }
}

TimedInputs::~TimedInputs() = default;

Timing time_on_gpu(const cases::Case& c, const TimedInputs& inputs, const TimingOptions& options,
                   const ShowProgress& progress) {
  const std::vector<gpu::DeviceTensors*>& sets = inputs.sets();
  gpu::DeviceTensors& first = *sets[0];
  const gpu::Stream stream;
  Replays calls(c, sets, stream);
  Timing timing = timing_of_plan(c, calls.run());
  timing.input_sets = static_cast<int64_t>(sets.size());
  timing.graph_nodes = calls.graphs()[0].num_nodes();
  calls.require_same_bits(first, stream);
  std::unique_ptr<Replays> whole;
  if (timing.cut_sequences > 0 && options.beside_unsplit) {
    whole = std::make_unique<Replays>(unsplit_of(c), sets, stream);
    whole->require_same_bits(first, stream);
    whole->warm_up(stream);
  }
  calls.warm_up(stream);
  const double slice_seconds = options.min_seconds / kSlices;
  const int64_t count = calls.replays_in(slice_seconds, stream);
  const int64_t whole_count = whole ? whole->replays_in(slice_seconds, stream) : 0;

  std::vector<double> ms;
  std::vector<double> whole_ms;
  std::vector<double> back_to_back;
  const auto append = [](std::vector<double>& all, const std::vector<double>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  for (int slice = 0; slice < kSlices; ++slice) {
    append(ms, gpu::time_replays(stream, calls.graphs(), count));
    if (whole) append(whole_ms, gpu::time_replays(stream, whole->graphs(), whole_count));
    back_to_back.push_back(gpu::time_back_to_back(stream, calls.graphs(), count));
    progress(static_cast<double>(slice + 1) / kSlices);
  }
  timing.call = spread_of(ms);
  timing.unsplit = whole ? spread_of(whole_ms) : timing.call;
  timing.back_to_back_ms = percentile(back_to_back, 0.5);
  timing.host_us = time_host_us(calls.run(), first.tensors(), stream);
  return timing;
}

}  // namespace deltarelay::command
