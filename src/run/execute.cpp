#include "run/execute.h"

#include "plan/table.h"
#include "problem/number.h"
#include "problem/validate.h"
#include "run/execute_cuda.h"
#include "run/thread_pool.h"

namespace deltarelay {
namespace {

// Offsets as the kernels read them. Lengths that came with the tensors are widened into the workspace.
Sequences sequences_of(const Plan& plan, const Problem& problem, const dr_tensors& tensors, std::byte* workspace) {
  if (problem.batched()) return {nullptr, problem.seq_len, problem.num_seqs};
  if (problem.lengths_known) return {problem.offsets.data(), 0, problem.num_seqs};
  auto* offsets = plan.ledger.in<int64_t>(workspace, BufferId::kOffsets);
  for (int64_t n = 0; n <= problem.num_seqs; ++n)
    offsets[n] = load_index(tensors.seq_offsets, problem.offsets_dtype, n);
  return {offsets, 0, problem.num_seqs};
}

TableView known_table(const SegmentTable& table) {
  return {table.rows1.data(), static_cast<int64_t>(table.rows1.size()),
          table.folds.data(), static_cast<int64_t>(table.folds.size()),
          table.rows3.data(), static_cast<int64_t>(table.rows3.size())};
}

void execute_host(const Plan& plan, const Steps& steps, const Problem& problem, const dr_tensors& tensors,
                  std::byte* workspace) {
  const Options& options = plan.options;
  const Ledger& ledger = plan.ledger;
  PoolExecutor pool;
  CallerExecutor caller(options.parallel_for, options.parallel_pool);
  Executor& executor = options.parallel_for != nullptr ? static_cast<Executor&>(caller) : pool;

  const Sequences sequences = sequences_of(plan, problem, tensors, workspace);
  const StageArgs args{.problem = problem,
                       .tensors = tensors,
                       .sequences = sequences,
                       .chunk = plan.chunk(),
                       .tiling = plan.tiling,
                       .isa = plan.variant.number,
                       .columns = options.columns.empty() ? nullptr : options.columns.data(),
                       .num_columns = static_cast<int32_t>(options.columns.size()),
                       .slot_state = ledger.in<float>(workspace, BufferId::kSlotState),
                       .slot_transition = ledger.in<float>(workspace, BufferId::kTransition),
                       .scratch = ledger.in<std::byte>(workspace, BufferId::kScratch),
                       .scratch_bytes = plan.scratch_bytes};
  if (tensors.report != nullptr) *tensors.report = 0;  // values in host memory are refused, never clamped
  TableView table = known_table(plan.table);
  for (const Step& step : steps) {
    if (step.stage == Stage::kTable) {
      table = fill_table(plan, sequences, ledger.in<std::byte>(workspace, BufferId::kTable),
                         ledger.find(BufferId::kTable)->bytes);
    } else {
      plan.backend->run(args, table, step, executor);
    }
  }
}

bool runs_on_gpu(const Plan& plan) { return plan.backend->enqueue != nullptr; }

void execute_steps(const Plan& plan, const Steps& steps, const Problem& problem, const dr_tensors& tensors,
                   std::byte* workspace, void* stream) {
  if (runs_on_gpu(plan)) {
    execute_cuda(plan, steps, problem, tensors, workspace, stream);
  } else {
    execute_host(plan, steps, problem, tensors, workspace);
  }
}

}  // namespace

void load(const Plan& plan) {
  if (plan.options.device_is_here && runs_on_gpu(plan)) load_cuda(plan);
}

void execute(const Plan& plan, const dr_tensors& tensors, std::byte* workspace, void* stream) {
  const CallCounts counts = counts_of(plan.problem, tensors);
  if (counts.num_tokens == plan.problem.num_tokens && counts.num_seqs == plan.problem.num_seqs) {
    execute_steps(plan, plan.steps, plan.problem, tensors, workspace, stream);
    return;
  }
  Problem fewer = plan.problem;  // without offsets, so nothing is allocated
  fewer.num_tokens = counts.num_tokens;
  fewer.num_seqs = counts.num_seqs;
  execute_steps(plan, steps_of(plan, counts), fewer, tensors, workspace, stream);
}

}  // namespace deltarelay
