#include "run/execute_cuda.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/args.h"
#include "kernels/cuda/launch/status.h"
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

template <class T>
T* buffer(const Plan& plan, std::byte* workspace, const char* name) {
  const Buffer* found = plan.ledger.find(name);
  return found == nullptr ? nullptr : reinterpret_cast<T*>(workspace + found->offset);
}

// The table of a call whose lengths the plan knows travels with its kernels if it is small. A report word has to be set
// to 0 ahead of them, which takes a kernel: that may as well write the table.
bool travels(const Plan& plan, const dr_tensors& tensors) {
  return plan.problem.lengths_known && tensors.report == nullptr &&
         plan.device_image.size() <= cuda::Tables::kImageBytes;
}

// `memory`: of the table in the workspace.
cuda::Tables put_table(const Plan& plan, const CallCounts& counts, const dr_tensors& tensors, std::byte* memory,
                       cudaStream_t stream) {
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
  if (travels(plan, tensors)) {
    std::memcpy(tables.image, plan.device_image.data(), plan.device_image.size());
    return tables;
  }
  tables.memory = reinterpret_cast<const uint8_t*>(memory);
  if (plan.problem.lengths_known) {
    cuda::send_table(plan.device_image, memory, tensors.report, stream);
    return tables;
  }
  cuda::PlanTableArgs args{};
  args.request = table_request(plan, counts);
  args.table = device_tables_in(memory, layout);
  args.scratch = reinterpret_cast<unsigned char*>(memory + layout.scratch);
  args.offsets = tensors.seq_offsets;
  args.offsets_dtype = plan.problem.offsets_dtype;
  args.fold_bound = static_cast<int32_t>(plan.capacity.folds);
  args.report = tensors.report;
  cuda::plan_table(args, stream);
  return tables;
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

void execute_cuda(const Plan& plan, const Problem& problem, const dr_tensors& tensors, std::byte* workspace,
                  void* stream) {
  const CurrentDevice current(plan.options.cuda_device);
  const CallCounts counts{problem.num_tokens, problem.num_seqs};
  auto* memory = buffer<std::byte>(plan, workspace, kBufferTable);
  const cuda::Tables tables = put_table(plan, counts, tensors, memory, static_cast<cudaStream_t>(stream));
  const DeviceCall call{.problem = problem,
                        .tensors = tensors,
                        .device = plan.options.cuda_device,
                        .units = plan.options.device.units,
                        .stream = stream,
                        .way = plan.isa,
                        .chunk = plan.chunk,
                        .tiling = plan.tiling,
                        .bounds = bounds_of(plan, counts),
                        .vanish_bound = vanish_bound_of(plan),
                        .tables = tables,
                        .prepared = buffer<std::byte>(plan, workspace, kBufferPrepared),
                        .slot_state = buffer<float>(plan, workspace, kBufferSlotState),
                        .slot_transition = buffer<float>(plan, workspace, kBufferTransition),
                        .slot_lives = buffer<uint32_t>(plan, workspace, kBufferLives),
                        .checkpoints = buffer<float>(plan, workspace, kBufferCheckpoints),
                        .relay = plan.relay,
                        .relay_states = buffer<float>(plan, workspace, kBufferRelayStates),
                        .relay_marks = buffer<RelayMark>(plan, workspace, kBufferRelayMarks)};
  plan.backend->enqueue(call);
}

}  // namespace deltarelay
