// The cpu backend: spreads rows and folds over workers. The assignment of work to workers never changes a bit of the
// result.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/cpu/amx_permission.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/slots.h"
#include "kernels/cpu/spread.h"
#include "kernels/cpu/stages/stages.h"

namespace deltarelay {
namespace cpu {
namespace {

const Kernels& kernels_of(const Problem& problem, int32_t isa) {
  return available_isas()[static_cast<size_t>(isa)].kernels_for(problem);
}

IsaChoice choose(const Problem& problem, const Request& request) {
  return choose_isa(available_isas(), problem, request, [] { return ask_for_amx(); });
}

std::string decline(const Problem& problem, const Request& request) {
  if (request.cut && is_stage(problem.op) && problem.op != Op::kStatePass)
    return std::string("segments: of the stages only state-pass can be cut, found a forced cut of ") +
           name_of(problem.op);
  if (request.device_kind != DR_DEVICE_CPU) return "device: takes a CPU, found a CUDA device";
  if (request.num_columns > 0)
    return "columns: computes all value columns, found a list of " + std::to_string(request.num_columns);
  const bool named = request.isa != nullptr && *request.isa != '\0';
  if (named && cpu_isa_find(request.isa) < 0)
    return std::string("isa: takes an instruction set of this machine, found ") + request.isa;
  if (request.variant != nullptr) return std::string("variant: has none, found ") + request.variant;
  if (request.math != DR_MATH_DEFAULT) return "math: takes default, found tf32";
  if (named) {  // the last question, because it may have a lasting effect on the process
    const IsaChoice choice = choose(problem, request);
    if (*choice.refused != '\0')
      return std::string("isa: takes an instruction set that this process may use, found ") + request.isa + " (" +
             choice.refused + ")";
  }
  return {};
}

int64_t panel_floats(const Problem& problem, const Kernels& kernels) {
  return static_cast<int64_t>(padded_channels(problem.dk)) * kernels.panel_columns;
}

// One: the instruction set that is asked for, or the best that this process may use.
Variants variants(const Problem& problem, const Request& request) {
  const IsaChoice choice = choose(problem, request);
  const Kernels& kernels = kernels_of(problem, choice.index);
  Variant v;
  v.isa = cpu_isa_name(choice.index);
  v.isa_reason = choice.refused;
  v.number = choice.index;
  v.chunk = is_stage(problem.op) ? std::max(1, problem.chunks.chunk) : kChunk;  // in a carry a summary
  v.panel_columns = kernels.panel_columns;
  if (is_stage(problem.op) && problem.op != Op::kStatePass) {
    v.value_tiles = problem.op == Op::kSummary ? 0 : 1;
    Variants list;
    list.add(v);
    return list;
  }
  v.costs.has_local = problem.op == Op::kForward;
  v.state_floats = panels_for(problem.dv, kernels.panel_columns) * panel_floats(problem, kernels);
  v.transition_floats = panels_for(problem.dk, kernels.panel_columns) * panel_floats(problem, kernels);
  Variants list;
  list.add(v);
  return list;
}

size_t scratch_bytes(const Problem& problem, const Variant& variant, int32_t value_tiles) {
  if (is_stage(problem.op)) return stage_scratch_bytes(problem, variant.number, value_tiles);
  const Kernels& kernels = kernels_of(problem, variant.number);
  const int32_t value_panels = panels_for(problem.dv, kernels.panel_columns);
  const int32_t key_panels = panels_for(problem.dk, kernels.panel_columns);
  const size_t bytes = kernels.scratch_bytes(problem, (value_panels + key_panels + value_tiles - 1) / value_tiles);
  return round_up(bytes, kWorkspaceAlignment);
}

void run_rows(const StageArgs& args, const Row* rows, int64_t count, Executor& executor) {
  const Problem& problem = args.problem;
  const Kernels& kernels = kernels_of(problem, args.isa);
  const int32_t value_panels = panels_for(problem.dv, kernels.panel_columns);
  const int32_t key_panels = panels_for(problem.dk, kernels.panel_columns);
  const int64_t tiles = args.tiling.value_tiles;
  const int64_t heads = problem.heads_v;
  // Rows of one sequence are neighbours, so a worker usually has the count of earlier checkpoints in its Memory.
  for_each<CheckpointRows>(
      args, executor, count * heads * tiles, [&](CheckpointRows& memory, int32_t worker, int64_t i) {
        const Row& row = rows[i / (heads * tiles)];
        const int32_t panels = row.work == Work::kSummarize ? value_panels + key_panels : value_panels;
        const Item item{row, static_cast<int32_t>(i / tiles % heads),
                        tile_range(panels, static_cast<int32_t>(tiles), static_cast<int32_t>(i % tiles)),
                        memory.first(args, row.sequence)};
        if (item.panels.count == 0) return;
        kernels.run_item(args, item, args.scratch + worker * args.scratch_bytes);
      });
}

void run_folds(const StageArgs& args, const Fold* folds, int64_t count, Executor& executor) {
  const Problem& problem = args.problem;
  const Kernels& kernels = kernels_of(problem, args.isa);
  const int32_t panels = panels_for(problem.dv, kernels.panel_columns);
  // Columns fold independently, so there are as many tiles as keep all workers busy.
  const auto tiles = static_cast<int32_t>(std::min<int64_t>(panels, args.tiling.threads));
  const int64_t heads = problem.heads_v;
  for_each<NoMemory>(args, executor, count * heads * tiles, [&](NoMemory, int32_t worker, int64_t i) {
    const PanelRange range = tile_range(panels, tiles, static_cast<int32_t>(i % tiles));
    if (range.count > 0)
      kernels.run_fold(args, folds[i / (heads * tiles)], static_cast<int32_t>(i / tiles % heads), range,
                       args.scratch + worker * args.scratch_bytes);
  });
}

// An empty sequence is a row without chunks: its final state is its initial state.
void finish(const StageArgs& args, Executor& executor) {
  const Problem& problem = args.problem;
  if (!problem.batched()) {
    const int64_t last = args.sequences.offsets[args.sequences.num_seqs];
    const auto row_bytes = static_cast<size_t>(problem.dv) * size_of(problem.dtype_o);
    for_each<NoMemory>(args, executor, problem.num_tokens - last, [&](NoMemory, int32_t, int64_t i) {
      for (int32_t h = 0; h < problem.heads_v; ++h)
        std::memset(static_cast<std::byte*>(args.tensors.o) + ((last + i) * problem.o.token + h * problem.o.head) *
                                                                  static_cast<int64_t>(size_of(problem.dtype_o)),
                    0, row_bytes);
    });
  }
  if (!problem.final.used()) return;
  int64_t empty = 0;
  for (int64_t n = 0; n < args.sequences.num_seqs; ++n) empty += args.sequences.length(n) == 0 ? 1 : 0;
  if (empty == 0) return;
  const Kernels& kernels = kernels_of(problem, args.isa);
  const PanelRange all{0, panels_for(problem.dv, kernels.panel_columns)};
  for_each<NoMemory>(args, executor, args.sequences.num_seqs, [&](NoMemory, int32_t worker, int64_t n) {
    if (args.sequences.length(n) != 0) return;
    const Row row{static_cast<int32_t>(n), 0, 0, Work::kEmit, -1, -1, -1};
    for (int32_t head = 0; head < problem.heads_v; ++head)
      for (int32_t p = 0; p < all.count; ++p)  // one panel at a time: scratch is sized for one tile
        kernels.run_item(args, {row, head, {p, 1}, 0}, args.scratch + worker * args.scratch_bytes);
  });
}

void walk(const StageArgs& args, const Row* rows, int64_t count, Executor& executor) {
  if (is_stage(args.problem.op))
    run_stage_rows(args, rows, count, executor);
  else
    run_rows(args, rows, count, executor);
}

void run(const StageArgs& args, const TableView& table, const Step& step, Executor& executor) {
  switch (step.stage) {
    case Stage::kWalk:
      if (step.phase == 1)
        walk(args, table.rows1, table.num_rows1, executor);
      else
        walk(args, table.rows3, table.num_rows3, executor);
      return;
    case Stage::kCarry:
      return run_folds(args, table.folds, table.num_folds, executor);
    case Stage::kChunkLocal:
    case Stage::kOutputs:
      run_stage_chunks(args, executor);
      break;
    case Stage::kSummary:
      run_stage_rows(args, table.rows1, table.num_rows1, executor);
      break;
    case Stage::kChains:
      run_stage_chains(args, executor);
      break;
    default:
      break;
  }
  if (is_stage(args.problem.op))
    finish_stage(args, executor);
  else
    finish(args, executor);
}

constexpr const char* kCosts[] = {""};

}  // namespace
}  // namespace cpu

const Backend kCpuBackend{.name = "cpu",
                          .cost_variants = cpu::kCosts,
                          .costs = cpu::costs,
                          .decline = cpu::decline,
                          .variants = cpu::variants,
                          .scratch_bytes = cpu::scratch_bytes,
                          .run = cpu::run};

}  // namespace deltarelay
