#include "run/execute.h"

#include "problem/number.h"
#include "problem/validate.h"
#include "run/execute_cuda.h"
#include "run/thread_pool.h"

namespace deltarelay {
namespace {

template <class T>
T* buffer(const Plan& plan, std::byte* workspace, const char* name) {
  const Buffer* found = plan.ledger.find(name);
  return found == nullptr ? nullptr : reinterpret_cast<T*>(workspace + found->offset);
}

// Offsets as the kernels read them. Lengths that came with the tensors are widened into the workspace.
Sequences sequences_of(const Plan& plan, const Problem& problem, const dr_tensors& tensors, std::byte* workspace) {
  if (problem.batched()) return {nullptr, problem.seq_len, problem.num_seqs};
  if (problem.lengths_known) return {problem.offsets.data(), 0, problem.num_seqs};
  auto* offsets = buffer<int64_t>(plan, workspace, kBufferOffsets);
  for (int64_t n = 0; n <= problem.num_seqs; ++n)
    offsets[n] = load_index(tensors.seq_offsets, problem.offsets_dtype, n);
  return {offsets, 0, problem.num_seqs};
}

TableView table_of(const Plan& plan, const Sequences& sequences, std::byte* workspace) {
  if (!plan.problem.lengths_known && !plan.problem.batched())
    return fill_table(plan, sequences, buffer<std::byte>(plan, workspace, kBufferTable),
                      plan.ledger.find(kBufferTable)->bytes);
  const SegmentTable& table = plan.table;
  return {table.rows1.data(), static_cast<int64_t>(table.rows1.size()),
          table.folds.data(), static_cast<int64_t>(table.folds.size()),
          table.rows3.data(), static_cast<int64_t>(table.rows3.size())};
}

void execute_host(const Plan& plan, const Problem& problem, const dr_tensors& tensors, std::byte* workspace) {
  const Options& options = plan.options;
  PoolExecutor pool;
  CallerExecutor caller(options.parallel_for, options.parallel_pool);
  Executor& executor = options.parallel_for != nullptr ? static_cast<Executor&>(caller) : pool;

  const Sequences sequences = sequences_of(plan, problem, tensors, workspace);
  const TableView table = table_of(plan, sequences, workspace);
  const StageArgs args{.problem = problem,
                       .tensors = tensors,
                       .sequences = sequences,
                       .chunk = plan.chunk,
                       .tiling = plan.tiling,
                       .isa = plan.isa,
                       .columns = options.columns.empty() ? nullptr : options.columns.data(),
                       .num_columns = static_cast<int32_t>(options.columns.size()),
                       .slot_state = buffer<float>(plan, workspace, kBufferSlotState),
                       .slot_transition = buffer<float>(plan, workspace, kBufferTransition),
                       .scratch = buffer<std::byte>(plan, workspace, kBufferScratch),
                       .scratch_bytes = plan.sizes.scratch_bytes};
  if (tensors.report != nullptr) *tensors.report = 0;  // values in host memory are refused, never clamped
  if (table.num_rows1 > 0) plan.backend->run_rows(args, table.rows1, table.num_rows1, executor);
  if (table.num_folds > 0) plan.backend->run_folds(args, table.folds, table.num_folds, executor);
  if (table.num_rows3 > 0) plan.backend->run_rows(args, table.rows3, table.num_rows3, executor);
  plan.backend->finish(args, executor);
}

bool runs_on_gpu(const Plan& plan) { return plan.backend->enqueue != nullptr; }

void execute_problem(const Plan& plan, const Problem& problem, const dr_tensors& tensors, std::byte* workspace,
                     void* stream) {
  if (runs_on_gpu(plan)) {
    execute_cuda(plan, problem, tensors, workspace, stream);
  } else {
    execute_host(plan, problem, tensors, workspace);
  }
}

}  // namespace

void load(const Plan& plan) {
  if (plan.options.device_is_here && runs_on_gpu(plan)) load_cuda(plan);
}

void execute(const Plan& plan, const dr_tensors& tensors, std::byte* workspace, void* stream) {
  const CallCounts counts = counts_of(plan.problem, tensors);
  if (counts.num_tokens == plan.problem.num_tokens && counts.num_seqs == plan.problem.num_seqs) {
    execute_problem(plan, plan.problem, tensors, workspace, stream);
    return;
  }
  Problem fewer = plan.problem;  // without offsets, so nothing is allocated
  fewer.num_tokens = counts.num_tokens;
  fewer.num_seqs = counts.num_seqs;
  execute_problem(plan, fewer, tensors, workspace, stream);
}

}  // namespace deltarelay
