// Runs a stage by the functions of the cpu backend, whole or cut.
#pragma once
#include <set>

#include "kernels/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/stages/stages.h"
#include "stage_call.h"

namespace deltarelay::test {

// How the cpu backend runs a stage. Sequences of a state pass are cut into up to `segments`. With `folds_all` every
// segment is summarized and the final state is the folded one; else the first one emits and the last one is not
// summarized.
struct How {
  int32_t isa = 0, threads = 1, value_tiles = 1, segments = 1;
  bool folds_all = false;
};

// The segment table of a state pass.
struct Table {
  std::vector<Row> first, last;
  std::vector<Fold> folds;
  int32_t slots = 0;
};

inline Table cut_sequences(const StageArgs& args, const How& how) {
  Table table;
  const int64_t chunk = args.problem.chunks.chunk;
  for (int32_t n = 0; n < args.sequences.num_seqs; ++n) {
    const auto chunks = static_cast<int32_t>((args.sequences.length(n) + chunk - 1) / chunk);
    if (chunks == 0) continue;
    const int32_t count = std::min(how.segments, chunks), slot = table.slots;
    const auto begin = [&](int32_t i) { return chunks * i / count; };
    const auto row = [&](int32_t i, Work work) { return Row{n, begin(i), begin(i + 1) - begin(i), work, -1, -1, -1}; };
    if (args.problem.op == Op::kSummary || count == 1) {
      table.first.push_back(row(0, args.problem.op == Op::kSummary ? Work::kSummarize : Work::kEmit));
      continue;
    }
    const int32_t summaries = how.folds_all ? count : count - 2;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t ahead = how.folds_all ? i : i - 1;  // slots before the one of this segment's entering state
      Row emit = row(i, Work::kEmit);
      if (!how.folds_all && i == 0) {
        emit.slot_out = slot;
        table.first.push_back(emit);
        continue;
      }
      if (ahead < summaries) {
        Row summarize = row(i, Work::kSummarize);
        summarize.slot_out = slot + ahead + 1;
        table.first.push_back(summarize);
      }
      emit.slot_in = slot + ahead;
      if (how.folds_all && i + 1 == count) emit.slot_folded = slot + count;
      table.last.push_back(emit);
    }
    table.folds.push_back({n, slot, summaries, how.folds_all});
    table.slots += summaries + 1;
  }
  return table;
}

inline void run_cpu_stage(StageArgs args, const How& how) {
  const Problem& problem = args.problem;
  args.isa = how.isa;
  args.tiling = {how.threads, how.value_tiles};
  args.scratch_bytes = cpu::stage_scratch_bytes(problem, how.isa, how.value_tiles);
  Scratch scratch(args.scratch_bytes, how.threads);
  args.scratch = scratch.data();
  ThreadExecutor executor;
  if (problem.op == Op::kChunkLocal || problem.op == Op::kOutputs) {
    cpu::run_stage_chunks(args, executor);
  } else if (problem.op == Op::kCarry) {
    cpu::run_stage_chains(args, executor);
  } else {
    const Table table = cut_sequences(args, how);
    const auto heads = static_cast<size_t>(table.slots) * static_cast<size_t>(problem.heads_v);
    const Request request{.isa = cpu_isa_name(how.isa)};
    const Variant variant = kCpuBackend.variants(problem, request)[0];
    std::vector<float> states(heads * static_cast<size_t>(variant.state_floats), NAN);
    std::vector<float> transitions(heads * static_cast<size_t>(variant.transition_floats), NAN);
    args.slot_state = states.data();
    args.slot_transition = transitions.data();
    const auto size = [](const auto& list) { return static_cast<int64_t>(list.size()); };
    cpu::run_stage_rows(args, table.first.data(), size(table.first), executor);
    const TableView folds{nullptr, 0, table.folds.data(), size(table.folds), nullptr, 0};
    kCpuBackend.run(args, folds, {.stage = Stage::kCarry}, executor);
    cpu::run_stage_rows(args, table.last.data(), size(table.last), executor);
  }
  cpu::finish_stage(args, executor);
}

// Instruction sets that differ in fp32 arithmetic. Under sanitizers the best one: all are compiled from one text.
inline std::vector<int32_t> isas() {
  std::vector<int32_t> all;
  std::set<const cpu::Kernels*> seen;
  for (int32_t i = 0; i < cpu_isa_count(); ++i) {
    if (DR_SANITIZED != 0 && i > 0) break;
    if (seen.insert(cpu::available_isas()[static_cast<size_t>(i)].fp32).second) all.push_back(i);
  }
  return all;
}

}  // namespace deltarelay::test
