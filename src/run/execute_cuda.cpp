#include "run/execute_cuda.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/status.h"
#include "plan/backends.h"
#include "plan/plan.h"
#include "run/cuda_table.h"

namespace deltarelay {
namespace {

// The device of a plan is the calling thread's while a call lasts, and what it was before afterwards.
class CurrentDevice {
 public:
  explicit CurrentDevice(int32_t ordinal) {
    cuda::check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != ordinal) cuda::check(cudaSetDevice(ordinal), "cudaSetDevice");
    changed_ = before_ != ordinal;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// The steps of this call, without those that its condition leaves out. kPoolsReport is decided by who compares the
// pools.
Steps taken_steps(const Steps& steps, const dr_tensors& tensors) {
  Steps taken;
  for (const Step& step : steps) {
    if (step.when == When::kAlways || tensors.report != nullptr) taken.add(step);
  }
  return taken;
}

// Where everything lies in the table.
cuda::Tables table_places(const Plan& plan, const CallCounts& counts) {
  const DeviceTableLayout& layout = plan.device_table;
  cuda::Tables tables{};
  tables.at_counts = static_cast<uint32_t>(layout.counts);
  tables.at_token_begin = static_cast<uint32_t>(layout.token_begin);
  tables.at_chunk_begin = static_cast<uint32_t>(layout.chunk_begin);
  tables.at_rows1 = static_cast<uint32_t>(layout.rows1);
  tables.at_folds = static_cast<uint32_t>(layout.folds);
  tables.at_rows3 = static_cast<uint32_t>(layout.rows3);
  tables.num_seqs = counts.num_seqs;
  tables.batched = plan.problem.batched();
  return tables;
}

// The step that puts the table into `memory`, of the workspace.
void put_table(const Plan& plan, const CallCounts& counts, const dr_tensors& tensors, std::byte* memory,
               cudaStream_t stream) {
  if (plan.problem.lengths_known) {
    cuda::send_table(plan.device_image, memory, tensors.report, stream);
    return;
  }
  const DeviceTableLayout& layout = plan.device_table;
  cuda::PlanTableArgs args{};
  args.request = table_request(plan, counts);
  args.table = device_tables_in(memory, layout);
  args.scratch = reinterpret_cast<unsigned char*>(memory + layout.scratch);
  args.offsets = tensors.seq_offsets;
  args.offsets_dtype = plan.problem.offsets_dtype;
  args.fold_bound = static_cast<int32_t>(plan.capacity.folds);
  args.report = tensors.report;
  cuda::plan_table(args, stream);
}

// Place in the list of backends.
int32_t number_of(const Backend& backend) {
  int32_t number = 0;
  while (backend_at(number) != &backend) ++number;
  return number;
}

}  // namespace

void load_cuda(const Plan& plan) {
  // Where kernels have been loaded they stay, and asking again takes microseconds of every plan. Who sees the bits of a
  // device may launch there without asking; two threads that load at once do the same.
  constexpr int32_t kMostDevices = 64, kMostBackends = 8;
  static std::atomic<uint64_t> loaded[kMostDevices]
                                     [kMostBackends];  // a bit for each shape of a problem, the last for what all share
  const Backend& backend = *plan.backend;
  const int32_t ordinal = plan.options.cuda_device;
  const uint64_t shared = uint64_t{1} << Backend::kMostShapes;
  const uint64_t shape = backend.shape == nullptr ? 0 : uint64_t{1} << backend.shape(plan.problem);
  const int32_t number = number_of(backend);
  std::atomic<uint64_t>* bits = ordinal < kMostDevices && number < kMostBackends ? &loaded[ordinal][number] : nullptr;
  const uint64_t before = bits == nullptr ? 0 : bits->load(std::memory_order_acquire);
  if ((before & (shared | shape)) == (shared | shape)) return;
  const CurrentDevice current(ordinal);
  if ((before & shared) == 0) {
    cuda::load_table_kernels();
    backend.load(ordinal);
  }
  if (shape != 0) backend.load_shape(plan.problem);
  if (bits != nullptr) bits->fetch_or(shared | shape, std::memory_order_release);
}

void execute_cuda(const Plan& plan, const Steps& steps, const Problem& problem, const dr_tensors& tensors,
                  std::byte* workspace, void* stream) {
  const CurrentDevice current(plan.options.cuda_device);
  const CallCounts counts{problem.num_tokens, problem.num_seqs};
  const Ledger& ledger = plan.ledger;
  const Steps taken = taken_steps(steps, tensors);
  cuda::Tables tables = table_places(plan, counts);
  const bool stored = taken.size() > 0 && taken[0].stage == Stage::kTable;
  if (stored) {
    auto* memory = ledger.in<std::byte>(workspace, BufferId::kTable);
    tables.memory = reinterpret_cast<const uint8_t*>(memory);
    put_table(plan, counts, tensors, memory, static_cast<cudaStream_t>(stream));
  } else {
    std::memcpy(tables.image, plan.device_image.data(), plan.device_image.size());
  }
  const DeviceCall call{.problem = problem,
                        .tensors = tensors,
                        .device = plan.options.cuda_device,
                        .stream = stream,
                        .variant = plan.variant.number,
                        .chunk = plan.chunk(),
                        .checkpoint_places = plan.checkpoints,
                        .vanish_bound = vanish_bound_of(plan),
                        .tables = tables,
                        .prepared = ledger.in<std::byte>(workspace, BufferId::kPrepared),
                        .slot_state = ledger.in<float>(workspace, BufferId::kSlotState),
                        .slot_transition = ledger.in<float>(workspace, BufferId::kTransition),
                        .slot_lives = ledger.in<uint32_t>(workspace, BufferId::kLives),
                        .checkpoints = ledger.in<float>(workspace, BufferId::kCheckpoints),
                        .relay = plan.relay,
                        .relay_states = ledger.in<float>(workspace, BufferId::kRelayStates),
                        .relay_marks = ledger.in<RelayMark>(workspace, BufferId::kRelayMarks)};
  plan.backend->enqueue(call, {taken.begin() + (stored ? 1 : 0), taken.end()});
}

}  // namespace deltarelay
