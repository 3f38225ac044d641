#include "run/execute_cuda.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/status.h"
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

cuda::Tables tables_of(const Plan& plan, const plan::TeamTable& table) {
  cuda::Tables tables{};
  tables.token_begin = table.token_begin;
  tables.chunk_begin = table.chunk_begin;
  tables.rows1 = table.rows.rows1;
  tables.folds = table.rows.folds;
  tables.rows3 = table.rows.rows3;
  tables.counts = table.counts;
  tables.num_seqs = plan.problem.num_seqs;
  tables.batched = plan.problem.batched();
  return tables;
}

void put_table(const Plan& plan, const dr_tensors& tensors, std::byte* memory, const plan::TeamTable& table,
               cudaStream_t stream) {
  if (plan.problem.lengths_known) {
    cuda::send_table(plan.device_image, memory, tensors.report, stream);
    return;
  }
  cuda::PlanTableArgs args{};
  args.request = table_request(plan);
  args.table = table;
  args.scratch = reinterpret_cast<unsigned char*>(memory + plan.device_table.scratch);
  args.offsets = tensors.seq_offsets;
  args.offsets_dtype = plan.problem.offsets_dtype;
  args.report = tensors.report;
  cuda::plan_table(args, stream);
}

}  // namespace

void load_cuda(const Plan& plan) {
  // Where kernels have been loaded they stay, and asking again takes microseconds of every plan. Who sees the bit of a
  // device may launch there without asking; two threads that load at once do the same.
  static std::atomic<uint64_t> loaded{0};  // a bit for each device, of the one backend with kernels
  const int32_t ordinal = plan.options.cuda_device;
  const uint64_t bit = ordinal < 64 ? uint64_t{1} << ordinal : 0;
  if ((loaded.load(std::memory_order_acquire) & bit) != 0) return;
  const CurrentDevice current(ordinal);
  cuda::load_table_kernels();
  plan.backend->load(ordinal);
  loaded.fetch_or(bit, std::memory_order_release);
}

void execute_cuda(const Plan& plan, const dr_tensors& tensors, std::byte* workspace, void* stream) {
  const CurrentDevice current(plan.options.cuda_device);
  auto* memory = buffer<std::byte>(plan, workspace, kBufferTable);
  const plan::TeamTable table = device_tables_in(memory, plan.device_table);
  put_table(plan, tensors, memory, table, static_cast<cudaStream_t>(stream));
  const cuda::Tables tables = tables_of(plan, table);
  const DeviceCall call{.problem = plan.problem,
                        .tensors = tensors,
                        .device = plan.options.cuda_device,
                        .units = plan.options.device.units,
                        .stream = stream,
                        .way = plan.isa,
                        .chunk = plan.chunk,
                        .tiling = plan.tiling,
                        .bounds = {.rows1 = plan.capacity.rows1,
                                   .folds = plan.capacity.folds,
                                   .rows3 = plan.capacity.rows3,
                                   .chunks = plan.num_chunks,
                                   .slots = plan.capacity.slots},
                        .tables = tables,
                        .prepared = buffer<std::byte>(plan, workspace, kBufferPrepared),
                        .slot_state = buffer<float>(plan, workspace, kBufferSlotState),
                        .slot_transition = buffer<float>(plan, workspace, kBufferTransition),
                        .slot_lives = buffer<uint32_t>(plan, workspace, kBufferLives)};
  plan.backend->enqueue(call);
}

}  // namespace deltarelay
